"""What the rules on configs, tables and numbers say, and that advice stays advice."""

from dataclasses import replace

import pytest
import torch

import eigenclock as ec
from audit import twins
from audit.twins import LLAMA, base, of_config, rotary_table
from eigenclock.audit.judge import judge
from eigenclock.audit.measure.frequencies import base_of, rounded_to, uninitialised
from eigenclock.audit.probe import Probe
from eigenclock.audit.rules.reach import within_reach


def severities(probe: Probe, rule: str) -> list[str]:
    return [f.severity for f in twins.of_rule(probe, rule)]


# --- keys ----------------------------------------------------------------------------------------------------------------------------


def refused(config) -> Probe:
    try:
        ec.encodings(config)
    except ec.EigenclockError as error:
        return Probe("a config", "config", 8, config=config, refused=str(error))
    raise AssertionError(f"{config} is read")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attn_factor": 0.87}},
            "attn_factor",
        ),
        ({"partial_rotary_factor": 0.5, "rotary_dim": 6}, "rotary_dim"),
        ({"partial_rotary_factor": 0.4}, "even width"),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_theta"),
    ],
)
def test_a_config_that_contradicts_itself_is_a_fault_that_names_the_key(more, named):
    found = twins.of_rule(refused({**LLAMA, **more}), "config")
    assert [f.severity for f in found] == ["fault"] and named in found[0].message


def test_a_config_that_is_only_not_read_here_is_no_fault():
    assert severities(refused({"model_type": "somebody_elses", "hidden_size": 16, "num_attention_heads": 2}), "config") == ["advice"]
    assert severities(refused({**LLAMA, "num_key_value_heads": 3}), "config") == ["advice"]
    outside = replace(refused({"model_type": "gpt2"}), outside="learned absolute positions")
    assert severities(outside, "config") == []


def test_a_factor_that_disagrees_with_the_lengths_is_a_risk():
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    assert severities(of_config({**LLAMA, "max_position_embeddings": 128, "rope_scaling": scaling}), "config") == ["risk"]
    assert severities(of_config({**LLAMA, "max_position_embeddings": 64, "rope_scaling": scaling}), "config") == []


# --- tables --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1e2, 1e4, 5e5, 1e6])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_rounded_tables_are_told_from_float32_ones(theta, width):
    freq = base(theta, width).float()
    assert rounded_to(freq) is None
    assert rounded_to(freq.bfloat16().float()) is torch.bfloat16
    if float(freq.min()) > 1e-4:
        assert rounded_to(freq.half().float()) is torch.float16


@pytest.mark.parametrize("freq", [torch.zeros(4), torch.tensor([1.0, 0.1, 0.0, 0.0]), torch.linspace(1, 128, 16) * 3.14159, base(1e8, 256)])
def test_unusual_tables_are_not_called_unfilled(freq):
    assert not uninitialised(freq) and rounded_to(freq) is None


@pytest.mark.parametrize("freq", [[float("nan"), 0.1], [float("inf"), 1.0], [6.93e-18, 0.0], [4e18, 1.0], [1e-30, 1e-38]])
def test_memory_that_was_never_written_is_seen(freq):
    assert uninitialised(torch.tensor(freq))
    assert severities(of_config(LLAMA, rotary_table(torch.tensor([*freq, 0.0, 0.0]))), "table") == ["fault"]


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024},
    {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.0, 1.05, 1.1],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 1024,
    },
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']}{'' if s.get('truncate', True) else ' without truncate'}")
def test_every_scaling_is_recognised_and_its_absence_is_explained(scaling):
    config = {**LLAMA, "rope_scaling": scaling}
    sound = of_config(config)
    amplitude = 1.0
    enc = sound.encodings["full_attention"]  # type: ignore[index]
    q = torch.ones(1, 2, 1, 8, dtype=torch.float64)
    amplitude = float(enc.read_in(q, q)[0].max())
    sound = replace(sound, tables={"full_attention": twins.table(enc, amplitude)})
    assert severities(sound, "scaling") == [] and severities(sound, "amplitude") == []
    if scaling["rope_type"] in ("dynamic", "longrope"):  # short sequences have the plain table, or nearly
        return
    plain = of_config(config, rotary_table(base(1e4)))
    found = twins.of_rule(plain, "scaling")
    assert [f.severity for f in found] == ["fault"]
    assert "left out" in found[0].message or "factor is not read" in found[0].message
    if amplitude != 1:
        assert severities(plain, "amplitude") == ["fault"]


def test_a_length_dependent_schedule_is_a_risk_up_to_its_length_and_a_fault_beyond():
    assert severities(twins.by_dynamic(512), "cache_length") == ["risk"]
    assert severities(twins.by_dynamic(513), "cache_length") == ["fault"]


# --- advice --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theta", "length", "low"), [(1e4, 4096, True), (5e5, 4096, False), (1e4, 1500, False), (5e5, 32768, True)])
def test_the_bound_on_the_base_is_advice(theta, length, low):
    probe = of_config({**LLAMA, "rope_theta": theta}, length=length)
    assert severities(probe, "base") == (["advice"] if low else [])


@pytest.mark.parametrize("theta", [1e2, 1e4, 5e5, 1e8])
@pytest.mark.parametrize("width", [6, 64, 128])
def test_the_base_is_read_off_a_table(theta, width):
    assert base_of(base(theta, width)) == pytest.approx(theta, rel=1e-9)
    assert base_of(base(theta, width).flip(0)) is None and base_of(torch.ones(width // 2, dtype=torch.float64)) is None


def test_idle_and_aliased_pairs_are_counted():
    probe = of_config(LLAMA, rotary_table(torch.tensor([4.0, 1.0, 0.01, 0.0])), length=600)
    found = twins.of_rule(probe, "wavelengths")
    assert [f.severity for f in found] == ["advice", "advice"]
    assert found[0].measured == 2 and "1 of them do not turn" in found[0].message  # 0.01 * 600 < 2 pi
    assert "aliasing" in found[1].message and found[1].where["pair"] == 0
    assert severities(of_config(LLAMA, rotary_table(torch.tensor([1.0, 0.5, 0.1, 0.05]))), "wavelengths") == []


# --- reach ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [40, 512, 639])
def test_a_shorter_table_shortens_what_is_judged(end):
    probe = twins.by_maps(twins.tabled(end), twins.tabled(end), fractional=False)
    short = within_reach(probe)
    assert short.length == end and f"from {end} on" in short.notes[-1]
    report = judge(probe)
    assert report.ok and report.length == end
    assert within_reach(twins.sound_rotary()).length == twins.LENGTH
