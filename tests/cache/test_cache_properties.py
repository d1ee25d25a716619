"""However a sequence is cut and whichever forks are tried on the way, the output is that of the full pass."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenclock as ec
from cache.conftest import F64, D, H, close, full, in_pieces, inputs, normal
from eigenclock.testing.strategies import times as some_times

BUILD = {
    "rope": lambda: ec.rope(D),
    "damped_rope": lambda: ec.damped_rope(D, heads=H, half_life=(0.5, 1e3)),
    "rope * alibi": lambda: ec.rope(D) * ec.alibi(D, heads=H),
    "jordan_rope": lambda: ec.jordan_rope(D, heads=H, eta=0.1, half_life=20.0),
    "sandwich": lambda: ec.sandwich(D, heads=H, width=4),
}


@settings(max_examples=60)
@given(
    data=st.data(), name=st.sampled_from(sorted(BUILD)), stamps=some_times(min_size=2, max_size=40, span=50.0), repeat=st.integers(1, 12)
)
def test_any_cut_and_any_fork(data, name, stamps, repeat):
    gaps = stamps.diff(prepend=stamps[:1])
    times = stamps[0] + gaps.repeat(repeat).cumsum(0)  # up to 480 tokens: chunks close
    length, enc = len(times), BUILD[name]()
    tensors = inputs(length, rows=1, seed=data.draw(st.integers(0, 100)))
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=6)) | {0, length})
    forks = data.draw(st.sets(st.sampled_from(cuts), max_size=3))
    cache, outs, lses = None, [], []
    with torch.no_grad():
        for low, high in pairwise(cuts):
            if low in forks and cache is not None:  # another continuation from here, which leaves no trace
                other = [normal(*x.shape[:2], high - low, x.shape[3], seed=7 + high, dtype=F64) for x in tensors]
                in_pieces(other, enc, [high - low], cache, 0, times=times[low:high])
            out, lse, cache = in_pieces(tensors, enc, [high - low], cache, low, times=times)
            outs.append(out)
            lses.append(lse)
        expected, expected_lse = full(tensors, enc, times=times)
    close(torch.cat(outs, 2), expected)
    close(torch.cat(lses, 2), expected_lse)
