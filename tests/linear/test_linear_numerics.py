"""float32 and 16 bits against float64, fast rates, gaps, long sequences: nothing overflows and nothing is lost."""

import warnings

import pytest
import torch

import eigenclock as ec
from eigenclock.attention.forms.chunked import _chunk
from eigenclock.attention.forms.chunks import runs
from eigenclock.attention.forms.decays import decayed_scores
from eigenclock.attention.forms.task import Task
from linear.conftest import ENCODED, F64, H, close, inputs, irregular, normal, oracle


def test_a_rate_of_five_over_twenty_thousand_irregular_steps():
    """The absolute form would need exp(100 000): every number stays finite, and the last rows are right."""
    length = 20_000
    q, k, v = (normal(1, 2, length, 8, seed=i, dtype=torch.float32).requires_grad_() for i in range(3))
    encoding = ec.damped_rope(8, heads=2, rate=[[5.0, 0.01, 1e-4, 1.0], [5.0, 5.0, 5.0, 1e-6]], learn=("rate",))
    times = irregular(length)
    out, state = ec.linear_attention(q, k, v, encoding, times=times)
    grads = torch.autograd.grad(out, (q, k, v, *encoding.parameters()), torch.ones_like(out))
    for x in (out, state.S, *grads):
        assert bool(torch.isfinite(x).all())
    last = slice(length - 400, length)
    past, before = ec.linear_attention(*(x[:, :, : last.start].double() for x in (q, k, v)), encoding, times=times[: last.start])
    exact, _ = ec.linear_attention(
        *(x[:, :, last].double() for x in (q, k, v)), encoding, times=times[last], state=before, form="recurrent"
    )
    close(out[:, :, last], exact, 2e-5)
    assert past.dtype == F64


@pytest.mark.parametrize("form", ec.FORMS)
@pytest.mark.parametrize("name", ["decay, per channel", "damped_rope, per head and pair", "jordan_rope", "retnet", "hyperbolic"])
def test_float32_is_close_to_float64(name, form):
    encoding = ENCODED[name](H)
    exact = inputs(300, grad=True)
    rounded = [x.detach().float().requires_grad_() for x in exact]
    times = irregular(300)
    wanted = oracle(*exact, encoding, times=times)
    got, _ = ec.linear_attention(*rounded, encoding, times=times, form=form)
    close(got, wanted, 5e-6)
    g, learned = normal(*got.shape, seed=9), list(encoding.parameters())
    theirs = torch.autograd.grad(wanted, [*exact, *learned], g)
    ours = torch.autograd.grad(got, [*rounded, *learned], g.float())
    for one, other in zip(ours, theirs, strict=True):
        close(one, other, 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_round_inputs_and_output_only(dtype):
    encoding, (q, k, v) = ENCODED["damped_rope, per head and pair"](H), inputs(300, dtype=dtype)
    got, _ = ec.linear_attention(q, k, v, encoding)
    exact, _ = ec.linear_attention(q.double(), k.double(), v.double(), encoding)
    close(got, exact.to(dtype), torch.finfo(dtype).eps)


def test_powers_of_the_lag_that_outgrow_the_dtype_are_named():
    """An undamped block of order 3 over 4096 steps: a warning in float32 and in 16 bits, none in float64."""
    encoding = ec.jordan_rope(12, order=3, rate=0.0, eta=1.0)
    q, k, v = (normal(1, 1, 4096, 12, seed=i) for i in range(3))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.warns(RuntimeWarning, match="Jordan blocks grow"):
            ec.linear_attention(q.to(dtype), k.to(dtype), v.to(dtype), encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ec.linear_attention(q, k, v, encoding)


def test_chunks_beyond_the_bound_are_weighed_in_blocks():
    """One gap of a million in one row of many: exact there, and everywhere else."""
    q, k, v = inputs(256)
    encoding = ec.decay(8, rate=[0.5, 0.4, 3.0, 0.01, 1.0, 0.1, 0.2, 0.3])
    times = torch.arange(256, dtype=F64).expand(2, 256).clone()
    times[1, 100:] += 1e6
    close(ec.linear_attention(q, k, v, encoding, times=times, form="chunked")[0], oracle(q, k, v, encoding, times=times))
    close(ec.linear_attention(*(x.float() for x in (q, k, v)), encoding, times=times)[0], oracle(q, k, v, encoding, times=times), 5e-6)


def test_scores_without_any_factor_above_one():
    """The careful road by itself against every pair written out, with exponents up to a billion."""
    q, k = normal(3, 50, 6, seed=1), normal(3, 50, 6, seed=2)
    times = (torch.rand(3, 50, 6, generator=torch.Generator().manual_seed(3), dtype=F64) ** 12 * 1e9).cumsum(1)
    rate = torch.tensor([[1.0, 0.1, 3.0, 1e-9, 1e-6, 0.0]], dtype=F64)
    lag = (times[:, :, None] - times[:, None]).clamp_min(0)
    (got,) = decayed_scores([q], k, times, rate)
    close(got, (q[:, :, None] * k[:, None] * (-lag * rate).exp()).sum(-1).tril(), 1e-13)
    (got,) = decayed_scores([q], k, times[..., :1], rate[:, 4:5])
    close(got, (q @ k.mT * (-lag[..., 0] * rate[0, 4]).exp()).tril(), 1e-13)


def test_fast_rates_take_shorter_chunks():
    def chosen(rate: float) -> int:
        x = torch.zeros(1, 1, 4096, 4)
        return _chunk(
            Task(
                x,
                x,
                x,
                torch.arange(4096.0, dtype=F64)[None, None, :, None],
                torch.zeros(1, 1, 1, 1, dtype=F64),
                1.0,
                torch.tensor([[rate, 0.0, 0.1, 0.2]]),
            )
        )

    assert [chosen(rate) for rate in (0.01, 1.0, 2.0, 4.0, 50.0)] == [64, 64, 32, 16, 16]


def test_runs_cover_every_token_once():
    for length, chunk, most in ((0, 4, 2), (1, 4, 2), (37, 4, 3), (64, 16, 1), (65, 64, 9)):
        tokens = [t for run in runs(length, chunk, most) for t in range(length)[run.tokens]]
        assert tokens == list(range(length))


@pytest.mark.parametrize("form", ["chunked"])
def test_rate_gradients_keep_their_digits_in_float32(form):
    """Summed around each chunk: slow rates over a long sequence would drown in one sum over absolute time."""
    length = 4096
    rates = torch.tensor([1.0, 0.1, 1e-3, 1e-4], dtype=F64)
    results = []
    for dtype in (torch.float32, F64):
        rate = rates.clone().requires_grad_()
        q, k, v, g = (normal(1, 1, length, 4, seed=i, dtype=torch.float32).to(dtype) for i in range(4))
        times = torch.arange(length, dtype=F64)[None, None, :, None] + 1e6
        task = Task(q, k, v, times, times[:, :, :1], 0.5, rate[None])
        out, _ = ec.FORMS[form].run(task)
        results.append(torch.autograd.grad(out, rate, g)[0])
    assert float(((results[0] - results[1]) / results[1]).abs().max()) < 1e-4


def test_memory_grows_with_the_length_alone():
    """What the backward keeps beside its inputs: one state for every few chunks, not one for every token."""
    kept = {}
    for length in (1024, 2048):
        q, k, v = (normal(1, 1, length, 8, seed=i, dtype=torch.float32).requires_grad_() for i in range(3))
        total = 0

        def pack(x: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            ec.linear_attention(q, k, v, ec.damped_rope(8, half_life=5.0))
        kept[length] = total
    assert kept[2048] < 2.05 * kept[1024]
    assert kept[2048] < 12 * 3 * 2048 * 8


@pytest.mark.slow
def test_under_a_compiler():
    """The call stands outside the graph: the same numbers, and a graph in one piece is refused."""
    encoding, (q, k, v) = ENCODED["decay"](H), inputs(40, dtype=torch.float32)

    def attend(q):
        return ec.linear_attention(q * 2, k, v, encoding)[0] + 1

    compiled = torch.compile(attend, backend="eager")
    close(compiled(q), attend(q), 1e-6)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="disable"):
        torch.compile(attend, backend="eager", fullgraph=True)(q)
