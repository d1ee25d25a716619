"""Functions and modules without positions, which count rows themselves: f(x) -> x' and f(q, k) -> (q', k'), row i moved to position i."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.audit.subjects.acting import Act, probe_of_action, search
from eigenclock.audit.subjects.options import Options
from eigenclock.encodings import rope
from eigenclock.encodings.config import Conventions, Encodings

Rows = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Queries and keys (B, H, n, D) each -> both (B, H, n, E): B sequences, each counted from 0."""
SHAPES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, int], Tensor]]] = {
    "(B, T, D)": (lambda x: x.flatten(0, 1), lambda y, heads: y.unflatten(0, (-1, heads))),
    "(B, H, T, D)": (lambda x: x, lambda y, heads: y),
    "(B, T, H, D)": (lambda x: x.transpose(1, 2), lambda y, heads: y.transpose(1, 2)),
}
"""Name -> from (B, H, n, D) and, knowing the heads, back; the first one takes every head for a sequence."""
NUMBERS = 1 << 23
"""The most numbers in the sequences of one call."""
LAYER = "full_attention"


def probe_of_rows(
    function: Callable[..., Any], sides: int, options: Options, name: str, how: str, kind: str, module: nn.Module | None
) -> Probe | None:
    """The probe of a function of x, or of q and k where sides is 2; None where it is none that moves each row by its own place.

    One that keeps ``theta`` and ``precompute_freqs_cis(embedding_size, end, theta, dtype)``, as equinox's does, is held to that table.
    """
    size = getattr(function, "embedding_size", None)
    chosen = Options(options.head_dim or (size if isinstance(size, int) else None), options.heads, options.length, options.dtype)
    for layout, call in _calls(function, sides):
        found = search([(f"sequences {layout}, each row at its own place", _act(call))], chosen)
        if found is not None and _by_place(call, found.heads, found.head_dim):
            break
    else:
        return None
    more: dict[str, Any] = {} if module is None else {"module": module}
    claimed = _claimed(function, found.head_dim)
    if claimed is not None:
        enc = rope(found.head_dim, heads=found.heads, freq=claimed, pairing="half")
        table = RotaryTable(_turned(call, found.heads, found.head_dim), 1.0, found.head_dim, "half", name)
        more |= {"tables": {LAYER: table}, "encodings": Encodings({LAYER: enc}, Conventions("its own table", pairing="half"))}
    return probe_of_action(found, options, name, kind, (how,), **more)


def _calls(function: Callable[..., Any], sides: int) -> Iterator[tuple[str, Rows]]:
    """Ways of giving it sequences. What is no torch code takes NumPy arrays, and gives what can be read as one."""

    batched = _batched(function)

    def in_numpy(*given: Tensor) -> Any:
        made = batched(*(_padded(x).detach().numpy() for x in given))
        size = given[0].shape
        cut = [torch.from_numpy(np.array(part))[: size[0], ..., : size[-2], :] for part in (made if sides == 2 else (made,))]
        return cut if sides == 2 else cut[0]

    def shaped(call: Callable[..., Any], there: Callable[[Tensor], Tensor], back: Callable[[Tensor, int], Tensor]) -> Rows:
        def rows(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            a, b = call(there(q), there(k)) if sides == 2 else (call(there(q)), call(there(k)))
            return back(a, q.shape[1]), back(b, k.shape[1])

        return rows

    def one_by_one(*given: Tensor) -> Any:
        made = [function(*rows) for rows in zip(*given, strict=True)]
        return tuple(torch.stack([both[i] for both in made]) for i in (0, 1)) if sides == 2 else torch.stack(made)

    for layout, (there, back) in SHAPES.items():
        yield layout, shaped(function, there, back)
    yield "(T, D)", shaped(one_by_one, *SHAPES["(B, T, D)"])
    yield "(B, T, D) as NumPy arrays", shaped(in_numpy, *SHAPES["(B, T, D)"])


def _batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Modules of equinox take one sequence; they are given a batch, and compiled, as their users do it. Others as they are."""
    if not type(function).__module__.startswith("equinox."):
        return function
    import jax

    return jax.jit(jax.vmap(function))


def _padded(x: Tensor) -> Tensor:
    """Sequences (N, .., n, D) made longer, and more of them, to powers of two: code that is compiled for each shape sees few of them."""
    rows, more = ((1 << (size - 1).bit_length()) - size for size in (x.shape[-2], x.shape[0]))
    longer = torch.nn.functional.pad(x, (0, 0, 0, rows))
    return torch.cat([longer, longer.new_zeros(more, *longer.shape[1:])]) if more else longer


def _act(call: Rows) -> Act:
    """An action at given times: vectors are put at their places into as many sequences as tokens share a time, and read from there."""

    def act(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        if times.is_floating_point() and bool((times != times.round()).any()):
            raise ValueError("whole positions only")
        if q.shape[0] != k.shape[0]:
            raise ValueError("queries and keys of one number of heads only")
        whole = times.long()
        rank = _rank(whole)
        n, most = int(whole.max()) + 1, int(rank.max()) + 1
        at_once = max(1, NUMBERS // (n * q.shape[0] * q.shape[-1]))
        out: list[Tensor] = []
        for start in range(0, most, at_once):
            chosen = ((rank >= start) & (rank < start + at_once)).nonzero().flatten()
            at = rank[chosen] - start, slice(None), whole[chosen]
            sequences = [x.new_zeros(min(at_once, most - start), x.shape[0], n, x.shape[-1]) for x in (q, k)]
            for into, x in zip(sequences, (q, k), strict=True):
                into[at] = x[:, chosen].transpose(0, 1)
            moved = call(sequences[0], sequences[1])
            out = out or [y.new_empty(*q.shape[:2], y.shape[-1]) for y in moved]
            for into, y in zip(out, moved, strict=True):
                into[:, chosen] = y[at].transpose(0, 1)
        return out[0], out[1]

    return act


def _rank(times: Tensor) -> Tensor:
    """How many tokens before each one have the same time, (T,).

    >>> _rank(torch.tensor([5, 0, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = torch.argsort(times, stable=True)
    ordered = times[order]
    rank = torch.empty_like(times)
    rank[order] = torch.arange(times.numel()) - torch.searchsorted(ordered, ordered)
    return rank


def _by_place(call: Rows, heads: int, width: int) -> bool:
    """Whether a row is moved by its place, and by nothing in the rows beside it."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(heads, 1, width, generator=random).expand(-1, 6, -1).clone()
    other = torch.randn(heads, 6, width, generator=random)
    other[:, 3] = x[:, 3]
    try:
        moved, beside = (call(rows[None], rows[None])[0][0] for rows in (x, other))
    except Exception:  # code of others refuses with whatever it happens to run into
        return False
    return not torch.allclose(moved[:, 1], moved[:, 3], rtol=1e-4, atol=1e-4) and torch.allclose(moved[:, 3], beside[:, 3], atol=1e-6)


def _claimed(function: Any, width: int) -> Tensor | None:
    """The angles of row 1 of the table that it makes of its own base, (D / 2,)."""
    make, theta = getattr(function, "precompute_freqs_cis", None), getattr(function, "theta", None)
    if not callable(make) or not isinstance(theta, int | float):
        return None
    try:
        made: Any = make(width, 2, theta, getattr(function, "dtype", None))
    except TypeError:  # another function of that name
        return None
    cos, sin = (torch.as_tensor(part.tolist(), dtype=torch.float64)[1] for part in made)
    return torch.atan2(sin, cos)


def _turned(call: Rows, heads: int, width: int) -> Tensor:
    """The angles by which it turns row 1, halves paired, (D / 2,)."""
    n = width // 2
    x = torch.zeros(1, heads, 2, width)
    x[..., :n] = 1
    moved = call(x, x)[0][0, 0, 1].double()
    return torch.atan2(moved[n : 2 * n], moved[:n])
