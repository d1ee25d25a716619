"""Every default config of transformers with a rotary section, audited: the rows of docs/audit_of_transformers.md.

    PYTHONPATH=tests:src python -m audit.transformers_sweep ROWS.jsonl

audits those that ROWS.jsonl does not hold yet, one line each, and writes the page from all of them.
"""

import importlib
import json
import pkgutil
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import eigenclock as ec
from eigenclock.audit import SEVERITIES

LENGTH = 4096
KEYS = (
    *("rope_parameters", "rope_scaling", "rope_theta", "rope_type", "rope_local_base_freq", "qk_rope_head_dim", "partial_rotary_factor"),
    *("rotary_dim", "rotary_pct", "rotary_ndims", "rotary_emb_base", "rotary_value", "rotary_embedding_base", "use_rotary_embedding"),
    *("spatial_rope_base_frequency", "position_embedding_type", "position_embeddings_type"),
)
ROTARY = ("rotary", "rope")
"""Values of position_embedding_type that are one."""


def classes() -> dict[str, type]:
    """ "model/Class" -> every config class of transformers, in the order of their names."""
    import transformers.models
    from transformers import PreTrainedConfig

    for info in pkgutil.walk_packages(transformers.models.__path__, "transformers.models."):
        if ".configuration_" in info.name:
            importlib.import_module(info.name)

    def below(base: type) -> Iterator[type]:
        for one in base.__subclasses__():
            yield one
            yield from below(one)

    own = {one for one in below(PreTrainedConfig) if one.__module__.startswith("transformers.models.")}
    return {name: one for name, one in sorted((f"{one.__module__.split('.')[-2]}/{one.__name__}", one) for one in own)}


def sections(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The rotary sections anywhere in a config: one for each layer type, or the config itself where the keys stand at its top."""
    found = []
    given = tree.get("rope_parameters")
    if isinstance(given, dict) and given:
        found += [part for part in given.values() if isinstance(part, dict)] or [given]
    elif any(_says(key, tree.get(key)) for key in KEYS):
        found.append({key: tree[key] for key in KEYS if _says(key, tree.get(key))})
    for key, value in tree.items():
        if isinstance(value, dict) and key not in ("rope_parameters", "rope_scaling"):
            found += sections(value)
    return found


def _says(key: str, value: Any) -> bool:
    return value in ROTARY if key.startswith("position_") or key == "rope_type" else bool(value)


def subjects() -> dict[str, Any]:
    """ "model/Class" -> the default config of every class that has a rotary section, its own or in a part of it."""
    out = {}
    for name, one in classes().items():
        try:
            config = one()
        except Exception:  # two classes take arguments, and say so
            continue
        if sections(config.to_dict()):
            out[name] = config
    return out


def row_of(name: str, config: Any) -> dict[str, Any]:
    """What an audit says of one config, as plain data."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = min(LENGTH, most) if isinstance(most, int) and most > 1 else LENGTH
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            report = ec.audit(config, length=length)
        except Exception as error:
            return {"name": name, "error": f"{type(error).__name__}: {error}"}
    return {
        "name": name,
        "model_type": config.model_type,
        "length": length,
        "form": report.form,
        "spec": report.spec,
        "nearest": report.nearest,
        "outside": report.witness,
        "failed": {rule: report.skipped[rule] for rule in report.failed},
        "findings": [finding.to_dict() for finding in report.findings],
        "notes": list(report.notes),
        "seconds": round(time.process_time() - start, 1),
    }


def sweep(path: Path) -> list[dict[str, Any]]:
    """The rows of all subjects; those that a file holds already are not audited again."""
    known = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    rows = []
    for name, config in subjects().items():
        if name not in known:
            known[name] = row_of(name, config)
            with path.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
        rows.append(known[name])
    return rows


def measured(row: dict[str, Any]) -> bool:
    """Whether the code of transformers was measured, rather than the encoding that its config was read as."""
    called = bool(row["form"]) or any(note.startswith("called with") for note in row["notes"])
    return called and not any("its model's own code" in note for note in row["notes"])


def cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """What stands in the table of one row: what was found, on what it was measured, and the findings."""
    if "error" in row:
        return _cell(f"crashed: {row['error']}"), "-", "none"
    refused = next((note for note in row["notes"] if note.startswith("refused: ")), "")
    if row["nearest"]:
        what = _short(row["nearest"].replace(", as its config says", ""))
    elif row["form"] or row["outside"]:
        what = _short(row["outside"] or row["form"])
    else:
        what = "not read: " + _short(re.sub(r" \(model_type .*?\)", "", refused.removeprefix("refused: ").partition(";")[0]))
    how = "its code" if measured(row) else "the config as read" if row["form"] else ""
    levels = {level: sorted({f["rule"] for f in row["findings"] if f["severity"] == level}) for level in SEVERITIES}
    return _cell(what), how or "-", "; ".join(f"{level}: {', '.join(rules)}" for level, rules in levels.items() if rules) or "none"


def _short(text: str, width: int = 150) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 2] + ".."


def page(rows: list[dict[str, Any]]) -> str:
    """The page in Markdown."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        groups.setdefault(cells(row), []).append(row["name"])
    kinds = Counter(kind for row in rows for kind in {(f["severity"], f["rule"]) for f in row.get("findings", ())})
    judged = [row for row in rows if "error" not in row]
    worse = [(row["name"], f) for row in judged for f in row["findings"] if f["severity"] != "advice"]
    counted = Counter(severity for severity, _ in {(f["severity"], row["name"]) for row in judged for f in row["findings"]})
    lines = [
        INTRO.format(
            version=version("transformers"),
            configs=len(rows),
            crashed=len(rows) - len(judged),
            failed=sum(bool(row["failed"]) for row in judged),
            code=sum(measured(row) for row in judged),
            read=sum(bool(row["form"]) and not measured(row) for row in judged),
            outside=sum(not row["form"] and bool(row["outside"]) for row in judged),
            unread=sum(not row["form"] and not row["outside"] for row in judged),
            fault=counted["fault"],
            risk=counted["risk"],
        ),
        "## Findings by rule\n\n| severity | rule | configs |\n|---|---|---|",
        *(
            f"| {level} | `{rule}` | {n} |"
            for (level, rule), n in sorted(kinds.items(), key=lambda x: (SEVERITIES.index(x[0][0]), -x[1], x[0]))
        ),
        "\n## Faults and risks, with their evidence\n",
        *(_evidence(worse) or ["None."]),
        "\n## Rotary modules that could not be measured, and what they said\n",
        *(_silent(judged) or ["None."]),
        "\n## Every config\n\n| found | measured on | findings | configs |\n|---|---|---|---|",
    ]
    ordered = sorted(groups.items(), key=lambda group: (group[0][0].startswith("not read"), -len(group[1]), group[0]))
    lines += [f"| {what} | {how} | {said} | {', '.join(names)} |" for (what, how, said), names in ordered]
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> dict[str, tuple[str, str, str]]:
    """The cells of every config that stands in a page."""
    out = {}
    for line in text.partition("\n## Every config\n")[2].splitlines():
        parts = line.strip("| ").split(" | ") if line.startswith("| ") else []
        if len(parts) == 4 and parts[0] != "found":
            what, how, findings, names = (part.strip() for part in parts)
            out |= dict.fromkeys(names.split(", "), (what, how, findings))
    return out


def _evidence(worse: list[tuple[str, dict[str, Any]]]) -> list[str]:
    if not worse:
        return []
    rows = [f"| `{f['rule']}` | {f['severity']} | {name} | {_cell(f['message'])} |" for name, f in worse]
    return ["| rule | severity | config | what was measured |\n|---|---|---|---|", *rows]


def _silent(rows: list[dict[str, Any]]) -> list[str]:
    """The rotary modules that cannot be built from their default config, or be called on positions, and what they say."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in row["notes"]:
            if " cannot be built from the config: " in note or "(x, position_ids) fails: " in note:
                said.setdefault(_cell(_short(note)), []).append(row["name"])
    return [f"- {', '.join(names)}: {note}" for note, names in sorted(said.items())]


def _cell(text: str) -> str:
    return text.replace("|", "/")


INTRO = """\
# Every rotary config of transformers, audited

transformers {version} ships {configs} config classes whose default values hold a rotary section: their own (`rope_parameters`,
`rope_theta`, `rotary_dim`, ..), or that of a part (`text_config`, `vision_config`, ..). Each was made with no arguments and given
to `ec.audit(config, length=..)`, with the length it names (`max_position_embeddings`), at most 4096, in float32 unless it names a
dtype. Where transformers has a rotary module for the config, that module was built and measured, on random and on basis vectors, and
held against the config; else the encoding that the config says was measured, and the row says so. No weights were loaded.

| | configs |
|---|---|
| audited | {configs} |
| crashed | {crashed} |
| with a rule that failed | {failed} |
| measured on the code of transformers | {code} |
| measured as the config was read | {read} |
| outside the group (learned absolute positions) | {outside} |
| not read: nothing to measure, and no fault | {unread} |
| with a fault | {fault} |
| with a risk | {risk} |

A fault breaks within the length, a risk beyond it; advice is legal but unusual and never a fault. The page is written by
`PYTHONPATH=tests:src python -m audit.transformers_sweep rows.jsonl`; tests audit a sample of its rows anew.
"""


if __name__ == "__main__":
    text = page(sweep(Path(sys.argv[1])))
    (Path(__file__).parents[2] / "docs" / "audit_of_transformers.md").write_text(text)
