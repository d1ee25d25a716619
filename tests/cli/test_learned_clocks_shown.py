"""Learned clocks: nothing is said of steps, whose length only a trained model knows; and the clock that a recipe makes is cited."""

import pytest

import eigenclock as ec
from eigenclock.encodings.cite import references
from eigenclock.encodings.describe import describe
from eigenclock.encodings.describe.description import clock_text
from eigenclock.errors import EigenclockError


def learned() -> list[str]:
    """The recipes whose usual clock sums over the tokens."""
    found = []
    for name in ec.ENCODINGS:
        try:
            enc = ec.encoding(name, head_dim=16, heads=2)
        except EigenclockError:  # one that needs options
            continue
        found += [name] if enc.clock.sums else []
    assert {"fox", "wall", "gla", "mamba1", "mamba2", "mamba3", "rwkv6", "selective_rope", "carope", "grape_ctx", "hgrn2"} <= set(found)
    return found


@pytest.mark.parametrize("name", learned())
def test_show_says_nothing_of_steps(name):
    found = describe(ec.encoding(name, head_dim=16, heads=2))
    about = [finding.about for finding in found.findings]
    assert "learned clock" in about and not {"turns", "fading", "reach", "positions", "neighbours"} & set(about)
    texts = [finding.text for finding in found.findings if finding.about != "learned clock"]
    texts += [*found.table().columns, *(panel.x_label for panel in found.figure().panels)]
    assert not any("step" in text for text in texts), texts
    assert clock_text(found).endswith("time learned from the activations")
    assert found.to_dict()["unit"] == "units of its time"


def test_the_same_on_a_clock_that_counts_does():
    about = [finding.about for finding in describe(ec.encoding("alibi", head_dim=16, heads=2)).findings]
    assert "learned clock" not in about and "positions" in about


@pytest.mark.parametrize("name", learned())
def test_the_clock_is_cited(name):
    clock = ec.encoding(name, head_dim=16, heads=2).clock.spec()["name"]
    for spec in (name, f"rope * {name}" if name in ("fox", "wall", "mamba2") else name):
        cited = [what for reference in references(spec) for what in reference.what]
        assert f"clock {clock}" in cited and "clock index" not in cited


def test_the_gate_that_is_named_keeps_its_clock():
    cited = [what for reference in references("fox(clock=cumulative(features=8))") for what in reference.what]
    assert cited.count("clock cumulative") == 2  # the two papers of learned clocks
    assert "clock index" in [what for reference in references("rope") for what in reference.what]
