"""What can be audited: one file for each kind of subject. To add one write ``read`` in a file and one line in ``SUBJECTS``."""

from collections.abc import Callable
from typing import Any

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects import callables, checkpoints, configs, decoders, encodings, modules, tables, transformers_models
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

Read = Callable[[Any, Options], Probe | None]

SUBJECTS: dict[str, Read] = {
    "encoding": encodings.read,
    "model": transformers_models.read,
    "checkpoint": checkpoints.read,
    "config": configs.read,
    "spec": encodings.read_spec,
    "table": tables.read,
    "decoder": decoders.read,
    "module": modules.read,
    "callable": callables.read,
}
"""Kind -> how it is read, in the order they are tried; None from one means that the subject is not of its kind."""

KINDS = """\
an Encoding; a spec such as 'rope(theta=500000)'; a Hugging Face config (a dict, a file, a folder, an object with to_dict()); \
a transformers model; a .gguf or .safetensors file with its config; f(q, k, positions) -> (q', k'); \
f(q, k, positions_q, positions_k) -> scores; f(x, positions), f(x) or f(x, freqs_cis); (f(q, k, cos, sin), module that makes the table); \
f(q, k, v, positions) -> out; f(q, k, start_pos), f(q, k, v, start_pos) -> out with a cache of its own; f(heads) -> slopes; \
f(heads, q_pos, k_pos) -> bias; score_mod(score, b, h, q_idx, kv_idx); layers with a cache, called as layers(x, cache=, return_hiddens=); \
a rotary module of a known shape"""


def read(subject: Any, options: Options) -> Probe:
    """The probe of a subject, by the first kind that knows it.

    Raises: ConfigError where none does, with the kinds there are.
    """
    if isinstance(subject, str) and not subject.strip():
        raise ConfigError(f"got an empty text; expected {KINDS}")
    for kind in SUBJECTS.values():
        probe = kind(subject, options)
        if probe is not None:
            return probe
    raise ConfigError(f"got {_described(subject)}, which cannot be audited; expected {KINDS}")


def _described(subject: Any) -> str:
    text = repr(subject) if isinstance(subject, str | int | float | type(None)) else f"an object of type {type(subject).__name__}"
    return text if len(text) <= 80 else text[:78] + ".."
