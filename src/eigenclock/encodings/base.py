"""The encoding: generator parameters, a clock and a lift. The only owner of positional parameters; it runs no attention."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.fits import agree, check_equal_tokens, check_not_alone, check_read_in, check_sizes, check_widths
from eigenclock.encodings.outside import Outside
from eigenclock.encodings.parameter import Parameter, plain
from eigenclock.encodings.rates import clock_or_index
from eigenclock.encodings.weights import Weights
from eigenclock.errors import AxiomError, ConfigError, ShapeError, UnsupportedError
from eigenclock.theory import DirectSum, Generator, JordanForm, Lift, Product, Split, Zero

Values = Mapping[str, Tensor]


class Encoding(nn.Module):
    """A generator on the channels of a head, constants lifted beside them, and the clock that drives both.

    ``a + b`` puts two encodings side by side on different channels, ``a * b`` both on the same channels (they must commute).
    ``str(enc)`` is a spec that :func:`eigenclock.encoding` reads back. It holds the numbers that learning starts from; once they have
    moved it ends in "[start values]", and :meth:`learned_values` gives the present ones.

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

    def outside(self, device: torch.device | None = None) -> tuple[Outside, ...]:
        """What no generator gives: biases and vectors that break an axiom of the group. Empty for its members."""
        return ()

    @property
    def breaks(self) -> str:
        """The axioms of the group that do not hold, in words ("continuity", "translation invariance", ..); empty for its members."""
        return " and ".join(dict.fromkeys(name for part in self.outside() for name in part.breaks))

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
    def length_dependent(self) -> bool:
        """Whether its frequencies are chosen by the length of the sequence (dynamic NTK, LongRoPE): keys turned for one length then do not
        match queries turned for another."""
        return False

    @property
    def reads_in(self) -> str:
        """What :meth:`read_in` makes of q and k, in words, so that A(0) is not the identity; empty where it is."""
        return ""

    @property
    def weighs(self) -> str:
        """What weights its tokens have in linear attention, in words; empty where each weighs 1."""
        return ""

    def weights(self, x: Tensor | None, steps: Tensor) -> Weights | None:
        """What tokens weigh in linear attention, from activations and from how far the clock moved at each token, (B|1, G|1, T) or with
        a last axis of several times; None where each weighs 1. Softmax has no such weights."""
        return None

    @property
    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Plain data from which the encoding can be built again (start values, not learned ones)."""

    @property
    def form(self) -> JordanForm:
        """The Jordan form of content and lifts together, for example 32R + 1Z2; what is :meth:`outside` the group has none."""
        form = self.generator().form
        for lift in self.lifts():
            form = form + lift.generator.form
        return form

    @property
    def acts_on(self) -> str:
        """ "score" where the inner product is changed (a gain), "weight" where a bias is added to the logit, "both" or "nothing"."""
        content, outside = self.generator().form, self.outside()
        score = content.kinds != {"Z"} or content.order > 1 or any(part.query_vectors is not None for part in outside)
        weight = bool(self.lifts()) or any(part.bias is not None for part in outside)
        return {(True, True): "both", (True, False): "score", (False, True): "weight", (False, False): "nothing"}[score, weight]

    def _learned(self) -> dict[str, Parameter]:
        """The learned sets of numbers by name: "rate", and "left.rate" or "inner.rate" where an encoding holds others."""
        found = {name: module for name, module in self.named_modules() if isinstance(module, Parameter) and module.learned}
        return {".".join(part for part in name.split(".") if part != "values"): module for name, module in found.items()}

    def learned_values(self) -> dict[str, Float[Tensor, "..."]]:
        """The learned numbers as they are now, in float64 without gradients, by the names that ``learn=`` takes.

        Sums and products call those of their sides "left.rate" and "right.slope", ``two_sided`` calls them "inner.rate". What a learned
        clock holds are weights of a layer: they stay in ``enc.clock.named_parameters()``.

        Shape: that of the numbers, such as (heads,) or (heads, D/2).
        Units: those of the option: rates and frequencies per unit of the clock, slopes in logits per unit.

        >>> import eigenclock as ec
        >>> enc = ec.alibi(64, heads=2, learn=("slope",))
        >>> enc.learned_values()["slope"]  # kept in float32 on a log scale
        tensor([0.0625, 0.0039], dtype=torch.float64)
        """
        return {name: module.value().detach() for name, module in self._learned().items()}

    def reset_parameters(self) -> None:
        """Put every learned number back to its start value."""
        for module in self._learned().values():
            module.reset_parameters()

    def __add__(self, other: "Encoding") -> "Encoding":
        return Sum(self, other)

    def __mul__(self, other: "Encoding") -> "Encoding":
        return Times(self, other)

    def __str__(self) -> str:
        from eigenclock.encodings.spec import START_VALUES, to_text

        moved = any(module.moved for module in self._learned().values())
        return to_text(self.spec) + (START_VALUES if moved else "")

    def __repr__(self) -> str:
        more = [f", weighs {self.weighs}"] if self.weighs else []
        more += [f", and outside the group: breaks {self.breaks}"] if self.breaks else []
        return f"{self!s}  # {self.form}, acts on {self.acts_on}" + "".join(more)


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
        weigh: Callable[[Values, "Recipe", Tensor, Tensor], Weights] | None = None,
        weighs: str = "",
        outside: Callable[[Values, "Recipe"], tuple[Outside, ...]] | None = None,
    ):
        """``usual_clock`` is the one a recipe makes where none is given; specs leave it out. ``weigh`` gives the weights of tokens from
        values, activations and steps of the clock, ``weighs`` says in words what they are."""
        super().__init__()
        check_sizes(head_dim, heads, kv_heads)
        self.name, self.head_dim, self.heads, self.kv_heads = name, head_dim, heads, kv_heads
        self.usual_clock = {"name": "index"} if usual_clock is None else usual_clock.spec()
        self.clock = clock_or_index(usual_clock if clock is None else clock)
        given = {key: value for key, value in options.items() if value is not None}
        self.options = {key: value if callable(value) else plain(value, key) for key, value in given.items()}
        self.values = nn.ModuleDict(parameters)
        self._content, self._lift, self._weigh, self._weighs, self._outside = content, lift, weigh, weighs, outside
        if isinstance(self.clock, Cumulative):
            rows = heads if lift is not None or outside is not None or kv_heads is None else kv_heads
            self.clock.bind(rows, _blocks(self.generator().split()))

    def _current(self, device: torch.device | None) -> Values:
        return {name: parameter.value(device) for name, parameter in self.values.items()}  # type: ignore[operator]

    def generator(self, device: torch.device | None = None) -> Generator:
        return self._content(self._current(device), self)

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return self._lift(self._current(device), self) if self._lift else ()

    def outside(self, device: torch.device | None = None) -> tuple[Outside, ...]:
        return self._outside(self._current(device), self) if self._outside else ()

    @property
    def length_dependent(self) -> bool:
        return any(getattr(option, "length_dependent", False) for option in self.options.values())

    @property
    def weighs(self) -> str:
        return self._weighs

    def weights(self, x: Tensor | None, steps: Tensor) -> Weights | None:
        return None if self._weigh is None or x is None else self._weigh(self._current(steps.device), self, x, steps)

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
        check_equal_tokens(left, right)
        check_not_alone(left, right)
        self.left, self.right = left, right
        self.heads = agree(left.heads, right.heads, "heads", 1) or 1
        self.kv_heads = agree(left.kv_heads, right.kv_heads, "kv_heads", None)
        specs = [left.clock.spec(), right.clock.spec()]
        plain_index = {"name": "index"}
        if specs[0] != specs[1] and plain_index not in specs:
            raise UnsupportedError(f"got two different clocks, {specs[0]} and {specs[1]}; expected one clock for both sides")
        self.clock = right.clock if specs[0] == plain_index else left.clock
        if left.sides != right.sides:
            raise UnsupportedError("got a two-sided and a one-sided encoding; apply two_sided() to the whole sum or product instead")
        self.sides = left.sides

    @property
    def length_dependent(self) -> bool:
        return self.left.length_dependent or self.right.length_dependent

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return (*self.left.lifts(device), *self.right.lifts(device))

    def outside(self, device: torch.device | None = None) -> tuple[Outside, ...]:
        return (*self.left.outside(device), *self.right.outside(device))

    @property
    def reads_in(self) -> str:
        return "; ".join(part.reads_in for part in (self.left, self.right) if part.reads_in)

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

    def outside(self, device: torch.device | None = None) -> tuple[Outside, ...]:
        moved = (replace(part, start=part.start + self.left.head_dim) for part in self.right.outside(device))
        return (*self.left.outside(device), *moved)

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
        for one, other in ((left, right), (right, left)):
            check_widths(one, other)
            check_read_in(one, other)
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
        check_equal_tokens(inner)
        if inner.breaks:
            raise UnsupportedError(
                f"got two_sided({inner}), which breaks {inner.breaks} and has no mirrored law; expected an encoding in the group, or one "
                "that sees both directions by itself: kerple_log, fire, t5_bias(bidirectional=True)"
            )
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

    @property
    def reads_in(self) -> str:
        return self.inner.reads_in

    @property
    def length_dependent(self) -> bool:
        return self.inner.length_dependent

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.read_in(q, k)

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "two_sided", "encoding": self.inner.spec}
