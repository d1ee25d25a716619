"""Which axiom of the group breaks, with the smallest counterexample: two positions, a shift, the two scores."""

from dataclasses import dataclass

import torch

from eigenclock.audit.recovery.lags import Lags
from eigenclock.theory.axioms import Sampling, measure_kernel
from eigenclock.theory.axioms.sampling import told_apart

BENT = 1e-6
"""Of the largest score: what linearity may miss in float64; in other dtypes it is what rounding does."""


CHANNELS = 8
"""How many channels the group law is tried on."""


@dataclass(frozen=True)
class Broken:
    """An axiom and the counterexample, in words."""

    axiom: str
    text: str


def outside(lags: Lags, law: bool = False) -> Broken | None:
    """The first axiom that breaks: linearity, translation invariance; with ``law`` continuity and the group law as well."""
    if law:
        return _law(lags)
    return _linearity(lags) or _invariance(lags)


def _linearity(lags: Lags) -> Broken | None:
    """The score of a + b - c is that of a, and of b, less that of c: constants are allowed, and no zero vector is asked for."""
    probe = lags.probe
    measure = probe.exact or probe.scores
    assert measure is not None
    drawn = [probe.content(2, 2, seed=seed) for seed in (3, 4, 5)]
    q, k = (torch.stack([pair[side].double() for pair in drawn]) for side in (0, 1))
    at, of = torch.tensor([2.0, 3.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    signs = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)

    def z(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        a, b = (x if probe.exact is not None else x.to(probe.dtype) for x in (q, k))
        return measure(a, b, at, of).double()

    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("n,nhtd->htd", signs, x)

    sides = {
        "queries": (z(joined(q), k[0]), torch.stack([z(one, k[0]) for one in q])),
        "keys": (z(q[0], joined(k)), torch.stack([z(q[0], one) for one in k])),
    }
    for name, (got, single) in sides.items():
        wanted = joined(single)
        gap = (got - wanted).abs().nan_to_num(nan=torch.inf)
        if float(gap.max()) > max(BENT, 64 * lags.eps) * float(single.abs().nan_to_num(posinf=0.0).max().clamp_min(1e-30)):
            h, i, j = (int(x) for x in torch.unravel_index(gap.argmax(), gap.shape))
            where, a, b, c = f"t = {at[i]:g}, s = {of[j]:g}", *(float(x) for x in single[:, h, i, j])
            text = (
                f"{where}: three {name} score {a:.6g}, {b:.6g} and {c:.6g}; a + b - c scores {float(got[h, i, j]):.6g}, not {a + b - c:.6g}"
            )
            return Broken("linearity", text)
    return None


def _invariance(lags: Lags) -> Broken | None:
    """The same lag at other origins, the smallest lags and shifts first."""
    last = lags.probe.length - 1
    for lag in (0.0, 1.0, 5.0):
        for shift in (1.0, 7.0, float(last // 2)):
            if lag + shift > last:
                continue
            near, far = lags.at(lag), lags.at(lag, shift)
            gap = (near.all() - far.all()).abs().nan_to_num(nan=torch.inf)
            size = max(float(near.all().abs().nan_to_num(posinf=0.0).max()), 1e-30)
            angle = 2.0**-46 * (lag + shift)  # float64 itself
            if float(gap.max()) > max(1e-9, angle, 64 * lags.noise(lag, shift)) * size:
                return Broken("translation invariance", _moved(lags, lag, shift, int(gap.argmax())))
    return None


def _moved(lags: Lags, lag: float, shift: float, place: int) -> str:
    near, far = lags.at(lag), lags.at(lag, shift)
    h, d = near.of_query.shape
    values = float(near.all()[place]), float(far.all()[place])
    sizes = (h * d * d, h * d, h * d, h)
    which = 0
    while place >= sizes[which]:
        place, which = place - sizes[which], which + 1
    names = (
        f"head {place // (d * d)}, what q[{place // d % d}] k[{place % d}] is multiplied by",
        f"head {place // d}, what q[{place % d}] alone adds",
        f"head {place // d}, what k[{place % d}] alone adds",
        f"head {place}, the score of zero vectors",
    )
    was, now = told_apart(*values)
    return f"t = {lag:g}, s = 0: {was}; both moved by {shift:g}: {now} ({names[which]})"


def _law(lags: Lags) -> Broken | None:
    """Continuity and the group law of the scores of head 0 as a function of the lag, on its first channels or of the bias alone."""
    probe = lags.probe
    measure = probe.exact or probe.scores
    assert measure is not None
    span = max(2.0, float(min(64, (probe.length - 1) // 3)))
    moving = float((lags.at(1.0).content - lags.at(0.0).content).abs().max()) > 64 * lags.noise(1.0)
    n = min(CHANNELS, probe.head_dim) if moving else 0
    basis = torch.cat([torch.zeros(1, probe.head_dim, dtype=torch.float64), torch.eye(probe.head_dim, dtype=torch.float64)[:n]])
    q, k = (basis.to(torch.float64 if probe.exact else probe.dtype).expand(h, -1, -1) for h in (probe.heads, probe.kv_heads))

    def kernel(lag: float) -> torch.Tensor:
        z = measure(q, k, torch.full((n + 1,), lag, dtype=torch.float64), torch.zeros(n + 1, dtype=torch.float64))[0].double()
        return z[1:, 1:] - z[1:, :1] - z[:1, 1:] + z[:1, :1] if moving else z

    noise = lags.noise(span) if moving else lags.floor(span)
    at = Sampling(span=span, causal=True, integer=not probe.fractional, limit=max(1e-9, 256 * noise))
    found = measure_kernel(kernel, at)
    many = "" if moving else "; a sum of very many waves would do so too"
    for residual, axiom in ((found.continuity, "continuity"), (found.group_law, "the group law")):
        if residual.holds is False:
            text = str(residual.witness) if residual.witness is not None else f"residual {residual.value:.1e}; {residual.note}"
            return Broken(axiom, text + (many if axiom == "the group law" else ""))
    return None
