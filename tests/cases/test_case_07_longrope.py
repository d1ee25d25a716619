"""Case 07: LongRoPE chooses its list by the length of each row, and carries its amplitude in both."""

import math

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


def read(config) -> ec.longrope:
    original, reach = config["original_max_position_embeddings"], config["max_position_embeddings"]
    return ec.longrope(config["short_factor"], config["long_factor"], original, factor=reach / original)


def longhand(q: torch.Tensor, k: torch.Tensor, frequencies: list[float], amplitude: float) -> torch.Tensor:
    """softmax-free: logits of one row, (T, T), pair by pair with plain cosines (interleaved)."""
    n, z = q.shape[0], torch.zeros(q.shape[0], q.shape[0], dtype=F64)
    for t in range(n):
        for s in range(t + 1):
            for i, w in enumerate(frequencies):
                a, b, c, d = q[t, 2 * i], q[t, 2 * i + 1], k[s, 2 * i], k[s, 2 * i + 1]
                z[t, s] += (a * c + b * d) * math.cos(w * (t - s)) + (a * d - b * c) * math.sin(w * (t - s))
    return amplitude**2 * z / math.sqrt(q.shape[1])


def test_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    schedule = read(given["config"])
    for length in given["sequence_lengths"]:
        spectrum = schedule.at(length)(given["width"] // 2)
        wanted = torch.tensor(expect["frequencies_by_length"][str(length)], dtype=F64)
        assert torch.allclose(spectrum.values, wanted, rtol=expect["rel_tol"], atol=0)
        assert abs(spectrum.attention_scale - expect["amplitude_on_q_and_on_k"]) <= expect["amplitude_abs_tol"]


def test_the_amplitude_reaches_the_logits(case):
    """At time 0 nothing turns: what is left is the amplitude, on q and on k."""
    enc = ec.rope(8, freq=read(case["given"]["config"]).at(10))
    q = torch.ones(1, 1, 1, 8, dtype=F64)
    assert abs(float(ec.scores(q, q, enc, scale=1.0)) / 8 - case["expect"]["amplitude_on_q_and_on_k"] ** 2) < 1e-5


def test_a_row_of_a_batch_is_the_row_alone(case):
    """One batch of all lengths, padded to the longest: each row by its own list, bit for bit what it gives alone."""
    given = case["given"]
    schedule, lengths = read(given["config"]), given["sequence_lengths"]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, len(lengths), 2, max(lengths), 8, dtype=F64)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    out, groups = torch.zeros_like(v), ec.rows_by_length(schedule, lengths)
    assert sorted(row for rows in groups.values() for row in rows) == [0, 1, 2, 3] and len(groups) == 2
    for chosen, rows in groups.items():
        out[rows] = ec.attention(q[rows], k[rows], v[rows], ec.rope(8, freq=chosen), mask=mask[rows])
    for row, length in enumerate(lengths):
        alone = ec.attention(*(x[row : row + 1, :, :length] for x in (q, k, v)), ec.rope(8, freq=schedule.at(length)))
        assert torch.allclose(out[row, :, :length], alone[0], rtol=0, atol=1e-12)
        frequencies = case["expect"]["frequencies_by_length"][str(length)]
        for h in range(2):
            z = longhand(q[row, h, :length], k[row, h, :length], frequencies, case["expect"]["amplitude_on_q_and_on_k"])
            z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf)
            assert torch.allclose(alone[0, h], z.softmax(-1) @ v[row, h, :length], rtol=0, atol=1e-6)


def test_the_choice_follows_the_length_not_the_capacity(case):
    schedule = read(case["given"]["config"])
    assert [schedule.at(n).use for n in (1, 15, 16, 16.5, 17, 64, 10_000)] == ["short"] * 3 + ["long"] * 4
    assert schedule.at(40).at(10) == schedule.at(10) and schedule.at(17) == schedule.at(64)
    with pytest.raises(ec.ConfigError, match=r"\.at\(length\)"):
        ec.rope(8, freq=schedule)  # no list is served to everything


@pytest.mark.parametrize("width", [2, 8, 64])
@pytest.mark.parametrize(("original", "factor"), [(4096, 32.0), (16, 1.0), (8192, 16.5)])
def test_other_widths_and_lengths(width, original, factor):
    n = width // 2
    short, long = [1 + 0.01 * i for i in range(n)], [1 + 0.7 * i for i in range(n)]
    for length, divisors in ((original, short), (original + 1, long)):
        spectrum = ec.longrope(short, long, original, factor, theta=5e5).at(length)(n)
        wanted = torch.tensor([5e5 ** (-i / n) / divisors[i] for i in range(n)], dtype=F64)
        assert torch.allclose(spectrum.values, wanted, rtol=1e-13, atol=0)
        assert math.isclose(spectrum.attention_scale, math.sqrt(1 + math.log(factor) / math.log(original)), rel_tol=1e-14)
    assert ec.longrope(short, long, original, attention_factor=1.25).at(1)(n).attention_scale == 1.25


def test_lists_that_do_not_fit(case):
    config = case["given"]["config"]
    for name in ("short_factor", "long_factor"):
        for length in (10, 40):  # the list that is not in use is checked as well
            wrong = read({**config, name: config[name][:3]}).at(length)
            with pytest.raises(ec.ShapeError, match=f"{name} with 3 numbers; expected 4"):
                ec.rope(8, freq=wrong)
        with pytest.raises(ec.ConfigError, match=f"{name}=0"):
            read({**config, name: [1.0, 0.0, 1.0, 1.0]})
        with pytest.raises(ec.ConfigError, match=f"{name}=4.0; expected a list"):
            read({**config, name: 4.0})


def test_what_is_missing_is_named():
    with pytest.raises(ec.ConfigError, match="original_length=None"):
        ec.longrope([1.0], [2.0], factor=4.0)
    with pytest.raises(ec.ConfigError, match="neither factor nor attention_factor"):
        ec.longrope([1.0], [2.0], 16)
    with pytest.raises(ec.ConfigError, match="factor=0.5"):
        ec.longrope([1.0], [2.0], 16, factor=0.5)
    with pytest.raises(ec.ConfigError, match="use='medium'"):
        ec.longrope([1.0], [2.0], 16, factor=4.0, use="medium")
    with pytest.raises(ec.ConfigError, match="ln L"):
        ec.longrope([1.0], [2.0], 1, factor=4.0)


def test_round_trip(case):
    enc = ec.rope(8, freq=read(case["given"]["config"]).at(40))
    assert "use='long'" in str(enc) and str(ec.encoding(str(enc))) == str(enc)
    again = ec.encoding(enc.spec)
    assert torch.equal(again.generator().matrix(), enc.generator().matrix()) and repr(again).endswith("amplitude 1.22474 on q and k")
