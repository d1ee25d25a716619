"""Layers of hidden states, f(x, positions) or f(x, start_pos) -> out, in which tokens see each other: attention with projections inside."""

from typing import Any

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import Found
from eigenclock.audit.subjects.options import Options

WHY = (
    "what it gives for a token follows what other tokens hold, so it is no action on single vectors but attention with projections of its "
    "own: give its f(q, k, positions) or f(q, k, v, positions), or the whole model"
)


def mixes(found: Found) -> bool:
    """Whether what is given for the last token follows what the tokens before it hold, the same each time it is asked."""
    random = torch.Generator().manual_seed(5)
    x = torch.randn(found.heads, 5, found.head_dim, generator=random)
    other = x.clone()
    other[:, :-1] = torch.randn(found.heads, 4, found.head_dim, generator=random)
    times = torch.arange(5)
    try:
        first, again, changed = (found.act(y.clone(), y.clone(), times)[0][:, -1] for y in (x, x, other))
    except Exception:  # code of others refuses with whatever it happens to run into
        return False
    return torch.equal(first, again) and float((changed - first).abs().max()) > 1e-3 * float(first.abs().max())


def of_hidden(found: Found, options: Options, name: str, kind: str, how: str, **more: Any) -> Probe:
    """The probe of such a layer, of which no law is read."""
    sizes = (found.head_dim, found.heads, found.heads, options.length, options.dtype or torch.float32)
    return Probe(name, kind, *sizes, unread=WHY, notes=(f"{how}, on hidden states",), **more)
