"""A spec for every registered encoding: its name, or the least it needs beside its sizes."""

from collections.abc import Callable

import pytest

from eigenclock.cli import main
from eigenclock.encodings import ENCODINGS

NEEDS = {
    "decay": "decay(half_life=(4, 512))",
    "decay_bias": "decay_bias(half_life=(4, 512))",
    "gaussian_bias": "gaussian_bias(sigma=(4, 512))",
    "two_sided": "two_sided(alibi * damped_rope)",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_spec" in metafunc.fixturenames:
        metafunc.parametrize("any_spec", [NEEDS.get(name, name) for name in ENCODINGS], ids=list(ENCODINGS))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: status, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        heard = capsys.readouterr()
        return status, heard.out, heard.err

    return call
