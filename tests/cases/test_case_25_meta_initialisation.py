"""Case 25: built on the meta device, emptied onto the CPU, loaded from a state dict without position keys: frequencies are still right."""

import pytest
import torch

import eigenclock as ec


def frequencies(enc, width):
    matrix = enc.generator().matrix().detach().double().reshape(-1, width, width)[0]
    i = torch.arange(0, width, 2)
    return matrix[i, i + 1]


def loaded(build, state=None):
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"linear": torch.nn.Linear(3, 3), "rotary_emb": build()})
    model.to_empty(device="cpu")
    model.load_state_dict({"linear.weight": torch.eye(3), "linear.bias": torch.zeros(3), **(state or {})}, strict=not state)
    return model["rotary_emb"]


@pytest.mark.parametrize("old_key", [False, True])
def test_numbers_of_the_case(case, old_key):
    """An old file's ``inv_freq`` of another base has no say (and a strict load names it)."""
    given, expect = case["given"], case["expect"]
    state = {name: torch.tensor(value) for name, value in given["old_state_dict"].items()} if old_key else None
    enc = loaded(lambda: ec.rope(given["width"], theta=given["theta"]), state)
    assert torch.allclose(
        frequencies(enc, given["width"]), torch.tensor(expect["frequencies"], dtype=torch.float64), rtol=expect["rel_tol"], atol=0
    )
    if old_key:
        model = torch.nn.ModuleDict({"rotary_emb": enc})
        with pytest.raises(RuntimeError, match="inv_freq"):
            model.load_state_dict(state)


@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (64, 5e5), (128, 1e6)])
def test_other_widths_and_bases(width, theta):
    enc = loaded(lambda: ec.rope(width, theta=theta))
    assert torch.allclose(frequencies(enc, width), theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), rtol=3e-7, atol=0)


def from_config(**section):
    config = {"head_dim": 8, "num_attention_heads": 2, "rope_parameters": {"rope_theta": 1e4, **section}}
    return lambda: ec.encodings(config).only


@pytest.mark.parametrize(
    "build",
    [
        from_config(),
        from_config(partial_rotary_factor=0.5),
        from_config(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
        from_config(rope_type="llama3", factor=8.0, original_max_position_embeddings=64, low_freq_factor=1.0, high_freq_factor=4.0),
        from_config(rope_type="proportional", partial_rotary_factor=0.5),
        lambda: ec.encodings({"model_type": "bloom", "n_head": 2, "hidden_size": 16}).only,
        lambda: ec.encodings({"sequence_len": 64, "n_head": 2, "n_embd": 16, "n_layer": 1, "vocab_size": 5}).only,
    ],
    ids=["default", "partial", "yarn", "llama3", "proportional", "alibi", "nanochat"],
)
def test_encodings_read_from_a_config_survive_too(build):
    q = torch.randn(1, 2, 12, 8)
    enc, plain = loaded(build), build()
    assert torch.equal(ec.scores(q, q, enc), ec.scores(q, q, plain))
    assert torch.isfinite(ec.attention(q, q, q, enc)).all()
    assert list(enc.state_dict()) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda: ec.rope(8, rotary_dim=4),
        lambda: ec.damped_rope(8, heads=2, half_life=(3, 30)),
        lambda: ec.alibi(8, heads=2),
        lambda: ec.decay_bias(8, heads=2, rate=0.3),
        lambda: ec.rope(8, heads=2) * ec.alibi(8, heads=2),
        lambda: ec.rope(4) + ec.nope(4),
    ],
    ids=["partial", "damped_rope", "alibi", "decay_bias", "rope * alibi", "rope + nope"],
)
def test_every_fixed_value_survives(build):
    q = torch.randn(1, 2, 12, 8)
    enc, plain = loaded(build), build()
    assert torch.equal(ec.scores(q, q, enc), ec.scores(q, q, plain))
    assert list(enc.state_dict()) == []


def test_learned_values_come_from_the_state_dict_or_a_clear_error(case):
    """A trainable frequency is in the state dict, so a file without it is a missing key, and one with it restores it."""
    source = ec.damped_rope(8, rate=0.25, learn=("freq", "rate"))
    with torch.device("meta"):
        target = ec.damped_rope(8, rate=0.25, learn=("freq", "rate"))
    target.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match="[Mm]issing"):
        target.load_state_dict({})
    target.load_state_dict(source.state_dict())
    q = torch.randn(1, 1, 12, 8)
    assert torch.equal(ec.scores(q, q, target), ec.scores(q, q, source))
