"""Lightning attention, Mamba and Mamba-2 as transformers computes them on the CPU, against linear attention with their encodings."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenclock as ec

pytestmark = pytest.mark.peer("transformers")


def close(got: Tensor, expected: Tensor, limit: float = 1e-5) -> None:
    assert got.shape == expected.shape
    error = float((got.detach().double() - expected.detach().double()).abs().max() / expected.detach().double().abs().max())
    assert error <= limit, f"relative error {error:.2e}, limit {limit:.0e}"


class Kept:
    """The state of one layer, as its cache keeps it."""

    def __init__(self) -> None:
        self.state: Any = None

    def get_linear_cache(self, _: int) -> Any:
        return self.state

    def set_linear_cache(self, _: int, state: Tensor) -> None:
        self.state = state


@pytest.mark.parametrize("layer", [0, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_minimax_in_blocks_and_token_by_token(layer, dtype):
    """The attention of MiniMaxLightningAttention, without the norm and the gate that follow; its state is ours."""
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    torch.manual_seed(0)
    config = minimax.MiniMaxConfig(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=4, head_dim=8, num_hidden_layers=6, block_size=16,
        layer_types=["linear_attention"] * 6,
    )  # fmt: skip
    module = minimax.MiniMaxLightningAttention(config, layer).to(dtype)
    module.norm, module.out_proj = nn.Identity(), nn.Identity()
    nn.init.zeros_(module.output_gate.weight)  # a gate half open
    x = torch.randn(2, 41, 24, dtype=dtype)
    q, k, v = module.act_fn(module.qkv_proj(x)).view(2, 41, 4, 24).transpose(1, 2).split(8, -1)
    enc = ec.minimax(8, heads=4, layer=layer, layers=6)
    first, state = ec.linear_attention(q[:, :, :33], k[:, :, :33], v[:, :, :33], enc, scale=1.0)
    blocks = Kept()
    expected = module(x[:, :33], (x, x), None, blocks)[0]
    close(first.transpose(1, 2).flatten(2) / 2, expected)
    close(state.S, blocks.state)
    for t in range(33, 41):
        out, state = ec.linear_attention(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], enc, scale=1.0, state=state)
        close(out.transpose(1, 2).flatten(2) / 2, module(x[:, t : t + 1], (x, x), None, blocks)[0])
    close(state.S, blocks.state)
    slopes = enc.generator().split().rate
    assert slopes is not None
    close(slopes.flatten(), minimax.MiniMaxLightningAttention(config, layer).slope_rate.flatten(), 1e-6)


@pytest.mark.parametrize("chunk", [7, 64])
def test_mamba2_scan_and_step(chunk):
    """`mamba2_chunk_scan` and `mamba2_selective_state_update`: gradients too, and a state that goes on."""
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    if not hasattr(mamba2, "mamba2_chunk_scan"):
        pytest.skip("this release of transformers keeps the scan inside its layer")
    torch.manual_seed(0)
    heads, groups, width, N, length = 4, 2, 6, 8, 50
    u = torch.randn(2, length + 1, heads, width, requires_grad=True)
    b, c = (torch.randn(2, length + 1, groups, N, requires_grad=True) for _ in range(2))
    x = torch.randn(2, length + 1, 5, requires_grad=True)
    enc = ec.mamba2(N, heads=heads, features=5, seed=1)
    raw = x @ enc.clock.weight[0]
    A = -enc.generator().split().rate.float().flatten()
    now = slice(0, length)
    expected, kept = mamba2.mamba2_chunk_scan(
        u[:, now], raw[:, now], A, b[:, now], c[:, now], chunk, dt_bias=enc.clock.bias, dt_softplus=True, return_final_states=True
    )
    q, k = (m.repeat_interleave(heads // groups, 2).transpose(1, 2) for m in (c, b))
    v = u.transpose(1, 2) * enc.clock.increments(x)
    out, state = ec.linear_attention(q[:, :, now], k[:, :, now], v[:, :, now], enc, x=x[:, now], scale=1.0)
    close(out.transpose(1, 2), expected, 1e-4)
    close(state.S.mT, kept, 1e-4)
    leaves, g = [u, b, c, x, *enc.parameters()], torch.randn_like(expected)
    got, want = torch.autograd.grad(out.transpose(1, 2), leaves, g, retain_graph=True), torch.autograd.grad(expected, leaves, g)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs, 1e-4)
    with torch.no_grad():
        expand = [a.expand(2, heads, width) for a in (raw[:, -1, :, None], enc.clock.bias[:, None])]
        step = mamba2.mamba2_selective_state_update(
            kept.clone(), u[:, -1], expand[0], A[:, None, None].expand(heads, width, N), b[:, -1], c[:, -1],
            dt_bias=expand[1][0], dt_softplus=True,
        )  # fmt: skip
        last, _ = ec.linear_attention(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], enc, x=x[:, -1:], scale=1.0, state=state)
    close(last[:, :, 0], step, 1e-4)


def test_mamba1_mixer():
    """The whole MambaMixer on the CPU, its scan replaced by linear attention: outputs, and gradients to every weight of the layer."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    torch.manual_seed(0)
    config = mamba.MambaConfig(hidden_size=8, state_size=4, expand=2, conv_kernel=4, num_hidden_layers=1, time_step_rank=3)
    mixer = mamba.MambaMixer(config, 0)
    x = torch.randn(2, 30, 8, requires_grad=True)
    expected = mixer(x)

    enc = ec.mamba1(4, heads=16, rank=3)
    u, gate = mixer.in_proj(x).mT.chunk(2, dim=1)
    u = F.silu(mixer.conv1d(u)[..., :30]).mT
    narrow, b, c = mixer.x_proj(u).split([3, 4, 4], -1)
    with torch.no_grad():
        enc.clock.weight[0].copy_(mixer.x_proj.weight[:3].mT)
        enc.clock.weight[1].copy_(mixer.dt_proj.weight.mT)
        enc.clock.bias.copy_(mixer.dt_proj.bias)
        enc.values["rate"].raw.copy_(mixer.A_log)
    q, k = (m[:, None].expand(-1, 16, -1, -1) for m in (c, b))
    out, _ = ec.linear_attention(q, k, u.mT[..., None] * enc.clock.increments(u), enc, x=u, scale=1.0)
    y = (out[..., 0].mT + mixer.D * u) * F.silu(gate.mT)
    ours = mixer.out_proj(y)
    close(ours, expected, 1e-4)
    g = torch.randn_like(expected)
    shared = [x, mixer.in_proj.weight, mixer.conv1d.weight, mixer.D]
    for mine, theirs in zip(torch.autograd.grad(ours, shared, g, retain_graph=True), torch.autograd.grad(expected, shared, g), strict=True):
        close(mine, theirs, 1e-4)
    expected = mixer(x)
    theirs = torch.autograd.grad(expected, [mixer.A_log, mixer.dt_proj.bias, mixer.dt_proj.weight], g)
    mine = torch.autograd.grad(ours, [enc.values["rate"].raw, enc.clock.bias, enc.clock.weight[1]], g)
    close(mine[0], theirs[0], 1e-4)
    close(mine[1], theirs[1], 1e-4)
    close(mine[2].mT, theirs[2], 1e-4)
    assert torch.equal(mixer.A_log, torch.arange(1.0, 5).log().expand(16, 4))  # our start is theirs
    close(ec.mamba1(4, heads=16).values["rate"].raw, mixer.A_log, 1e-6)
    assert narrow.shape[-1] == 3
