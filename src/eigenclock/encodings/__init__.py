"""Encodings: one short recipe per published method, sums and products of them, and specs that round trip."""

from collections.abc import Callable

from eigenclock.encodings.alibi import alibi
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.damped_rope import damped_rope
from eigenclock.encodings.decay import decay
from eigenclock.encodings.decay_bias import decay_bias
from eigenclock.encodings.nope import nope
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rope import rope
from eigenclock.encodings.spec import encoding
from eigenclock.encodings.two_sided import two_sided

ENCODINGS: dict[str, Callable[..., Encoding]] = {
    "nope": nope,
    "decay": decay,
    "decay_bias": decay_bias,
    "rope": rope,
    "damped_rope": damped_rope,
    "alibi": alibi,
    "two_sided": two_sided,
}

__all__ = [
    "ENCODINGS",
    "Encoding",
    "Parameter",
    "alibi",
    "damped_rope",
    "decay",
    "decay_bias",
    "encoding",
    "nope",
    "rope",
    "two_sided",
]
