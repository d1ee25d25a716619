"""Case 02: frequencies in use stay right through casts and whatever the ambient default dtype is."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

import eigenclock as ec
from cases.conftest import default_dtype


@contextlib.contextmanager
def every_new_tensor_is(dtype: torch.dtype) -> Iterator[None]:
    """What zero-style initialisers do: each constructor's floating result is cast, whatever dtype was asked for."""
    names = ["tensor", "empty", "zeros", "ones", "full", "arange", "eye", "randn"]
    before = {name: getattr(torch, name) for name in names}

    def wrap(function):
        def made(*args, **keywords):
            result = function(*args, **keywords)
            return result.to(dtype) if result.is_floating_point() else result

        return made

    for name, function in before.items():
        setattr(torch, name, wrap(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)


def frequencies(enc: ec.Encoding, width: int) -> torch.Tensor:
    """Read off L itself: the block of pair i is [[., f], [-f, .]] on channels (2i, 2i + 1)."""
    matrix = enc.generator().matrix().detach().double().reshape(-1, width, width)[0]
    i = torch.arange(0, width, 2)
    assert torch.equal(matrix[i, i + 1], -matrix[i + 1, i])
    return matrix[i, i + 1]


STEPS = {
    "half then float": lambda build: build().half().float(),
    "bfloat16 then float32": lambda build: build().to(torch.bfloat16).to(torch.float32),
    "stays bfloat16": lambda build: build().to(torch.bfloat16),
    "inside a half model": lambda build: torch.nn.Sequential(torch.nn.Linear(2, 2), build()).half()[1],
}


@pytest.mark.parametrize("step", STEPS)
def test_numbers_of_the_case_after_casts(case, step):
    given, expect = case["given"], case["expect"]
    enc = STEPS[step](lambda: ec.rope(given["width"], theta=given["theta"]))
    assert torch.allclose(
        frequencies(enc, given["width"]), torch.tensor(expect["frequencies"], dtype=torch.float64), rtol=expect["rel_tol"], atol=0
    )


@pytest.mark.parametrize("context", [default_dtype, every_new_tensor_is])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_the_case_in_a_context(case, context, dtype):
    given, expect = case["given"], case["expect"]
    with context(dtype):
        enc = ec.rope(given["width"], theta=given["theta"])
    assert torch.allclose(
        frequencies(enc, given["width"]), torch.tensor(expect["frequencies"], dtype=torch.float64), rtol=expect["rel_tol"], atol=0
    )


SECTIONS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_encodings_read_from_a_config_survive_too(case, kind):
    given, expect = case["given"], case["expect"]
    config = {"head_dim": given["width"], "rope_parameters": SECTIONS[kind] | {"rope_theta": given["theta"]}}

    def build() -> ec.Encoding:
        return ec.encodings(config, pairing="interleaved").only

    once = frequencies(build(), given["width"])
    if kind == "default":
        assert torch.allclose(once, torch.tensor(expect["frequencies"], dtype=torch.float64), rtol=expect["rel_tol"], atol=0)
    for step in STEPS.values():
        assert torch.equal(frequencies(step(build), given["width"]), once)
    for context in (default_dtype, every_new_tensor_is):
        for dtype in (torch.bfloat16, torch.float16):
            with context(dtype):
                enc = build()
            assert torch.equal(frequencies(enc, given["width"]), once)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (64, 5e5), (128, 1e6), (96, 7.5)])
def test_other_widths_and_bases(step, width, theta):
    enc = STEPS[step](lambda: ec.rope(width, theta=theta))
    expected = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    assert torch.allclose(frequencies(enc, width), expected, rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("step", STEPS)
def test_rates_and_slopes_survive_too(step):
    times = torch.tensor([0, 7, 300])
    q, k = torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8)
    for build in (
        lambda: ec.damped_rope(8, heads=2, rate=0.0123),
        lambda: ec.alibi(8, heads=2, slopes=(0.0123, 0.3)),
        lambda: ec.decay_bias(8, heads=2, rate=0.0123),
    ):
        once, cast = ec.scores(q, k, build(), times=times), ec.scores(q, k, STEPS[step](build), times=times)
        assert torch.allclose(once, cast, rtol=1.2e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("module_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_input_dtype_is_output_dtype(dtype, module_dtype):
    x = torch.randn(1, 1, 5, 16).to(dtype)
    enc = ec.rope(16).to(module_dtype)
    assert enc.generator().act(x, torch.arange(5)).dtype == dtype
    assert ec.attention(x, x, x, enc).dtype == dtype
