"""The encoding: generator parameters, a clock and a lift. The only owner of positional parameters; it runs no attention."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.parameter import Parameter, plain
from eigenclock.encodings.rates import clock_or_index
from eigenclock.errors import AxiomError, ConfigError, ShapeError, UnsupportedError
from eigenclock.theory import DirectSum, Generator, JordanForm, Lift, Product, Split, Zero

Values = Mapping[str, Tensor]


class Encoding(nn.Module):
    """A generator on the channels of a head, constants lifted beside them, and the clock that drives both.

    ``a + b`` puts two encodings side by side on different channels, ``a * b`` both on the same channels (they must commute).
    ``str(enc)`` is a spec that :func:`eigenclock.encoding` reads back.

    Raises: ShapeError, UnsupportedError or AxiomError where a sum or product does not fit together.

    >>> import eigenclock as ec
    >>> enc = ec.rope(64) * ec.alibi(64, heads=8)
    >>> enc.form, enc.acts_on
    (JordanForm('32R + 1Z2'), 'both')
    """

    head_dim: int
    heads: int
    kv_heads: int | None
    clock: Clock
    sides: int = 1  # 2 where keys after the query are seen through the mirrored group

    @abstractmethod
    def generator(self, device: torch.device | None = None) -> Generator:
        """L on the channels of a head, built from the current parameters (differentiable)."""

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        """The constants beside the content, each with its own generator: additive biases on the logit."""
        return ()

    @property
    def width(self) -> int:
        """Channels the generator acts on: those of a head, or more where :meth:`read_in` makes more of them."""
        return self.head_dim

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What stands on either side of the group and knows no time: score = C(q)^T exp((t - s) L) B(k), both (B, H, T, width).

        The identity in most encodings, so that A(0) = I; an amplitude on rotated channels (YaRN) is one that is not.
        """
        return q, k

    @property
    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Plain data from which the encoding can be built again (start values, not learned ones)."""

    @property
    def form(self) -> JordanForm:
        """The Jordan form of content and lifts together, for example 32R + 1Z2."""
        form = self.generator().form
        for lift in self.lifts():
            form = form + lift.generator.form
        return form

    @property
    def acts_on(self) -> str:
        """ "score" where the inner product is changed (a gain), "weight" where a bias is added to the logit, "both" or "nothing"."""
        content = self.generator().form
        score = content.kinds != {"Z"} or content.order > 1
        return {(True, True): "both", (True, False): "score", (False, True): "weight", (False, False): "nothing"}[score, bool(self.lifts())]

    def reset_parameters(self) -> None:
        """Put every learned number back to its start value."""
        for module in self.modules():
            if isinstance(module, Parameter):
                module.reset_parameters()

    def __add__(self, other: "Encoding") -> "Encoding":
        return Sum(self, other)

    def __mul__(self, other: "Encoding") -> "Encoding":
        return Times(self, other)

    def __str__(self) -> str:
        from eigenclock.encodings.spec import to_text

        return to_text(self.spec)

    def __repr__(self) -> str:
        return f"{self!s}  # {self.form}, acts on {self.acts_on}"


class Recipe(Encoding):
    """A named encoding: its options as plain data, its parameters, and two functions from values to theory."""

    def __init__(
        self,
        name: str,
        head_dim: int,
        heads: int,
        kv_heads: int | None,
        clock: Clock | None,
        options: dict[str, Any],
        parameters: dict[str, Parameter],
        content: Callable[[Values, "Recipe"], Generator],
        lift: Callable[[Values, "Recipe"], tuple[Lift, ...]] | None = None,
        usual_clock: Clock | None = None,
    ):
        """``usual_clock`` is the one a recipe makes where none is given; specs leave it out."""
        super().__init__()
        _check_sizes(head_dim, heads, kv_heads)
        self.name, self.head_dim, self.heads, self.kv_heads = name, head_dim, heads, kv_heads
        self.usual_clock = {"name": "index"} if usual_clock is None else usual_clock.spec()
        self.clock = clock_or_index(usual_clock if clock is None else clock)
        given = {key: value for key, value in options.items() if value is not None}
        self.options = {key: value if callable(value) else plain(value) for key, value in given.items()}
        self.values = nn.ModuleDict(parameters)
        self._content, self._lift = content, lift
        if isinstance(self.clock, Cumulative):
            rows = heads if lift is not None or kv_heads is None else kv_heads
            self.clock.bind(rows, _blocks(self.generator().split()))

    def _current(self, device: torch.device | None) -> Values:
        return {name: parameter.value(device) for name, parameter in self.values.items()}  # type: ignore[operator]

    def generator(self, device: torch.device | None = None) -> Generator:
        return self._content(self._current(device), self)

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return self._lift(self._current(device), self) if self._lift else ()

    @property
    def spec(self) -> dict[str, Any]:
        from eigenclock.encodings.spec import schedule_spec

        out: dict[str, Any] = {"name": self.name, "head_dim": self.head_dim, "heads": self.heads}
        if self.kv_heads is not None:
            out["kv_heads"] = self.kv_heads
        out |= {key: schedule_spec(value) if callable(value) else value for key, value in self.options.items()}
        clock = self.clock.spec()
        return out if clock == self.usual_clock else out | {"clock": clock}


def _blocks(split: Split) -> int:
    """How many times a clock with one for each block must give."""
    if split.turns:
        return split.turns[0].freq.shape[-1]
    return 1 if split.rate is None else split.rate.shape[-1]


class _Pair(Encoding):
    """What sums and products share: two encodings, one clock, one number of heads."""

    sign: str

    def __init__(self, left: Encoding, right: Encoding):
        super().__init__()
        self.left, self.right = left, right
        self.heads = _agree(left.heads, right.heads, "heads", 1) or 1
        self.kv_heads = _agree(left.kv_heads, right.kv_heads, "kv_heads", None)
        specs = [left.clock.spec(), right.clock.spec()]
        plain_index = {"name": "index"}
        if specs[0] != specs[1] and plain_index not in specs:
            raise UnsupportedError(f"got two different clocks, {specs[0]} and {specs[1]}; expected one clock for both sides")
        self.clock = right.clock if specs[0] == plain_index else left.clock
        if left.sides != right.sides:
            raise UnsupportedError("got a two-sided and a one-sided encoding; apply two_sided() to the whole sum or product instead")
        self.sides = left.sides

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return (*self.left.lifts(device), *self.right.lifts(device))

    @property
    def spec(self) -> dict[str, Any]:
        return {"op": self.sign, "parts": [self.left.spec, self.right.spec]}


class Sum(_Pair):
    """Side by side: the left encoding on the first channels, the right one on the rest; lifts are appended."""

    sign = "+"

    def __init__(self, left: Encoding, right: Encoding):
        super().__init__(left, right)
        self.head_dim = left.head_dim + right.head_dim

    def generator(self, device: torch.device | None = None) -> Generator:
        return DirectSum((self.left.generator(device), self.right.generator(device)))

    @property
    def width(self) -> int:
        return self.left.width + self.right.width

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cut = [self.left.head_dim, self.right.head_dim]
        (q1, q2), (k1, k2) = q.split(cut, -1), k.split(cut, -1)
        left, right = self.left.read_in(q1, k1), self.right.read_in(q2, k2)
        if left[0] is q1 and left[1] is k1 and right[0] is q2 and right[1] is k2:
            return q, k
        return torch.cat([left[0], right[0]], -1), torch.cat([left[1], right[1]], -1)


class Times(_Pair):
    """Both on the same channels: the generators add, so they must commute; lifts are appended."""

    sign = "*"

    def __init__(self, left: Encoding, right: Encoding):
        super().__init__(left, right)
        if left.head_dim != right.head_dim:
            raise ShapeError(
                f"got a product of head_dim {left.head_dim} and {right.head_dim}; expected equal widths ('+' puts encodings side by side)"
            )
        self.head_dim = left.head_dim
        try:
            self.generator()  # refuses here, not in the first call, what does not commute
        except AxiomError as error:
            raise AxiomError(f"{left} * {right}: {error}") from None

    def generator(self, device: torch.device | None = None) -> Generator:
        left, right = self.left.generator(device), self.right.generator(device)
        if isinstance(left, Zero):
            return right
        return left if isinstance(right, Zero) else Product(left, right)

    @property
    def width(self) -> int:
        return max(self.left.width, self.right.width)

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.right.read_in(*self.left.read_in(q, k))


class TwoSided(Encoding):
    """An encoding for both directions: keys after the query are seen through the mirrored group, exp(-|t-s| a)."""

    sides = 2

    def __init__(self, inner: Encoding):
        super().__init__()
        if inner.sides == 2:
            raise ConfigError("got two_sided(two_sided(...)); expected it once")
        self.inner, self.head_dim, self.heads, self.kv_heads, self.clock = inner, inner.head_dim, inner.heads, inner.kv_heads, inner.clock

    def generator(self, device: torch.device | None = None) -> Generator:
        return self.inner.generator(device)

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return self.inner.lifts(device)

    @property
    def width(self) -> int:
        return self.inner.width

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.read_in(q, k)

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "two_sided", "encoding": self.inner.spec}


def _agree(a: int | None, b: int | None, what: str, neutral: int | None) -> int | None:
    if a != b and neutral not in (a, b):
        raise ShapeError(f"got {what} {a} and {b}; expected the same number on both sides")
    return b if a == neutral else a


def _check_sizes(head_dim: int, heads: int, kv_heads: int | None) -> None:
    for name, value in (("head_dim", head_dim), ("heads", heads), ("kv_heads", kv_heads if kv_heads is not None else 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShapeError(f"got {name}={value!r}; expected a whole number of at least 1")
    if kv_heads is not None and heads % kv_heads:
        raise ShapeError(f"got heads={heads} and kv_heads={kv_heads}; expected heads to be a multiple of kv_heads")
