"""Benchmarks without another package that takes long to import, unless a test asks for it."""

import pytest

from eigenclock.bench.cases import rotation


@pytest.fixture(autouse=True)
def _no_peer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("peer"):
        monkeypatch.setattr(rotation, "has_transformers", lambda: False)
