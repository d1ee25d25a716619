"""Pictures of an audit: one score against the lag, and the same score as both positions move."""

import math
from collections.abc import Mapping, Sequence

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Report
from eigenclock.present import Figure, Line, Panel

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
POINTS = 400
LAGS = (0, 1, 16, 256)
GRAIN = 2.0**-20
"""The part of |q| |k| that is the finest thing drawn: a picture of nothing but rounding would look like a broken law."""
NOTE = """\
Positions and lags in the unit of the subject's clock; scores are inner products and what is added to them, before 1/sqrt(head_dim) and \
softmax. Lags are spread evenly over the logarithmic axis: between two points at long lags a fast pair turns more than once. \
Gaps are scores that are not finite."""


def curves(probe: Probe) -> Curves:
    """Scores of one random query and key of head 0: of the last position by their lag, and at fixed lags by the position of the key."""
    if probe.scores is None:
        return {}
    last = probe.length - 1
    places = sorted({round(last ** (i / (POINTS - 1))) for i in range(POINTS)} | {0}) if last > 1 else [0, 1]
    q, k = probe.content(1, 1)
    try:
        many = k.expand(-1, len(places), -1)
        times = torch.tensor(places, dtype=torch.float64)
        by_lag = probe.scores(q, many, torch.tensor([float(last)]).double(), last - times)[0, 0].double()
        grain = GRAIN * float(q[0, 0].double().norm() * k[0, 0].double().norm())
        out = {"score against the lag": _drawn([float(place) for place in places], by_lag, grain)}
        for lag in (lag for lag in LAGS if lag < last):
            starts = torch.tensor([place for place in places if place + lag <= last], dtype=torch.float64)
            some = starts[:: max(1, len(starts) // 60)]
            values = [probe.scores(q, k, (s + lag)[None], s[None])[0, 0, 0].double() for s in some]
            out[f"lag {lag}"] = _drawn(some.tolist(), torch.stack(values), grain)
    except Exception:  # a picture that cannot be drawn is no reason to lose the findings; the rules say what fails
        return {}
    return {name: line for name, line in out.items() if line[0]}


def _drawn(x: list[float], values: torch.Tensor, grain: float) -> tuple[list[float], list[float]]:
    """A line to the grain, from the first finite score to the last; NaN where one between them is not finite."""
    y = [grain * round(v / grain) if math.isfinite(v) else math.nan for v in values.tolist()]
    seen = [i for i, v in enumerate(y) if math.isfinite(v)]
    kept = slice(seen[0], seen[-1] + 1) if seen else slice(0)
    return x[kept], y[kept]


def figure(report: Report) -> Figure:
    """The two panels of a report."""
    lines = {name: Line(name, list(x), list(y)) for name, (x, y) in report.curves.items()}
    against = [lines[name] for name in lines if not name.startswith("lag ")]
    moved = [lines[name] for name in lines if name.startswith("lag ")]
    panels: list[Panel] = []
    if against:
        panels.append(Panel(against, "lag", "score", f"one query, at position {report.length - 1}, by the lag of the key", log_x=True))
    if moved:
        panels.append(
            Panel(moved, "position of the key", "score", "the same lag at other positions: flat where it is relative", log_x=True)
        )
    alt = f"Scores of {report.title} in head 0 against the lag of the key, and at fixed lags against its position"
    return Figure(f"Scores of {report.title}, head 0", panels, alt=alt, note=NOTE)
