"""Linear attention: chunks against plain causal softmax attention, growth with the length, and the decode step late against early."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import State, linear_attention
from eigenclock.bench.case import Case, Work, normal, scaled, trained, without_graph
from eigenclock.bench.cases import damped
from eigenclock.encodings import Encoding, decay, retnet

HEADS, WIDTH = 8, 64
LENGTH = 4096
# what is measured: (what it says, whether backward, the largest ratio)
WAYS = {"forward": ("forward", False, 0.3), "train": ("forward and backward", True, 0.5)}
SHORT, LONG, GROWTH = 16384, 65536, 4.3
EARLY, LATE, STEP = 1024, 65536, 1.1
STEPS = 20
"""Decode steps in one call: one alone is too short to time."""

ENCODINGS: dict[str, tuple[str, Callable[[tuple[str, ...]], Encoding]]] = {
    "head": ("a decay per head", lambda learn: decay(WIDTH, heads=HEADS, rate=_slopes(), learn=learn)),
    "pair": ("a rotation and a decay per head and pair", damped.example),
    "retnet": ("retention", lambda learn: retnet(WIDTH, heads=HEADS, learn=learn)),
}


def _slopes() -> Tensor:
    """One rate per head, from 1/2 to 1/256 per token."""
    return (2.0 ** -torch.arange(1, HEADS + 1, dtype=torch.float64))[:, None]


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Three encodings forward and with backward, rates fixed and learned; growth; decode."""
    shape, out = (1, HEADS, scaled(LENGTH, size), WIDTH), []
    for name, (what, _) in ENCODINGS.items():
        for way, (says, backward, target) in WAYS.items():
            for learn in ((), ("rate",)) if backward else ((),):
                out.append(
                    Case(
                        f"linear/{LENGTH}/fp32/{name}/{way}{'-rates' if learn else ''}",
                        f"linear attention, {what}: {says}{', gradients to every rate' if learn else ''}",
                        f"linear_attention under {name}",
                        "plain causal scaled_dot_product_attention",
                        shape,
                        "fp32",
                        target,
                        _against_softmax(name, shape, backward, learn),
                    )
                )
    for name in ("head", "pair"):
        out.append(
            Case(
                f"linear/growth/fp32/{name}",
                f"linear attention, {ENCODINGS[name][0]}: {LONG} tokens against {SHORT}",
                f"linear_attention on {LONG} tokens",
                f"linear_attention on {SHORT} tokens",
                (1, HEADS, scaled(LONG, size), WIDTH),
                "fp32",
                GROWTH,
                _growth(name, scaled(LONG, size), scaled(SHORT, size)),
                long=True,
            )
        )
        out.append(
            Case(
                f"linear/decode/fp32/{name}",
                f"linear attention, {ENCODINGS[name][0]}: {STEPS} decode steps from step {LATE} against step {EARLY}",
                f"{STEPS} steps after {LATE} tokens",
                f"{STEPS} steps after {EARLY} tokens",
                (1, HEADS, scaled(LATE, size), WIDTH),
                "fp32",
                STEP,
                _decode(name, scaled(LATE, size), scaled(EARLY, size)),
                long=True,
            )
        )
    return tuple(out)


def _against_softmax(name: str, shape: tuple[int, ...], backward: bool, learn: tuple[str, ...]) -> Callable[[], Work]:
    def build() -> Work:
        inputs, encoding = normal(shape, "fp32", 3, grad=backward), ENCODINGS[name][1](learn)
        (g,) = normal(shape, "fp32", 1, seed=1)

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return linear_attention(q, k, v, encoding)[0]

        def other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        if not backward:
            return Work(without_graph(lambda: ours(*inputs)), without_graph(lambda: other(*inputs)))
        return Work(lambda: trained(ours, inputs, g, list(encoding.parameters())), lambda: trained(other, inputs, g))

    return build


def _growth(name: str, long: int, short: int) -> Callable[[], Work]:
    def build() -> Work:
        encoding = ENCODINGS[name][1](())
        many, few = (normal((1, HEADS, length, WIDTH), "fp32", 3) for length in (long, short))
        return Work(
            without_graph(lambda: linear_attention(many[0], many[1], many[2], encoding)),
            without_graph(lambda: linear_attention(few[0], few[1], few[2], encoding)),
        )

    return build


def _decode(name: str, late: int, early: int) -> Callable[[], Work]:
    def build() -> Work:
        encoding = ENCODINGS[name][1](())
        q, k, v = normal((1, HEADS, 1, WIDTH), "fp32", 3, seed=1)

        def after(length: int) -> State:
            past = normal((1, HEADS, length, WIDTH), "fp32", 3)
            with torch.no_grad():
                return linear_attention(past[0], past[1], past[2], encoding)[1]

        def steps(state: State) -> Tensor:
            out = q
            for _ in range(STEPS):
                out, state = linear_attention(q, k, v, encoding, state=state)
            return out

        states = after(late), after(early)
        return Work(without_graph(lambda: steps(states[0])), without_graph(lambda: steps(states[1])))

    return build
