"""Specs: an encoding as text, as plain data or as a JSON file, and back."""

import ast
import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

from eigenclock.clocks import CLOCKS
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.parameter import plain
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.registry import lookup, nearest
from eigenclock.schedules import SCHEDULES


def encoding(
    spec: "str | dict[str, Any] | Path", *, head_dim: int | None = None, heads: int | None = None, kv_heads: int | None = None
) -> Encoding:
    """Build an encoding from a spec string, a dict or a JSON file.

    A spec is a recipe call, or several joined by ``+`` (side by side) and ``*`` (on the same channels). Each part takes ``head_dim``
    and ``heads`` from the keywords unless it names its own; the parts of a sum must name their ``head_dim``.

    Raises: ConfigError where the text cannot be read or an option is unknown, with the nearest known one; UnknownNameError where a
        recipe, clock or schedule is unknown.

    >>> print(encoding("rope(theta=500000) * alibi", head_dim=64, heads=8))
    rope(head_dim=64, heads=8, theta=500000) * alibi(head_dim=64, heads=8)
    """
    defaults = {k: v for k, v in (("head_dim", head_dim), ("heads", heads), ("kv_heads", kv_heads)) if v is not None}
    built = build(tree_of(spec), defaults)
    if not isinstance(built, Encoding):
        raise ConfigError(f"got {spec!r}, which is a {type(built).__name__}; expected an encoding such as 'rope(theta=500000) * alibi'")
    if head_dim is not None and built.head_dim != head_dim:
        raise ConfigError(f"got parts that add up to head_dim {built.head_dim}; expected {head_dim}: change the head_dim of a part")
    return built


def tree_of(spec: "str | dict[str, Any] | Path") -> Any:
    """A spec string, a dict or a JSON file as plain data."""
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.strip().endswith(".json")):
        spec = _read_json(Path(spec))
    return from_text(spec) if isinstance(spec, str) else spec


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"got the spec file {path}; it cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"got the spec file {path}; expected JSON, but {error}") from None


START_VALUES = " [start values]"
"""Ends the text of an encoding whose learned numbers have moved. Reading it back leaves it out; in the middle of a text it is refused."""


def from_text(text: str) -> Any:
    """A spec string as plain data: calls become {"name": ..., options}, sums and products {"op": ..., "parts": [...]}."""
    try:
        node = ast.parse(text.strip().removesuffix(START_VALUES), mode="eval").body
    except SyntaxError:
        raise ConfigError(f"got the spec {text!r}; expected recipes such as 'rope(theta=500000) * alibi'") from None
    return _read(node, text)


def _read(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        return {"op": "+" if isinstance(node.op, ast.Add) else "*", "parts": [_read(node.left, text), _read(node.right, text)]}
    if isinstance(node, ast.Name):
        return {"name": node.id}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        options = {str(k.arg): _read(k.value, text) for k in node.keywords if k.arg is not None}
        if len(options) == len(node.keywords):
            positional = [_read(a, text) for a in node.args]
            return {"name": node.func.id, **({"args": positional} if positional else {}), **options}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ConfigError(
            f"got {ast.unparse(node)!r} in the spec {text!r}; expected recipe calls with numbers, text or lists as options"
        ) from None


def build(tree: Any, defaults: dict[str, int]) -> Any:
    """Plain data as an encoding; the values of its options become clocks and schedules where they name one."""
    if not isinstance(tree, dict):
        return tree
    if "op" in tree:
        return _build_pair(tree, defaults)
    if "name" not in tree:
        raise ConfigError(f"got {sorted(tree)} in a spec; expected a 'name' (or 'op' and 'parts')")
    from eigenclock.encodings import ENCODINGS

    name, args = str(tree["name"]), tree.get("args", [])
    target = lookup(ENCODINGS, name, "encoding")
    accepted = inspect.signature(target).parameters
    options = {k: v for k, v in defaults.items() if k in accepted} | {k: v for k, v in tree.items() if k not in ("name", "args")}
    if args and "head_dim" in accepted:
        options.pop("head_dim", None)
    wraps = next(iter(accepted)) == "encoding"
    ready = {k: build(v, defaults) if k == "encoding" else _value(v, range_pair=k == "half_life") for k, v in options.items()}
    return _call(name, target, [build(a, defaults) if wraps else _value(a) for a in args], ready)


def _value(value: Any, range_pair: bool = False) -> Any:
    """The value of an option: a clock or a schedule where it names one, a tuple where two half-lives are a range."""
    if isinstance(value, dict) and "op" in value:
        raise ConfigError(f"got an expression ({value['op']!r}) where a number, text or list was expected; write the numbers out")
    if isinstance(value, dict):
        name = str(value.get("name"))
        known: dict[str, Any] = {**SCHEDULES, **CLOCKS}
        target = lookup(known, name, "clock or schedule")
        options = {k: _tuples(_value(v)) for k, v in value.items() if k not in ("name", "args")}
        return _call(name, target, [_tuples(_value(a)) for a in value.get("args", [])], options)
    return _tuples(value) if range_pair and _is_range(value) else value


def _build_pair(tree: dict[str, Any], defaults: dict[str, int]) -> Encoding:
    parts = tree.get("parts")
    if tree["op"] not in ("+", "*") or not isinstance(parts, list) or len(parts) < 2:
        raise ConfigError(f"got op {tree['op']!r} with parts {parts!r}; expected '+' or '*' and a list of at least two parts")
    inner = {k: v for k, v in defaults.items() if k != "head_dim" or tree["op"] == "*"}
    built = [build(part, inner) for part in parts]
    for part in built:
        if not isinstance(part, Encoding):
            raise ConfigError(f"got {part!r} as part of a spec; expected encodings on both sides of '{tree['op']}'")
    out = built[0]
    for part in built[1:]:
        out = out + part if tree["op"] == "+" else out * part
    return out


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and not any(isinstance(v, list | tuple) for v in value)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _call(name: str, target: Any, args: list[Any], options: dict[str, Any]) -> Any:
    signature = inspect.signature(target)
    for option in options:
        if option not in signature.parameters:
            raise ConfigError(f"got the option {option!r} for {name}; {nearest(option, list(signature.parameters))}")
    try:
        bound = signature.bind(*args, **options)
    except TypeError as error:
        hint = "; head_dim and heads come from the call, or name them in each part" if "missing" in str(error) else ""
        raise ConfigError(f"{name}: {error}{hint}") from None
    try:
        return target(*bound.args, **bound.kwargs)
    except (TypeError, AttributeError) as error:
        if isinstance(error, EigenclockError):
            raise
        raise ConfigError(f"got {options} for {name}; expected options of the kinds in its signature {signature} ({error})") from None


def to_text(spec: Any) -> str:
    """Plain data as a spec string, the inverse of :func:`from_text`."""
    if isinstance(spec, dict) and "op" in spec:
        texts = [to_text(p) for p in spec["parts"]]
        if spec["op"] == "*":
            texts = [f"({t})" if isinstance(p, dict) and p.get("op") == "+" else t for p, t in zip(spec["parts"], texts, strict=True)]
        return f" {spec['op']} ".join(texts)
    if isinstance(spec, dict) and spec.get("name") == "two_sided":
        return f"two_sided({to_text(spec['encoding'])})"
    if isinstance(spec, dict):
        options = ", ".join(f"{k}={to_text(v)}" for k, v in spec.items() if k != "name")
        return f"{spec['name']}({options})" if options else f"{spec['name']}()"
    if isinstance(spec, list):
        return f"({', '.join(to_text(v) for v in spec)}{',' if len(spec) == 1 else ''})"
    return repr(spec)


def schedule_spec(schedule: Any) -> dict[str, Any]:
    """The plain data of a schedule: its registered name and the fields that are given."""
    name = next((n for n, kind in SCHEDULES.items() if kind is type(schedule)), None)
    if name is None or not dataclasses.is_dataclass(schedule):
        raise ConfigError(
            f"got the schedule {schedule!r}, which is not registered; expected one of {', '.join(SCHEDULES)} (or register it)"
        )
    fields = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)}
    given = {key: value for key, value in fields.items() if value is not None}
    return {"name": name} | {key: schedule_spec(value) if callable(value) else plain(value) for key, value in given.items()}


__all__ = ["encoding", "from_text", "schedule_spec", "to_text", "tree_of"]
