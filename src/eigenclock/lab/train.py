"""One training run: a plain loop whose state can be saved after any step and continued with the same numbers."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from eigenclock.errors import ConfigError
from eigenclock.lab.data import Corpus, batch
from eigenclock.lab.folder import RunFolder, run_name
from eigenclock.lab.model import SmallGPT
from eigenclock.lab.settings import Settings

LOG_EVERY = 50


@dataclass(frozen=True)
class Trained:
    """A run that reached its last step.

    Units: ``seconds`` over all steps; ``train_bits`` the mean loss since the last logged
    step, in bits. ``diverged_at`` is the step after which the loss or a learned number of the encoding was no longer finite, if any.
    """

    model: SmallGPT
    seconds: float
    train_bits: float | None
    diverged_at: int | None


def build(spec: str, seed: int, settings: Settings, vocabulary: int) -> SmallGPT:
    """The untrained model of one run."""
    return SmallGPT(spec, vocabulary=vocabulary, layers=settings.layers, width=settings.width, heads=settings.heads, seed=seed)


def optimiser(model: SmallGPT, lr: float) -> torch.optim.AdamW:
    """AdamW that decays matrices only: neither norms nor what an encoding learns."""
    position = {id(weight) for weight in model.position_parameters()}
    matrices, others = [], []
    for weight in model.parameters():
        (matrices if weight.dim() == 2 and id(weight) not in position else others).append(weight)
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.99))


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Straight up over the first twentieth, then half a cosine down towards zero.

    >>> learning_rate(0, 100, 1.0), learning_rate(5, 100, 1.0), learning_rate(99, 100, 1.0) < 1e-3
    (0.2, 1.0, True)
    """
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def train(spec: str, seed: int, settings: Settings, corpus: Corpus, folder: RunFolder, on_step: Callable[[int, float], None]) -> Trained:
    """Trains from the last checkpoint, or from the start, to the last step.

    ``on_step(steps done, bits)`` is called after each step. When it raises KeyboardInterrupt the state is saved first.

    Raises:
        ConfigError: the checkpoint belongs to another model.
        EigenclockError: the run folder cannot be written; the checkpoint before is still whole.
    """
    run = run_name(spec, seed)
    model = build(spec, seed, settings, corpus.vocabulary)
    adam = optimiser(model, settings.lr)
    state: dict[str, Any] = {"step": 0, "seconds": [], "pending": [], "diverged_at": None}
    torch.manual_seed(seed)  # an encoding with noise draws from it
    if (saved := folder.load(run)) is not None:
        try:
            model.load_state_dict(saved.pop("model"))
            adam.load_state_dict(saved.pop("optimiser"))
            torch.set_rng_state(saved.pop("rng"))
        except (KeyError, RuntimeError, ValueError):
            path = folder.file(f"checkpoints/{run}.pt")
            raise ConfigError(f"{path} belongs to another model; delete it to train this run again") from None
        state = saved
    folder.rewind(spec, seed, state["step"])

    def save() -> None:
        folder.save(run, {**state, "model": model.state_dict(), "optimiser": adam.state_dict(), "rng": torch.get_rng_state()})

    model.train()
    while state["step"] < settings.steps and state["diverged_at"] is None:
        begun = time.perf_counter()
        lr = learning_rate(state["step"], settings.steps, settings.lr)
        loss = one_step(model, adam, corpus, settings, seed, state["step"], lr)
        state["step"] += 1
        state["seconds"].append(time.perf_counter() - begun)
        state["pending"].append(loss / math.log(2))
        if not math.isfinite(loss) or not model.is_finite():
            state["diverged_at"] = state["step"]
        bits = state["pending"][-1]
        last = state["step"] == settings.steps or state["diverged_at"] is not None
        if state["step"] % LOG_EVERY == 0 or last:
            folder.append(_line(spec, seed, state, lr, settings))
            state["pending"] = [] if not last else state["pending"]
        if state["step"] % settings.save_every == 0 or last:
            save()
        try:
            on_step(state["step"], bits)
        except KeyboardInterrupt:
            save()
            raise
    return Trained(model, sum(state["seconds"]), _mean(state["pending"]), state["diverged_at"])


def one_step(model: SmallGPT, adam: torch.optim.Optimizer, corpus: Corpus, settings: Settings, seed: int, step: int, lr: float) -> float:
    """One update; returns the loss before it, in nats."""
    inputs, targets = batch(corpus.train, seed=seed, step=step, size=settings.batch, length=settings.length)
    for group in adam.param_groups:
        group["lr"] = lr
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    return loss.item()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs a block on ``count`` threads and restores the number before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _line(spec: str, seed: int, state: dict[str, Any], lr: float, settings: Settings) -> dict[str, Any]:
    recent = _median(state["seconds"][-LOG_EVERY:])
    speed = round(settings.batch * settings.length / recent, 1)
    return {"encoding": spec, "seed": seed, "step": state["step"], "train_bits": _mean(state["pending"]), "lr": lr, "per_second": speed}


def _mean(values: list[float]) -> float | None:
    mean = sum(values) / len(values) if values else math.nan
    return mean if math.isfinite(mean) else None


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
