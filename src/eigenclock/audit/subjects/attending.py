"""Functions of attention itself: f(q, k, v, positions) -> out, with a mask and documents where it takes them, and FlexAttention's
score_mod(score, b, h, q_idx, kv_idx)."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Batch, Full, Probe
from eigenclock.audit.subjects.acting import FORMS, HEAD_DIM, HEADS, LAYOUTS, WIDTHS, times_as
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.outputs import Attend, reader
from eigenclock.audit.subjects.stepping import of_own_cache
from eigenclock.errors import ConfigError, UnsupportedError

VALUES = ("v", "value", "values", "value_states")
MASKS = ("mask", "attention_mask", "padding_mask", "key_padding_mask")
"""Names of an option that takes a mask (B, T), 1 or True where a token is real."""
DOCUMENTS = ("documents", "document_ids", "segment_ids", "seq_ids", "doc_ids")
"""Names of an option that takes the document (B, T) of each token."""
BATCHES: dict[str, Callable[[Tensor], Tensor]] = {"(B, H, T, D)": lambda x: x, "(B, T, H, D)": lambda x: x.transpose(1, 2)}
AHEAD = 2
"""How far after the query a key is put, to see whether it is attended to."""


def of_attention(function: Callable[..., Tensor], options: Options, name: str, kind: str, module: dict[str, Any]) -> Probe:
    """The probe of f(q, k, v, positions) -> out, one softmax attention without a mask of its caller.

    Raises: ConfigError where it takes no vectors as they are tried.
    """
    heads, dtype = options.heads or HEADS, options.dtype or torch.float32
    for width in (options.head_dim,) if options.head_dim is not None else WIDTHS:
        for layout, (there, back) in LAYOUTS.items():
            for form, shaped in FORMS.items():

                def full(
                    q: Tensor, k: Tensor, v: Tensor, times: Tensor, there: Any = there, back: Any = back, shaped: Any = shaped
                ) -> Tensor:
                    return back(function(there(q), there(k), there(v), shaped(times_as(times, None))))

                x = torch.randn(3, heads, 7, width, generator=torch.Generator().manual_seed(0)).to(dtype)
                if not _attends(full, x):
                    continue
                if keeps_keys(full, x):
                    return of_own_cache(function, options, name, kind, told="positions", **module)
                note = f"{name} -> attention by its signature; vectors {layout}, positions {form}"
                probe = Probe(
                    name, kind, width, heads, heads, options.length, dtype, fractional=_takes_fractions(full, x), full=full, notes=(note,),
                    batch=_batch(function, layout, shaped), **module,
                )  # fmt: skip
                if counts_places(full, x):
                    return replace(probe, counts=True, unread="it counts the places in its calls, whatever positions it is given")
                return _with_scores(probe, _attend(function, full, layout, shaped))
    raise ConfigError(
        f"got {name}, which gives no attention (B, H, T, D) or (B, T, H, D) for q, k and v of that shape with positions (T,): give "
        "head_dim= and heads=, or wrap it in a function that does"
    )


def _attends(full: Callable[..., Tensor], x: Tensor) -> bool:
    """Whether the last token of a head sees the first one of its own head, and nothing of other heads."""
    other = x.clone()
    other[1, 0, 0], other[2, 0, 0] = -x[1, 0, 0], 3 * x[2, 0, 0]
    try:
        out, changed = (full(*given, torch.arange(x.shape[2])) for given in (x, other))
    except Exception:  # code of others refuses with whatever it happens to run into
        return False
    if out.shape != x[0].shape or torch.allclose(out[0, -1], changed[0, -1]):
        return False
    return torch.equal(out[1:], changed[1:])


def keeps_keys(full: Callable[..., Tensor], x: Tensor) -> bool:
    """Whether a call at later positions answers by what an earlier call held, as attention with a cache of its own does."""
    n = x.shape[2]
    answers = []
    for before in (x, x.flip(3)):
        try:
            full(*before, torch.arange(n))
            answers.append(full(*x, torch.arange(n, 2 * n)))
        except Exception:  # code of others refuses with whatever it happens to run into
            return False
    return answers[0].shape == answers[1].shape and not torch.allclose(answers[0], answers[1])


def counts_places(full: Callable[..., Tensor], x: Tensor) -> bool:
    """Whether attention does not use its positions and still depends on the order of the keys before a query."""
    n = x.shape[2]
    at, order = torch.arange(n), torch.tensor([*range(n - 2, -1, -1), n - 1])
    try:
        plain, moved = full(*x, at), full(*x, 3 * at + 2)
        mixed = full(*x[:, :, order], at)
    except Exception:  # code of others refuses with whatever it happens to run into
        return False
    limit = 64 * torch.finfo(x.dtype).eps * float(plain.abs().max())
    return torch.equal(plain, moved) and float((mixed - plain)[:, -1].abs().max()) > limit


def _attend(function: Callable[..., Tensor], full: Full, layout: str, shaped: Callable[[Tensor], Tensor]) -> Attend:
    """The same for a batch (B, H, T, D) that shares its times; row by row where vectors have no axis for it."""
    moved = BATCHES.get(layout)

    def attend(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        if moved is not None:
            return moved(function(moved(q), moved(k), moved(v), shaped(times_as(times, None))))
        return torch.stack([full(*rows, times) for rows in zip(q, k, v, strict=True)])

    return attend


def _with_scores(probe: Probe, attend: Attend) -> Probe:
    """The probe with the scores that its outputs show; with a note why they cannot be read where they show none."""
    found = reader(attend, probe.heads, probe.head_dim, probe.dtype)
    if isinstance(found, str):
        return replace(probe, unread=found)
    wide = reader(attend, probe.heads, probe.head_dim, torch.float64)
    q, k = probe.content(1)
    now, later = torch.zeros(1, dtype=torch.int64), torch.full((1,), min(AHEAD, probe.length - 1))
    causal = not bool(torch.isfinite(found.scores(q, k, now, later)).any())
    what = "weights are their products" if found.products else "the logarithm of softmax weights, up to a constant for each query"
    note = f"scores are read from what it gives for chosen values: {what}"
    exact = wide.scores if not isinstance(wide, str) and wide.products == found.products else None
    return replace(probe, scores=found.scores, exact=exact, causal=causal, weighed=not found.products, notes=(*probe.notes, note))


def _batch(function: Any, layout: str, shaped: Callable[[Tensor], Tensor]) -> Batch | None:
    """The call of a batch, where vectors have an axis for it and the function takes a mask or documents by a name that is known here."""
    given = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters
    mask_name, ids_name = (next((n for n in given if n.lower() in known), None) for known in (MASKS, DOCUMENTS))
    moved = BATCHES.get(layout)
    if moved is None or (mask_name is None and ids_name is None):
        return None

    def batch(q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, documents: Tensor | None) -> Tensor:
        more: dict[str, Tensor] = {}
        for name, value, words in ((mask_name, mask, "a mask"), (ids_name, documents, "documents")):
            if value is not None and name is None:
                raise UnsupportedError(f"got {words} for a function without an argument for it; expected one of {(*MASKS, *DOCUMENTS)}")
            more |= {} if value is None or name is None else {name: value}
        b, _, t, _ = q.shape
        if times is None or bool((times == times[:1]).all()):
            at = shaped(torch.arange(t) if times is None else times[0])
        else:
            at = times
        try:
            out = moved(function(moved(q), moved(k), moved(v), at, **more))
        except Exception as error:  # code of others refuses with whatever it happens to run into
            if at is times or b > 1:
                raise UnsupportedError(f"got a batch with positions {tuple(at.shape)}, which it does not take: {error}") from error
            raise
        return out

    return batch


def _takes_fractions(full: Callable[..., Tensor], x: Tensor) -> bool:
    n = x.shape[2]
    try:
        half, whole = (full(*x, t) for t in (torch.arange(n).double() * 1.25, torch.arange(n).double()))
    except Exception:
        return False
    return not torch.equal(half, whole)


def of_score_mod(function: Callable[..., Any], options: Options, name: str, kind: str) -> Probe:
    """The probe of a score_mod: what it makes of inner products, which are given to it as FlexAttention does, by index.

    Raises: ConfigError where it gives no score.
    """
    heads, dtype, width = options.heads or HEADS, options.dtype or torch.float32, options.head_dim or HEAD_DIM

    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        if not torch.equal(query_times, query_times.round()) or not torch.equal(key_times, key_times.round()):
            raise ConfigError("got positions between whole numbers; a score_mod takes indices")
        z = q.to(torch.promote_types(q.dtype, torch.float32)) @ k.to(torch.promote_types(k.dtype, torch.float32)).mT
        row, head = torch.zeros((), dtype=torch.long), torch.arange(heads)[:, None, None]
        return function(z, row, head, query_times.long()[:, None], key_times.long()).expand(z.shape)

    try:
        fits = scores(torch.ones(heads, 3, width, dtype=dtype), torch.ones(heads, 5, width, dtype=dtype), torch.arange(3), torch.arange(5))
        same = torch.ones(heads, 3, width, dtype=torch.float64)
        wide = scores(same, same, torch.arange(3), torch.arange(3))
    except Exception as error:
        raise ConfigError(
            f"got {name}, a score_mod that gives no scores for {heads} heads: {' '.join(str(error).split())[:120]}; give heads="
        ) from error
    note = f"{name}(score, b, h, q_idx, kv_idx) by its signature, on inner products of {heads} heads, keys at or before the query"
    exact = scores if wide.dtype == torch.float64 else None
    assert fits.ndim == 3
    return Probe(name, kind, width, heads, heads, options.length, dtype, causal=True, scores=scores, exact=exact, notes=(note,))
