"""Models of transformers whose positions stand in no rotary module, read from their attention weights: a bias on the logits, or absolute
positions that are added to the embeddings."""

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.live import Live, kept
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.places import Place, Sizes, places
from eigenclock.encodings.config.families import OUTSIDE
from eigenclock.errors import UnsupportedError

TOKENS = 12
LONGEST, ROWS = 1 << 20, 64
BIASES = ("alibi", "position_bias")
"""What attention layers call the bias they are given."""


class _Biased:
    """The first attention layer of a model that is given a bias (.., T or 1, S) to add to its logits."""

    def __init__(self, model: Any, module: Any, name: str):
        self.live, self.module, self.name = Live(model), module, name
        self.factor: float = 1.0
        self._rows: dict[int, Tensor] = {}

    def call(self, tokens: int, place: Place | None = None, vectors: Any = None, past: int = 0) -> tuple[Tensor, Tensor | None]:
        """The bias (H, S) that the last query is given among ``tokens`` behind ``past`` ones, and, where vectors are put in, what the
        layer makes of the values before its last projection, (T, H, D)."""
        got: dict[str, Any] = {}

        def given(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            got["bias"] = inspect.signature(module.forward).bind(*args, **kwargs).arguments[self.name]
            if place is None:
                raise StopIteration

        def made(module: nn.Module, args: Any) -> None:
            got["out"] = args[0]
            raise StopIteration

        last = () if place is None else [m for n, m in self.module.named_children() if isinstance(m, nn.Linear) and n not in place.names]
        handles = [self.module.register_forward_pre_hook(given, with_kwargs=True), *(m.register_forward_pre_hook(made) for m in last)]
        put = None if place is None else lambda: place.hooks(self.module, vectors)
        try:
            with contextlib.suppress(StopIteration):
                self.live.run((1, tokens), put=put, implementation=None, cache=self._past(past) if past else None)
        finally:
            for handle in handles:
                handle.remove()
        bias = got["bias"].detach().cpu().double()
        out = got["out"][0].cpu().double().unflatten(-1, (-1, vectors[0].shape[-1])) if place is not None else None
        return bias.reshape(-1, *bias.shape[-2:])[:, -1, -(past + tokens) :], out

    def _past(self, tokens: int) -> Any:
        """A cache that counts so many tokens; nothing is read from it before the bias is there."""
        cache = self.live.cache()
        cache.update(torch.zeros(1, 1, tokens, 1), torch.zeros(1, 1, tokens, 1), 0)
        return cache

    def row(self, t: int) -> Tensor:
        """What keys 0 .. t of a query at t get beside the one at t, (H, t + 1). Softmax leaves a constant for each query free."""
        if t > LONGEST:
            raise UnsupportedError(f"got position {t}; expected one up to {LONGEST}: each takes a bias of that many numbers for each head")
        if t not in self._rows:
            bias = self.call(1, past=t)[0] * self.factor
            while len(self._rows) >= ROWS:
                self._rows.pop(next(iter(self._rows)))
            self._rows[t] = bias - bias[:, -1:]
        return self._rows[t]


def bias_of(model: Any, options: Options) -> Probe | None:
    """The probe of a model whose attention is given a bias, its scores shown to be q.k and that bias by the weights of its softmax.

    None where no layer is given one, or where the weights are something else.
    """
    biased = next(((m, name) for m in model.modules() for name in BIASES if _given(m, name)), None)
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    heads = getattr(config, "num_attention_heads", None)
    if biased is None or not heads:
        return None
    module, width = biased[0], config.hidden_size // heads
    read, place, dtype = _Biased(model, *biased), None, options.dtype or torch.float32
    for kv_heads in dict.fromkeys((heads, getattr(config, "num_kv_heads", None) or heads, 1)):
        sizes = Sizes(heads, kv_heads, width, width)
        with contextlib.suppress(Exception):  # another place may fit
            place = next((p for p in places(module, sizes) if _explains(read, p, sizes, dtype)), None)
        if place is not None:
            break
    if place is None:
        return None

    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        of = key_times.long()
        wide = torch.promote_types(q.dtype, torch.float32)
        z = q.to(wide) @ k.to(wide).repeat_interleave(heads // k.shape[0], 0).mT
        for i, t in enumerate(query_times.long().tolist()):
            row = read.row(t)
            z[:, i] += torch.where(of <= t, row[:, of.clamp_max(t)], -torch.inf).to(wide)
        return z

    note = f"the bias that its first attention layer is given, shown by what the layer makes of vectors put in at {place.where}"
    return Probe("", "model", width, heads, sizes.kv_heads, options.length, dtype, causal=True, scores=scores, notes=(note,))


def _given(module: nn.Module, name: str) -> bool:
    """Whether it is an attention layer with projections of its own that is given a bias under this name."""
    try:
        return name in inspect.signature(module.forward).parameters and not any(_given(child, name) for child in module.children())
    except (TypeError, ValueError):
        return False


def _explains(read: _Biased, place: Place, sizes: Sizes, dtype: torch.dtype) -> bool:
    """Whether the logits of the layer are c q.k + f bias for one c and one f, which is kept."""
    n = min(TOKENS, sizes.width)
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, n, sizes.width, generator=random).to(dtype) for h in (sizes.heads, sizes.kv_heads))
    v = torch.eye(n, sizes.width, dtype=dtype).expand(1, sizes.kv_heads, -1, -1)  # what comes out is the weights
    plain, full = (read.call(n, place, (c * q, c * k, v)) for c in (0, 1))
    assert plain[1] is not None
    assert full[1] is not None
    bias = plain[0] - plain[0][:, -1:]
    logs = [(w[-1, :, :n].log() - w[-1, :, n - 1 : n].log()) for w in (plain[1], full[1])]
    if not bool((bias != 0).any()) or not all(bool(torch.isfinite(x).all()) for x in logs):
        return False
    factor = float((logs[0] * bias).sum() / (bias * bias).sum())
    keys = k[0].double().repeat_interleave(sizes.heads // sizes.kv_heads, 0)
    content = torch.einsum("hd,hsd->hs", q[0, :, -1].double(), keys)
    content = content - content[:, -1:]
    scale = float(((logs[1] - logs[0]) * content).sum() / (content * content).sum())
    limit = 64 * torch.finfo(dtype).eps
    read.factor = factor
    fits = (logs[0] - factor * bias).abs().max() <= limit * bias.abs().max().clamp_min(1)
    return bool(fits) and bool((logs[1] - logs[0] - scale * content).abs().max() <= limit * content.abs().max()) and scale > 0


def positions_of(model: Any) -> str:
    """What a model without a rotary module does with positions, from its attention weights on one token repeated: how much more the key
    just before the query is worth than the query's own must not depend on where the two stand."""
    named = OUTSIDE.get(str(getattr(model.config, "model_type", "")), "")
    weights = _weights(model)
    if weights is None:
        return named
    own, earlier = torch.diagonal(weights, dim1=-2, dim2=-1)[:, 1:], torch.diagonal(weights, offset=-1, dim1=-2, dim2=-1)
    gap = (own - earlier)[:, None, :] - (own - earlier)[:, :, None]
    if not float(gap.abs().nan_to_num(nan=0.0).max()) > 1e-4:
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


def _weights(model: Any) -> Tensor | None:
    """The logarithm (H, T, T) of the weights of the first attention layer, on one token repeated; None where it gives none."""
    live = Live(model)
    try:
        with kept(model), live.borrowed(implementation="eager"), torch.no_grad():
            out = model(torch.full((1, TOKENS), 1, device=live.device), output_attentions=True)
        weights = out.attentions[0]
    except Exception:
        return None
    return weights[0].cpu().double().log() if isinstance(weights, Tensor) and weights.ndim == 4 else None


def unread(model: Any) -> str:
    """What to say of a model of which nothing could be measured."""
    tables = [f"{n} {tuple(p.shape)}" for n, p in model.named_parameters() if "position" in n.lower() and p.ndim >= 2]
    held = f"; it holds {tables[0]}, which looks like a table of absolute positions" if tables else ""
    return f"it has no rotary module, and neither a bias nor attention weights could be read: nothing was measured{held}"
