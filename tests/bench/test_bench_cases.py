"""Every case at a tiny size: it runs, and both sides compute what they are said to compute."""

import math

import pytest
import torch

from eigenclock.attention.rotate import make_table, rotate
from eigenclock.bench import BENCHES
from eigenclock.bench.case import DTYPES
from eigenclock.bench.cases import bias, decode, importing, learned, memory, rotation
from eigenclock.bench.process import peak_growth, python
from eigenclock.errors import EigenclockError
from eigenclock.theory.split import Turn

TINY = 1 / 64
with pytest.MonkeyPatch.context() as _patch:  # another package that takes long to import
    _patch.setattr(rotation, "has_transformers", lambda: False)
    SMALL = {name: BENCHES[name](TINY) for name in BENCHES}
IN_PROCESS = [case for family in ("rotation", "damped", "bias", "fox", "wall") for case in SMALL[family]]


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [x for part in result for x in tensors(part)]


def test_names_are_unique_and_begin_with_their_family():
    names = [case.name for family in SMALL.values() for case in family]
    assert len(set(names)) == len(names)
    assert all(case.name.split("/")[0] == family for family, found in SMALL.items() for case in found)


def test_size_changes_lengths_and_nothing_else():
    for family, build in BENCHES.items():
        for full, small in zip(build(1.0), SMALL[family], strict=True):
            a, b = full.describe(), small.describe()
            if full.shape:
                assert full.shape[2] == 64 * small.shape[2]
            assert {**a, "shape": 0} == {**b, "shape": 0}


@pytest.mark.parametrize("case", IN_PROCESS, ids=lambda case: case.name)
def test_both_sides_run_and_give_finite_tensors(case):
    work = case.build()
    for call in (work.ours, work.other):
        results = tensors(call())
        assert results and all(torch.isfinite(x).all() for x in results)
        assert results[0].shape == case.shape and results[0].dtype == DTYPES[case.dtype]
        assert not any(x.requires_grad for x in results)


@pytest.mark.parametrize(
    "case", [c for c in IN_PROCESS if "train-" in c.name or c.name.startswith("fox/fp32/train")], ids=lambda case: case.name
)
def test_learned_numbers_get_a_gradient(case):
    learned = tensors(case.build().ours())[3:]
    assert learned and all(x.numel() > 0 and x.abs().sum() > 0 for x in learned)


@pytest.mark.parametrize("case", [c for c in (*SMALL["bias"], *SMALL["fox"]) if c.name.endswith("/tensor")], ids=lambda case: case.name)
def test_bias_as_a_key_term_equals_the_bias_tensor(case):
    work = case.build()
    loose = {"rtol": 0.1, "atol": 0.1} if case.dtype == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    for a, b in zip(tensors(work.ours()), tensors(work.other()), strict=False):  # ours goes on with gradients to the slopes
        torch.testing.assert_close(a, b, **loose)


def test_bias_tensor_is_a_linear_penalty_on_the_past_only():
    tensor = bias.bias_tensor(8, 5, torch.float32)[0, 0]  # the first of 8 slopes is 1/2
    assert tensor[4].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]
    assert tensor[0].tolist() == [0.0] + [-math.inf] * 4


def test_fox_forgets_over_the_spans_it_is_given():
    encoding = learned.forgetting()
    ticks = encoding.clock(x=torch.zeros(1, 5, learned.HEADS * learned.WIDTH)).ticks[0]
    torch.testing.assert_close(1 / ticks[:, 0], torch.logspace(math.log10(16), math.log10(4096), 8, dtype=torch.float64), rtol=1e-3, atol=0)
    tensor = learned.bias_tensor(encoding, torch.zeros(1, 5, learned.HEADS * learned.WIDTH), torch.float64)[0, 0]
    torch.testing.assert_close(tensor[4], -torch.arange(4.0, -1, -1, dtype=torch.float64) / 16, rtol=1e-3, atol=1e-9)
    assert tensor[0].tolist() == [0.0] + [-math.inf] * 4


@pytest.mark.parametrize("case", SMALL["decode"], ids=lambda case: case.name)
def test_decode_goes_on_from_its_own_steps(case):
    work, (new, past) = case.build(), (1, case.shape[2])
    out = [work.ours() for _ in range(3)]
    assert work.other().shape == out[0].shape == (1, decode.HEADS, new, decode.WIDTH)
    assert past == 1024 and all(x.dtype == DTYPES[case.dtype] and torch.isfinite(x).all() for x in out)
    assert not torch.equal(out[0], out[1])  # the token before is one of the keys now


@pytest.mark.parametrize("name", ["linear-head", "linear-pair"])
@pytest.mark.parametrize("backward", [False, True])
def test_linear_attention_is_compared_with_its_shorter_self(name, backward):
    call, inputs = memory.prepare(name, "fp32", 40, backward)
    assert torch.isfinite(tensors(call())[0]).all() and inputs == 40 * 64 * 4 * 8 * (3 + backward)
    (case,) = [c for c in SMALL["memory"] if c.name == f"memory/65536/{name}/{'train' if backward else 'forward'}"]
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "in_process", lambda *words: asked.append(words) or 1)
        work = case.build()
        assert work.ours() == work.other() == 1
    assert asked == [(name, "fp32", 1024, backward), (name, "fp32", 256, backward)]


def rotated(pairing):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, rotation.HEADS, 32, rotation.WIDTH)
    times = torch.arange(32, dtype=torch.float64)[None, None]
    freq = rotation.frequencies()
    table = make_table(times, Turn(0, freq, pairing), q.dtype)
    return q, k, times, freq, (rotate(q, table), rotate(k, table))


def test_half_pairs_equal_the_written_out_formula():
    q, k, times, freq, ours = rotated("half")
    for a, b in zip(ours, rotation._other("rotate-half", q, k, times, freq)(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.peer("transformers")
def test_half_pairs_equal_those_of_transformers():
    q, k, times, freq, ours = rotated("half")
    for a, b in zip(ours, rotation._other("transformers", q, k, times, freq)(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert {case.name.split("/")[-1] for case in rotation.cases()} == {"copy", "transformers"}


def test_interleaved_pairs_turn_by_frequency_times_time():
    q, _, times, freq, (ours, _) = rotated("interleaved")
    z = torch.view_as_complex(q.double().unflatten(-1, (-1, 2))) * torch.exp(1j * times[..., None] * freq)
    torch.testing.assert_close(ours.double(), torch.view_as_real(z).flatten(-2), rtol=1e-5, atol=1e-5)


def test_the_copy_goes_into_memory_that_is_there():
    q, k, times, freq, _ = rotated("half")
    copy = rotation._other("copy", q, k, times, freq)
    first, second = copy(), copy()
    assert first[0].data_ptr() == second[0].data_ptr() != q.data_ptr()
    assert torch.equal(first[0], q) and torch.equal(first[1], k)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", [*memory.PATHS, "plain", "plain-repeated"])
def test_every_memory_path_runs(name, backward):
    path = memory.PATHS.get(name)
    call, inputs = memory.prepare(name, path.dtype if path else "fp32", 40, backward)
    assert torch.isfinite(tensors(call())[0]).all()
    element, kv_heads = 2 if path and path.dtype == "bf16" else 4, 2 if name in ("plain-repeated", "damped-grouped") else 8
    assert inputs == 40 * 64 * element * (8 + 2 * kv_heads + 8 * backward)


def test_grouped_keys_are_compared_with_repeated_keys():
    (case,) = [c for c in SMALL["memory"] if c.name == "memory/4096/damped-grouped/forward"]
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "in_process", lambda *words: asked.append(words) or 10_000)
        work = case.build()
        assert work.other() == 10_000
        assert work.ours() == 10_000 - 8 * case.shape[2]  # the clock is allowed for
    assert asked == [("plain-repeated", "fp32", 64, False), ("damped-grouped", "fp32", 64, False)]


def test_growth_is_what_a_call_holds_at_its_peak():
    program = (
        "import torch; from eigenclock.bench.process import peak_growth; from eigenclock.bench.cases.memory import peak\n"
        "def call():\n    a = torch.ones(4_000_000); del a; return torch.ones(2_000_000)\n"
        "print(peak_growth(call), peak_growth(lambda: torch.ones(2_000_000)), peak_growth(lambda: None), peak('plain', 'fp32', 512, False))"
    )
    high, low, none, plain = map(int, python("-c", program, threads=1, exact_memory=True).split())
    assert 16_000_000 <= high < 17_500_000  # the larger of the two, which never live together
    assert 8_000_000 <= low < 9_500_000  # an earlier peak is forgotten
    assert none < 1_000_000
    assert plain >= 4 * 512 * 8 * 64 * 4  # q, k, v and the output
    assert peak_growth(lambda: None) >= 4096


def test_a_memory_call_is_told_by_json(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(memory, "peak", lambda *words: asked.append(words) or 123)
    monkeypatch.setattr(memory, "python", lambda *words, **how: asked.append(how) or memory.main(words[-1]) or capsys.readouterr().out)
    assert memory.in_process("rope", "bf16", 64, True) == 123
    assert asked == [{"threads": torch.get_num_threads(), "exact_memory": True}, ("rope", "bf16", 64, True)]


def test_imports_are_measured_in_a_process_of_their_own():
    assert importing.seconds("json") > 0


def test_a_process_that_fails_says_why():
    with pytest.raises(EigenclockError, match="no_such_module"):
        python("-c", "import no_such_module")
