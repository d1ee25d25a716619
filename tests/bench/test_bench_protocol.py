"""The arithmetic of the protocol on made-up measurements: no time is asserted."""

import gc
import math

import numpy as np
import pytest

from eigenclock.bench import protocol
from eigenclock.bench.protocol import Run, measure, reported, timed, verdict


class Machine:
    """Two calls that report numbers of a list and keep a log of who was called."""

    def __init__(self, ours, other):
        self.log, self.numbers = [], {"ours": iter(ours), "other": iter(other)}

    def call(self, name):
        def run():
            self.log.append(name)
            return next(self.numbers[name])

        return run


def test_ratio_is_that_of_the_lower_quartiles_and_a_slow_outlier_changes_nothing():
    ours, other = [4.0, 8.0, 5.0, 6.0, 7.0], [3.0, 2.0, 4.0, 5.0, 6.0]
    run = Run(tuple(ours), tuple(other))
    assert run.quantile(0.25) == (5.0, 3.0)
    assert run.ratio == pytest.approx(5 / 3)
    assert run.median_ratio == pytest.approx(6 / 4)
    assert run.best_ratio == pytest.approx(4 / 2)
    assert Run((4.0, 8000.0, 5.0, 6.0, 7.0), tuple(other)).ratio == run.ratio


def test_quartiles_are_interpolated_between_measurements():
    run = Run((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 1.0, 1.0))
    assert run.ratio == pytest.approx(1.75) == pytest.approx(np.percentile([1, 2, 3, 4], 25))


def test_both_sides_alternate_after_a_warm_up_that_does_not_count():
    machine = Machine([100, 100, 1, 2, 3], [100, 100, 4, 5, 6])
    run = measure(machine.call("ours"), machine.call("other"), repeats=3, warmup=2, by=reported)
    assert machine.log == ["ours", "other"] * 2 + ["ours", "other", "other", "ours", "ours", "other"]
    assert run.ours == (1, 2, 3) and run.other == (4, 5, 6)


def test_a_call_is_timed_by_the_clock(monkeypatch):
    ticks = iter([10.0, 10.5, 20.0, 22.0])
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: next(ticks))
    called = []
    assert timed(lambda: called.append(1)) == 0.5
    assert timed(lambda: called.append(2)) == 2.0
    assert called == [1, 2]


def test_load_is_taken_before_and_after(monkeypatch):
    loads = iter([(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)])
    monkeypatch.setattr(protocol.os, "getloadavg", lambda: next(loads))
    run = measure(lambda: 1, lambda: 1, repeats=1, warmup=0, by=reported)
    assert run.load_before == (1.0, 2.0, 3.0) and run.load_after == (4.0, 5.0, 6.0)


def test_a_system_without_load_averages_is_measured_all_the_same(monkeypatch):
    monkeypatch.delattr(protocol.os, "getloadavg")
    assert measure(lambda: 2, lambda: 1, repeats=1, by=reported).to_dict()["load_after"] is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_and_is_left_as_it_was(enabled):
    seen, before = [], gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        measure(lambda: seen.append(gc.isenabled()) or 1, lambda: 1, repeats=2, warmup=0, by=reported)
        with pytest.raises(ZeroDivisionError):
            measure(lambda: 1 / 0, lambda: 1, repeats=1, warmup=0, by=reported)
        assert seen == [False, False] and gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(
    ("ratios", "target", "expected"),
    [
        ([1.0, 1.1, 1.0], 1.1, "met"),
        ([1.2, 1.0, 1.2], 1.1, "missed in some"),
        ([1.2, 1.11, 1.3], 1.1, "missed"),
        ([math.nan, math.inf], 1.1, "missed"),
        ([9.0], None, "no target"),
        ([], 1.1, "not measured"),
        ([], None, "not measured"),
    ],
)
def test_a_target_is_missed_only_when_every_run_misses_it(ratios, target, expected):
    assert verdict(ratios, target) == expected


def test_plain_data_holds_every_measurement():
    data = Run((2.0, 4.0), (1.0, 1.0), (0.5, 0.4, 0.3), (0.6, 0.4, 0.3)).to_dict()
    assert data["ours"] == {"min": 2.0, "lower_quartile": 2.5, "median": 3.0, "upper_quartile": 3.5, "max": 4.0, "all": [2.0, 4.0]}
    assert (data["ratio"], data["median_ratio"], data["load_after"][0]) == (2.5, 3.0, 0.6)
    assert Run((1.0,), (0.0,)).ratio == math.inf
