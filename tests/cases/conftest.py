"""What the case tests share: the reduced data of a case, and a call that skips when a named backend declines the call."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec

DATA = Path(__file__).parent / "data"


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Runs a block with another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The data of the case whose number is in the name of the test file (test_case_NN_...)."""
    number = Path(str(request.path)).stem.split("_")[2]
    return json.loads((DATA / f"{number}.json").read_text())


@pytest.fixture
def attend() -> Callable[..., Any]:
    """``ec.attention``; a backend asked for by name may decline (a skip), ``auto`` and ``reference`` may not."""

    def call(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, **keywords: Any) -> Any:
        try:
            return ec.attention(q, k, v, enc, **keywords)
        except ec.UnsupportedError as refusal:
            if keywords.get("backend", "auto") in ("auto", "reference"):
                raise
            pytest.skip(f"declined: {refusal}")

    return call
