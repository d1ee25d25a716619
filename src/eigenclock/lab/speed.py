"""How fast each encoding trains beside the others, measured in turns so that a busy machine slows all of them alike."""

import time
from collections.abc import Callable

from eigenclock.lab.data import Corpus
from eigenclock.lab.settings import Settings
from eigenclock.lab.train import build, one_step, optimiser

WARM_UP, ROUNDS = 2, 11


def seconds_per_step(settings: Settings, corpus: Corpus, check: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Seconds of a training step under each encoding, on models that are thrown away.

    One step of each in turn, so that whatever else the machine does meanwhile cancels in the ratios; the lower quartile of the
    rounds after the warm-up. ``check`` is called between steps and may raise. An encoding whose step fails is left out: its own run
    says why.
    """
    runs = {}
    for spec in settings.encodings:
        model = build(spec, settings.seed, settings, corpus.vocabulary)
        runs[spec] = (model, optimiser(model, settings.lr))
    found: dict[str, list[float]] = {spec: [] for spec in settings.encodings}
    for step in range(WARM_UP + ROUNDS):
        for spec, (model, adam) in list(runs.items()):
            begun = time.perf_counter()
            try:
                one_step(model, adam, corpus, settings, settings.seed, step, 0.0)
            except Exception:  # an encoding from outside may raise anything
                del runs[spec], found[spec]
                continue
            found[spec].append(time.perf_counter() - begun)
            check()
    return {spec: sorted(times[WARM_UP:])[ROUNDS // 4] for spec, times in found.items()}
