"""Encodings: one short recipe per published method, sums and products of them, and specs that round trip."""

from collections.abc import Callable

from eigenclock.encodings.alibi import alibi
from eigenclock.encodings.axial_rope import axial_rope
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.carope import carope
from eigenclock.encodings.cite import cite
from eigenclock.encodings.cope import cope
from eigenclock.encodings.damped_rope import damped_rope
from eigenclock.encodings.decay import decay
from eigenclock.encodings.decay_bias import decay_bias
from eigenclock.encodings.fire import fire
from eigenclock.encodings.fox import fox
from eigenclock.encodings.gaussian_bias import gaussian_bias
from eigenclock.encodings.gla import gla
from eigenclock.encodings.grape_ctx import grape_ctx
from eigenclock.encodings.grape_m import grape_m
from eigenclock.encodings.hgrn2 import hgrn2, hgrn2_bounds
from eigenclock.encodings.hyperbolic import hyperbolic
from eigenclock.encodings.jordan_rope import jordan_rope
from eigenclock.encodings.kerple_log import kerple_log
from eigenclock.encodings.learned_absolute import learned_absolute
from eigenclock.encodings.lightning import lightning, minimax
from eigenclock.encodings.m_rope import m_rope
from eigenclock.encodings.mamba1 import mamba1
from eigenclock.encodings.mamba2 import mamba2
from eigenclock.encodings.mamba3 import mamba3
from eigenclock.encodings.mixed_rope import mixed_rope
from eigenclock.encodings.nope import nope
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.pope import pope
from eigenclock.encodings.retnet import retnet
from eigenclock.encodings.rope import rope
from eigenclock.encodings.rwkv6 import rwkv6
from eigenclock.encodings.sandwich import sandwich
from eigenclock.encodings.selective_rope import selective_rope
from eigenclock.encodings.sinusoidal import sinusoidal
from eigenclock.encodings.spec import encoding
from eigenclock.encodings.string import string
from eigenclock.encodings.t5_bias import t5_bias
from eigenclock.encodings.transformer_xl import transformer_xl
from eigenclock.encodings.two_sided import two_sided
from eigenclock.encodings.wall import wall
from eigenclock.encodings.weights import Weights
from eigenclock.encodings.xpos import xpos

ENCODINGS: dict[str, Callable[..., Encoding]] = {
    "nope": nope,
    "decay": decay,
    "decay_bias": decay_bias,
    "rope": rope,
    "damped_rope": damped_rope,
    "alibi": alibi,
    "xpos": xpos,
    "retnet": retnet,
    "jordan_rope": jordan_rope,
    "sandwich": sandwich,
    "gaussian_bias": gaussian_bias,
    "transformer_xl": transformer_xl,
    "axial_rope": axial_rope,
    "mixed_rope": mixed_rope,
    "m_rope": m_rope,
    "hyperbolic": hyperbolic,
    "grape_m": grape_m,
    "string": string,
    "carope": carope,
    "fox": fox,
    "gla": gla,
    "grape_ctx": grape_ctx,
    "hgrn2": hgrn2,
    "lightning": lightning,
    "minimax": minimax,
    "mamba1": mamba1,
    "mamba2": mamba2,
    "mamba3": mamba3,
    "rwkv6": rwkv6,
    "selective_rope": selective_rope,
    "wall": wall,
    "two_sided": two_sided,
    "pope": pope,
    # Outside the group, for comparison: `Encoding.breaks` names the axiom.
    "t5_bias": t5_bias,
    "kerple_log": kerple_log,
    "fire": fire,
    "cope": cope,
    "learned_absolute": learned_absolute,
    "sinusoidal": sinusoidal,
}

__all__ = [
    "pope",
    "t5_bias",
    "kerple_log",
    "fire",
    "cope",
    "learned_absolute",
    "sinusoidal",
    "wall",
    "selective_rope",
    "hgrn2",
    "hgrn2_bounds",
    "lightning",
    "mamba1",
    "mamba2",
    "minimax",
    "mamba3",
    "rwkv6",
    "grape_ctx",
    "gla",
    "fox",
    "carope",
    "string",
    "transformer_xl",
    "mixed_rope",
    "m_rope",
    "gaussian_bias",
    "axial_rope",
    "ENCODINGS",
    "Weights",
    "Encoding",
    "Parameter",
    "alibi",
    "cite",
    "damped_rope",
    "decay",
    "decay_bias",
    "encoding",
    "grape_m",
    "hyperbolic",
    "jordan_rope",
    "nope",
    "retnet",
    "rope",
    "sandwich",
    "two_sided",
    "xpos",
]
