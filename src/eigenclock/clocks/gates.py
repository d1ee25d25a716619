"""Gates: from what a projection returns to the increments of a learned clock, one short entry per published form."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.theory.numbers import exact

Start = Callable[[int, Any], np.ndarray]  # how many, and a numpy random generator


@dataclass(frozen=True)
class Gate:
    """Increments from pre-activations z, the bias that z starts with, and whether increments may be negative.

    The start bias is what makes a fresh model behave as its paper says: increments in a known range before any training.
    """

    summary: str
    increments: Callable[[Float[Tensor, "*batch n"]], Float[Tensor, "*batch n"]]
    start: Start
    signed: bool = False


def _constant(value: float) -> Start:
    return lambda n, random: np.full(n, value)


def _log_uniform(n: int, random: Any) -> np.ndarray:
    """Biases b with softplus(b) log-uniform between 1e-3 and 0.1."""
    increment = np.exp(random.uniform(math.log(1e-3), math.log(0.1), n))
    return increment + np.log(-np.expm1(-increment))


GATES: dict[str, Gate] = {
    # Gu and Dao (Mamba), 2312.00752; Dao and Gu (Mamba-2), 2405.21060
    "softplus": Gate("softplus(z), starting log-uniform in [0.001, 0.1]", F.softplus, _log_uniform),
    # Lin et al. (Forgetting Transformer), 2503.02130: f = sigmoid(z), tau = -sum log f; the bias starts at 0
    "forget": Gate("-log sigmoid(z), starting at log 2", lambda z: F.softplus(-z), _constant(0.0)),
    # Yang et al. (GLA), 2312.06635: the gate's logarithm is divided by 16
    "forget16": Gate("-log sigmoid(z) / 16, starting at log 2 / 16", lambda z: F.softplus(-z) / 16, _constant(0.0)),
    # Wall attention: a bias of 8 starts with gates near 1
    "forget_late": Gate("-log sigmoid(z) with z starting at 8: hardly any decay", lambda z: F.softplus(-z), _constant(8.0)),
    # Peng et al. (RWKV-6), 2404.05892: w = exp(-exp(z))
    "exponential": Gate("exp(z), starting at e^-5", torch.exp, _constant(-5.0)),
    # CARoPE, 2507.23083: f = 1 / (softplus(z) + 1) in (0, 1)
    "reciprocal": Gate("1 / (1 + softplus(z)), between 0 and 1", lambda z: 1 / (1 + F.softplus(z)), _constant(0.0)),
    # Selective RoPE, 2511.17388: signed phases
    "signed": Gate("z itself, of either sign", lambda z: z, _constant(0.0), signed=True),
    # Lahoti et al. (Mamba-3), 2603.15569: phases of at most half a turn per step
    "half_turn": Gate("pi tanh(z), of either sign", lambda z: math.pi * torch.tanh(z), _constant(0.0), signed=True),
}


def bounded(z: Float[Tensor, "*batch n"], bound: float) -> Float[Tensor, "*batch n"]:
    """-log f for the forget gate f = bound + (1 - bound) sigmoid(z), bound above 0.

    Stability: the logarithm is that of f below z = 0, and above of 1 minus what is lost, so both ends keep their digits: -log bound, and
    the (1 - bound) e^-z of a gate that is almost open.
    """
    lost = (1 - bound) * torch.sigmoid(-z)
    return torch.where(z > 0, -torch.log1p(-lost), -torch.log(bound + (1 - bound) * torch.sigmoid(z)))


def check_bound(bound: float, gate: str) -> float:
    """Refuse a lower bound outside [0, 1), or with a gate that it does not belong to."""
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound < 1:
        raise ConfigError(f"got lower_bound={bound!r}; expected the smallest forget gate, a number from 0 to below 1")
    if bound and gate != "forget":
        raise ConfigError(f"got lower_bound={bound:g} with the gate {gate!r}; expected gate='forget', whose sigmoid it bounds")
    return float(bound)


def start_bias(gate: Gate, n: int, seed: int) -> Tensor:
    """The n start values of the bias, reproducible from a seed."""
    return exact(gate.start(n, np.random.default_rng(seed)))
