"""Case 24: torch.compile without a break and with at most two compilations for four lengths; torch.export."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import eigenclock as ec

BUILD = {
    "rope": lambda d: ec.rope(d, pairing="half"),
    "rope interleaved": lambda d: ec.rope(d),
    "partial": lambda d: ec.rope(d, rotary_dim=d // 2),
    "alibi": lambda d: ec.alibi(d, heads=2),
    "damped_rope": lambda d: ec.damped_rope(d, heads=2, half_life=(2, 40)),
    "decay_bias": lambda d: ec.decay_bias(d, heads=2, half_life=4.0),
    "rope * alibi": lambda d: ec.rope(d, heads=2) * ec.alibi(d, heads=2),
    "nope": lambda d: ec.nope(d),
}


def inputs(length, width, dtype=torch.float32):
    torch.manual_seed(length)
    return [torch.randn(2, 2, length, width, dtype=dtype) for _ in range(3)]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "times_given"), [*((name, False) for name in BUILD), ("rope", True), ("damped_rope", True), ("alibi", True)]
)
def test_numbers_of_the_case(case, name, times_given):
    """One graph per call (fullgraph), at most two graphs for all lengths, no complex tensor in them, equal to eager."""
    given, expect = case["given"], case["expect"]
    enc, counter = BUILD[name](given["width"]), CompileCounterWithBackend("aot_eager")

    def forward(q, k, v, times):
        return ec.attention(q, k, v, enc, times=times)

    compiled = torch.compile(forward, fullgraph=True, dynamic=True, backend=counter)
    for length in given["lengths"]:
        q, k, v = inputs(length, given["width"])
        times = torch.arange(length) * 2 if times_given else None
        assert torch.allclose(compiled(q, k, v, times), forward(q, k, v, times), rtol=0, atol=expect["abs_tol"])
    assert counter.frame_count <= 2
    for graph in counter.graphs:
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            assert not (isinstance(value, torch.Tensor) and value.is_complex()), f"{node} is complex"


@pytest.mark.parametrize("name", BUILD)
def test_backward_through_a_compiled_call(case, name):
    given, expect = case["given"], case["expect"]
    enc = BUILD[name](given["width"])
    compiled = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc), fullgraph=True, dynamic=True, backend="aot_eager")
    for length in given["lengths"][1:3]:
        one, other = ([x.requires_grad_() for x in inputs(length, given["width"])] for _ in range(2))
        compiled(*one).square().sum().backward()
        ec.attention(*other, enc).square().sum().backward()
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=0, atol=10 * expect["abs_tol"])


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi"])
def test_lengths_beyond_one_tile(name):
    enc = BUILD[name](16)
    compiled = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc), fullgraph=True, backend="aot_eager")
    for length in (200, 257):
        q, k, v = inputs(length, 16)
        assert torch.allclose(compiled(q, k, v), ec.attention(q, k, v, enc), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi"])
def test_a_trainable_module_compiles(name):
    learn = {"rope": ("freq",), "damped_rope": ("freq", "rate"), "alibi": ("slope",)}[name]
    build = {
        "rope": lambda: ec.rope(8, learn=learn),
        "damped_rope": lambda: ec.damped_rope(8, rate=0.1, learn=learn),
        "alibi": lambda: ec.alibi(8, heads=2, learn=learn),
    }[name]
    enc, twin = build(), build()
    compiled = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc), fullgraph=True, backend="aot_eager")
    q, k, v = inputs(20, 8)
    compiled(q, k, v).square().sum().backward()
    ec.attention(q, k, v, twin).square().sum().backward()
    for a, b in zip(enc.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_nothing_in_the_module_changes_during_forward(case):
    given = case["given"]
    for build in BUILD.values():
        enc = build(given["width"])
        before = {name: value.clone() for name, value in (*enc.named_buffers(), *enc.named_parameters())}
        for length in given["lengths"]:
            ec.attention(*inputs(length, given["width"]), enc)
        after = dict((*enc.named_buffers(), *enc.named_parameters()))
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


class Layer(torch.nn.Module):
    def __init__(self, enc):
        super().__init__()
        self.enc = enc

    def forward(self, q, k, v):
        return ec.attention(q, k, v, self.enc)


@pytest.mark.parametrize("name", ["rope", "alibi", "damped_rope", "nope"])
def test_export(case, name):
    given, expect = case["given"], case["expect"]
    layer = Layer(BUILD[name](given["width"]))
    example = tuple(inputs(given["lengths"][-1], given["width"]))
    program = torch.export.export(layer, example)
    assert torch.allclose(program.module()(*example), layer(*example), rtol=0, atol=expect["abs_tol"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope interleaved", "damped_rope", "alibi"])
def test_inductor_itself(case, name):
    given, expect = case["given"], case["expect"]
    enc = BUILD[name](given["width"])
    compiled = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc), fullgraph=True, dynamic=True)
    for length in given["lengths"]:
        q, k, v = inputs(length, given["width"])
        assert torch.allclose(compiled(q, k, v), ec.attention(q, k, v, enc), rtol=0, atol=expect["abs_tol"])
