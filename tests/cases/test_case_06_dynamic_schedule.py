"""Case 06: a schedule that follows the length of the sequence has no memory, and keys turned at another length are stale."""

import dataclasses

import pytest
import torch

import eigenclock as ec
from eigenclock.encodings.describe import describe

F64 = torch.float64


def in_use(schedule, width: int) -> torch.Tensor:
    """The frequencies an encoding turns by, off its generator."""
    L = ec.rope(width, freq=schedule).generator().matrix()
    return L[torch.arange(0, width, 2), torch.arange(1, width, 2)]


def longhand(width: int, theta: float, factor: float, original: float, length: float) -> torch.Tensor:
    base = theta if length <= original else theta * (factor * length / original - (factor - 1)) ** (width / (width - 2))
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=F64)


def score(q: torch.Tensor, k: torch.Tensor, t: float, s: float, enc_q: ec.Encoding, enc_k: ec.Encoding) -> float:
    """One cached key: turned when it was stored, the query turned now."""
    query = enc_q.generator().T.act(q[None, None, None], torch.tensor([t]))
    key = enc_k.generator().act(k[None, None, None], torch.tensor([-s]))
    return float((query * key).sum())


def test_frequencies_of_the_case(case):
    given, expect = case["given"], case["expect"]
    schedule = ec.dynamic(given["factor"], given["original_length"], theta=given["theta"])
    for length, frequencies in zip(given["lengths_in_this_order"], expect["frequencies"], strict=True):
        wanted = torch.tensor(frequencies, dtype=F64)
        assert torch.allclose(in_use(schedule.at(length), given["width"]), wanted, rtol=expect["rel_tol"], atol=0)


def test_no_length_remembers_another(case):
    given = case["given"]
    schedule = ec.dynamic(given["factor"], given["original_length"], theta=given["theta"])
    first = {length: schedule.at(length)(4).values for length in (100, 5000, 2048)}
    for length in (5000, 100, 40_000, 2048, 5000, 100):
        frozen = schedule.at(length)
        assert torch.equal(frozen(4).values, first.get(length, frozen(4).values))
        assert frozen.at(100) == schedule.at(100)  # choosing again starts from the schedule, not from the last choice
    assert torch.equal(first[100], first[2048]) and torch.equal(first[100], ec.geometric(1e4)(4).values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.length = 5000


def test_decode_with_all_keys_at_the_final_frequencies(case):
    """The way that is right: keys kept as they came, turned at the frequencies of the final length."""
    given, expect = case["given"], case["expect"]
    decode = given["decode"]
    schedule = ec.dynamic(given["factor"], given["original_length"], theta=given["theta"]).at(decode["final_length"])
    enc = ec.rope(given["width"], freq=schedule, pairing=given["layout"])
    q, k = (torch.tensor(decode[name], dtype=F64)[None, None, None] for name in "qk")
    s = torch.tensor(decode["key_times"])
    times = torch.tensor([decode["final_length"] - 1])
    z = ec.scores(q, k.expand(1, 1, len(s), -1), enc, times=times, key_times=s, scale=1.0)[0, 0, 0]
    wanted = torch.tensor(expect["decode_scores_when_all_keys_use_the_final_frequencies"], dtype=F64)
    assert torch.allclose(z, wanted, rtol=0, atol=expect["abs_tol"])


def test_mixing_two_lengths_is_another_score(case):
    """Why it matters: a key stored at 2048 tokens, read by a query of 5000."""
    given = case["given"]
    schedule = ec.dynamic(given["factor"], given["original_length"], theta=given["theta"])
    old, new = (ec.rope(given["width"], freq=schedule.at(length), pairing=given["layout"]) for length in (2048, 5000))
    q, k = (torch.tensor(given["decode"][name], dtype=F64) for name in "qk")
    right = case["expect"]["decode_scores_when_all_keys_use_the_final_frequencies"][1]
    assert abs(score(q, k, 4999.0, 2047.0, new, new) - right) < 1e-9
    assert abs(score(q, k, 4999.0, 2047.0, new, old) - right) > 0.5


@pytest.mark.parametrize(
    ("width", "theta", "factor", "original"), [(8, 1e4, 2.0, 2048), (64, 5e5, 1.0, 4096), (128, 1e4, 8.0, 16), (4, 50.0, 3.5, 10.5)]
)
@pytest.mark.parametrize("length", [1, 16, 2048, 2049, 5000, 1e6])
def test_other_widths_bases_and_lengths(width, theta, factor, original, length):
    got = in_use(ec.dynamic(factor, original, theta=theta).at(length), width)
    assert torch.allclose(got, longhand(width, theta, factor, original, length), rtol=1e-12, atol=0)


def test_what_caches_and_auditors_can_read():
    schedule = ec.dynamic(2.0, 2048)
    assert schedule.at(100) == schedule.at(2048) != schedule.at(2049)  # equal choices: keys turned at the one serve the other
    enc = ec.rope(8, freq=schedule.at(5000))
    assert enc.length_dependent and (enc * ec.alibi(8, heads=2)).length_dependent and (enc + ec.nope(8)).length_dependent
    assert ec.two_sided(ec.rope(8, freq=ec.longrope([1.0] * 4, [2.0] * 4, 16, 4).at(5))).length_dependent
    assert ec.rope(8, freq=ec.linear(2.0, schedule.at(9))).length_dependent
    assert not any(
        e.length_dependent for e in (ec.rope(8), ec.rope(8, freq=ec.ntk(2.0)), ec.alibi(8, heads=2), ec.rope(8, freq=[1, 2, 3, 4]))
    )
    assert [finding.about for finding in describe(enc).findings].count("length") == 1
    assert "length=5000" in str(enc) and str(ec.encoding(str(enc))) == str(enc)


def test_without_a_length_it_is_refused():
    with pytest.raises(ec.ConfigError, match=r"dynamic.*\.at\(length\)"):
        ec.rope(8, freq=ec.dynamic(2.0, 2048))
    with pytest.raises(ec.ConfigError, match="original_length=None"):
        ec.dynamic(2.0)
    for length in (0, -5, float("nan"), "long"):
        with pytest.raises(ec.ConfigError, match="got length="):
            ec.dynamic(2.0, 2048).at(length)
