"""Jordan blocks on content: how large they get over a call, the warning in float32, the refusal in 16 bits."""

import math
import warnings

import pytest
import torch

import eigenclock as ec
from eigenclock.attention.precision import GROWTH_LIMIT, largest_entry

F64 = torch.float64
EPS = torch.finfo(torch.float32).eps


def content(length, width=8, dtype=torch.float32, heads=1):
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, width).to(dtype) for _ in range(3)]


def warned(length: int, enc: ec.Encoding, dtype=torch.float32, **keywords) -> str:
    """The warning of one call, "" where there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ec.attention(*content(length, enc.head_dim, dtype), enc, **keywords)
    assert len(caught) <= 1
    if caught:
        assert caught[0].category is RuntimeWarning
        assert caught[0].filename == __file__  # it points at the call
    return str(caught[0].message) if caught else ""


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(
    ("rate", "eta"), [(0.0, 1.0), (0.1, 0.7), (1e-3, 0.01), ([0.0, 2.0], [0.1, -3.0]), ([[0.5, 0.1], [0.0, 1.0]], 0.2)]
)
@pytest.mark.parametrize("lag", [0.0, 3.0, 200.0])
def test_largest_entry_is_that_of_the_group(order, rate, eta, lag):
    """Within a factor of the order of the largest row sum of |exp(uL)| on a fine grid, and never above it."""
    heads = 2 if isinstance(rate, list) and isinstance(rate[0], list) else 1
    enc = ec.jordan_rope(4 * order, heads=heads, order=order, rate=rate, eta=eta, freq=[0.0, 0.0])
    grid = torch.linspace(0, lag, 2001, dtype=F64)
    exact = float(enc.generator().matrix(grid).abs().sum(-1).max())
    found = largest_entry(enc.generator().split(), lag)
    assert exact / order <= found <= exact * (1 + 1e-4)


@pytest.mark.parametrize("order", [2, 3])
def test_warning_starts_where_the_entry_times_a_rounding_step_passes_the_limit(order):
    """Without decay the entry over T tokens is sum_r (eta (T - 1))^r / r!."""
    length, want = 65, GROWTH_LIMIT / EPS  # eta such that the last term alone makes the entry
    eta = (want * math.factorial(order - 1)) ** (1 / (order - 1)) / (length - 1)
    assert warned(length, ec.jordan_rope(4 * order, order=order, rate=0.0, eta=0.9 * eta)) == ""
    message = warned(length, ec.jordan_rope(4 * order, order=order, rate=0.0, eta=1.1 * eta))
    assert "jordan_rope" in message and "lags of up to 64" in message and "float32" in message and "window=" in message


def test_what_bounds_the_lag_bounds_the_warning():
    enc = ec.jordan_rope(12, order=3, rate=0.0, eta=1.0)
    assert warned(1000, enc) != ""
    assert warned(1000, enc, window=100) == ""
    assert "lags of up to 499;" in warned(1000, enc, window=500).replace(":", ";")
    documents = torch.arange(1000) // 100
    assert warned(1000, enc, documents=documents) == ""
    assert warned(1000, enc, documents=torch.arange(1000) // 500) != ""
    assert warned(1000, enc, times=torch.arange(1000) / 10) == ""
    assert warned(20, enc, times=torch.arange(20) * 1000) != ""
    assert warned(1000, ec.jordan_rope(12, order=3, rate=0.1, eta=1.0)) == ""
    assert warned(1000, ec.jordan_rope(12, order=3, length=1000)) == ""
    assert warned(1000, enc, torch.float64) == ""
    clock = ec.Timestamps("s")
    enc = ec.jordan_rope(12, order=3, rate=0.0, eta=1.0, clock=clock)
    assert warned(1000, enc, times=torch.arange(1000)) != ""
    assert warned(1000, enc, times=torch.arange(1000), window="2min") == ""


def test_nothing_else_warns():
    for enc in (ec.rope(8), ec.decay(8, rate=0.1), ec.alibi(8, heads=1), ec.damped_rope(8)):
        assert warned(2000, enc) == ""


def test_no_tokens_no_warning():
    assert warned(0, ec.jordan_rope(8, rate=0.0, eta=1e9)) == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_refused_by_the_same_measure(dtype):
    q, k, v = content(300, dtype=dtype)
    grows, bounded = ec.jordan_rope(8, rate=0.0, eta=1.0), ec.jordan_rope(8, length=300)
    with pytest.raises(ec.UnsupportedError, match="16 bits would round these Jordan blocks"):
        ec.attention(q, k, v, grows, backend="tiled")
    assert ec.explain(q, k, v, grows).backend == "reference"  # dense, in float64
    assert ec.explain(q, k, v, bounded).backend == "tiled"
    out = ec.attention(q, k, v, bounded)
    exact = ec.scores(q, k, bounded).softmax(-1) @ v.double()
    assert (out.double() - exact).abs().max() <= 8 * torch.finfo(dtype).eps * exact.abs().max()


def test_a_traced_graph_asks_nothing():
    """No warning and no data-dependent branch while compiling; 16 bits are refused there, since their error cannot be known."""
    enc = ec.jordan_rope(12, order=3, rate=0.0, eta=1.0)
    q, k, v = content(1000, 12)
    run = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc, backend="tiled"), fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        out = run(q, k, v)
    with pytest.warns(RuntimeWarning, match="Jordan blocks"):
        assert torch.allclose(out, ec.attention(q, k, v, enc, backend="tiled"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(("rate", "eta"), [(0.0, 1.0), (1e-2, 1.0), (0.0, 1 / 1024)])
def test_the_measure_is_what_float32_loses(order, rate, eta):
    """Logits one by one (each query sees one key, so that its log-sum-exp is the logit) err by a few times the measure, in all tiles."""
    length, width = 1024, 8 * order
    enc = ec.jordan_rope(width, order=order, rate=rate, eta=eta)
    q, k, v = content(length, width)
    chosen = (torch.rand(length) * torch.arange(1, length + 1)).long()
    mask = torch.zeros(1, 1, length, length, dtype=torch.bool)
    mask[0, 0, torch.arange(length), chosen] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        _, lse = ec.attention(q, k, v, enc, mask=mask, backend="tiled", return_lse=True)
    exact = ec.scores(q, k, enc)[0, 0, torch.arange(length), chosen]
    measure = EPS * largest_entry(enc.generator().split(), length - 1.0)
    assert (lse[0, 0].double() - exact).abs().max() <= 8 * measure


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("spacing", [1.0, 1e3, 1e4, 1e5, 1e10, 1e13, 1e15])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_damped_blocks_across_large_lags(order, spacing):
    """A power of the lag times its decay: neither may be cut before the other is known, nor infinity meet 0."""
    torch.manual_seed(0)
    enc = ec.jordan_rope(24, order=order, rate=0.5, eta=1.0)
    q, k, v = torch.randn(3, 1, 1, 40, 24)
    times = torch.arange(40, dtype=torch.float64) * spacing
    expected = ec.scores(q, k, enc, times=times).softmax(-1) @ v.double()
    out = ec.attention(q, k, v, enc, times=times, backend="tiled")
    assert float((out - expected).abs().max()) < 1e-5
