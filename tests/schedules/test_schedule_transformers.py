"""Schedules against the functions of transformers where those are right, and what differs where they are not.

Their tables are float32: a frequency is off by up to 4e-8, 0.02 radians after half a million tokens. The tolerance below is theirs, not
ours; tests/schedules/test_schedule_formulas.py holds ours to 2e-14.
"""

import math
from typing import Any

import pytest
import torch

import eigenclock as ec

pytestmark = pytest.mark.peer("transformers")
FLOAT32 = 1e-6  # of the frequency


def config(width: int, reach: int = 32768, **rope: Any) -> Any:
    """A Llama with this rotary width."""
    cls = pytest.importorskip("transformers").LlamaConfig
    return cls(hidden_size=2 * width, num_attention_heads=2, head_dim=width, max_position_embeddings=reach, rope_parameters=rope)


def theirs(width: int, seq_len: int | None = None, reach: int = 32768, **rope: Any) -> tuple[torch.Tensor, float]:
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    frequencies, scale = functions[rope["rope_type"]](config(width, reach, **rope), seq_len=seq_len)
    return frequencies.double(), scale


def same(schedule: Any, found: tuple[torch.Tensor, float]) -> None:
    spectrum = schedule(found[0].numel())
    assert torch.allclose(found[0], spectrum.values, rtol=FLOAT32, atol=0)
    assert math.isclose(found[1], spectrum.attention_scale, rel_tol=1e-12)


def known_fault(fixed: bool) -> None:
    if fixed:
        pytest.skip("missing: this fault, in this version of transformers")


WIDTHS = pytest.mark.parametrize("width", [8, 64, 128])
BASES = pytest.mark.parametrize("theta", [1e4, 5e5])


@WIDTHS
@BASES
def test_linear(width, theta):
    same(ec.linear(4.0, theta), theirs(width, rope_type="linear", rope_theta=theta, factor=4.0))


@WIDTHS
@BASES
@pytest.mark.parametrize("length", [100, 2048, 2049, 5000, 30000])
def test_dynamic(width, theta, length):
    found = theirs(width, length, 2048, rope_type="dynamic", rope_theta=theta, factor=2.0)
    same(ec.dynamic(2.0, 2048, theta=theta).at(length), found)
    if length > 2048:  # static NTK is theirs at one length
        same(ec.ntk(2 * length / 2048 - 1, theta), found)


@WIDTHS
@BASES
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    "scale",
    [{}, {"attention_factor": 1.0}, {"mscale": 0.707, "mscale_all_dim": 0.707}, {"mscale": 1.0, "mscale_all_dim": 0.5}],
    ids=lambda keys: ",".join(keys) or "plain",
)
def test_yarn(width, theta, truncate, scale):
    keys = {"factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": truncate} | scale
    found = theirs(width, rope_type="yarn", rope_theta=theta, original_max_position_embeddings=4096, **keys)
    same(ec.yarn(original_length=4096, theta=theta, **keys), found)


@WIDTHS
@BASES
@pytest.mark.parametrize("length", [100, 4096, 4097, 30000])
@pytest.mark.parametrize("attention_factor", [None, 1.25])
def test_longrope(width, theta, length, attention_factor):
    short, long = [1 + 0.01 * i for i in range(width // 2)], [1 + 0.9 * i for i in range(width // 2)]
    keys = {"short_factor": short, "long_factor": long, "factor": 8.0, "attention_factor": attention_factor}
    found = theirs(width, length, rope_type="longrope", rope_theta=theta, original_max_position_embeddings=4096, **keys)
    same(ec.longrope(original_length=4096, theta=theta, **keys).at(length), found)


@WIDTHS
@BASES
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3(width, theta, factor):
    keys = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    found = theirs(width, rope_type="llama3", rope_theta=theta, original_max_position_embeddings=8192, **keys)
    same(ec.llama3(original_length=8192, theta=theta, **keys), found)


@WIDTHS
def test_proportional_with_a_factor(width):
    """Theirs divides as well: position interpolation over p-RoPE."""
    found = theirs(width, rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25, factor=8.0)
    same(ec.linear(8.0, ec.proportional(0.25, 1e6)), found)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_yarn_through_attention(backend):
    """Their table with its amplitude on cos and sin, their rotation, plain softmax: the amplitude is squared on the logits, once."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    keys = {"factor": 4.0, "original_max_position_embeddings": 512}
    rotary = llama.LlamaRotaryEmbedding(config(16, rope_type="yarn", rope_theta=1e4, **keys))
    q, k, v = torch.randn(3, 1, 2, 60, 16)
    q = 3 * q
    cos, sin = rotary(q, torch.arange(60)[None])
    tq, tk = llama.apply_rotary_pos_emb(q, k, cos, sin)
    z = (tq @ tk.mT / 4).masked_fill(torch.ones(60, 60, dtype=torch.bool).triu(1), -torch.inf)
    try:
        out = ec.attention(q, k, v, ec.rope(16, freq=ec.yarn(4.0, 512), pairing="half"), backend=backend)
    except ec.UnsupportedError as refusal:
        pytest.skip(f"declined: {refusal}")
    assert torch.allclose(out, z.softmax(-1) @ v, rtol=0, atol=2e-5)
    bare = ec.attention(q, k, v, ec.rope(16, freq=ec.yarn(4.0, 512, attention_factor=1.0), pairing="half"))
    assert (out - bare).abs().max() > 1e-2


# --- where they are wrong ----------------------------------------------------------------------------------------------------------


def test_they_ignore_truncate_of_a_layer_type():
    """gpt-oss asks for it; inside a dict per layer type theirs reads the key from the outer dict and rounds all the same."""
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    nested = config(64, rope_type="default", rope_theta=1e4)
    nested.layer_types = ["full_attention", "full_attention"]
    nested.rope_parameters = {"full_attention": rope}
    found, _ = functions["yarn"](nested, layer_type="full_attention")
    right, rounded = (ec.yarn(32.0, 4096, truncate=truncate, theta=150000.0)(32).values for truncate in (False, True))
    same(ec.yarn(32.0, 4096, truncate=False, theta=150000.0), theirs(64, **rope))  # at the top level they read it
    known_fault(torch.allclose(found.double(), right, rtol=FLOAT32))
    assert torch.allclose(found.double(), rounded, rtol=FLOAT32) and not torch.allclose(rounded, right, rtol=1e-2)


def test_they_ignore_one_coefficient_without_the_other():
    """DeepSeek's code, which the two keys come from, has 1 and 0 where one is not given; theirs then forgets the other one, too."""
    keys = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096}
    for given, right in (({"mscale": 0.5}, 0.05 * math.log(40) + 1), ({"mscale_all_dim": 1.0}, 1.0)):
        assert math.isclose(ec.yarn(40.0, 4096, **given)(32).attention_scale, right, rel_tol=1e-15)
        _, scale = theirs(64, **keys, **given)
        known_fault(math.isclose(scale, right, rel_tol=1e-6))
        assert math.isclose(scale, 0.1 * math.log(40) + 1, rel_tol=1e-12)


def test_they_interpolate_pairs_that_are_all_fast():
    """Where even the slowest pair turns more than 32 times, the clamped bounds cross and their ramp runs backwards."""
    schedule = ec.yarn(4.0, 10**9, theta=100.0)
    base = ec.geometric(100.0)(4).values
    assert float(10**9 * base[-1] / (2 * math.pi)) > 32 and torch.equal(schedule(4).values, base)
    found, _ = theirs(8, rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=10**9)
    known_fault(torch.allclose(found, base, rtol=FLOAT32))
    assert torch.allclose(found, base / 4, rtol=FLOAT32)


def test_their_dynamic_table_remembers():
    """Back at exactly the original length after a longer sequence, theirs still turns by the longer one's frequencies."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    rotary = llama.LlamaRotaryEmbedding(config(8, 2048, rope_type="dynamic", rope_theta=1e4, factor=2.0))
    schedule = ec.dynamic(2.0, 2048)
    seen = {}
    for length in (100, 5000, 2048):
        rotary(torch.zeros(1, 1, 8), torch.arange(length)[None])
        seen[length] = rotary.inv_freq.double()
    for length in (100, 5000):
        assert torch.allclose(seen[length], schedule.at(length)(4).values, rtol=FLOAT32)
    known_fault(torch.allclose(seen[2048], schedule.at(2048)(4).values, rtol=FLOAT32))
    assert torch.allclose(seen[2048], schedule.at(5000)(4).values, rtol=FLOAT32)


def test_their_longrope_couples_the_rows_of_a_batch():
    """A short row beside a long one is turned by the list of the long one."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    keys = {
        "short_factor": [1.0, 1.0, 1.05, 1.1],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    }
    rotary = llama.LlamaRotaryEmbedding(config(8, 64, rope_type="longrope", rope_theta=1e4, **keys))
    short = torch.arange(40).clamp_max(9)[None]  # ten tokens, then padding
    alone = rotary(torch.zeros(1, 1, 8), short[:, :10])[0][0].double()
    beside = rotary(torch.zeros(1, 1, 8), torch.cat([short, torch.arange(40)[None]]))[0][0, :10].double()
    spectrum = ec.longrope([1.0, 1.0, 1.05, 1.1], [1.0, 2.0, 4.0, 8.0], 16, 4.0).at(10)(4)
    right = (torch.arange(10.0, dtype=torch.float64)[:, None] * spectrum.values).cos().repeat(1, 2) * spectrum.attention_scale
    assert torch.allclose(alone, right, rtol=0, atol=1e-6)
    known_fault(torch.allclose(beside, right, rtol=0, atol=1e-6))
    assert (beside - right).abs().max() > 0.1
