"""Faults of released packages that are optional, found in their own code through ``ec.audit``, and their sound settings passed.

Where a project is a repository and no package, an environment variable names a checkout of it: JORDAN_ROPE, GRAPE.
"""

import ast
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eigenclock as ec

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH = 400


def faults(report) -> set[str]:
    return {f.rule for f in report.findings if f.severity == "fault"}


def checkout(name: str) -> Path:
    """The folder that an environment variable names; a skip where it is not set."""
    folder = os.environ.get(name, "")
    if not folder:
        pytest.skip(f"missing: checkout {name} (no package of it is on the index)")
    return Path(folder)


def loaded(path: Path) -> Any:
    """A file as a module, without the package it is of."""
    spec = spec_from_file_location(f"checkout_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def lifted(path: Path, *names: str) -> SimpleNamespace:
    """Some functions and classes of a file whose imports are not here, as they stand in it."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    space: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile(tree, str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


@pytest.mark.peer("x_transformers")
@pytest.mark.parametrize("per_row", [False, True])
def test_x_transformers_sums_the_gates_of_the_last_token_alone_under_a_cache(per_row):
    from x_transformers import Decoder, TransformerWrapper

    def decoder(**options: Any) -> Any:
        return Decoder(dim=32, depth=1, heads=4, attn_dim_head=8, **options)

    broken = decoder(attn_data_dependent_alibi=True, attn_data_dependent_alibi_per_row=per_row)
    assert faults(ec.audit(broken, length=LENGTH)) == {"cache"}
    assert faults(ec.audit(TransformerWrapper(num_tokens=20, max_seq_len=64, attn_layers=broken), length=LENGTH)) == {"cache"}
    for sound in ({"alibi_pos_bias": True}, {"rotary_pos_emb": True, "rotary_emb_dim": 8}, {"rotary_xpos": True, "rotary_emb_dim": 8}):
        report = ec.audit(decoder(**sound), length=LENGTH)
        assert report.ok is (None if "alibi_pos_bias" in sound else True) and "cache" in report.checked, report  # or no scores are seen


@pytest.mark.peer("equinox")
def test_equinox_keeps_one_table_for_modules_of_every_base():
    import equinox as eqx
    import jax.numpy as jnp

    used = eqx.nn.RotaryPositionalEmbedding(12)
    used(jnp.ones((4096, 12)))
    assert faults(ec.audit(used, length=64)) == set()
    report = ec.audit(eqx.nn.RotaryPositionalEmbedding(12, theta=5e5), length=64)
    assert faults(report) == {"scaling"} and report.nearest is not None and "500000" not in report.nearest, report


@pytest.mark.peer("attn_gym")
def test_attention_gym_has_the_published_slopes_for_powers_of_two_alone():
    from attn_gym.mods import generate_alibi_bias

    report = ec.audit(generate_alibi_bias(12), heads=12, length=LENGTH)
    found = next(f for f in report.findings if f.rule == "slopes")
    assert found.severity == "risk" and "one geometric sequence" in found.message
    assert not ec.audit(generate_alibi_bias(8), heads=8, length=LENGTH).findings


@pytest.mark.peer("PoPE_pytorch")
def test_pope_is_not_linear_and_depends_on_the_lag_alone():
    from PoPE_pytorch import PoPE, apply_pope_to_qk

    pope = PoPE(16, heads=2)

    def turned(size: Any) -> Any:
        return lambda q, k, positions: apply_pope_to_qk(pope(positions), q, k, to_magnitude=size)

    report = ec.audit(turned(nn.functional.softplus), head_dim=16, heads=2, length=LENGTH)
    assert report.ok is None and "linearity" in {f.rule for f in report.findings}, report
    linear = ec.audit(turned(torch.neg), head_dim=16, heads=2, length=LENGTH)
    assert linear.ok and "linearity" not in {f.rule for f in linear.findings}, linear


@pytest.mark.peer("positional_encodings")
def test_sinusoids_that_are_added_are_absolute():
    from positional_encodings.torch_encodings import PositionalEncoding1D, Summer

    report = ec.audit(Summer(PositionalEncoding1D(16)), head_dim=16, length=LENGTH)
    assert "shift_invariance" in faults(report) and report.witness is not None and report.witness.startswith("translation invariance")


def test_jordan_rope_bounds_its_shear_time_and_its_exponents():
    module = loaded(checkout("JORDAN_ROPE") / "jordan_rope/positional.py")

    def report(**options: Any) -> Any:
        encoding = module.JordanRoPE(16, 2, module.JordanConfig(**options))
        return ec.audit(encoding.apply, head_dim=16, length=LENGTH)

    assert "shift_invariance" in faults(report(init_eta=0.05, train_context=256))
    assert "shift_invariance" in faults(report(bounded_tau=False, init_gamma=0.1))
    assert faults(report(bounded_tau=False, init_eta=0.01, init_gamma=1e-3)) == set()


def test_grape_has_a_norm_with_gains_behind_its_rotation():
    folder = checkout("GRAPE") / "model"
    parts = lifted(folder / "llama-mha-grape-m-nonctx.py", "apply_rotary_emb", "MSGRAPECommuting")
    norms = loaded(folder / "rmsnorm.py")
    grape, gains = parts.MSGRAPECommuting(2, 16), torch.linspace(0.5, 2.0, 16)
    q_rms, k_rms = norms.RMSNorm(16), norms.RMSNorm(16)

    def action(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # as its attention does it
        q, k = grape(q, k)
        return q_rms(q), k_rms(k)

    assert faults(ec.audit(action, head_dim=16, length=LENGTH)) <= {"linearity"}  # all gains 1, as before training
    assert faults(ec.audit(grape, head_dim=16, length=LENGTH)) == set()
    q_rms.weight.data = gains
    assert "norm_after" in faults(ec.audit(action, head_dim=16, length=LENGTH))
