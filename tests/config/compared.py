"""Every model type of transformers: what ``ec.encodings`` says of its config, against the logits of its real attention layers.

    PYTHONPATH=tests:src python -m config.compared [TYPE ..]

prints how the types named compare under every law; without names it writes docs/attention_of_transformers.md from all of them.
"""

import inspect
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from config.real_attention import TOKENS, Seen, run, without_rotation
from config.shrunk import LAWS, LENGTH, CannotRun, defaults, model_of, said, shrunk, under
from config.towers import called
from eigenclock.encodings.config.patches import TOWERS

POSITIONS = (0, 1, 2, 3, 5, 7, 20, 60, 90, 150, 211)  # beyond the original length of every scaled law
MOST = 60_000_000  # parameters: larger models are not built
TOLERANCE = 3e-5  # of the largest logit: their tables are of float32
PAGE = Path(__file__).parents[2] / "docs" / "attention_of_transformers.md"
UNHEARD = ("csm_depth_decoder_model",)  # takes positions, and counts by itself
OUTCOMES = {
    "agrees": "the scores are the logits of its attention layers",
    "refused": "`encodings` says in one error why it does not read the config",
    "text model": "its config is read as that of its text model, which has a row of its own",
    "assumed": "the logits are others, and the reading warned what it assumed",
    "differs": "the logits are others, and nothing said so",
    "cannot run": "there is no attention to compare with",
}


@dataclass(frozen=True)
class Outcome:
    """How the reading of a config compares: one of OUTCOMES, and why."""

    what: str
    why: str = ""
    layers: int = 0
    worst: float = 0.0


def compare(kind: str, law: str = "default") -> Outcome:
    """A model type under a law."""
    try:
        if (text := _text_of(whole := defaults(kind))) is not None:
            return _inside(whole, text)
        try:
            config = under(shrunk(kind), law)
        except CannotRun:
            if law == "default" and (refused := refusal(whole)):
                return Outcome("refused", refused)
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encs = ec.encodings(config, length=LENGTH if law == "longrope" else None)
        model = model_of(config, MOST)
        if law == "longrope" and _counts_itself(model):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                encs = ec.encodings(config)  # it stays within its original length
        if config.model_type in TOWERS:
            still, real, times = called(model, config, next(iter(encs.values())).clock.names)
            return judged(encs, still.seen, real.seen, times, real.factors)
        return judged(encs, *runs(model, encs))
    except CannotRun as reason:
        return Outcome("cannot run", str(reason))
    except ec.EigenclockError as error:
        return Outcome("refused", f"{type(error).__name__}: {error}")


def refusal(config: Any) -> str:
    """Why a config is not read; empty where it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ec.encodings(config)
        except ec.EigenclockError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _text_of(config: Any) -> Any:
    """The config of the text model within a config; None where there is none."""
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise CannotRun(said(error)) from error
    return None if text is config else text


def _inside(config: Any, text: Any) -> Outcome:
    found = []
    for one in (config, text):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encs = ec.encodings(one)
        found.append((str(dict(encs)), encs.layers, encs.conventions))
    if found[0] != found[1]:
        return Outcome("differs", f"read as {found[0]}, but its text model as {found[1]}")
    return Outcome("text model", text.model_type)


def runs(model: nn.Module, encs: ec.Encodings) -> tuple[list[Seen], list[Seen], Tensor, set[float]]:
    """What softmax received without and with rotation, the times of the tokens, and the numbers that anything was multiplied by.

    Raises: CannotRun where the model cannot be called, or calls no softmax over its tokens.
    """
    inputs, times = inputs_of(model, max((enc.clock.width for enc in encs.values()), default=1))
    try:
        with without_rotation(model):
            still = run(model, inputs)
        real = run(model, inputs)
    except Exception as error:
        raise CannotRun(f"{type(model).__name__} cannot be called: {said(error)}") from error
    if not real.seen or len(still.seen) != len(real.seen):
        raise CannotRun("no softmax over the tokens")
    return still.seen, real.seen, times, real.factors


def inputs_of(model: nn.Module, axes: int) -> tuple[dict[str, Any], Tensor]:
    """Tokens at far positions, on several axes where the reading has them; at 0, 1, 2, .. where a model counts by itself."""
    takes = inspect.signature(model.forward).parameters
    if "input_ids" not in takes:
        raise CannotRun(f"{type(model).__name__} takes no input_ids")
    inputs: dict[str, Any] = {"input_ids": torch.arange(3, 3 + TOKENS)[None]}
    if "attention_mask" in takes:
        inputs["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.long)
    if "use_cache" in takes:
        inputs["use_cache"] = False
    if _counts_itself(model):
        counted = torch.arange(TOKENS)
        return inputs, counted if axes == 1 else counted[:, None].expand(-1, axes)
    at = torch.tensor(POSITIONS)
    if axes > 1:
        at = torch.stack([at, *(torch.randint(0, 90, (TOKENS,)) for _ in range(axes - 1))], -1)
    inputs["position_ids"] = at[None] if axes == 1 else at.T[:, None]
    return inputs, at


def _counts_itself(model: nn.Module) -> bool:
    return "position_ids" not in inspect.signature(model.forward).parameters or model.config.model_type in UNHEARD


def judged(encs: ec.Encodings, still: list[Seen], real: list[Seen], times: Tensor, factors: set[float]) -> Outcome:
    """Scores of what is not turned against the logits of what is."""
    worst, where = 0.0, ""
    attending = [i for i, key in enumerate(encs.layers) if key in encs]
    for i, (before, after) in enumerate(zip(still, real, strict=True)):
        counted = attending[i] if i < len(attending) else i
        index = counted if before.layer is None else before.layer
        key = encs.layers[index] if index < len(encs.layers) else next(iter(encs))
        if key not in encs:
            return Outcome("differs", f"layer {index} ({key}) has softmax attention, and no encoding")
        apart = difference(encs[key], encs.conventions.scale, before, after, times, factors)
        if not apart <= worst:
            worst, where = apart, f"layer {index} ({key}) is off by {apart:.1e} of the largest logit"
    seen = {one.layer for one in still}
    idle = [i for i in attending if i not in seen]
    if None not in seen and idle and len(still) < len(attending):  # layers that share one attention stand under one number
        return Outcome("differs", f"layers {idle} have an encoding, and no softmax attention: {encs.layers}", len(real), worst)
    if worst <= TOLERANCE:
        return Outcome("agrees", "", len(real), worst)
    warned = next((text for text in encs.warnings if "not known here" in text), "")
    return Outcome("assumed" if warned else "differs", f"{where}; {warned or dict(encs)}", len(real), worst)


def difference(enc: ec.Encoding, scale: float | None, before: Seen, after: Seen, times: Tensor, factors: set[float]) -> float:
    """The largest difference between our scores and their logits, a constant per query aside, over the largest logit."""
    q, k, logits = before.q, before.k, after.logits
    if (enc.heads, enc.head_dim) != (q.shape[0], q.shape[-1]):
        return float("inf")
    shared = enc.heads // (enc.kv_heads or enc.heads)
    groups = enc.heads // shared
    if shared > 1 and torch.equal(k, k[:groups].repeat(shared, 1, 1)):  # heads i, i + groups, .. share a key: put them side by side
        q, k, logits = (x.unflatten(0, (shared, groups)).transpose(0, 1).flatten(0, 1) for x in (q, k, logits))
    if not torch.equal(k, k[::shared].repeat_interleave(shared, 0)):
        return float("inf")
    factor = enc.head_dim**-0.5 if scale is None else scale
    given = 1.0 if _scaled_before(before, factor, factors) else factor
    grows = enc.acts_on != "score"  # a bias, which grows beyond the query
    ours = ec.scores(q[None], k[::shared][None], enc, times=times, scale=given, causal=grows)[0]
    seen = (logits > -1e30) & ours.isfinite()
    apart = _centred(ours - logits, seen)
    return float(apart.abs().max() / logits[seen].abs().max())


def _centred(apart: Tensor, seen: Tensor) -> Tensor:
    """Differences less their mean over what a query sees, since softmax takes no notice of a constant per query."""
    apart = torch.where(seen, apart, 0.0)
    return torch.where(seen, apart - apart.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True), 0.0)


def _scaled_before(before: Seen, factor: float, factors: set[float]) -> bool:
    """Whether the queries, or queries and keys by its root, were multiplied by the scale before their product."""
    seen = before.logits > -1e30
    apart = _centred(before.q @ before.k.mT - before.logits, seen)
    bare = float(apart.abs().max()) <= 1e-4 * (1 + float(before.logits[seen].abs().max()))
    return bare and any(abs(f - factor) < 1e-6 * factor or abs(f - factor**0.5) < 1e-6 for f in factors)


def laws_of(kind: str) -> tuple[str, ...]:
    """The laws that the default config of a type can name."""
    try:
        under(shrunk(kind), "linear")
    except CannotRun:
        return ("default",)
    return tuple(LAWS)


def kinds() -> list[str]:
    """Every model type of the installed transformers."""
    from transformers import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING)


def of(kind: str) -> dict[str, Outcome]:
    """A model type under every law it can name; the default alone where that says enough."""
    found = {"default": compare(kind)}
    if found["default"].what in ("agrees", "assumed", "differs"):
        found |= {law: compare(kind, law) for law in laws_of(kind)[1:]}
    return found


# --- the page --------------------------------------------------------------------------------------------------------------------------


def cells(found: dict[str, Outcome]) -> tuple[str, str]:
    """What stands in the row of a type: how it compares, and why where that is not "agrees"."""
    same = {outcome.what for outcome in found.values()}
    if same == {"agrees"}:
        return "agrees", ", ".join(found)
    groups: dict[tuple[str, str], list[str]] = {}
    for law, outcome in found.items():
        why = "" if outcome.what == "agrees" else _short(outcome.why)
        groups.setdefault((outcome.what, why), []).append(law)
    what = found["default"].what
    if len(groups) == 1:
        return what, next(iter(groups))[1]
    return what, "; ".join(f"{', '.join(laws)}: {kind if kind == 'agrees' else f'{kind}, {why}'}" for (kind, why), laws in groups.items())


def _short(text: str, width: int = 170) -> str:
    text = " ".join(text.replace("|", "/").split())
    return text if len(text) <= width else text[: width - 2] + ".."


def page(rows: dict[str, dict[str, Outcome]]) -> str:
    """The page in Markdown."""
    counted = Counter(found["default"].what for found in rows.values())
    lines = [INTRO.format(version=version("transformers"), types=len(rows))]
    lines += [f"| {what} | {counted[what]} | {meaning} |" for what, meaning in OUTCOMES.items()]
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, found in rows.items():
        groups.setdefault(cells(found), []).append(kind)
    for what, meaning in OUTCOMES.items():
        lines += [f"\n## {what}: {meaning}\n\n| model types | {'laws' if what == 'agrees' else 'why'} |\n|---|---|"]
        lines += [f"| {', '.join(names)} | {why} |" for (kind, why), names in sorted(groups.items(), key=lambda x: x[1]) if kind == what]
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    """The cells of every type that stands in a page."""
    out: dict[str, tuple[str, str]] = {}
    what = ""
    for line in text.splitlines():
        if line.startswith("## "):
            what = line.removeprefix("## ").partition(":")[0]
        parts = line.removeprefix("| ").removesuffix(" |").split(" | ") if line.startswith("| ") and what else []
        if len(parts) == 2 and parts[0] != "model types":
            out |= dict.fromkeys(parts[0].split(", "), (what, parts[1]))
    return out


INTRO = """\
# Configs of transformers, as read and as their attention layers act

transformers {version} has {types} model types. The default config of each was made small and its model built with random weights. The
model ran twice on the same tokens, once as it is and once with a rotary function that turns nothing; `ec.scores` of the queries and
keys of the second run, under what `ec.encodings(config)` says, was held against the logits that softmax received in the first, in every
layer, with scale, biases and temperatures. A rotary section was also given each of the laws linear, yarn, llama3 and longrope.

The page is written by `PYTHONPATH=tests:src python -m config.compared`; tests compare a sample of its rows, and all of them where they are
slow. The counts are those of the default configs.

| | types | |
|---|---|---|"""


def main(names: list[str]) -> None:
    from transformers import logging

    logging.set_verbosity_error()
    rows = {}
    for kind in names or kinds():
        rows[kind] = of(kind)
        if names:
            for law, outcome in rows[kind].items():
                print(f"{kind} {law}: {outcome.what} {outcome.worst:.1e} {outcome.why}")
    if not names:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
