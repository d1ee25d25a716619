"""Training: what is the same for all, and a run that stops and goes on equals one that never stopped."""

import dataclasses

import pytest
import torch

from eigenclock.errors import ConfigError
from eigenclock.lab import data
from eigenclock.lab import train as module
from eigenclock.lab.folder import RunFolder, run_name
from eigenclock.lab.settings import Settings
from eigenclock.lab.train import build, learning_rate, optimiser, train

LEARNED = "decay_bias(half_life=(2, 8), learn='rate')"
SIZES = Settings(layers=1, width=16, heads=2)


@pytest.fixture
def run(tiny, tmp_path):
    """Trains in a folder of its own, stopping after each of the steps in ``stops`` and going on; returns model and metrics."""
    corpus = data.load(tiny)

    def go(name: str, stops: tuple[int, ...] = (), spec: str = LEARNED, **changes):
        settings = dataclasses.replace(tiny, **changes)
        folder = RunFolder.start(tmp_path / name, {"settings": settings.to_dict(), "specs": [], "corpus": {}})
        for stop in (*stops, None):

            def on_step(step: int, bits: float, stop: int | None = stop) -> None:
                if step == stop:
                    raise KeyboardInterrupt

            try:
                return train(spec, 0, settings, corpus, folder, on_step), folder
            except KeyboardInterrupt:
                assert stop is not None
                torch.manual_seed(99)  # whatever happens between two sittings must not matter

    return go


def without_speed(folder: RunFolder) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "per_second"} for line in folder.metrics()]


@pytest.mark.parametrize("stops", [(1,), (5,), (3, 7, 11), (12,)], ids=str)
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(run, stops, monkeypatch):
    monkeypatch.setattr(module, "LOG_EVERY", 4)
    unbroken, whole = run("unbroken")
    resumed, broken = run("resumed", stops)
    for (name, a), b in zip(unbroken.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert without_speed(whole) == without_speed(broken)
    assert [line["step"] for line in whole.metrics()] == [4, 8, 12]
    assert unbroken.train_bits == resumed.train_bits


def test_a_run_killed_after_its_last_checkpoint_repeats_the_lost_steps(run, monkeypatch):
    """No state is saved at the stop: the metrics are ahead of the checkpoint, and one line is cut short."""
    monkeypatch.setattr(module, "LOG_EVERY", 4)
    unbroken, whole = run("unbroken")
    saved = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, name, state: saved(self, name, state) if state["step"] == 5 else None)
    _, broken = run("killed")
    with broken.file("metrics.jsonl").open("a") as stream:
        stream.write('{"encoding": "rope", "st')
    monkeypatch.setattr(RunFolder, "save", saved)
    resumed, broken = run("killed")
    assert without_speed(whole) == without_speed(broken)
    assert all(torch.equal(a, b) for a, b in zip(unbroken.model.state_dict().values(), resumed.model.state_dict().values(), strict=True))


def test_every_encoding_sees_the_same_batches(run, monkeypatch):
    seen: dict[str, list] = {}
    true_batch = module.batch

    def spy(*args, **keywords):
        out = true_batch(*args, **keywords)
        seen[name].append(out[0])
        return out

    monkeypatch.setattr(module, "batch", spy)
    for name, spec in (("a", "nope"), ("b", "rope"), ("c", LEARNED)):
        seen[name] = []
        run(name, spec=spec)
    assert len(seen["a"]) == 12
    for name in "bc":
        assert all(torch.equal(x, y) for x, y in zip(seen["a"], seen[name], strict=True))


def test_learned_rates_move_and_fixed_ones_do_not(run):
    for spec, moves in ((LEARNED, True), ("alibi", False)):
        trained, _ = run(f"moves-{moves}", spec=spec)
        lift = trained.model.positions()[0].lifts()[0]
        start = build(spec, 0, SIZES, 256).positions()[0].lifts()[0]
        assert (not torch.equal(lift.slope, start.slope)) == moves


def test_what_an_encoding_learns_is_not_pulled_to_zero():
    model = build(LEARNED, 0, SIZES, 256)
    groups = optimiser(model, 1e-3).param_groups
    decayed = {id(weight) for group in groups if group["weight_decay"] for weight in group["params"]}
    everything = [weight for group in groups for weight in group["params"]]
    assert model.position_parameters() and not decayed & {id(weight) for weight in model.position_parameters()}
    assert decayed and {id(weight) for weight in everything} == {id(weight) for weight in model.parameters()}
    assert len(everything) == len(list(model.parameters()))


def test_the_learning_rate_rises_then_falls():
    rates = [learning_rate(step, 200, 1.0) for step in range(200)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 1.0 and 0 < rates[-1] < 1e-3
    assert learning_rate(0, 1, 1.0) == 1.0


def test_training_lowers_the_loss(run):
    _, folder = run("longer", steps=150, spec="rope", lr=1e-2)
    bits = [line["train_bits"] for line in folder.metrics()]
    assert bits[-1] < bits[0] - 0.5


def test_a_loss_that_is_not_finite_ends_the_run_and_is_said(run):
    trained, folder = run("hot", lr=1e30)
    assert trained.diverged_at is not None and trained.diverged_at < 12
    assert folder.metrics()[-1]["step"] == trained.diverged_at
    again, _ = run("hot", lr=1e30)
    assert again.diverged_at == trained.diverged_at


@pytest.mark.parametrize("content", [b"", b"not a checkpoint"])
def test_a_damaged_checkpoint_is_named(run, content):
    _, folder = run("damaged")
    path = folder.file(f"checkpoints/{run_name(LEARNED, 0)}.pt")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        run("damaged")


def test_a_checkpoint_of_another_model_is_named(run):
    _, folder = run("other")
    path = folder.file(f"checkpoints/{run_name(LEARNED, 0)}.pt")
    state = torch.load(path, weights_only=True)
    state["model"].pop("embed.weight")
    torch.save(state, path)
    with pytest.raises(ConfigError, match="belongs to another model"):
        run("other")
