"""A probe from anything that turns queries and keys: layouts and forms of positions are found by trying, and said."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

Act = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
HEAD_DIM, HEADS = 64, 2
WIDTHS = (HEAD_DIM, 128, 32, 16, 8)

LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "(B, H, T, D)": (lambda x: x[None], lambda y: y[0]),
    "(B, T, H, D)": (lambda x: x.transpose(0, 1)[None], lambda y: y[0].transpose(0, 1)),
    "(H, T, D)": (lambda x: x, lambda y: y),
    "(T, H, D)": (lambda x: x.transpose(0, 1), lambda y: y.transpose(0, 1)),
    "(B, T, D)": (lambda x: x, lambda y: y),
}
"""Name -> from (H, T, D) and back; the last one takes every head for a row of the batch."""

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "(T,)": lambda t: t,
    "(1, T)": lambda t: t[None],
}


def times_as(times: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Whole times as int64, as models count them; others in a floating dtype."""
    whole = not times.is_floating_point() or bool((times == times.round()).all())
    return times.long() if whole and dtype is None else times.to(dtype or torch.float64)


@dataclass(frozen=True)
class Found:
    """A way of calling that works, in words, and the sizes it works with."""

    act: Act
    how: str
    head_dim: int
    heads: int
    fractional: bool
    kv_heads: int | None = None

    def tries(self, dtype: torch.dtype) -> torch.dtype | None:
        """The dtype that vectors of a dtype come back in; None where they are not taken."""
        x = torch.ones(self.heads, 2, self.head_dim, dtype=dtype)
        try:
            return self.act(x, x[: self.kv_heads or self.heads], torch.arange(2))[0].dtype
        except Exception:
            return None


def search(ways: Iterable[tuple[str, Act]], options: Options, widths: Iterable[int] = WIDTHS, heads: int | None = None) -> Found | None:
    """The first way of calling that gives each token its own turned vector; else the first that gives vectors at all."""
    ways, loose = list(ways), None
    count = options.heads or heads or HEADS
    for width in (options.head_dim,) if options.head_dim is not None else widths:
        for how, act in ways:
            state, dtype = _tried(_on_copies(act), width, count), torch.float32
            if state == "no" and options.dtype not in (None, torch.float32):  # kernels that take 16 bits alone
                state, dtype = _tried(_on_copies(act), width, count, options.dtype), options.dtype
            if state == "sound":
                return Found(act, how, width, count, takes_fractions(_on_copies(act), width, count, dtype))
            if state == "runs" and loose is None:
                loose = Found(act, how, width, count, False)
    return loose


def _on_copies(act: Act) -> Act:
    """The same on copies: code that turns vectors in place must not change those that are measured with."""
    return lambda q, k, times: act(q.clone(), k.clone(), times)


def _tried(act: Act, width: int, heads: int, dtype: torch.dtype = torch.float32) -> str:
    """ "sound" where tokens are turned each by its own time, "runs" where the shapes fit, else "no"."""
    tokens = 5 if heads != 5 else 7
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(heads, tokens, width, generator=random).to(dtype) for _ in range(2))
    times = torch.arange(tokens)
    order = torch.randperm(tokens, generator=random)
    try:
        a, b = act(q, k, times)
        if a.shape[:2] != q.shape[:2] or b.shape[:2] != k.shape[:2] or a.ndim != 3 or a.shape != b.shape or a.shape[-1] < width:
            return "no"
        c, d = act(q[:, order], k[:, order], times[order])
    except Exception:
        return "no"
    alike = torch.allclose(a[:, order], c, rtol=1e-3, atol=1e-4) and torch.allclose(b[:, order], d, rtol=1e-3, atol=1e-4)
    return "sound" if alike and bool(torch.isfinite(a).all()) else "runs"


def takes_fractions(act: Act, width: int, heads: int, dtype: torch.dtype = torch.float32, kv_heads: int | None = None) -> bool:
    """Whether times between whole numbers are taken, and not for whole ones."""
    x = torch.linspace(-1, 2, width).expand(heads, 2, width).to(dtype)  # equal channels would vanish in a layer norm
    try:
        half, whole = (act(x, x[: kv_heads or heads], torch.tensor(t, dtype=torch.float64)) for t in ([0.5, 1.5], [0.0, 1.0]))
    except Exception:
        return False
    return not torch.equal(half[0], whole[0]) or not torch.equal(half[1], whole[1])


Call = Callable[[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]
"""f(q, k, positions, back) -> both moved, where ``back`` brings vectors to (H, T, D)."""


def with_forms(call: Call, forms: Mapping[str, Callable[[Tensor], Tensor]] = FORMS) -> Iterator[tuple[str, Act]]:
    """Ways of calling over layouts of vectors and forms and dtypes of positions."""
    for layout, (there, back) in LAYOUTS.items():
        for form, shaped in forms.items():
            for dtype in (None, torch.float64, torch.float32):

                def act(
                    q: Tensor, k: Tensor, times: Tensor, there: Any = there, back: Any = back, shaped: Any = shaped, dtype: Any = dtype
                ) -> tuple[Tensor, Tensor]:
                    return call(there(q), there(k), shaped(times_as(times, dtype)), back)

                name = "int64 where they are whole" if dtype is None else str(dtype).removeprefix("torch.")
                yield f"vectors {layout}, positions {form}, {name}", act


def probe_of_action(found: Found, options: Options, name: str, kind: str, notes: tuple[str, ...] = (), **more: Any) -> Probe:
    """The probe of an action: scores are inner products of what it makes of queries and of keys.

    ``more`` are other fields of the probe; ``dtype`` among them is used where the options name none.
    """
    dtype = options.dtype or more.pop("dtype", torch.float32)
    more.pop("dtype", None)
    heads, kv_heads = found.heads, found.kv_heads or found.heads

    action = _on_copies(found.act)

    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        left = action(q, q.new_zeros(k.shape[0], *q.shape[1:]), query_times)[0]
        right = action(k.new_zeros(heads, *k.shape[1:]), k, key_times)[1]
        work = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)  # kernels accumulate so
        with torch.autocast(left.device.type, enabled=False):  # the caller may be under one: it is for the subject, not for the measuring
            return left.to(work) @ right.to(work).repeat_interleave(heads // right.shape[0], 0).mT

    wide = next((d for d in (torch.float64, torch.float32) if found.tries(d) == d), None)

    def wider(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        return scores(q.to(wide), k.to(wide), query_times, key_times)

    if found.tries(dtype) is None:
        raise ConfigError(f"got {name} with {dtype}, which it does not take; expected a dtype it is used in: give dtype=")
    return Probe(
        name,
        kind,
        found.head_dim,
        heads,
        kv_heads,
        options.length,
        dtype,
        fractional=found.fractional,
        scores=scores,
        exact=None if wide is None or (wide == dtype != torch.float64) else scores if wide == dtype else wider,
        action=action,
        bare=found.act,
        notes=(*notes, f"called with {found.how}"),
        **more,
    )
