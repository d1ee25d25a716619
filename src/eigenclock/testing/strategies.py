"""Hypothesis strategies for generators, times and tensors. hypothesis is imported when a strategy is asked for."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eigenclock.registry import lookup
from eigenclock.theory import (
    AxesRotation,
    Conjugate,
    DampedRotation,
    Decay,
    Dense,
    DirectSum,
    Generator,
    Jordan,
    OnClock,
    Plane,
    Product,
    Rotation,
    Zero,
    skew_symmetric,
)

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def numbers(low: float, high: float) -> "SearchStrategy[float]":
    """Finite floats, a third of them exactly ``low``, where special cases live.

    >>> numbers(0.0, 2.0).__class__.__name__
    'OneOfStrategy'
    """
    from hypothesis import strategies as st

    spread = st.floats(low, high, allow_nan=False, allow_subnormal=False)
    return st.one_of(st.just(low), spread, spread)


def tensors(*shape: int, low: float = -2.0, high: float = 2.0, dtype: torch.dtype = torch.float64) -> "SearchStrategy[Tensor]":
    """Tensors of one shape with entries in [low, high], reproducible from one drawn seed."""
    from hypothesis import strategies as st

    def make(seed: int) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        return torch.rand(*shape, dtype=torch.float64, generator=random).mul(high - low).add(low).to(dtype)

    return st.integers(0, 2**31 - 1).map(make)


def times(min_size: int = 1, max_size: int = 40, span: float = 100.0) -> "SearchStrategy[Tensor]":
    """Nondecreasing float64 times (T,): irregular gaps, ties and long silences, at most ``span`` between neighbours, any start."""
    from hypothesis import strategies as st

    gap = st.one_of(st.just(0.0), st.floats(0.0, 1.0, allow_subnormal=False), st.floats(0.0, span, allow_subnormal=False))

    def make(parts: tuple[float, list[float]]) -> Tensor:
        start, gaps = parts
        return torch.tensor([start, *gaps], dtype=torch.float64).cumsum(0)

    gaps = st.lists(gap, min_size=max(min_size - 1, 0), max_size=max_size - 1)
    return st.tuples(st.floats(-1e6, 1e6, allow_subnormal=False), gaps).map(make)


def _parameter(low: float, high: float, n: int, heads: int) -> Any:
    """Numbers (n,), or (heads, n) with several heads."""
    from hypothesis import strategies as st

    row = st.lists(numbers(low, high), min_size=n, max_size=n)
    many = row if heads == 1 else st.lists(row, min_size=heads, max_size=heads)
    return many.map(lambda v: torch.tensor(v, dtype=torch.float64))


def blocks(order: int = 1, heads: int = 1) -> "SearchStrategy[Generator]":
    """One block of any kind (zero, decay, rotation, damped rotation) and the given order, with one to three copies."""
    from hypothesis import strategies as st

    kinds = ("zero", "decay", "rotation", "damped_rotation") if order == 1 else ("jordan",)
    return st.one_of(*(of_kind(name, order, heads) for name in kinds))


def of_kind(name: str, order: int = 1, heads: int = 1) -> "SearchStrategy[Generator]":
    """Generators of one registered kind, with blocks of the given order where the kind has an order at all.

    Raises: UnknownNameError where there is no strategy for the kind.
    """
    from hypothesis import strategies as st

    many = () if heads == 1 else (heads,)

    def eye_and(dim: int, spread: float) -> "SearchStrategy[Tensor]":
        # The identity plus a small matrix: well conditioned, so that the checks measure the generator and not the basis.
        return tensors(dim, dim, low=-spread / dim, high=spread / dim).map(lambda m: torch.eye(dim, dtype=torch.float64) + m)

    def of_size(n: int) -> "dict[str, SearchStrategy[Generator]]":
        rate, freq, eta = (_parameter(*range_, n, heads) for range_ in ((0.0, 3.0), (-3.0, 3.0), (0.25, 2.0)))
        pairing = st.sampled_from(["interleaved", "half"])
        real = st.builds(Jordan, rate, st.just(order), eta=eta)
        inner = real | st.builds(Jordan, rate, st.just(order), freq=freq, eta=eta, pairing=pairing)
        upper = tensors(*many, n * (n + 1) // 2)
        return {
            "zero": st.just(Zero(n)),
            "decay": st.builds(Decay, rate, st.just(n)),
            "rotation": st.builds(Rotation, freq, pairing),
            "axes_rotation": tensors(*many, 2, n, low=-3.0, high=3.0).flatmap(lambda f: st.builds(AxesRotation, st.just(f), pairing)),
            "damped_rotation": st.builds(DampedRotation, rate, freq, pairing),
            "jordan": inner,
            "direct_sum": st.tuples(inner, st.builds(Rotation, freq, pairing), inner).map(DirectSum),
            "product": st.tuples(inner, numbers(0.0, 2.0)).map(
                lambda parts: Product(parts[0], Decay(torch.tensor([parts[1]], dtype=torch.float64), parts[0].dim))
            ),
            "conjugate": inner.flatmap(lambda g: eye_and(g.dim, 0.5).map(lambda m: Conjugate(g, m))),
            "on_clock": inner.map(lambda g: OnClock(g, 0, 1)),
            # Skew-symmetric or normal with a decay for all channels: any other one may come close to a defective one.
            "dense": st.tuples(upper, numbers(0.0, 2.0)).map(
                lambda parts: Dense(skew_symmetric(parts[0]) - parts[1] * torch.eye(n + 1, dtype=torch.float64))
            ),
            "plane": st.tuples(tensors(*many, n + 1), tensors(*many, n + 1)).map(
                # a and b never parallel: the first channel of a is 1, that of b is 0 and its second 1
                lambda ab: Plane(_led_by(ab[0], 1.0), _led_by(ab[1], 0.0, 1.0))
            ),
        }

    lookup(of_size(1), name, "strategy of a generator")
    return st.integers(1, 3).flatmap(lambda n: of_size(n)[name])


def _led_by(x: Tensor, *first: float) -> Tensor:
    lead = torch.tensor(first, dtype=x.dtype).expand(*x.shape[:-1], len(first))
    return torch.cat([lead, x[..., len(first) :]], -1)


def generators(max_order: int = 4, max_parts: int = 3, heads: int = 1) -> "SearchStrategy[Generator]":
    """Generators of any form: blocks up to ``max_order``, sums and products of them, changes of basis, dense ones, planes."""
    from hypothesis import strategies as st

    block = st.integers(1, max_order).flatmap(lambda order: blocks(order, heads))

    def decayed(inner: Generator) -> "SearchStrategy[Generator]":
        return numbers(0.0, 2.0).map(lambda rate: Product(inner, Decay(torch.tensor([rate], dtype=torch.float64), inner.dim)))

    def turned(inner: Generator) -> "SearchStrategy[Generator]":
        # The identity plus a small matrix: well conditioned, so that the checks measure the generator and not the basis.
        return tensors(inner.dim, inner.dim, low=-0.5 / inner.dim, high=0.5 / inner.dim).map(
            lambda m: Conjugate(inner, torch.eye(inner.dim, dtype=torch.float64) + m)
        )

    summed = st.lists(block, min_size=2, max_size=max_parts).map(lambda parts: DirectSum(tuple(parts)))
    base = st.one_of(block, summed)
    return st.one_of(base, base.flatmap(decayed), base.flatmap(turned), of_kind("dense", 1, heads), of_kind("plane", 1, heads))
