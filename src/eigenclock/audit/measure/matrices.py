"""The matrices of an action, from basis vectors."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import times_of
from eigenclock.audit.probe import Probe


def action_matrices(probe: Probe, times: list[float]) -> tuple[Tensor, Tensor] | None:
    """The matrices (T, D, E) of both sides of the action, rows the images of basis vectors of head 0; None where it is not linear."""
    assert probe.action is not None
    d = probe.head_dim
    rows = torch.cat(
        [torch.zeros(1, d, dtype=torch.float64), torch.eye(d, dtype=torch.float64), torch.full((1, d), 0.5, dtype=torch.float64)]
    )
    tokens = rows.repeat(len(times), 1).to(probe.dtype)
    at = times_of(torch.tensor(times, dtype=torch.float64).repeat_interleave(d + 2))
    moved = probe.action(tokens.expand(probe.heads, -1, -1), tokens.expand(probe.kv_heads, -1, -1), at)
    out = []
    for x in moved:
        images = x.double()[0].unflatten(0, (-1, d + 2))
        matrix = images[:, 1:-1] - images[:, :1]
        gap = (images[:, -1] - images[:, 0] - 0.5 * matrix.sum(1)).abs().max()
        if not float(gap) <= 4 * d * probe.unit_roundoff * max(1.0, float(images.abs().max())):
            return None
        out.append(matrix)
    return out[0], out[1]
