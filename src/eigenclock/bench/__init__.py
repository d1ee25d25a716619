"""Benchmarks side by side with what a user would otherwise call, each against a target that has to hold.

A family is a function of a size factor that returns its cases. To add one write one file in ``cases/`` and one line here.
"""

from collections.abc import Callable

from eigenclock.bench.case import Case
from eigenclock.bench.cases import bias, damped, decode, importing, learned, linear, memory, rotation

BENCHES: dict[str, Callable[[float], tuple[Case, ...]]] = {
    "rotation": rotation.cases,
    "damped": damped.cases,
    "bias": bias.cases,
    "fox": learned.fox_cases,
    "wall": learned.wall_cases,
    "linear": linear.cases,
    "decode": decode.cases,
    "memory": memory.cases,
    "import": importing.cases,
}

__all__ = ["BENCHES", "Case"]
