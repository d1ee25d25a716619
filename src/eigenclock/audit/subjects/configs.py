"""Hugging Face configs, and those of the dialects that ``encodings`` reads, with the table that the model's own code builds from them."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.heads import ALIKE, fewer
from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects import encodings as ours
from eigenclock.audit.subjects.modules import ROTARY, beside, table_of, transformers_rotary
from eigenclock.audit.subjects.options import Options, named_length
from eigenclock.audit.subjects.tables import on_table
from eigenclock.encodings import ENCODINGS, Encoding
from eigenclock.encodings.config import Encodings, families
from eigenclock.encodings.config import encodings as read_encodings
from eigenclock.encodings.config.families import OUTSIDE
from eigenclock.encodings.config.installed import stored
from eigenclock.encodings.config.source import load
from eigenclock.errors import ConfigError, EigenclockError, UnsupportedError

HEAD_DIM = 64
OWN = "transformers.models."
"""Where classes of transformers itself are: the code of others, which came with a config, is not run."""
MODEL_KEYS = frozenset(
    ("model_type", "architectures", *families.HEADS, *families.HIDDEN, *families.HEAD_DIM, *families.LAYERS, *families.LENGTHS)
) | frozenset(families.ROTARY_TOP)
EVEN = "even width"
"""A width that is odd stays odd whatever is guessed for the sizes that a config leaves out."""


def read(subject: Any, options: Options) -> Probe | None:
    """A config as a dict, a path of a JSON file or of a folder, an object with to_dict(), or a rotary module that keeps its own."""
    if isinstance(subject, nn.Module):
        return _of_rotary(subject, options)
    if isinstance(subject, str | Path):
        path = Path(subject)
        if not path.exists():
            if isinstance(subject, Path) or path.suffix == ".json":
                raise ConfigError(f"got {path}, which is no file or folder here; expected one: names are not downloaded")
            return None
        if path.is_file() and path.suffix != ".json":
            return None
        config, name = load(path), str(subject)
    elif isinstance(subject, Mapping):
        config, name = subject, str(subject.get("model_type") or "a config")
    elif callable(getattr(subject, "to_dict", None)):
        config = load(subject)
        name = type(subject).__name__
    else:
        return None
    if config.get("op") in ("+", "*") or config.get("name") in ENCODINGS:
        return None  # the spec of an encoding
    if not _of_a_model(config):
        keys = ", ".join(map(str, list(config)[:5])) or "nothing in it"
        raise ConfigError(
            f"got {name} with {keys}, which says nothing of a model; expected its config, with model_type, rope_theta, head_dim or the like"
        )
    return probe_of_config(config, options, name, "config", None if isinstance(subject, str | Path | Mapping) else subject)


def _of_a_model(config: Mapping[str, Any]) -> bool:
    """Whether a key of a config, or of a config within it, says anything of a model."""
    parts = (config, *(part for part in config.values() if isinstance(part, Mapping)))
    return any(key in part for part in parts for key in MODEL_KEYS)


def _of_rotary(module: nn.Module, options: Options) -> Probe | None:
    """The probe of a rotary module of the shape of transformers, held to the config that it keeps."""
    given = getattr(module, "config", None)
    named = isinstance(given, Mapping) or callable(getattr(given, "to_dict", None))
    if not named or beside(module) is None or not any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
        return None
    return probe_of_config(load(given), options, type(module).__name__, "module", None if isinstance(given, Mapping) else given, module)


def probe_of_config(
    config: Mapping[str, Any], options: Options, name: str, kind: str, given: Any = None, live: nn.Module | None = None, **more: Any
) -> Probe:
    """The probe of a config: what it says, and the table of a live rotary module, or of the one that its model class makes of it.

    ``given`` is the config as an object, where there is one; ``more`` are other fields of the probe.
    """
    dtype = options.dtype or _dtype(config)
    options = replace(options.of_config(config), dtype=dtype)
    notes: list[str] = []
    made = _made(config, given, notes)
    encs, refused, outside = _understood(config, options, made)
    if encs is not None:
        notes += [*encs.notes, *encs.warnings]
    longest = named_length(config)
    if longest is not None and longest > options.length:
        notes.append(f"judged for {options.length} positions, its config is for {longest}: give length={longest} to judge for all of them")
    if outside:
        notes.append(f"read as a model with {outside}")
    if refused and not outside:
        notes.append(f"refused: {refused}")
    common: dict[str, Any] = {"encodings": encs, "config": deepcopy(dict(config)), "refused": refused, "outside": outside, **more}
    ours = stored(config) is not None  # an encoding is installed, which no class of transformers has in its code
    built = live
    if live is None and made is not None and not outside and not ours:
        built = rotary_of(made, notes)
    probe = None if built is None else _by_its_code(built, encs, options, name, kind, common, live, notes)
    if probe is not None:
        return replace(probe, notes=(*notes, *probe.notes))
    if not encs:
        return Probe(name, kind, options.head_dim or HEAD_DIM, length=options.length, dtype=dtype, notes=tuple(notes), **common)
    own = "its model's own code is not here" if built is None else "its model's own code cannot be called alone"
    own = "an installed encoding has no code beside it" if ours else own
    notes.append(f"{own}: what is measured is the encoding that the config was read as")
    parts = {layer: _read_as(enc, options, f"{name}, {layer}", kind) for layer, enc in encs.items()}
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return replace(first, name=name, notes=tuple(notes), **common)
    sizes = (first.head_dim, first.heads, first.kv_heads, options.length, dtype)
    return Probe(name, kind, *sizes, layers=parts, notes=tuple(notes), **common)


def _read_as(enc: Encoding, options: Options, name: str, kind: str) -> Probe:
    """The probe of what a config was read as, on a few heads where all are alike."""
    small = fewer(enc, options.length)
    probe = replace(ours.probe_of(small or enc, options, name, kind), encoding=None)
    return probe if small is None else replace(probe, stands_for=(enc.heads, enc.kv_heads or enc.heads))


def _by_its_code(
    built: nn.Module,
    encs: Encodings | None,
    options: Options,
    name: str,
    kind: str,
    common: dict[str, Any],
    live: nn.Module | None,
    said: list[str],
) -> Probe | None:
    """The probe of the rotary module of a model class; None where the function beside it cannot be called alone.

    Where it is no part of a ``live`` model, a few heads are measured if all are turned alike. Why it cannot be called is appended to
    ``said``.
    """
    first = next(iter(encs.values())) if encs else None
    width = options.head_dim or (first.head_dim if first else None)
    heads = options.heads or (first.heads if first else ALIKE)
    whole = (heads, (first.kv_heads or heads) if first and first.heads == heads else heads)
    ways = [(transformers_rotary, width), (transformers_rotary, None)]  # some models cut the channels that turn out of a head elsewhere
    if live is None and (getattr(built, "rope_type", "") == "axial" or "Vision" in type(built).__name__):
        ways = [(_on_patches, width)]  # two coordinates: what takes one for them is called wrongly
    for read_with, size in dict.fromkeys(ways):
        try:
            probe = read_with(built, Options(size, heads, options.length, options.dtype), name, kind, **common)
            if probe is None or (live is None and not all(map(_by_own_time, (probe, *probe.layers.values())))):
                continue
            few = live is None and heads > ALIKE and all(map(_turns_alike, (probe, *probe.layers.values())))
            if few:
                probe = read_with(built, Options(size, ALIKE, options.length, options.dtype), name, kind, **common)
        except EigenclockError:
            continue
        if probe is None:
            return None
        notes = (f"its {heads} heads are turned alike, to the last bit: {ALIKE} are measured",) if few else ()
        if width is not None and probe.head_dim < width:
            notes = (*notes, f"measured on the {probe.head_dim} of {width} channels of a head that its code turns")
        layers = {layer: replace(part, stands_for=whole) for layer, part in probe.layers.items()}
        return replace(probe, notes=(*notes, *probe.notes), stands_for=whole, layers=layers)
    said += _refusal(built, width or HEAD_DIM)
    return None


def _refusal(built: nn.Module, width: int) -> list[str]:
    """What a rotary module says when it is called on positions alone, as a note; nothing where it takes them."""
    try:
        built(torch.ones(1, 3, width), torch.arange(3)[None])
    except Exception as error:
        return [f"{type(built).__name__}(x, position_ids) fails: {' '.join(str(error).split())[:160]}"]
    return []


class Patches(nn.Module):
    """A rotary module that takes two coordinates for each patch, with one time for both."""

    def __init__(self, rotary: nn.Module):
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        """Its tables (T, D)."""
        return self.rotary(x, position_ids[0, :, None].expand(-1, 2))


def _on_patches(built: nn.Module, options: Options, name: str, kind: str, **common: Any) -> Probe | None:
    """The probe of a rotary module of a vision tower, with the function beside it that turns patches."""
    apply = beside(built, ("apply_rotary_pos_emb_vision",))
    if apply is None:
        return None
    tables = table_of(getattr(built, "inv_freq", None), getattr(built, "attention_scaling", None) or 1.0, None, type(built).__name__)
    probe = on_table(apply, Patches(built), options, kind, **{"tables": tables, **common})
    return replace(probe, name=name, notes=("patches have two coordinates: one time stands for both here", *probe.notes))


def _by_own_time(probe: Probe) -> bool:
    """Whether each token is turned by the time that is given for it: in another order vectors come back the same, in that order."""
    if probe.action is None:
        return True
    times = torch.arange(min(7, probe.length))
    order = torch.randperm(len(times), generator=torch.Generator().manual_seed(0))
    q, k = probe.content(len(times), seed=12)
    straight, mixed = probe.action(q, k, times), probe.action(q[:, order], k[:, order], times[order])
    near = 64 * probe.unit_roundoff
    one_q, one_k = (x[:, :1].expand_as(x) for x in (q, k))
    if all(bool((x == x[:, :1]).all()) for x in probe.action(one_q, one_k, times)):
        return False  # it turns nothing: what it was given are not its positions
    return all(float((a[:, order] - b).double().abs().max()) <= near * float(a.abs().max()) for a, b in zip(straight, mixed, strict=True))


def _turns_alike(probe: Probe) -> bool:
    """Whether one vector in every head comes back the same from all heads, at positions up to the length."""
    if probe.action is None:
        return True
    times = torch.linspace(0, probe.length - 1, 9).long()
    q, k = (x[:1].expand(heads, -1, -1) for x, heads in zip(probe.content(len(times), seed=11), (probe.heads, probe.kv_heads), strict=True))
    return all(bool((x == x[:1]).all()) for x in probe.action(q, k, times))


def _understood(config: Mapping[str, Any], options: Options, made: Any) -> tuple[Encodings | None, str, str]:
    """The encodings, else why they are refused, else what is outside the group; sizes left out are those of the made config."""
    kind = str(config.get("model_type") or "")
    sizes = {"head_dim": options.head_dim, "heads": options.heads}
    width, heads = _sizes(made)
    guesses = {"head_dim": options.head_dim or width or HEAD_DIM, "heads": options.heads or heads or 1}
    _refuse_other_sizes(config, options)
    refused = ""
    for names in ((), ("head_dim",), ("heads",), ("head_dim", "heads")):
        try:
            return read_encodings(config, **{**sizes, **{name: guesses[name] for name in names}}), "", ""
        except UnsupportedError as error:
            return None, str(error), OUTSIDE.get(kind, "") or _absolute(config)
        except EigenclockError as error:
            refused = refused or str(error)
            if EVEN in refused or not any(word in refused for word in ("head_dim", "hidden_size", "num_attention_heads")):
                break
    return None, refused, _absolute(config)


def _refuse_other_sizes(config: Mapping[str, Any], options: Options) -> None:
    """Sizes are for configs that name none.

    Raises: ConfigError where the options contradict the config.
    """
    if options.head_dim is None and options.heads is None:
        return
    try:
        own = list(read_encodings(config).values())
    except EigenclockError:
        return
    for name, asked in (("head_dim", options.head_dim), ("heads", options.heads)):
        has = sorted({getattr(enc, name) for enc in own})
        if asked is not None and has and asked not in has:
            raise ConfigError(
                f"got {name}={asked} for a config that says {' and '.join(map(str, has))}; expected its own size: leave it out, or correct "
                "the config"
            )


def _absolute(config: Mapping[str, Any]) -> str:
    kind = str(config.get("position_embedding_type") or "")
    return OUTSIDE["bert"] if kind == "absolute" or config.get("model_type") in ("bert", "roberta", "nanogpt") else ""


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype a config names, else float32."""
    named = config.get("dtype") or config.get("torch_dtype")
    found = getattr(torch, str(named).removeprefix("torch."), None) if named else None
    return found if isinstance(found, torch.dtype) and found.is_floating_point else torch.float32


def _made(config: Mapping[str, Any], given: Any, notes: list[str]) -> Any:
    """The config as an object of the class that transformers itself has for it; None where it has none."""
    if given is not None and type(given).__module__.startswith(OWN):
        return given
    kind = str(config.get("model_type") or "")
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    if kind not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[kind](**{k: deepcopy(v) for k, v in config.items() if k not in ("model_type", "auto_map")})
    except Exception as error:
        notes.append(f"transformers refuses the config: {' '.join(str(error).split())[:160]}")
        return None


def _sizes(made: Any) -> tuple[int | None, int | None]:
    """The width and the number of heads of a config object, with the defaults of its class."""
    text = made.get_text_config() if callable(getattr(made, "get_text_config", None)) else made
    width, hidden, heads = (_named(text, name) for name in ("head_dim", "hidden_size", "num_attention_heads"))
    heads = heads if isinstance(heads, int) and heads > 0 else None
    if not isinstance(width, int):
        width = hidden // heads if heads is not None and isinstance(hidden, int) else None
    return width, heads


def _named(config: Any, name: str) -> Any:
    """A field of a config object; None where it has none, or refuses to say one for all layers."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def rotary_of(config: Any, notes: list[str]) -> nn.Module | None:
    """The rotary module of a config object's own modeling file."""
    import importlib
    import inspect
    import sys

    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    if not type(text).__module__.startswith(OWN):
        return None
    try:
        space = importlib.import_module(type(text).__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None
    own = type(text).__name__
    prefix = own.removesuffix("Config")
    others = {n for n, c in vars(sys.modules[type(text).__module__]).items() if inspect.isclass(c)} - {own}
    ranked: list[tuple[bool, bool, int, type[nn.Module]]] = []
    shared: list[type[nn.Module]] = []
    for name, one in vars(space).items():
        if not (inspect.isclass(one) and issubclass(one, nn.Module) and one.__module__ == space.__name__ and name.endswith(ROTARY)):
            continue
        asked = _config_of(one)
        if asked != own and (asked in others or "Vision" in name):  # it is that of another part of the model
            shared += [one] if "Vision" not in name else []
            continue
        ranked.append((asked != own, not name.startswith(prefix), len(name), one))
    classes = [one for *_, one in sorted(ranked, key=lambda found: found[:3])]
    if not classes and len(shared) == 1 and not any(part in own for part in ("Vision", "Audio")):
        classes = shared  # the only one there is: all parts of the model take it, whatever its signature says
    for made in classes:
        try:
            return made(text)
        except Exception as error:
            notes.append(f"{made.__name__} cannot be built from the config: {' '.join(str(error).split())[:120]}")
    return None


def _config_of(rotary: type) -> str:
    """The name of the class of config that a rotary module asks for, empty where it asks for none."""
    import inspect

    given = inspect.signature(rotary).parameters.get("config")
    if given is None or given.annotation is inspect.Parameter.empty:
        return ""
    return given.annotation if isinstance(given.annotation, str) else getattr(given.annotation, "__name__", "")
