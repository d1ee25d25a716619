"""Live models of transformers: queries and keys are put in and read out at the first attention layer, alone and through the cache."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import Found, probe_of_action
from eigenclock.audit.subjects.configs import probe_of_config
from eigenclock.audit.subjects.options import Options
from eigenclock.encodings.config.families import OUTSIDE

NAME = "eigenclock_audit"
TOKENS = 12


class _Read(Exception):
    """What the first attention layer was given and made: the rest of the model is not run."""

    def __init__(self, query: Tensor, key: Tensor, out: Tensor):
        super().__init__()
        self.query, self.key, self.out = query, key, out


def read(subject: Any, options: Options) -> Probe | None:
    """A model of transformers."""
    if not isinstance(subject, nn.Module) or not any(kind.__name__ == "PreTrainedModel" for kind in type(subject).__mro__):
        return None
    model: Any = subject
    parameter = next(model.parameters(), None)
    dtype = options.dtype or (parameter.dtype if parameter is not None else torch.float32)
    options = Options(options.head_dim, options.heads, options.length, dtype)
    name = type(model).__name__
    rotary = next((m for n, m in model.named_modules() if type(m).__name__.endswith("RotaryEmbedding") and "vision" not in n), None)
    probe = replace(probe_of_config(model.config.to_dict(), options, name, "model", model.config, rotary), module=model)
    if rotary is None:
        return replace(probe, outside="" if probe.encodings else _positions(model))
    return probe if probe.layers else _through_hooks(model, probe, options) or probe


def _through_hooks(model: Any, probe: Probe, options: Options) -> Probe | None:
    """The probe whose vectors go into the first layer just before its action and are read where its attention is called.

    None where the layer has another structure, or normalises after the action: what is measured is then its rotary module alone.
    """
    attention = next((m for m in model.modules() if all(hasattr(m, f"{side}_proj") for side in "qkv") and hasattr(m, "layer_idx")), None)
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    heads = getattr(config, "num_attention_heads", None)
    if attention is None or not heads:
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = attention.q_proj.weight.shape[0] // heads
    if attention.k_proj.weight.shape[0] != kv_heads * width:
        return None
    hooked = _Hooked(model, attention)
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, 3, width, generator=random).to(options.dtype) for n in (heads, kv_heads))
    try:
        turned, _ = hooked.act(q, k, torch.tensor([0, 7, 1]))
        if torch.equal(turned[:, 1], q[:, 1]):
            return None
    except Exception:
        return None
    found = Found(
        hooked.act, f"vectors put into layer 0 at {hooked.where}, read where its attention is called", width, heads, True, kv_heads
    )
    made = probe_of_action(
        found, options, probe.name, "model", probe.notes[:-2], module=model, tables=probe.tables,
        encodings=probe.encodings, config=probe.config, refused=probe.refused, full=hooked.full, decode=hooked.decode,
    )  # fmt: skip
    return replace(made, exact=probe.exact) if _alike(made, probe) else made


def _alike(one: Probe, other: Probe) -> bool:
    """Whether the model scores as its rotary module alone does, so that the module can be asked in wider arithmetic."""
    sizes = [(p.head_dim, p.heads) for p in (one, other)]
    if sizes[0] != sizes[1] or one.scores is None or other.scores is None:
        return False
    q, k = one.content(3)
    times = torch.tensor([0.0, 3.0, 40.0], dtype=torch.float64)
    a, b = one.scores(q, k, times, times), other.scores(q, k.repeat_interleave(other.kv_heads // one.kv_heads, 0), times, times)
    return torch.allclose(a.double(), b.double(), rtol=0, atol=16 * one.unit_roundoff * float(b.double().abs().max()))


class _Hooked:
    """The first attention layer of a model with its projections replaced by given vectors."""

    def __init__(self, model: Any, attention: Any):
        self.model, self.attention = model, attention
        self.decoder = getattr(model, "base_model", model)
        given = inspect.signature(self.decoder.forward).parameters
        self.cache_name = "cache" if "cache" in given else "past_key_values"
        normed = all(hasattr(attention, f"{side}_norm") for side in "qk")
        self.places = [getattr(attention, name) for name in (("q_norm", "k_norm", "v_proj") if normed else ("q_proj", "k_proj", "v_proj"))]
        self.where = "q_norm and k_norm" if normed else "q_proj and k_proj"

    def act(self, q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Both after the model's own action."""
        got = self._run(q, k, k, times, None)
        return got.query[0], got.key[0]

    def full(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        """The output of the layer's attention over the whole sequence, (H, T, D)."""
        return self._run(q, k, v, times, None).out[0].transpose(0, 1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...]) -> Tensor:
        """The same in pieces, through the model's own cache."""
        from transformers import DynamicCache

        cache, out, start = DynamicCache(config=self.model.config), [], 0
        for stop in (*cuts, q.shape[1]):
            if stop > start:
                piece = self._run(*(x[:, start:stop] for x in (q, k, v)), times[start:stop], cache)
                out.append(piece.out[0].transpose(0, 1))
            start = max(start, stop)
        return torch.cat(out, 1)

    def _run(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cache: Any) -> _Read:
        whole = bool((times == times.round()).all())
        ids = torch.zeros(1, q.shape[1], dtype=torch.long, device=next(self.decoder.parameters()).device)
        past = 0 if cache is None else cache.get_seq_length()
        mask = torch.ones(1, past + q.shape[1], dtype=torch.long)  # without one, steps of time other than 1 are taken for packed documents
        given: dict[str, Any] = {
            "position_ids": (times.long() if whole else times)[None],
            "attention_mask": mask,
            "use_cache": cache is not None,
        }
        if cache is not None:
            given[self.cache_name] = cache
        training = self.decoder.training
        try:
            with _reading(self.model, self.attention, list(zip(self.places, (q, k, v), strict=True))), torch.no_grad():
                self.decoder.eval()(ids, **given)
        except _Read as got:
            return got
        finally:
            self.decoder.train(training)
        raise RuntimeError("the attention of the first layer was not called")


@contextlib.contextmanager
def _reading(model: Any, attention: Any, vectors: list[tuple[Any, Tensor]]) -> Iterator[None]:
    """The projections give these vectors, and the attention function stops the model with what it was given."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def stop(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any) -> Any:
        if module is not attention:
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **rest)
        if mask is not None and mask.is_floating_point():
            mask = mask.to(query.dtype)
        raise _Read(query, key, ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value.to(query.dtype), mask, **rest)[0])

    AttentionInterface.register(NAME, stop)
    if NAME not in ALL_MASK_ATTENTION_FUNCTIONS:
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    before = model.config._attn_implementation
    hooks = [place.register_forward_hook(lambda m, args, out, x=x: x.transpose(0, 1).reshape(out.shape)) for place, x in vectors]
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()


def _positions(model: Any) -> str:
    """What a model without a rotary module does with positions, from its attention weights on one token repeated: how much more the key
    just before the query is worth than the query's own must not depend on where the two stand."""
    kind = str(getattr(model.config, "model_type", ""))
    named = OUTSIDE.get(kind, "")
    before, training = model.config._attn_implementation, model.training
    try:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            out = model.eval()(torch.full((1, TOKENS), 1), output_attentions=True)
        weights = out.attentions[0][0].double().log()  # (H, T, T)
    except Exception:
        return named
    finally:
        model.set_attn_implementation(before)
        model.train(training)
    own, earlier = torch.diagonal(weights, dim1=-2, dim2=-1)[:, 1:], torch.diagonal(weights, offset=-1, dim1=-2, dim2=-1)
    gap = (own - earlier)[:, None, :] - (own - earlier)[:, :, None]
    if float(gap.abs().max()) <= 1e-4:
        return named
    h, i, j = (int(x) for x in torch.unravel_index(gap.abs().argmax(), gap.shape))
    i, j = min(i, j), max(i, j)
    values = [float((own - earlier)[h, n]) for n in (i, j)]
    held = any(isinstance(m, nn.Embedding) and "position" in n for n, m in model.named_modules())
    said = named or ("learned absolute positions" if held else "positions that are not relative")
    return (
        f"{said}; head {h} of layer 0, one token repeated: the logit of t = {i + 1}, s = {i + 1} exceeds that of s = {i} by "
        f"{values[0]:.4g}, and by {values[1]:.4g} with both moved by {j - i}"
    )
