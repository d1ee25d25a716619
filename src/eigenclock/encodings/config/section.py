"""One rotary section of a config: every key checked against what its rope_type reads, none ignored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenclock.encodings.config.families import ORIGINAL, SHARE, THETA
from eigenclock.encodings.config.keys import Account, misspelt, number, numbers, unknown, whole
from eigenclock.errors import ConfigError
from eigenclock.registry import nearest

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # what each type needs, and what it may have
    "default": ((), ()),
    "linear": (("factor",), ()),
    "ntk": (("factor",), ()),
    "dynamic": (("factor",), (ORIGINAL,)),
    "yarn": (("factor", ORIGINAL), ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "longrope": (("short_factor", "long_factor", ORIGINAL), ("factor", "attention_factor")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), ()),
    "proportional": ((), ("factor",)),
}
SAME_TYPE: Mapping[str, str] = {"su": "longrope", "mrope": "default", "none": "default"}
SECTION_KEYS = frozenset((*_COMMON, *(key for needed, optional in TYPES.values() for key in (*needed, *optional))))
# Keys that belong to a section alone: at the top of a config they have no effect.
INSIDE_ONLY = SECTION_KEYS - {"rope_theta", "partial_rotary_factor", ORIGINAL, "factor", "type", "truncate", "rope_type"}
_BESIDE = {
    "short_mscale": "an amplitude that phimoe alone reads",
    "long_mscale": "an amplitude that phimoe alone reads",
    "finetuned": "says how the model was trained, which changes no frequency",
    "llama_4_scaling_beta": "a temperature that grows with the position; it stands beside the encoding and is not part of it",
}


@dataclass(frozen=True)
class Section:
    """A rotary section as it was understood.

    ``values`` are the keys of its type; ``share`` is the part of the head that turns; ``sections`` the pairs of each axis of M-RoPE.
    """

    rope_type: str
    theta: float
    share: float = 1.0
    values: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[int, ...] | None = None
    assignment: str = "contiguous"


def type_of(given: Mapping[str, Any], where: str) -> str:
    """The type of a section under either name.

    Raises: ConfigError where it is unknown, or the two names disagree.
    """
    named = [(key, given[key]) for key in ("rope_type", "type") if given.get(key) is not None]
    kinds = [SAME_TYPE.get(str(value), str(value)) for _, value in named]
    if len(set(kinds)) > 1:
        raise ConfigError(f"got rope_type={named[0][1]!r} and type={named[1][1]!r} in {where}; expected one of them, or both equal")
    kind = kinds[0] if kinds else "default"
    if kind not in TYPES:
        raise ConfigError(f"got {named[0][0]}={named[0][1]!r} in {where} (rope_type); {nearest(kind, list(TYPES))}")
    return kind


def read_section(
    given: Mapping[str, Any], where: str, longest: tuple[str, Any] | None, account: Account, assignment: str | None = None
) -> Section:
    """A section, checked.

    Args:
        given: its keys, those from the top of the config already among them.
        where: how messages call it.
        longest: the key and the value of the longest context, where the config names one.
        account: takes the notes and warnings.
        assignment: how the model type shares pairs out among axes, where it does so whatever its section says.
    Raises: ConfigError where a key is unknown, missing or no fitting number.
    """
    kind = type_of(given, where)
    needed, optional = TYPES[kind]
    for key, value in given.items():
        _check_key(key, value, kind, where, account)
    _check_longest(given, longest, where)
    if given.get("rope_theta") is None:
        near = next((key for key in given if misspelt(key, THETA)), None)
        raise ConfigError(
            f"got no rope_theta in {where} or at the top of the config"
            + (f" (but {near!r})" if near else "")
            + "; expected the base: a section that replaces another one has to carry it"
        )
    theta = number(given["rope_theta"], f"{where}.rope_theta", above=0)
    share = given.get("partial_rotary_factor")
    share = 1.0 if share is None else float(number(share, f"{where}.partial_rotary_factor", above=0))
    if share > 1:
        raise ConfigError(f"got {where}.partial_rotary_factor={share:g}; expected the share of the head that turns, at most 1")
    values = {key: given[key] for key in (*needed, *optional) if given.get(key) is not None}
    if kind == "dynamic":
        values = _dynamic(values, longest, where, account)
    for key in needed:
        if key not in values:
            raise ConfigError(f"got rope_type={kind!r} without {key} in {where}; expected {', '.join(needed)}")
    values = {key: _checked(key, value, where) for key, value in values.items()}
    _check_lengths(kind, values, longest, where, account)
    if kind == "ntk":
        account.note("rope_type='ntk' means the base theta * factor^(n / (n - 1)); vLLM divides pair i by factor^((i + 1) / n) instead")
    sections = given.get("mrope_section")
    return Section(
        kind,
        theta,
        share,
        values,
        None if sections is None else tuple(whole(n, f"{where}.mrope_section") for n in numbers(sections, f"{where}.mrope_section")),
        assignment or _assignment(given, where),
    )


def _assignment(given: Mapping[str, Any], where: str) -> str:
    flag = given.get("mrope_interleaved") or False
    if not isinstance(flag, bool):
        raise ConfigError(f"got {where}.mrope_interleaved={flag!r}; expected true or false")
    return "interleaved" if flag else "contiguous"


def _check_key(key: str, value: Any, kind: str, where: str, account: Account) -> None:
    needed, optional = TYPES[kind]
    if key in (*_COMMON, *needed, *optional, "max_position_embeddings") or (value is None and key in SECTION_KEYS):
        return
    if key in _BESIDE:
        (account.note if key == "finetuned" else account.warn)(f"{where}.{key}={value!r}: {_BESIDE[key]}")
    elif key in SECTION_KEYS:
        account.warn(f"{where}.{key}={value!r} has no effect under rope_type={kind!r}")
    elif key in SHARE:
        raise ConfigError(f"got {key!r} in {where}; there it is called 'partial_rotary_factor'")
    else:
        raise unknown(key, value, where, (*_COMMON, *needed, *optional) if misspelt(key, (*needed, *optional), 0.6) else SECTION_KEYS)


def _check_longest(given: Mapping[str, Any], longest: tuple[str, Any] | None, where: str) -> None:
    inner = given.get("max_position_embeddings")
    if inner is not None and longest is not None and inner != longest[1]:
        raise ConfigError(f"got {where}.max_position_embeddings={inner!r} and {longest[0]}={longest[1]!r}; expected one number")


def _dynamic(values: dict[str, Any], longest: tuple[str, Any] | None, where: str, account: Account) -> dict[str, Any]:
    """Dynamic scaling grows from max_position_embeddings: there the trained length has no key of its own."""
    if longest is None:
        if ORIGINAL not in values:
            raise ConfigError(f"got rope_type='dynamic' in {where} without max_position_embeddings; expected the length it grows from")
        return values
    original = values.get(ORIGINAL)
    if original is not None and original != longest[1]:
        account.warn(
            f"{where}.{ORIGINAL}={original!r} has no effect: rope_type='dynamic' grows from {longest[0]}={longest[1]!r}, which is used"
        )
    return values | {ORIGINAL: longest[1]}


_CHECKS: Mapping[str, Mapping[str, float]] = {
    "factor": {"least": 1},
    "attention_factor": {"above": 0},
    "beta_fast": {"above": 0},
    "beta_slow": {"above": 0},
    "low_freq_factor": {"above": 0},
    "high_freq_factor": {"above": 0},
    ORIGINAL: {"above": 0},
}


def _checked(key: str, value: Any, where: str) -> Any:
    name = f"{where}.{key}"
    if key in ("short_factor", "long_factor"):
        return numbers(value, name, above=0)
    if key == "truncate":
        if not isinstance(value, bool):
            raise ConfigError(f"got {name}={value!r}; expected true or false")
        return value
    return number(value, name, **_CHECKS.get(key, {}))


def _check_lengths(kind: str, values: Mapping[str, Any], longest: tuple[str, Any] | None, where: str, account: Account) -> None:
    """What the lengths of a config imply against what it says."""
    if kind == "yarn":
        if values.get("beta_fast", 32) <= values.get("beta_slow", 1):
            raise ConfigError(f"got beta_fast not above beta_slow in {where}; expected beta_fast (32) > beta_slow (1)")
        scales = [key for key in ("mscale", "mscale_all_dim") if values.get(key)]
        if "attention_factor" in values and scales:
            account.warn(f"{where}.{scales[0]} has no effect: attention_factor is given and used")
        elif len(scales) == 1:
            account.warn(f"{where}.{scales[0]} is without its twin; the amplitude of transformers takes both or none, so here none")
    if kind == "llama3" and values["low_freq_factor"] > values["high_freq_factor"]:
        raise ConfigError(f"got low_freq_factor above high_freq_factor in {where}; expected low (1) up to high (4)")
    if kind not in ("yarn", "longrope") or longest is None or "factor" not in values:
        return
    implied = number(longest[1], longest[0], above=0) / values[ORIGINAL]
    if implied == 1:
        account.note(f"{longest[0]} equals {where}.{ORIGINAL}: the factor {values['factor']:g} reaches beyond the length the config names")
    elif abs(implied / values["factor"] - 1) > 1e-6:
        account.warn(
            f"{where}.factor={values['factor']:g} is used, but {longest[0]} / {ORIGINAL} = {longest[1]} / {values[ORIGINAL]} = {implied:g}"
        )
