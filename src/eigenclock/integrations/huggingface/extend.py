"""A longer context for a pretrained model: the right parameters from its configuration, written so that plain transformers reads them."""

from dataclasses import dataclass
from typing import Any

import torch

from eigenclock.encodings import Encoding
from eigenclock.encodings.config import Encodings, encodings
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.install import install
from eigenclock.integrations.huggingface.installed import Installed
from eigenclock.integrations.huggingface.scaling import (
    PORTABLE,
    cache_bytes,
    kinds_of,
    parameters_of,
    rewrite,
    rotary_width,
    scaled,
    text_config,
    yarn_numbers,
)
from eigenclock.integrations.huggingface.seams import find_seams
from eigenclock.present.table import Table
from eigenclock.registry import lookup

METHODS = {
    "linear": "every frequency divided by the factor (position interpolation)",
    "ntk": "a larger base: the fastest pair kept, the slowest divided by the factor",
    "yarn": "fast pairs kept, slow pairs divided, a ramp between them, and a sharper softmax where asked for",
    "llama3": "fast pairs kept, slow pairs divided, a smooth mix between them in the number of turns",
    "damped": "experimental: the model's own rotation, and far logits fade towards 0 (a gain)",
    "recency": "experimental: the model's own rotation, and far weights fade (a bias on the logit)",
    "removed": "experimental (DroPE): no rotation at all; needs a short recalibration by training",
}
"""The ways a context is extended; the first four are said in transformers' own keys."""


@dataclass(frozen=True)
class Extended:
    """What an extension did to a model.

    method, original, to: how, and from which length to which. rope_parameters: what config.json says now, None where transformers has no
    words for it. installed: the encoding at work where it has none. pairs: how many pairs of channels keep their frequency, are mixed, and
    are divided. logits: what the logits of turned channels are multiplied by. cache_bytes: a full key and value cache of one row.
    faded: what is left of a logit or weight at the original length, under the methods that fade.
    """

    method: str
    original: int
    to: int
    rope_parameters: dict[str, Any] | None
    installed: Installed | None
    pairs: tuple[int, int, int]
    logits: float
    cache_bytes: int
    faded: float = 1.0

    @property
    def portable(self) -> bool:
        """Whether plain transformers loads and runs the saved model."""
        return self.installed is None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("method", "original", "to", "rope_parameters", "portable", "logits", "cache_bytes")
        return {name: getattr(self, name) for name in names} | {"pairs": dict(zip(("kept", "mixed", "divided"), self.pairs, strict=True))}

    def _lags(self) -> tuple[str, str]:
        """What changes below and above the original length, in words."""
        factor, (kept, mixed, divided), n = f"{self.to / self.original:g}", self.pairs, sum(self.pairs)
        if self.method == "removed":
            return "all order but the causal mask is gone", "as below: content only"
        if self.method in ("damped", "recency"):
            fade = "a logit" if self.method == "damped" else "a weight"
            return (
                f"{fade} a lag of {self.original} back is {self.faded:.3g} of what it was",
                f"{self.faded ** (self.to / self.original):.3g} at the end",
            )
        slower = f"{divided} of {n} pairs see a lag as one {factor} times shorter" + (f", {mixed} as something between" if mixed else "")
        sharper = "" if self.logits == 1 else f"; logits of turned channels are {self.logits:.3g} times as large"
        fast = f"{kept} of {n} go on turning at their own speed" if kept else "no pair meets a new angle"
        return slower + sharper, f"slow pairs stay within the angles they were trained on; {fast}"

    def table(self) -> Table:
        """The report as the table that the command line prints."""
        kept, mixed, divided = self.pairs
        below, above = self._lags()
        rows = [
            ("method", f"{self.method}: {METHODS[self.method]}"),
            ("length", f"{self.original} -> {self.to} (factor {self.to / self.original:g})"),
            ("pairs of channels", f"{kept} keep their frequency, {mixed} are mixed, {divided} are divided by the factor"),
            ("logits of turned channels", f"times {self.logits:.4g}"),
            (f"lags up to {self.original}", below),
            (f"lags from {self.original} to {self.to}", above),
            ("a full cache, one row", f"{self.cache_bytes / 2**20:.1f} MiB"),
            ("saved model", "runs in plain transformers" if self.portable else "needs eigenclock: plain transformers refuses it"),
        ]
        return Table(f"Context extension: {self.method}", ("what", "value"), tuple(rows))


def extend(
    model: Any,
    *,
    to: int,
    method: str = "yarn",
    half_life: float | None = None,
    attention_factor: float | None = None,
    beta_fast: float | None = None,
    beta_slow: float | None = None,
) -> Extended:
    """Extend the context of a pretrained decoder in place, with parameters worked out from its configuration.

    Portable first: ``linear``, ``ntk``, ``yarn`` and ``llama3`` are written as transformers' own ``rope_parameters``, so that the saved
    model loads in plain transformers and in servers that read the same keys. They work for every model that reads those keys. A model
    that is scaled by llama3 already goes on with ``llama3`` (its factor grows) or ``ntk`` (its base grows). The experimental methods
    install an encoding (see :func:`install`), and a model saved with one is refused by plain transformers with one line. Layers with a
    sliding window keep theirs.

    Args:
        model: a transformers decoder that has rotary positions and no scaling yet, or llama3's.
        to: the new length in tokens.
        method: a name in ``METHODS``.
        half_life: for "damped" and "recency": tokens after which a logit, or a weight, is halved; 4 times the original length if left out.
        attention_factor: for "yarn": what queries and keys of turned channels are multiplied by. 1 if left out: without training, the
            paper's 0.1 ln(factor) + 1 harms short questions (measured in docs/context_extension.md).
        beta_fast, beta_slow: for "yarn": turns within the original length from which a pair is kept, 32 if left out, and below which it
            is divided by the factor, 1 if left out.
    Raises: ConfigError where ``to`` is not above the original length, the model is scaled already or has an encoding installed, or a
        number is another method's; UnsupportedError for a model that does not turn by its configuration, or, under the experimental
        methods, without a known seam; UnknownNameError for another method.
    Source: Chen et al. (PI), 2306.15595; Peng et al. (YaRN), 2309.00071; Gelberg et al. (DroPE), 2512.12167.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=256)
    >>> done = extend(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)), to=1024)
    >>> done.rope_parameters["rope_type"], done.rope_parameters["factor"], done.pairs
    ('yarn', 4.0, (1, 3, 4))
    """
    lookup(METHODS, method, "method")
    yarn = yarn_numbers(method, {"attention_factor": attention_factor, "beta_fast": beta_fast, "beta_slow": beta_slow})
    config = text_config(model)
    original = config.max_position_embeddings
    if isinstance(to, bool) or not isinstance(to, int) or to <= original:
        raise ConfigError(f"got to={to!r}; expected a number of tokens above {original}, the model's max_position_embeddings")
    factor, half = to / original, 4 * original if half_life is None else half_life
    if method in PORTABLE:
        kinds = kinds_of(config)
        rows, nested = parameters_of(config, kinds, method)
        before = encodings(config)
        own = {kind: _turning(before, kind) for kind in kinds}
        new_rows = {kind: scaled(method, rows[kind], factor, original, rotary_width(own[kind]), yarn) for kind in kinds}
        new = (dict(config.rope_parameters) | new_rows) if nested else new_rows[kinds[0]]
        rewrite(model, config, new, to)
        first, after, installed = own[kinds[0]], _turning(encodings(config), kinds[0]), None
    else:
        find_seams(model)
        before = encodings(config)
        first = after = _turning(before, kinds_of(config)[0])
        changed = {kind: _experimental(method, one, half) for kind, one in before.items()}
        new, installed = None, install(model, [changed[kind] for kind in before.layers])
        config.max_position_embeddings = to
    return Extended(
        method, original, to, new, installed, _pairs(first, after, factor, method), _logits(after),
        cache_bytes(model, config, first.head_dim, to), 0.5 ** (original / half) if method in ("damped", "recency") else 1.0,
    )  # fmt: skip


def _turning(found: Encodings, kind: str) -> Encoding:
    """The encoding of a layer type, or of the first that turns where the configuration names the type otherwise.

    Raises: ConfigError where none turns.
    """
    if dict(zip(found.layers, found.rotates, strict=True)).get(kind):
        return found[kind]
    turning = next((i for i in range(len(found.layers)) if found.rotates[i]), None)
    if turning is None:
        raise ConfigError(f"got a model whose layers are {', '.join(map(str, found.values()))}; expected rotary positions to extend")
    return found.layer(turning)


def _experimental(method: str, own: Encoding, half_life: float) -> Encoding:
    """An encoding that transformers has no words for."""
    from eigenclock.encodings import decay, decay_bias, nope

    sizes: dict[str, Any] = {"heads": own.heads, "kv_heads": own.kv_heads}
    if method == "removed":
        return nope(own.head_dim, **sizes)
    return own * (decay if method == "damped" else decay_bias)(own.head_dim, half_life=half_life, **sizes)


def _pairs(before: Encoding, after: Encoding, factor: float, method: str) -> tuple[int, int, int]:
    """How many frequencies are kept, mixed and divided by the factor."""
    if method == "removed":
        return 0, 0, 0
    old, new = (torch.cat([turn.freq.flatten() for turn in e.generator().split().turns]) for e in (before, after))
    ratio = old / new
    kept, divided = (int((ratio - x).abs().lt(1e-3 * x).sum()) for x in (1.0, factor))
    return kept, ratio.numel() - kept - divided, divided


def _logits(encoding: Encoding) -> float:
    """What the encoding's amplitude does to the logits of turned channels."""
    one = torch.ones(1, 1, 1, encoding.head_dim, dtype=torch.float64)
    q, k = encoding.read_in(one, one)
    turns = encoding.generator().split().turns
    return float((q * k).flatten()[turns[0].start]) if turns else 1.0
