"""Hypothesis strategies for generators, times and tensors. hypothesis is imported when a strategy is asked for."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eigenclock.theory import Conjugate, DampedRotation, Decay, DirectSum, Generator, Jordan, Product, Rotation, Zero

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


def blocks(order: int = 1, heads: int = 1) -> "SearchStrategy[Generator]":
    """One block of any kind (zero, decay, rotation, damped rotation) and the given order, with one to three copies."""
    from hypothesis import strategies as st

    def parameter(low: float, high: float, n: int) -> Any:
        row = st.lists(numbers(low, high), min_size=n, max_size=n)
        many = row if heads == 1 else st.lists(row, min_size=heads, max_size=heads)
        return many.map(lambda v: torch.tensor(v, dtype=torch.float64))

    def kinds(n: int) -> "SearchStrategy[Generator]":
        rate, freq, eta = parameter(0.0, 3.0, n), parameter(-3.0, 3.0, n), parameter(0.25, 2.0, n)
        pairing = st.sampled_from(["interleaved", "half"])
        if order > 1:
            real = st.builds(Jordan, rate, st.just(order), eta=eta)
            return st.one_of(real, st.builds(Jordan, rate, st.just(order), freq=freq, eta=eta, pairing=pairing))
        return st.one_of(
            st.just(Zero(n)),
            st.builds(Decay, rate, st.just(n)),
            st.builds(Rotation, freq, pairing),
            st.builds(DampedRotation, rate, freq, pairing),
        )

    return st.integers(1, 3).flatmap(kinds)


def generators(max_order: int = 4, max_parts: int = 3, heads: int = 1) -> "SearchStrategy[Generator]":
    """Generators of any form: blocks up to ``max_order``, their direct sums, products with a decay, and changes of basis."""
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
    return st.one_of(base, base.flatmap(decayed), base.flatmap(turned))
