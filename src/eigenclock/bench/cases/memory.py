"""Peak memory, each call in a fresh process: softmax paths against plain causal attention, linear attention against its shorter self.

A call's peak is its inputs (q, k, v and, with the backward, the gradient of the output) and what resident memory grows by while it
runs: outputs, gradients and all that is needed in between. Library code, threads and first-run checks are warmed up before.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from eigenclock.attention import attention, linear_attention
from eigenclock.bench.case import Case, Work, normal, scaled, trained, without_graph
from eigenclock.bench.cases import damped, linear
from eigenclock.bench.process import peak_growth, python
from eigenclock.clocks import Timestamps
from eigenclock.encodings import Encoding, alibi, damped_rope, rope

HEADS, WIDTH = 8, 64
TARGET = 2.0
LENGTHS = (4096, 16384)
WARM = 256
SHORT, LONGER = 16384, (32768, 65536)
SLACK = 1.05
"""What linear growth may be over the growth in length: allocations are whole pages."""
WAYS = {"forward": "forward", "train": "forward and backward"}


@dataclass(frozen=True)
class Path:
    """One way through softmax attention: an encoding and what else is passed, given the length."""

    what: str
    encoding: Callable[[], Encoding]
    options: Callable[[int], dict[str, Any]] = field(default=lambda length: {})
    dtype: str = "fp32"
    kv_heads: int = HEADS


PATHS = {
    "rope": Path("rotation, one fused call", lambda: rope(WIDTH)),
    "alibi": Path("linear bias as a key term", lambda: alibi(WIDTH, heads=HEADS)),
    "alibi-slopes": Path("linear bias, slopes learned", lambda: alibi(WIDTH, heads=HEADS, learn="slope")),
    "alibi-slopes-bf16": Path("linear bias on tiles, slopes learned", lambda: alibi(WIDTH, heads=HEADS, learn="slope"), dtype="bf16"),
    "damped": Path("tiles", damped.example),
    "damped-rates": Path("tiles, rates learned", lambda: damped.example(("rate",))),
    "damped-bf16": Path("tiles", damped.example, dtype="bf16"),
    "damped-grouped": Path(
        "tiles, 2 key heads with a rate each", lambda: damped_rope(WIDTH, heads=HEADS, kv_heads=2, half_life=(16.0, 4096.0)), kv_heads=2
    ),
    "window": Path("rotation in a window of 512", lambda: rope(WIDTH), lambda length: {"window": min(512, length)}),
    "span": Path(
        "rotation in a window of 512 seconds, one second a token",
        lambda: rope(WIDTH, clock=Timestamps("s")),
        lambda length: {"times": torch.arange(length), "window": "512s"},
    ),
    "documents": Path(
        "rotation in packed documents of 1000 tokens", lambda: rope(WIDTH), lambda length: {"documents": torch.arange(length) // 1000}
    ),
}


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Every path of softmax at two lengths and linear attention's growth, forward and with backward."""
    out = []
    for length in LENGTHS:
        for name, path in PATHS.items():
            for way, says in WAYS.items():
                shape = (1, HEADS, scaled(length, size), WIDTH)
                out.append(
                    Case(
                        f"memory/{length}/{name}/{way}",
                        f"peak memory, inputs included, {says}: {path.what}",
                        f"attention under {name}",
                        "plain causal scaled_dot_product_attention",
                        shape,
                        path.dtype,
                        TARGET,
                        _builder(name, shape[2], way == "train"),
                        "bytes",
                        long=length > 4096,
                    )
                )
    return (*out, *_growth(size))


def _growth(size: float) -> list[Case]:
    """Linear attention on longer sequences against the shortest."""
    return [
        Case(
            f"memory/{length}/linear-{name}/{way}",
            f"peak memory, inputs included, linear attention, {linear.ENCODINGS[name][0]}, {says}: {length} tokens against {SHORT}",
            f"linear_attention on {length} tokens",
            f"linear_attention on {SHORT} tokens",
            (1, HEADS, scaled(length, size), WIDTH),
            "fp32",
            SLACK * length / SHORT,
            _longer(f"linear-{name}", scaled(length, size), scaled(SHORT, size), way == "train"),
            "bytes",
            long=True,
        )
        for length in LONGER
        for name in ("head", "pair")
        for way, says in WAYS.items()
    ]


def _longer(name: str, length: int, short: int, backward: bool) -> Callable[[], Work]:
    return lambda: Work(lambda: in_process(name, "fp32", length, backward), lambda: in_process(name, "fp32", short, backward))


def _builder(name: str, length: int, backward: bool) -> Callable[[], Work]:
    path = PATHS[name]
    clock = 8 * length  # the size of the clock, which the target allows for: float64 times
    grouped = path.kv_heads != HEADS

    def ours() -> int:
        return max(in_process(name, path.dtype, length, backward) - clock, 1)

    return lambda: Work(ours, lambda: in_process("plain-repeated" if grouped else "plain", path.dtype, length, backward))


def in_process(name: str, dtype: str, length: int, backward: bool) -> int:
    """Bytes that one call needs at its peak, inputs included, in a fresh process."""
    threads = torch.get_num_threads()
    words = json.dumps([name, dtype, length, backward, threads])
    return int(python("-m", "eigenclock.bench.cases.memory", words, threads=threads, exact_memory=True))


def peak(name: str, dtype: str, length: int, backward: bool) -> int:
    """The same in this process."""
    prepare(name, dtype, min(length, WARM), backward)[0]()
    call, inputs = prepare(name, dtype, length, backward)
    return inputs + peak_growth(call)


def prepare(name: str, dtype: str, length: int, backward: bool) -> tuple[Callable[[], Any], int]:
    """One call with its inputs made, and their bytes."""
    path = PATHS.get(name)
    kv_heads = path.kv_heads if path else 2 if name == "plain-repeated" else HEADS
    (q, g), (k, v) = normal((1, HEADS, length, WIDTH), dtype, 2), normal((1, kv_heads, length, WIDTH), dtype, 2, seed=1)
    inputs = [x.requires_grad_(backward) for x in (q, k, v)]
    size = sum(x.nbytes for x in (*inputs, *((g,) if backward else ())))
    learned: list[torch.Tensor] = []
    encoding, options = (None, {}) if path is None else (path.encoding(), path.options(length))
    if encoding is not None:
        learned = list(encoding.parameters())
    state_space = linear.ENCODINGS[name.removeprefix("linear-")][1](()) if name.startswith("linear-") else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        if state_space is not None:
            return linear_attention(q, k, v, state_space)[0]
        if encoding is not None:
            return attention(q, k, v, encoding, **options)
        if kv_heads != HEADS:
            k, v = k.repeat_interleave(HEADS // kv_heads, 1), v.repeat_interleave(HEADS // kv_heads, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return (lambda: trained(attend, inputs, g, learned)) if backward else without_graph(lambda: attend(*inputs)), size


def main(words: str) -> None:
    """Run one call as told by JSON and print its bytes."""
    name, dtype, length, backward, threads = json.loads(words)
    torch.set_num_threads(threads)
    sys.stdout.write(f"{peak(name, dtype, length, backward)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
