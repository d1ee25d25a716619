"""BibTeX for what an encoding is made of: its recipes, its schedules, its clock, and the theorem behind all of them."""

from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from eigenclock.clocks import CLOCKS
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.papers import PAPERS, Paper
from eigenclock.encodings.spec import _read_json, from_text, to_text
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.registry import lookup, nearest
from eigenclock.schedules import SCHEDULES

THEOREM = Paper(
    "puranik2026group",
    "Puranik, Alok",
    "Using group theory to explore the space of positional encodings for attention",
    2026,
    other=(
        ("month", "4"),
        ("howpublished", "Jane Street blog"),
        ("url", "https://blog.janestreet.com/using-group-theory-to-explore-positional-encodings-attention/"),
    ),
)


@dataclass(frozen=True)
class Source:
    """Where a recipe, a schedule or a clock comes from: arXiv ids, or a note that says why there is no paper.

    schedules: the schedules a recipe takes unless one of the options named with it is given.
    """

    papers: tuple[str, ...] = ()
    note: str = ""
    schedules: tuple[tuple[str, tuple[str, ...]], ...] = ()


_GEOMETRIC = (("geometric", ("freq",)),)

# Names that are not registered do no harm here; a registered one that is missing is a failure of the tests.
ENCODING_SOURCES: dict[str, Source] = {
    "nope": Source(("2203.16634", "2305.19466")),
    "decay": Source(("2307.08621", "2312.06635")),
    "decay_bias": Source(("2108.12409", "2307.08621")),
    "rope": Source(("2104.09864",), schedules=_GEOMETRIC),
    "damped_rope": Source(("2307.08621", "2212.10554"), schedules=(*_GEOMETRIC, ("retnet", ("rate", "half_life")))),
    "alibi": Source(("2108.12409",), schedules=(("alibi", ("slopes",)),)),
    "two_sided": Source(("2108.12409",)),
    "xpos": Source(("2212.10554",), schedules=(*_GEOMETRIC, ("xpos", ()))),
    "retnet": Source(("2307.08621",), schedules=(("retnet", ()), ("retnet_angles", ()))),
    "jordan_rope": Source(("2605.04217",), schedules=_GEOMETRIC),
    "hyperbolic": Source(("2509.05218",), schedules=(("geometric", ("boost",)),)),
    "grape_m": Source(("2512.07805",), schedules=_GEOMETRIC),
    "gaussian_bias": Source(("2205.09921",)),
    "transformer_xl": Source(("1901.02860",), schedules=_GEOMETRIC),
    "sandwich": Source(("2212.10356",), schedules=_GEOMETRIC),
    "axial_rope": Source(("2104.09864", "2403.13298"), schedules=_GEOMETRIC),
    "mixed_rope": Source(("2403.13298",)),
    "m_rope": Source(("2409.12191",), schedules=_GEOMETRIC),
    "string": Source(("2502.02562",)),
    "fox": Source(("2503.02130", "2108.12409")),
    "wall": Source(("2312.06635",)),  # Wall attention itself (Tilde Research, 2026) has no paper
    "gla": Source(("2312.06635",)),
    "hgrn2": Source(("2404.07904", "2311.04823")),
    "lightning": Source(("2307.14995", "2401.04658"), schedules=(("lightning", ()),)),
    "minimax": Source(("2501.08313", "2401.04658"), schedules=(("minimax", ()),)),
    "mamba1": Source(("2312.00752",)),
    "mamba2": Source(("2405.21060",)),
    "mamba3": Source(("2603.15569",)),
    "rwkv6": Source(("2404.05892",)),
    "selective_rope": Source(("2511.17388",), schedules=_GEOMETRIC),
    "carope": Source(("2507.23083",)),
    "grape_ctx": Source(("2512.07805",), schedules=_GEOMETRIC),
    "pope": Source(("2509.10534",), schedules=_GEOMETRIC),
    "t5_bias": Source(("1910.10683",)),
    "kerple_log": Source(("2205.09921",)),
    "fire": Source(("2310.04418",)),
    "cope": Source(("2405.18719",)),
    "learned_absolute": Source(("1810.04805",)),
    "sinusoidal": Source(("1706.03762",), schedules=_GEOMETRIC),
}

SCHEDULE_SOURCES: dict[str, Source] = {
    "geometric": Source(("2104.09864",)),
    "alibi": Source(("2108.12409",)),
    "half_lives": Source(note="half-lives spread geometrically between two times"),
    "retnet": Source(("2307.08621",)),
    "retnet_angles": Source(("2307.08621",)),
    "lightning": Source(("2307.14995",)),
    "minimax": Source(("2501.08313",)),
    "xpos": Source(("2212.10554",)),
    "proportional": Source(("2410.06205",)),
    "linear": Source(("2306.15595",)),
    "ntk": Source(("2309.00071",)),
    "dynamic": Source(("2309.00071",)),
    "ntk_by_parts": Source(("2309.00071",)),
    "yarn": Source(("2309.00071",)),
    "longrope": Source(("2402.13753",)),
    "llama3": Source(("2407.21783",)),
    "resonance": Source(("2403.00071",)),
    "drope": Source(("2512.12167",)),
}

CLOCK_SOURCES: dict[str, Source] = {
    "index": Source(note="the count of tokens"),
    "timestamps": Source(note="the time that is measured"),
    "documents": Source(note="the count of tokens, restarted in every document"),
    "axes": Source(("2502.02562",)),
    "cumulative": Source(("2312.00752", "2503.02130")),
    "selective": Source(("2603.15569",)),
    "column": Source(note="a column of the data, read as time"),
    "sessions": Source(note="the time that is measured, less the hours that are closed"),
}


@dataclass(frozen=True)
class Reference:
    """One entry of the answer: what it is cited for, and the paper, or the note where there is none."""

    what: tuple[str, ...]
    paper: Paper | None = None
    note: str = ""

    def text(self) -> str:
        """A line for a reader, and the BibTeX entry."""
        comment = f"% {', '.join(self.what)}" + (f": {self.note}" if self.note else "")
        return comment if self.paper is None else f"{comment}\n{self.paper.bibtex()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        paper = self.paper
        found = {} if paper is None else {"key": paper.key, "arxiv": paper.arxiv or None, "year": paper.year, "bibtex": paper.bibtex()}
        return {"what": list(self.what)} | found | ({"note": self.note} if self.note else {})


@dataclass
class _Used:
    """The names met in a spec, in order: (kind, name) -> where they come from."""

    sources: dict[tuple[str, str], Source] = field(default_factory=dict)

    def add(self, kind: str, name: str, table: dict[str, Source]) -> None:
        absent = Source(note="not in the table of sources; see its documentation")
        self.sources.setdefault((kind, name), table.get(name, absent))


def references(spec: Encoding | str | dict[str, Any] | Path) -> list[Reference]:
    """What :func:`cite` prints, as values: the theorem, then each paper once with everything it is cited for, then what has no paper.

    >>> [r.paper.key for r in references("rope * alibi") if r.paper]
    ['puranik2026group', 'su2021roformer', 'press2021alibi']
    """
    used = _Used()
    _visit(spec_tree(spec), used)
    if not any(kind == "clock" for kind, _ in used.sources):
        used.add("clock", "index", CLOCK_SOURCES)
    cited: dict[str, list[str]] = {}
    for (kind, name), source in used.sources.items():
        for arxiv in source.papers:
            cited.setdefault(arxiv, []).append(f"{kind} {name}")
    bare = [Reference((f"{k} {n}",), note=f"no paper: {s.note}") for (k, n), s in used.sources.items() if not s.papers]
    return [Reference(("theorem",), THEOREM), *(Reference(tuple(what), PAPERS[arxiv]) for arxiv, what in cited.items()), *bare]


def cite(spec: Encoding | str | dict[str, Any] | Path) -> str:
    """BibTeX for an encoding: the theorem, and the papers of its recipes, its schedules and its clock, each once.

    Takes an encoding or a spec (text, plain data or a JSON file); a spec needs no sizes. Lines that start with % say what an entry is
    cited for, and name what has no paper; BibTeX passes over them.

    Raises: UnknownNameError where a recipe, clock or schedule is unknown; ConfigError where the text cannot be read or an option is
        unknown, with the nearest known one.
    Source: the tables of this module, by arXiv id.

    >>> print(cite("rope"))  # doctest: +ELLIPSIS
    % theorem
    @misc{puranik2026group,
    ...
    % encoding rope, schedule geometric
    @misc{su2021roformer,
      title         = {{RoFormer: Enhanced Transformer with Rotary Position Embedding}},
    ...
    % clock index: no paper: the count of tokens
    """
    return "\n\n".join(reference.text() for reference in references(spec))


def spec_tree(spec: Encoding | str | dict[str, Any] | Path) -> Any:
    """A spec in any of its forms as plain data.

    Raises: ConfigError where the text or the file cannot be read.

    >>> spec_tree("rope(theta=500000)")
    {'name': 'rope', 'theta': 500000}
    """
    if isinstance(spec, Encoding):
        return spec.spec
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.strip().endswith(".json")):
        return _read_json(Path(spec))
    return from_text(spec) if isinstance(spec, str) else spec


def _visit(node: Any, used: _Used) -> None:
    """Collects the names below one node that stands for an encoding."""
    from eigenclock.encodings import ENCODINGS

    if isinstance(node, dict) and "op" in node:
        for part in node.get("parts", []):
            _visit(part, used)
        return
    if not isinstance(node, dict) or "name" not in node:
        raise ConfigError(f"got {to_text(node)} in a spec; expected an encoding such as 'rope(theta=500000) * alibi'")
    name = str(node["name"])
    accepted = signature(lookup(ENCODINGS, name, "encoding")).parameters
    options = {key: value for key, value in node.items() if key not in ("name", "args")}
    for option in options:
        if option not in accepted:
            raise ConfigError(f"got the option {option!r} for {name}; {nearest(option, list(accepted))}")
    used.add("encoding", name, ENCODING_SOURCES)
    for schedule, instead in ENCODING_SOURCES.get(name, Source()).schedules:
        if not any(options.get(option) is not None for option in instead):
            used.add("schedule", schedule, SCHEDULE_SOURCES)
    if isinstance(options.get("half_life"), list | tuple) and len(options["half_life"]) == 2:
        used.add("schedule", "half_lives", SCHEDULE_SOURCES)
    inner = [options.pop("encoding")] if "encoding" in options else node.get("args", []) if next(iter(accepted)) == "encoding" else []
    for value in inner:
        _visit(value, used)
    if "clock" in accepted and options.get("clock") is None:
        usual = _usual_clock(name, options)
        if usual != "index":
            used.add("clock", usual, CLOCK_SOURCES)
    for option, value in options.items():
        if isinstance(value, dict):
            chosen = str(value.get("name"))
            if option == "clock":
                lookup(CLOCKS, chosen, "clock")
                used.add("clock", chosen, CLOCK_SOURCES)
            else:
                _visit_schedule(value, used)


def _usual_clock(name: str, options: dict[str, Any]) -> str:
    """The name of the clock that a recipe makes where none is given; "index" where its options alone do not build it."""
    from eigenclock.encodings.spec import build

    try:
        return str(build({"name": name} | options, {"head_dim": 64, "heads": 8}).clock.spec()["name"])
    except EigenclockError:
        return "index"


def _visit_schedule(node: dict[str, Any], used: _Used) -> None:
    """Collects a schedule and the ones it changes."""
    name = str(node.get("name"))
    lookup(SCHEDULES, name, "schedule")
    used.add("schedule", name, SCHEDULE_SOURCES)
    for value in (*node.values(), *node.get("args", ())):
        if isinstance(value, dict):
            _visit_schedule(value, used)


__all__ = [
    "CLOCK_SOURCES",
    "ENCODING_SOURCES",
    "PAPERS",
    "SCHEDULE_SOURCES",
    "Paper",
    "Reference",
    "Source",
    "cite",
    "references",
    "spec_tree",
]
