"""The laws of generators, schedules and clocks, as functions that raise where one is broken."""

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks import CLOCKS, Clock
from eigenclock.errors import ClockError
from eigenclock.schedules import Spectrum
from eigenclock.theory import Generator, JordanForm


class LawError(AssertionError):
    """A law is broken: which one, what was measured, the limit, and where.

    >>> print(LawError("exp(0 L) is the identity", measured=0.5, limit=1e-9, where="Decay"))
    Decay breaks a law: exp(0 L) is the identity; measured 0.5, limit 1e-09
    """

    def __init__(self, law: str, *, measured: Any, limit: Any, where: str):
        super().__init__(f"{where} breaks a law: {law}; measured {_number(measured)}, limit {_number(limit)}")
        self.law, self.measured, self.limit, self.where = law, measured, limit, where


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def close(law: str, where: str, got: Tensor, expected: Tensor, atol: float, size: float = 1.0) -> None:
    """Raise unless the largest difference is at most ``atol`` * max(``size``, largest expected value). Shapes must agree."""
    if got.shape != expected.shape:
        raise LawError(f"{law} (shape)", measured=tuple(got.shape), limit=tuple(expected.shape), where=where)
    if not got.numel():
        return
    got, expected = got.detach().double(), expected.detach().double()
    same = (got == expected) | (got.isnan() & expected.isnan())  # equal infinities have no difference
    gap = float(torch.where(same, 0.0, (got - expected).abs()).nan_to_num(nan=torch.inf).max())
    finite = expected[torch.isfinite(expected)]
    limit = atol * max(size, float(finite.abs().max()) if finite.numel() else 0.0)
    if not gap <= limit:
        raise LawError(law, measured=gap, limit=limit, where=where)


def holds(law: str, where: str, condition: bool, measured: Any, limit: Any) -> None:
    """Raise unless a condition is true."""
    if not condition:
        raise LawError(law, measured=measured, limit=limit, where=where)


# --- generators --------------------------------------------------------------------------------------------------------------------


def check_generator(generator: Generator, *, atol: float = 1e-9) -> None:
    """The laws of a one-parameter group exp(tL), all against dense float64 matrices.

    exp(0 L) = 1; exp(tL) exp(sL) = exp((t+s)L); the derivative at 0 is L; ``act`` agrees with ``torch.linalg.matrix_exp``; the
    transpose is one; nothing grows; the three parts of ``split()`` commute, sum to L, and the nilpotent one vanishes at its order; the
    form has the generator's width, names every part that is there and survives printing; gradients to x, times and parameters are
    those of the dense form; ``act`` keeps the dtype of x.

    Raises: LawError.

    >>> import torch
    >>> from eigenclock.theory import DampedRotation
    >>> check_generator(DampedRotation(torch.tensor([0.1, 0.0]), torch.tensor([1.0, -0.3])))
    """
    where = type(generator).__name__
    L = generator.matrix().detach()
    norm = float(torch.linalg.matrix_norm(L, 2).max()) if L.numel() else 0.0
    unit = 1 / norm if norm > 0 else 1.0
    d, h = generator.dim, generator.heads
    shape = (h, d, d) if h > 1 or L.ndim == 3 else (d, d)  # parameters of one head may keep its axis
    holds("matrix() is (D, D), or (heads, D, D)", where, L.shape == shape, tuple(L.shape), shape)
    eye = torch.eye(d, dtype=torch.float64).expand(shape)

    def A(t: float, of: Generator = generator) -> Tensor:
        return of.matrix(t * unit).detach()

    close("exp(0 L) is the identity", where, A(0.0), eye, atol)
    for t, s in ((0.3, 1.1), (2.5, -0.7), (-0.4, 0.4)):
        close(f"exp(tL) exp(sL) = exp((t+s)L) at t = {t * unit:.3g}, s = {s * unit:.3g}", where, A(t) @ A(s), A(t + s), atol)
    e = 1e-3
    derivative = (8 * (A(e) - A(-e)) - (A(2 * e) - A(-2 * e))) / (12 * e * unit)
    close("the derivative of exp(tL) at 0 is L", where, derivative, L, atol, size=norm)
    for t in (-0.7, 0.3, 2.5, 20.0):
        close(f"act agrees with matrix_exp at t = {t * unit:.3g}", where, A(t), torch.linalg.matrix_exp(t * unit * L), atol)
        close(f"the transpose acts as exp(tL)^T at t = {t * unit:.3g}", where, A(t, generator.T), A(t).mT, atol)
    close("the transpose of the transpose is the generator", where, generator.T.T.matrix(), L, atol, size=norm)
    _check_parts(generator, L, norm, atol, where)
    _check_form(generator, where)
    _check_gradients(generator, unit, atol, where)
    for dtype in (torch.float32, torch.bfloat16):
        got = generator.act(torch.ones(*((h,) if h > 1 else ()), 1, d, dtype=dtype), torch.zeros(1, dtype=torch.float64)).dtype
        holds("act returns the dtype of x", where, got == dtype, got, dtype)


def _check_parts(generator: Generator, L: Tensor, norm: float, atol: float, where: str) -> None:
    """The turning, the decaying and the nilpotent part."""
    split = generator.split()
    names = ["turning", "decaying", "nilpotent"]
    parts: dict[str, Tensor] = dict(zip(names, (p.detach() for p in split.parts()), strict=True))
    size = max([norm, *(float(p.abs().max()) if p.numel() else 0.0 for p in parts.values())])
    close("the parts of split() sum to L", where, (sum(parts.values(), torch.zeros_like(L))), L, atol, size=size)
    for a, b in (("turning", "decaying"), ("turning", "nilpotent"), ("decaying", "nilpotent")):
        x, y = parts[a], parts[b]
        close(f"the {a} and the {b} part commute", where, x @ y, y @ x, atol, size=size * size)
    growth = torch.linalg.eigvals(parts["turning"] + parts["decaying"]).real
    worst = float(growth.max()) if growth.numel() else 0.0
    holds("nothing grows: Re(lambda) <= 0", where, worst <= 1e3 * atol * max(size, 1e-300), worst, 1e3 * atol * size)
    kinds, order = generator.form.kinds, generator.form.order
    for name, letters in (("turning", "RS"), ("decaying", "DS")):
        shown = bool(kinds & set(letters)) or not bool((parts[name].abs() > atol * size).any())
        holds(f"a {name} part shows in the form as {' or '.join(letters)}", where, shown, str(generator.form), letters)
    for name, m in (("split()", split.order), ("the form", max(order, 1))):
        power = torch.linalg.matrix_power(parts["nilpotent"], m)
        law = f"the nilpotent part to the power {m}, its order in {name}, is 0"
        close(law, where, power, torch.zeros_like(power), atol, size=max(size, 1.0) ** m)


def _check_form(generator: Generator, where: str) -> None:
    form = generator.form
    holds("the form has the width of the generator", where, form.dim == generator.dim, form.dim, generator.dim)
    holds("the form survives printing and parsing", where, JordanForm(str(form)) == form, str(JordanForm(str(form))), str(form))
    channels = sorted(c for block in generator.blocks() for c in block.channels)
    holds("the blocks cover each channel once", where, channels == list(range(generator.dim)), channels, f"0 .. {generator.dim - 1}")


def _check_gradients(generator: Generator, unit: float, atol: float, where: str) -> None:
    """Gradients to x, to the times and to every tensor the value holds, against those of matrix_exp(tL) x."""
    heads = (generator.heads,) if generator.heads > 1 else ()
    random = torch.Generator().manual_seed(0)
    x = torch.randn(*heads, 3, generator.dim, dtype=torch.float64, generator=random).requires_grad_()
    weight = torch.randn(*heads, 3, generator.dim, dtype=torch.float64, generator=random)
    t = (torch.tensor([0.4, 1.3, 2.2], dtype=torch.float64) * unit).requires_grad_()
    held: dict[str, Tensor] = {}
    if dataclasses.is_dataclass(generator):
        fields = {f.name: getattr(generator, f.name) for f in dataclasses.fields(generator)}
        held = {n: v.detach().double().requires_grad_() for n, v in fields.items() if isinstance(v, Tensor) and v.is_floating_point()}

    def fresh() -> Generator:  # a value may keep what it computed once, and with it a graph that one backward uses up
        return dataclasses.replace(generator, **held) if held else generator  # type: ignore[type-var]

    asked = {"x": x, "the times": t, **held}
    dense = torch.linalg.matrix_exp(t[:, None, None] * fresh().matrix().unsqueeze(-3))  # (..., T, D, D)
    expected = torch.autograd.grad((weight * (dense @ x[..., None])[..., 0]).sum(), list(asked.values()), allow_unused=True)
    found = torch.autograd.grad((weight * fresh().act(x, t)).sum(), list(asked.values()), allow_unused=True) if generator.dim else expected
    for (name, value), got, want in zip(asked.items(), found, expected, strict=True):
        got, want = (torch.zeros_like(value) if g is None else g for g in (got, want))
        close(f"the gradient to {name} is that of matrix_exp(tL) x", where, got, want, 10 * atol)


# --- schedules ---------------------------------------------------------------------------------------------------------------------


def check_schedule(
    schedule: Any,
    *,
    expected: dict[int, Any] | None = None,
    sizes: tuple[int, ...] = (1, 2, 3, 12, 64),
    atol: float = 1e-12,
    zeros: bool = False,
) -> None:
    """The laws of a schedule: n -> Spectrum of n (or heads x n) positive, finite float64 values, the same each time.

    It must be a frozen dataclass (so that a spec can hold it), state its units in its docstring, and meet the published numbers given as
    ``expected`` = {n: values}. ``zeros``: whether 0 is one of its values (pairs that do not turn).

    Raises: LawError.

    >>> from eigenclock.schedules import geometric
    >>> check_schedule(geometric(10000.0), expected={2: [1.0, 0.01]})
    """
    where = type(schedule).__name__
    params = getattr(type(schedule), "__dataclass_params__", None)
    holds("a schedule is a frozen dataclass", where, params is not None and params.frozen, params, "frozen=True")
    holds("the docstring states the units", where, "Units:" in (type(schedule).__doc__ or ""), "no 'Units:'", "a line 'Units: ...'")
    for n in sizes:
        spectrum = schedule(n)
        holds("a schedule returns a Spectrum", where, isinstance(spectrum, Spectrum), type(spectrum).__name__, "Spectrum")
        values = spectrum.values
        fits = values.ndim in (1, 2) and values.shape[-1] == n
        holds(f"{n} values for n = {n}", where, fits, tuple(values.shape), f"({n},) or (heads, {n})")
        holds("values are float64", where, values.dtype == torch.float64, values.dtype, torch.float64)
        good = torch.isfinite(values) & ((values >= 0) if zeros else (values > 0))
        law = f"values are {'not negative' if zeros else 'positive'} and finite"
        holds(law, where, bool(good.all()), values.tolist(), f"{'>=' if zeros else '>'} 0, finite")
        scale = spectrum.attention_scale
        holds("the attention scale is positive and finite", where, 0 < scale < float("inf"), scale, "> 0, finite")
        close("the same n gives the same values", where, schedule(n).values, values, 0.0)
    for n, numbers in (expected or {}).items():
        wanted = torch.as_tensor(numbers, dtype=torch.float64)
        close(f"the published numbers at n = {n}", where, schedule(n).values, wanted, atol, size=float(wanted.abs().min()))


# --- clocks ------------------------------------------------------------------------------------------------------------------------


def check_clock(clock: Clock, times: Any, *, documents: Tensor | None = None, atol: float = 1e-9) -> None:
    """The laws of a clock that reads given times: differences survive a shift, order is kept, a sequence can be continued.

    Args:
        times: increasing example times of shape (T,), T >= 3, int64 or float64, in the unit the clock reads.
        documents: ids (T,) for a clock that restarts; its own count must then not decrease inside a document.
    Raises: LawError.

    >>> from eigenclock.clocks import Timestamps
    >>> check_clock(Timestamps("ms"), torch.tensor([1_700_000_000_000, 1_700_000_000_004, 1_700_000_000_900]))
    """
    where, times = type(clock).__name__, torch.as_tensor(times)
    whole = clock(times)
    ticks = whole.ticks
    size = float(ticks.abs().max())
    holds("ticks are float64", where, ticks.dtype == torch.float64, ticks.dtype, torch.float64)
    holds("one tick for each time", where, ticks.shape[: times.ndim] == times.shape, tuple(ticks.shape), tuple(times.shape))
    _check_order(ticks, where, "increasing times give ticks that do not decrease")
    for shift in (1000, -3):
        steps = clock(times + shift).ticks.diff(dim=0)
        close(f"a shift of all times by {shift} leaves differences alone", where, steps, ticks.diff(dim=0), atol, size=size)
        apart = clock(times + shift, origin=whole.origin).ticks - clock(times, origin=whole.origin).ticks
        close("with one origin, a shift adds the same to every tick", where, apart, apart[:1].expand_as(apart), atol, size=size)
    cut = times.shape[0] // 2
    first = clock(times[:cut])
    rest = clock(times[cut:], origin=clock.continued(first, given=True), since=first.last)
    pieces = torch.cat([first.ticks, rest.ticks])
    close("a sequence read in two pieces gives the times of the whole", where, pieces, ticks, atol, size=size)
    for read, given in ((first, times[cut - 1]), (rest, times[-1])):
        kept = read.last is not None and torch.equal(read.last[0], given.long() if not given.is_floating_point() else given.double())
        holds("the last given time is kept as it arrived", where, kept, read.last, given)
    rows = clock(torch.stack([times, times + 7])).ticks
    close("a row in a batch reads as it does alone", where, rows[0], ticks, atol, size=size)
    holds("no times give no ticks", where, clock(times[:0]).ticks.numel() == 0, clock(times[:0]).ticks.numel(), 0)
    close("casting the module leaves the ticks alone", where, _cast(clock)(times).ticks, ticks, 0.0)
    _check_refusals(clock, times, where)
    leaf = times.double().requires_grad_()
    total = clock(leaf).ticks.diff(dim=0).sum()
    slope = torch.autograd.grad(total, leaf, allow_unused=True)[0] if total.requires_grad else None
    holds("ticks are differentiable in the times", where, slope is not None and bool(slope.abs().sum() > 0), "no gradient", "a gradient")
    if documents is not None:
        own = clock(None, length=documents.shape[-1], documents=documents).ticks
        steps = torch.where(documents.diff() == 0, own.diff(), 0.0)
        holds("inside a document the count does not go back", where, bool((steps >= 0).all()), float(steps.min()), 0)
    _check_spec(clock, where)


def check_learned_clock(clock: Clock, x: Tensor, times: Any = None, *, atol: float = 1e-9) -> None:
    """The laws of a clock that reads activations: a sequence can be continued, rows are alone, gradients arrive.

    Args:
        clock: bound to heads and blocks.
        x: activations (B, T, features), T >= 3.
        times: increasing times (T,), for a gate times elapsed time.
        atol: how far ticks may be off, as a part of the largest; at least some rounding steps of the dtype of x.
    Raises: LawError.

    >>> from eigenclock.clocks import Cumulative, Timestamps
    >>> clock = Cumulative(4, base=Timestamps("ns")).bind(heads=2, blocks=1)
    >>> check_learned_clock(clock, torch.randn(2, 5, 4), 1_700_000_000_000_000_000 + torch.arange(5) * 1_000_000_007)
    """
    where, cut = type(clock).__name__, x.shape[1] // 2
    whole = clock(times, x=x).ticks
    size = float(whole.detach().abs().max())
    atol = max(atol, 8 * torch.finfo(x.dtype).eps)  # a projection of fewer tokens may round otherwise, in the dtype of x
    holds("ticks are float64", where, whole.dtype == torch.float64, whole.dtype, torch.float64)
    ticks: list[Tensor] = []
    origin = since = None
    for part in (slice(0, cut), slice(cut, None)):
        read = clock(None if times is None else times[part], x=x[:, part], origin=origin, since=since)
        origin, since = clock.continued(read, times is not None), read.last
        ticks.append(read.ticks)
    close("a sequence read in two pieces gives the times of the whole", where, torch.cat(ticks, 2), whole, atol, size=size)
    close("a row in a batch reads as it does alone", where, clock(times, x=x[:1]).ticks, whole[:1], atol, size=size)
    leaf = x.detach().clone().requires_grad_()
    slope = torch.autograd.grad(clock(times, x=leaf).ticks.diff(dim=2).sum(), leaf, allow_unused=True)[0]
    kept = slope is not None and bool(slope.abs().sum() > 0)
    holds("ticks are differentiable in the activations", where, kept, "no gradient", "a gradient")
    close("casting the module leaves the ticks alone", where, _cast(clock)(times, x=x).ticks, whole, 0.0)
    _check_spec(clock, where)


def _check_order(ticks: Tensor, where: str, law: str) -> None:
    steps = ticks.diff(dim=0)
    holds(law, where, bool((steps >= 0).all()), float(steps.min()), 0)


def _cast(clock: Clock) -> Clock:
    import copy

    return copy.deepcopy(clock).half()


def _check_refusals(clock: Clock, times: Tensor, where: str) -> None:
    broken = times.double().clone()
    broken[1] = torch.nan
    try:
        clock(broken)
    except ClockError:
        return
    raise LawError("NaN among the times is refused with ClockError", measured="no error", limit="ClockError", where=where)


def _build(spec: dict[str, Any]) -> Clock:
    options = {name: _build(value) if isinstance(value, dict) else value for name, value in spec.items() if name != "name"}
    return CLOCKS[spec["name"]](**options)


def _check_spec(clock: Clock, where: str) -> None:
    """The spec is plain data with a name, and builds an equal clock where that name is registered."""
    spec = clock.spec()
    try:
        again = json.loads(json.dumps(spec))
    except TypeError:
        again = None
    holds("the spec is plain data with a name", where, again == spec and "name" in spec, spec, "a dict that JSON can carry")
    if spec["name"] in CLOCKS:
        built = _build(spec)
        holds("the spec builds the clock again", where, type(built) is type(clock) and built.spec() == spec, built.spec(), spec)
