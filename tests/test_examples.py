"""The examples: what they claim, as numbers, and that each runs as a script."""

import functools
import importlib.util
import math
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import torch

import eigenclock as ec

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def snippet():
    return load("damped_rope_snippet")


@pytest.fixture(scope="module")
def ticks():
    return load("irregular_ticks")


@pytest.fixture(scope="module")
def trading():
    return load("trading_time")


@pytest.fixture(scope="module")
def parity():
    return load("parity")


ARGUMENTS = {"parity": ("--quick",), "extend_smollm2": ("--tokens", "256")}  # what takes minutes has a short form
NEEDS = {"extend_smollm2": pytest.mark.assets("smollm2")}
SCRIPTS = [pytest.param(name, marks=NEEDS.get(name, ())) for name in sorted(path.stem for path in EXAMPLES.glob("*.py"))]


@functools.cache
def run(name):
    """A script run once for all tests that read what it prints."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src")}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS.get(name, ())]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.parametrize("name", SCRIPTS)
def test_runs_as_a_script(name):
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


# --- the snippet -------------------------------------------------------------------------------------------------------------------


def test_special_cases_agree(snippet):
    gaps = snippet.special_cases()
    assert len(gaps) == 3
    assert max(gaps.values()) < 1e-13


def test_snippet_and_encoding_agree_where_the_snippet_is_sound(snippet):
    torch.manual_seed(1)
    q, k = torch.randn(2, 2, 3, 20, 8, dtype=torch.float64)
    t, omega, alpha = torch.rand(20, dtype=torch.float64).cumsum(0), torch.rand(4, dtype=torch.float64), -0.3
    theirs = snippet.snippet_scores(q, k, t, omega, alpha)
    ours = ec.scores(q, k, ec.damped_rope(8, freq=omega, rate=-alpha), times=t)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-12)
    # The sign is part of the claim: turning one side the other way is another encoding.
    other = ec.scores(q, k, ec.damped_rope(8, freq=-omega, rate=-alpha), times=t)
    assert float((torch.where(theirs.isfinite(), theirs - other, 0.0)).abs().max()) > 0.1
    one_map = snippet.damped_rope(q, t, omega, alpha) @ snippet.damped_rope(k, t, omega, alpha).mT / math.sqrt(8)
    assert float((one_map - ours).tril().nan_to_num().abs().max()) > 0.1  # the same map on both sides is right for rotations only


@pytest.mark.parametrize("length", [178, 1024])
def test_snippet_breaks_beyond_88_where_ours_is_exact(snippet, length):
    assert 0.5 * (length - 1) > 88
    theirs, ours = snippet.compare(length)
    assert math.isnan(theirs)
    assert ours < 2e-6


def test_snippet_is_sound_below_88(snippet):
    theirs, ours = snippet.compare(128)
    assert theirs < 2e-6
    assert ours < 2e-6


def test_what_is_not_finite_are_keys(snippet):
    k, t = torch.ones(400, 2), torch.arange(400.0)
    moved = snippet.damped_rope(k, t, torch.tensor([1.0]), 0.25)  # keys take -alpha
    finite = moved.isfinite().all(-1)
    assert bool(finite[t * 0.25 < 88].all())
    assert not bool(finite[t * 0.25 > 90].any())


def test_drop_in_has_gradients_for_everything(snippet):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 8, requires_grad=True) for _ in range(3))
    t = torch.arange(300, dtype=torch.float64).requires_grad_()
    snippet.damped_attention(q, k, v, t, torch.rand(4), -5.0).square().sum().backward()
    for x in (q, k, v, t):
        assert bool(x.grad.isfinite().all())
        assert bool((x.grad != 0).any())


# --- the ticks ---------------------------------------------------------------------------------------------------------------------


def test_stamps_are_what_the_example_says(ticks):
    stamps, features = ticks.trades(500)
    assert stamps.dtype == torch.int64
    steps = stamps.diff()
    assert bool((steps >= 0).all())
    assert bool((steps == 0).any())
    assert features.shape == (500, 3)
    # 1e18 ns: neither float32 nor float64 holds a stamp of this size to the nanosecond.
    assert int(stamps[-1].double().long() - stamps[-1]) != 0 or int((stamps[-1] + 1).double().long()) != int(stamps[-1]) + 1


@pytest.mark.parametrize("name", ["gain", "recency"])
def test_ticks_equal_the_oracle(ticks, name):
    stamps, features = ticks.trades(300)
    enc = ticks.encodings()[name]
    q, k, v = ticks.project(features)
    z = ec.scores(q, k, enc, times=stamps, window="5min")
    # float32, and a bias that runs to hundreds of half-lives: 1e-4 of a logit on values up to 3.
    torch.testing.assert_close(ticks.attend(stamps, features, enc).double(), z.softmax(-1) @ v.double(), rtol=0, atol=3e-4)
    age = stamps[:, None] - stamps
    assert bool((z[0, 0][age >= 300 * ticks.SECOND] == -math.inf).all())
    allowed = (age < 300 * ticks.SECOND) & (torch.arange(300)[:, None] >= torch.arange(300))
    assert bool(z[0, 0][allowed].isfinite().all())


@pytest.mark.parametrize("name", ["gain", "recency"])
def test_decode_equals_the_row(ticks, name):
    stamps, features = ticks.trades(300)
    enc = ticks.encodings()[name]
    full = ticks.attend(stamps, features, enc)[:, :, -1:]
    torch.testing.assert_close(ticks.decode(stamps, features, enc), full, rtol=0, atol=3e-4)


def test_half_life_is_half_an_hour(ticks):
    """An inner product thirty minutes old counts half; the clock reads nanoseconds."""
    enc = ec.damped_rope(16, heads=4, freq=torch.zeros(8), half_life="30min", clock=ec.Timestamps("ns", per="s"))
    q = torch.ones(1, 4, 2, 16)
    z = ec.scores(q, q, enc, times=torch.tensor([0, 1800 * ticks.SECOND]) + ticks.OPENING)
    torch.testing.assert_close(z[..., 1, 0], z[..., 1, 1] / 2)
    torch.testing.assert_close(ticks.encodings()["gain"].generator().rate, enc.generator().rate)


def test_a_nanosecond_matters(ticks):
    """Two clocks that differ by one nanosecond at 1.77e18 give different scores, by the right amount."""
    enc = ec.decay_bias(4, heads=1, rate=1.0, clock=ec.Timestamps("ns", per="ns"))
    q = torch.zeros(1, 1, 2, 4)
    for gap in (1, 2, 1000):
        z = ec.scores(q, q, enc, times=torch.tensor([ticks.OPENING, ticks.OPENING + gap]))
        assert float(z[0, 0, 1, 0]) == -gap


# --- trading time ------------------------------------------------------------------------------------------------------------------


def test_trades_are_inside_the_sessions(trading):
    stamps, shares = trading.trades()
    assert stamps.dtype == torch.int64 and bool((stamps.diff() >= 0).all()) and bool((shares > 0).all())
    for stamp in stamps.tolist():
        wall = datetime.fromtimestamp(stamp // trading.SECOND, ZoneInfo("America/New_York"))
        assert wall.weekday() in (0, 4)
        assert (wall.hour, wall.minute) >= (9, 30) and wall.hour < 16
    assert 100 < int((stamps < trading.REOPEN).sum()) < 300


def test_three_ages_of_a_weekend(trading):
    """Trading time leaves out the weekend to the nanosecond; volume counts shares; what is left of Friday follows from the ages."""
    stamps, shares = trading.trades()
    ticks = {name: enc.clock(trading.times(name, stamps, shares)).ticks for name, enc in trading.clocks().items()}
    monday = stamps >= trading.REOPEN
    weekend = (trading.REOPEN - trading.CLOSE) / trading.SECOND
    torch.testing.assert_close(ticks["trading time"], ticks["real time"] - weekend * monday, rtol=0, atol=1e-9)
    assert ticks["volume"].tolist() == (shares.cumsum(-1) - shares[0]).tolist()
    half_lives = {"real time": 1800.0, "trading time": 1800.0, "volume": 200_000.0}
    row = len(stamps) - 1
    measured = trading.weight_before_the_weekend(stamps, shares, row)
    for name, age in ticks.items():
        weights = 0.5 ** ((age[row] - age) / half_lives[name])
        assert measured[name] == pytest.approx(float(weights[~monday].sum() / weights.sum()), abs=1e-9)
    assert measured["real time"] < 1e-20
    assert 0.1 < measured["trading time"] < 0.3 and 0.1 < measured["volume"] < 0.3


# --- parity ------------------------------------------------------------------------------------------------------------------------


def test_bits_and_labels(parity):
    """The label is the XOR of all bits so far, written out; the first token is no bit."""
    tokens, odd = parity.draw(20, 30, torch.Generator().manual_seed(0))
    assert bool((tokens[:, 0] == parity.START).all()) and set(tokens[:, 1:].flatten().tolist()) == {0, 1}
    for row, labels in zip(tokens[:, 1:].tolist(), odd.tolist(), strict=True):
        known = 0
        for bit, label in zip(row, labels, strict=True):
            known ^= bit
            assert label == known


def test_two_models_differ_in_the_clock_alone(parity):
    models = {name: dict(parity.OneLayer(enc, 3).named_parameters()) for name, enc in parity.encodings(3).items()}
    learned, fixed = models["selective_rope"], models["rope"]
    assert all(torch.equal(learned[name], weight) for name, weight in fixed.items())
    assert {name.split(".")[0] for name in learned.keys() - fixed.keys()} == {"position"}
    sizes = [sum(p.numel() for p in model.values()) for model in (fixed, learned)]
    assert 1 < sizes[1] / sizes[0] < 1.03


def test_a_prefix_stands_alone(parity):
    """Accuracy at several lengths is read off one long call."""
    tokens, _ = parity.draw(3, 64, torch.Generator().manual_seed(0))
    for enc in parity.encodings(0).values():
        model = parity.OneLayer(enc, 0)
        torch.testing.assert_close(model(tokens)[:, :41], model(tokens[:, :41]), rtol=1e-4, atol=1e-5)


def test_learned_angles_learn_parity_and_fixed_ones_do_not(parity):
    """What a third of the steps shows: all but a few answers right at the lengths of training and beyond, against guessing."""
    tables = re.findall(r"^(\w+), (\d+) parameters$.*?^  seed 0 (.*?)$", run("parity").stdout, re.MULTILINE | re.DOTALL)
    reached = {name: dict(zip(parity.LENGTHS, map(float, row.split()), strict=True)) for name, _, row in tables}
    assert list(reached) == ["selective_rope", "rope"]
    assert reached["selective_rope"][40] > 99 and reached["selective_rope"][64] > 95
    assert all(40 < x < 60 for x in reached["rope"].values())


# --- a longer context for a real model ----------------------------------------------------------------------------------------------


@pytest.mark.assets("smollm2")
def test_the_layout_trap_costs_the_text_and_the_own_rotation_nothing():
    said = run("extend_smollm2").stdout
    halves, pairs = (float(x) for x in re.search(r"turns them: ([\d.]+); with the file's pairs: ([\d.]+)", said).groups())
    assert pairs > halves + 1
    assert "the same tokens as before" in said
    rows = {line.split("|")[1].strip(): line for line in said.splitlines() if line.startswith("| ")}
    assert {"plain", "linear", "yarn", "damped", "recency"} <= rows.keys()
