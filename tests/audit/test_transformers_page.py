"""docs/audit_of_transformers.md is in step with what it says: a sample of its rows here, all of them in the slow test."""

import importlib
import re
from importlib.metadata import version

import pytest
from test_readme import read

from audit.transformers_sweep import cells, row_of, rows_of, sections, sweep

NAME = "docs/audit_of_transformers.md"
SAMPLE = (
    "llama/LlamaConfig",
    "gemma3/Gemma3TextConfig",
    "gpt_neox/GPTNeoXConfig",
    "deepseek_v3/DeepseekV3Config",
    "ernie4_5_vl_moe/Ernie4_5_VLMoeTextConfig",
    "qwen2_vl/Qwen2VLConfig",
    "esm/EsmConfig",
)


def _same_version() -> None:
    made_with = re.findall(r"^transformers (\S+) ships", read(NAME), re.MULTILINE)
    if made_with != [version("transformers")]:
        pytest.skip(f"missing: transformers {made_with[0]}, with which {NAME} was written")


def test_the_page_counts_what_it_lists():
    text, table = read(NAME), rows_of(read(NAME))
    counts = {what.strip(): int(n) for what, n in re.findall(r"^\| ([^|`]+) \| (\d+) \|$", text, re.MULTILINE)}
    assert counts["audited"] == len(table) == int(re.findall(r"ships (\d+) config classes", text)[0]) > 300
    assert counts["crashed"] == counts["with a rule that failed"] == 0
    assert counts["with a fault"] == sum("fault:" in findings for _, _, findings in table.values())
    assert counts["with a risk"] == sum("risk:" in findings for _, _, findings in table.values())
    evidence = set(re.findall(r"^\| `\w+` \| fault \| (\S+) \|", text, re.MULTILINE))
    assert evidence == {name for name, (_, _, findings) in table.items() if "fault:" in findings}


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_its_rows_is_what_an_audit_says(name):
    _same_version()
    model, kind = name.split("/")
    config = getattr(importlib.import_module(f"transformers.models.{model}.configuration_{model}"), kind)()
    row = row_of(name, config)
    assert not row.get("failed"), row
    assert cells(row) == rows_of(read(NAME))[name]


def test_rotary_sections_are_found_in_every_place():
    flat, layered = {"rope_theta": 1e4, "rope_type": "default"}, {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}
    assert sections({"rope_parameters": flat}) == [flat]
    assert len(sections({"text_config": {"rope_parameters": layered}, "vision_config": {"rope_theta": 100.0}})) == 3
    assert sections({"position_embedding_type": "absolute", "rotary_dim": None}) == []
    assert sections({"position_embedding_type": "rotary"}) and sections({"rotary_dim": 64})


@pytest.mark.slow
@pytest.mark.peer("transformers")
def test_every_default_config_of_transformers_is_audited_without_a_crash_and_as_the_page_says(tmp_path):
    rows = sweep(tmp_path / "rows.jsonl")
    assert len(rows) > 300
    assert not [row for row in rows if "error" in row or row["failed"]]
    _same_version()
    assert {row["name"]: cells(row) for row in rows} == rows_of(read(NAME))
