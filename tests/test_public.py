"""The contract of every public name: documented, exemplified, typed, and free of catch-all keywords."""

import collections
import doctest
import inspect
from typing import Any

import pytest

import eigenclock

# With or without __all__, what is public is what the package imports for its users, less the folders themselves.
PUBLIC: list[str] = list(
    getattr(eigenclock, "__all__", None) or [n for n, thing in vars(eigenclock).items() if n[0] != "_" and not inspect.ismodule(thing)]
)
NAMES = sorted(name for name in PUBLIC if not name.startswith("__"))
_EMPTY = inspect.Parameter.empty


def door_problems(name: str, function: Any, *, method: bool) -> list[str]:
    """What is wrong with the signature of a function or method."""
    out = []
    signature = inspect.signature(function)
    for k, parameter in enumerate(signature.parameters.values()):
        if method and k == 0 and parameter.name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            out.append(f"{name}: takes **{parameter.name}; name the keywords")
        if parameter.annotation is _EMPTY:
            out.append(f"{name}: {parameter.name} has no type")
    if signature.return_annotation is _EMPTY and not name.endswith(".__init__"):
        out.append(f"{name}: the result has no type")
    return out


def own_methods(cls: type) -> dict[str, Any]:
    """The public methods, and the constructor, that the class itself defines."""
    out = {}
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if inspect.isfunction(function) and (not name.startswith("_") or name == "__init__"):
            out[name] = function
    return out


def doc_problems(name: str, thing: Any) -> list[str]:
    """What is missing from the docstring: one line that is a sentence, then a blank line, and an example that runs."""
    doc = inspect.cleandoc(thing.__doc__ or "")
    lines = doc.splitlines()
    if not lines:
        return [f"{name}: has no docstring"]
    out = []
    if not lines[0].endswith((".", "?")):
        out.append(f"{name}: the first line of the docstring is no sentence of its own: {lines[0]!r}")
    if len(lines) > 1 and lines[1].strip():
        out.append(f"{name}: the second line of the docstring is not blank")
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return out
    if not doctest.DocTestParser().get_examples(doc):
        out.append(f"{name}: the docstring has no example (>>>)")
    return out


def problems(name: str, thing: Any) -> list[str]:
    """Everything that is wrong with one public name; empty for data such as a registry."""
    if inspect.isclass(thing):
        out = doc_problems(name, thing)
        for method, function in own_methods(thing).items():
            out += door_problems(f"{name}.{method}", function, method=True)
            if method != "__init__" and not (inspect.getdoc(getattr(thing, method)) or "").strip():
                out.append(f"{name}.{method}: has no docstring")
        return out
    if inspect.isfunction(thing):
        return doc_problems(name, thing) + door_problems(name, thing, method=False)
    return []


@pytest.mark.parametrize("name", NAMES)
def test_public_name_keeps_the_contract(name):
    assert problems(name, getattr(eigenclock, name)) == []


def test_public_names_exist_once():
    assert [name for name, n in collections.Counter(PUBLIC).items() if n > 1] == []
    assert [name for name in PUBLIC if not hasattr(eigenclock, name)] == []
    assert NAMES


def test_every_error_is_an_eigenclock_error_and_a_builtin_one():
    errors = [thing for name in NAMES if inspect.isclass(thing := getattr(eigenclock, name)) and issubclass(thing, Exception)]
    assert eigenclock.EigenclockError in errors
    for error in errors:
        assert issubclass(error, eigenclock.EigenclockError)
        builtin = [base for base in error.__mro__ if base.__module__ == "builtins" and base not in (Exception, BaseException, object)]
        assert builtin or error is eigenclock.EigenclockError


# That the checkers can fail.


def _good(x: int) -> int:
    """One line.

    >>> 1 + 1
    2
    """
    return x


class _Good:
    """One line.

    Example:
        >>> 1 + 1
        2
    """

    def __init__(self, x: int):
        self.x = x

    def f(self, y: int) -> int:
        """One line."""
        return self.x + y


def _no_doc(x: int) -> int:
    return x


def _no_example(x: int) -> int:
    """One line."""
    return x


def _two_lines(x: int) -> int:
    """One line that
    goes on.

    >>> 1
    1
    """
    return x


def _keywords(**options: int) -> int:
    """One line.

    >>> 1
    1
    """
    return len(options)


def _untyped(x, y: int = 0):
    """One line.

    >>> 1
    1
    """
    return x + y


class _Bad:
    """One line.

    >>> 1
    1
    """

    def __init__(self, x, **rest: int):
        self.x = x

    def f(self) -> int:
        return 0


def test_contract_checkers_can_fail():
    assert problems("good", _good) == problems("Good", _Good) == problems("data", {"rope": 1}) == []
    assert problems("f", _no_doc) == ["f: has no docstring"]
    assert problems("f", _no_example) == ["f: the docstring has no example (>>>)"]
    assert len(problems("f", _two_lines)) == 2
    assert problems("f", _keywords) == ["f: takes **options; name the keywords"]
    assert problems("f", _untyped) == ["f: x has no type", "f: the result has no type"]
    assert problems("Bad", _Bad) == [
        "Bad.__init__: x has no type",
        "Bad.__init__: takes **rest; name the keywords",
        "Bad.f: has no docstring",
    ]
