"""Pictures of an audit: one score against the lag, and the same score as both positions move."""

import math
from collections.abc import Mapping, Sequence

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Report
from eigenclock.present import Figure, Line, Panel

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
POINTS = 200
LAGS = (1, 16, 256)


def curves(probe: Probe) -> Curves:
    """Scores of one random query and key of head 0: against the lag, and against the position of the query at fixed lags."""
    if probe.scores is None:
        return {}
    last = probe.length - 1
    places = sorted({round(last ** (i / (POINTS - 1))) for i in range(POINTS)} | {0}) if last > 1 else [0, 1]
    q, k = probe.content(1, 1)
    try:
        many = k.expand(-1, len(places), -1)
        times = torch.tensor(places, dtype=torch.float64)
        by_lag = probe.scores(q, many, torch.tensor([float(last)]).double(), last - times)[0, 0].double()
        out = {"score against the lag": (places, _plain(by_lag))}
        for lag in (lag for lag in LAGS if lag < last):
            starts = torch.tensor([place for place in places if place + lag <= last], dtype=torch.float64)
            values = [probe.scores(q, k, (s + lag)[None], s[None])[0, 0, 0].double() for s in starts[:: max(1, len(starts) // 60)]]
            out[f"lag {lag}"] = (starts[:: max(1, len(starts) // 60)].tolist(), _plain(torch.stack(values)))
    except Exception:  # a picture that cannot be drawn is no reason to lose the findings; the rules say what fails
        return {}
    return out


def _plain(values: torch.Tensor) -> list[float]:
    return [float(v) if math.isfinite(v) else math.nan for v in values.tolist()]


def figure(report: Report) -> Figure:
    """The two panels of a report."""
    lines = {name: Line(name, list(x), list(y)) for name, (x, y) in report.curves.items()}
    against = [lines[name] for name in lines if not name.startswith("lag ")]
    moved = [lines[name] for name in lines if name.startswith("lag ")]
    panels = [Panel(against, "lag", "score", "one query and key, by their lag", log_x=True)]
    if moved:
        panels.append(
            Panel(moved, "position of the key", "score", "the same lag at other positions: flat where it is relative", log_x=True)
        )
    return Figure(f"Scores of {report.subject}", panels, alt=f"Scores of {report.subject} against the lag and under shifts")
