"""flash-linear-attention's plain references: linear attention under fixed and learned gates, forget gates and gates per channel in softmax.

Its package imports Triton; the references do not need it, so each file is loaded by its path. Since 0.6 they are in the package fla-core.
"""

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eigenclock as ec

pytestmark = pytest.mark.peer("fla", "einops")
B, H, T, D, FEATURES = 2, 4, 70, 8, 5


@pytest.fixture
def naive(monkeypatch) -> Callable[[str], ModuleType]:
    """``naive("gla")`` is fla/ops/gla/naive.py; two helpers of a Triton module that one of the files wants are written out here."""
    constant, cumsum = ModuleType("fla.ops.utils.constant"), ModuleType("fla.ops.utils.cumsum")
    constant.RCP_LN2 = 1 / math.log(2)  # type: ignore[attr-defined]
    cumsum.chunk_global_cumsum = lambda x, cu_seqlens=None, scale=1.0: x.float().cumsum(1) * scale  # type: ignore[attr-defined]
    for module in (ModuleType("fla"), ModuleType("fla.ops"), ModuleType("fla.ops.utils"), constant, cumsum):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return load


FOUND = importlib.util.find_spec("fla")  # looks for the package without running it


def load(name: str) -> ModuleType:
    assert FOUND is not None
    places = [Path(root) / "ops" / name / "naive.py" for root in FOUND.submodule_search_locations or ()]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        pytest.skip(f"missing: package fla-core, which holds fla/ops/{name}/naive.py")
    spec = importlib.util.spec_from_file_location(f"peer_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def content(kv_heads: int = H) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, h, T, D) for h in (H, kv_heads, kv_heads)]


def agree(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    """Outputs, and gradients to every tensor: both in float32, so apart by rounding."""
    mine, other = ([x.clone().requires_grad_() for x in tensors] for _ in range(2))
    out, expected = ours(*mine), theirs(*other)
    assert out.shape == expected.shape
    g = torch.randn_like(out)
    pairs = [(out, expected), *zip(torch.autograd.grad(out, mine, g), torch.autograd.grad(expected, other, g), strict=True)]
    errors = [float((a - b).detach().abs().max() / (b.detach().abs().max() + 1e-12)) for a, b in pairs]
    assert max(errors) < 1e-5, errors


def in_their_order(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """They take and return (B, T, H, ..) where we take (B, H, T, ..)."""
    return lambda *tensors: function(*(x.transpose(1, 2) for x in tensors)).transpose(1, 2)


def log_gates(enc: ec.Encoding, x: Tensor) -> Tensor:
    """-increment of the clock, (B, T, heads, blocks)."""
    assert isinstance(enc.clock, ec.Cumulative)
    return -enc.clock.increments(x).transpose(1, 2)


@pytest.mark.parametrize("form", ec.FORMS)
def test_retention(naive, form):
    """Theirs has no rotation: gamma_h = 1 - 2^(-5-h) alone, which is a decay."""
    enc = ec.decay(D, heads=H, rate=[[-math.log1p(-(2.0 ** (-5 - h)))] for h in range(H)])
    agree(lambda *t: ec.linear_attention(*t, enc, form=form)[0], naive("retention").naive_retention, content())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("form", ec.FORMS)
def test_linear_attention(naive, form, normalize):
    reference = naive("linear_attn").naive_recurrent_linear_attn
    q, k, v = content()
    agree(
        lambda q, k, v: ec.linear_attention(q, k, v, ec.nope(D), form=form, normalize=normalize)[0],
        in_their_order(lambda *t: reference(*t, normalize=normalize)[0]),
        [F.softplus(q), F.softplus(k), v],
    )


@pytest.mark.parametrize("theirs", ["recurrent", "chunk", "parallel"])
@pytest.mark.parametrize("form", ec.FORMS)
def test_one_learned_gate_per_head(naive, form, theirs):
    """Mamba-2's and simple GLA's gate; gradients reach the activations through both."""
    enc = ec.decay(D, heads=H, rate=1.0, clock=ec.Cumulative(FEATURES, gate="forget"))
    reference = getattr(naive("simple_gla"), f"naive_{theirs}_simple_gla")
    agree(
        lambda q, k, v, x: ec.linear_attention(q, k, v, enc, x=x, form=form)[0],
        lambda q, k, v, x: in_their_order(lambda *t: reference(*t, log_gates(enc, x)[..., 0])[0])(q, k, v),
        [*content(), torch.randn(B, T, FEATURES)],
    )


@pytest.mark.parametrize("form", ec.FORMS)
def test_gates_per_channel(naive, form):
    """GLA, and its state at the end."""
    enc, reference = ec.gla(D, heads=H, features=FEATURES), naive("gla").naive_recurrent_gla
    x = torch.randn(B, T, FEATURES)
    agree(
        lambda q, k, v, x: ec.linear_attention(q, k, v, enc, x=x, form=form)[0],
        lambda q, k, v, x: in_their_order(lambda *t: reference(*t, log_gates(enc, x))[0])(q, k, v),
        [*content(), x],
    )
    q, k, v = content()
    _, state = ec.linear_attention(q, k, v, enc, x=x, form=form)
    _, last = reference(*(z.transpose(1, 2) for z in (q, k, v)), log_gates(enc, x), output_final_state=True)
    assert torch.allclose(state.S, last, rtol=0, atol=2e-5 * float(last.detach().abs().max()))


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("kv_heads", [H, 2])
def test_forgetting_attention(naive, kv_heads, window):
    enc = ec.fox(D, heads=H, kv_heads=kv_heads, features=FEATURES)
    reference = naive("forgetting_attn").naive_forgetting_attn
    agree(
        lambda q, k, v, x: ec.attention(q, k, v, enc, x=x, window=window),
        lambda q, k, v, x: in_their_order(lambda *t: reference(*t, log_gates(enc, x)[..., 0], window_size=window))(q, k, v),
        [*content(kv_heads), torch.randn(B, T, FEATURES)],
    )


@pytest.mark.parametrize("window", [None, 16])
def test_wall_attention(naive, window):
    enc, reference = ec.wall(D, heads=H, features=FEATURES), naive("wall_attn").naive_wall_attn
    with torch.no_grad():  # gates that start at 8 hardly decay over so few tokens
        dict(enc.named_parameters())["clock.bias"].fill_(1.0)
    agree(
        lambda q, k, v, x: ec.attention(q, k, v, enc, x=x, window=window),
        lambda q, k, v, x: in_their_order(
            lambda *t: reference(*t, log_gates(enc, x), scale=D**-0.5, window_size=window),
        )(q, k, v),
        [*content(), torch.randn(B, T, FEATURES)],
    )
