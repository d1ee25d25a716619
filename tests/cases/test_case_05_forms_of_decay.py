"""Case 05: forms of linear attention that disagree, overflow where gates close, or leak state across documents."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec

DTYPES = {"float32": (torch.float32, 1e-5), "float64": (torch.float64, 1e-11)}  # a clock of 3e4 rounds its steps at 1e-12


def tensors(case: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor(case["given"][name], dtype=dtype)[None, None] for name in ("q", "k", "v")]


def clock(gates: list[float]) -> Tensor:
    """The gate of a step as elapsed time: token t stands at minus the sum of the log gates up to it."""
    return -torch.tensor(gates, dtype=torch.float64).cumsum(-1)


def ids(case: dict[str, Any]) -> Tensor:
    starts = torch.zeros(len(case["given"]["q"]), dtype=torch.int64)
    starts[case["given"]["document_starts"]] = 1
    return starts.cumsum(-1)


@pytest.mark.parametrize(("form", "chunk"), [*((form, None) for form in ec.FORMS), *(("chunked", chunk) for chunk in (1, 3, 12))])
@pytest.mark.parametrize("kind", ["one_document", "packed_documents", "all_gates_zero"])
@pytest.mark.parametrize("per", ["one rate", "a rate per channel"])
def test_numbers_of_the_case(case, kind, form, chunk, per):
    """Gates of e^-30 beside gates near 1, in one chunk and in several; the rate as one number and as one for each channel."""
    expect = case["expect"]
    gates = [0.0] * 12 if kind == "all_gates_zero" else case["given"]["log_gate_per_step"]
    options = {"documents": ids(case)} if kind == "packed_documents" else {}
    encoding = ec.decay(2, rate=[[1.0]] if per == "one rate" else [1.0, 1.0], learn=("rate",))  # learned, so as to take the road of many
    got, _ = ec.linear_attention(
        *tensors(case, torch.float32), encoding, times=clock(gates), scale=1.0, form=form, chunk_size=chunk, **options
    )
    wanted = torch.tensor(expect[kind])[None, None]
    torch.testing.assert_close(got.detach(), wanted, atol=expect["abs_tol"], rtol=expect["rel_tol"])


def recurrence(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, starts: Tensor) -> Tensor:
    """S_t = exp(g_t) S_(t-1) + k_t v_t^T, written out; S starts anew where a document does."""
    S, rows = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[2]):
        S = torch.zeros_like(S) if starts[t] else gates[t].exp() * S
        S = S + k[:, :, t, :, None] * v[:, :, t, None, :]
        rows.append((q[:, :, t, :, None] * S).sum(2))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("form", ec.FORMS)
@pytest.mark.parametrize(("length", "shut"), [(1, 0.0), (65, 30.0), (200, 800.0), (200, 0.0)])
def test_the_whole_kind(form, length, shut, name):
    """Any length, gates shut harder than any dtype's exponent, packed documents, whole and in pieces, gradients too."""
    dtype, tolerance = DTYPES[name]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, n, dtype=dtype, requires_grad=True) for n in (4, 4, 5))
    gates = -torch.rand(length, dtype=torch.float64) * 0.3
    gates[torch.rand(length) < 0.2] = -shut
    starts = torch.rand(length) < 0.05
    starts[0] = True
    documents = starts.long().cumsum(-1)
    # Gates carry no gradient here: the exponents are exact in float64, as the clock's are.
    expected = recurrence(q.double(), k.double(), v.double(), gates, starts)
    g = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, (q, k, v), g)
    for encoding in (ec.decay(4, rate=1.0), ec.decay(4, rate=[1.0, 1.0, 1.0, 1.0], learn=("rate",))):
        for cuts in ((), (length // 3, length // 2)):
            out, state = [], None
            for low, high in zip((0, *cuts), (*cuts, length), strict=True):
                piece = slice(low, high)
                keywords = {"times": clock(gates.tolist())[piece], "documents": documents[piece], "form": form, "state": state}
                part, state = ec.linear_attention(*(x[:, :, piece] for x in (q, k, v)), encoding, scale=1.0, **keywords)
                out.append(part)
            got = torch.cat(out, 2)
            scale = 1 + float(expected.detach().abs().max())
            assert float((got.detach() - expected.detach()).abs().max()) < tolerance * scale
            for one, other in zip(torch.autograd.grad(got, (q, k, v), g.to(dtype)), wanted, strict=True):
                assert bool(torch.isfinite(one).all())
                assert float((one - other).abs().max()) < 10 * tolerance * (1 + float(other.abs().max()))
