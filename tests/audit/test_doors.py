"""What users have to hand: slopes, biases, pieces, a cache inside, several axes, clocks of stamps, a declaration, named places."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.audit import Report
from eigenclock.errors import ConfigError, ShapeError


def rules(report: Report, severity: str) -> list[str]:
    """The rules with a finding of a severity, each once."""
    return list(dict.fromkeys(f.rule for f in report.findings if f.severity == severity))


def angles(positions: Tensor, n: int, theta: float = 1e4) -> tuple[Tensor, Tensor]:
    a = positions.double()[:, None] * theta ** (-torch.arange(n, dtype=torch.float64) / n)
    return a.cos(), a.sin()


def turned(x: Tensor, positions: Tensor, theta: float = 1e4) -> Tensor:
    n = x.shape[-1] // 2
    cos, sin = (y.to(x.dtype) for y in angles(positions, n, theta))
    return torch.cat([x[..., :n] * cos - x[..., n:] * sin, x[..., n:] * cos + x[..., :n] * sin], -1)


def turn(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return turned(q, positions), turned(k, positions)


# --- slopes and biases --------------------------------------------------------------------------------------------------------------


def published(n_heads: int) -> list[float]:
    """Press et al.: powers of two have one sequence, others take every second slope of the next power."""
    power = 2 ** math.floor(math.log2(n_heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][0::2]
    return first + more[: n_heads - power]


def one_sequence(n_heads: int) -> Tensor:
    return torch.tensor([2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads)], dtype=torch.float64)


def test_slopes() -> None:
    assert ec.audit(published).nearest == "alibi" and ec.audit(published, heads=12).spec == "alibi(head_dim=64, heads=12)"
    report = ec.audit(one_sequence, heads=12)
    assert rules(report, "risk") == ["slopes"] and "one geometric sequence" in report.findings[0].message
    assert ec.audit(one_sequence, heads=16).spec == "alibi(head_dim=64, heads=16)"
    with pytest.raises(ConfigError, match="a finite slope for each head"):
        ec.audit(lambda n_heads: published(n_heads)[1:])
    with pytest.raises(ConfigError, match="give heads="):
        ec.audit(lambda n_heads: published(n_heads - 8))


def test_slopes_kept_in_float32_are_called_by_their_name() -> None:
    report = ec.audit(lambda heads: torch.tensor(published(heads)), heads=12)
    assert report.ok and report.nearest == "alibi" and report.spec is not None and "slopes=(0.5, " in report.spec
    off = ec.audit(lambda heads: torch.tensor(published(heads)) * (1 + 1e-5), heads=12)
    assert off.nearest == "alibi(slopes=..)"


def test_slopes_whatever_the_number_of_heads_is_called() -> None:
    assert ec.audit(lambda n: published(n)).nearest == "alibi"
    assert (
        ec.audit(lambda h: torch.tensor(published(h), dtype=torch.float64).view(1, h, 1, 1), heads=12).spec
        == "alibi(head_dim=64, heads=12)"
    )
    assert rules(ec.audit(lambda n: one_sequence(n), heads=12), "risk") == ["slopes"]
    with pytest.raises(ConfigError, match="takes vectors"):
        ec.audit(lambda n: n)


def test_biases_of_positions() -> None:
    def symmetric(heads: int, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return -torch.tensor(published(heads))[:, None, None] * (q_pos[:, None] - k_pos).abs()

    def broadcast(q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return -0.25 * (q_idx - kv_idx)

    def absolute(heads: int, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return -torch.tensor(published(heads))[:, None, None] * (q_pos[:, None] * k_pos).sqrt()

    assert ec.audit(symmetric, heads=4, length=256).nearest == "two_sided(alibi)"
    report = ec.audit(broadcast, heads=2, length=256)
    assert report.ok and report.spec == "alibi(head_dim=64, heads=2, slopes=(0.25, 0.25))"
    assert "shift_invariance" in rules(ec.audit(absolute, heads=4, length=256), "fault")

    def seen(heads: int, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (q_pos[:, None] >= k_pos).expand(heads, -1, -1)

    for mask in (seen, lambda q_idx, kv_idx: seen(1, q_idx, kv_idx)):
        with pytest.raises(ConfigError, match="a mask and no bias"):
            ec.audit(mask)
    with pytest.raises(ConfigError, match="no bias"):
        ec.audit(lambda heads, q_pos, k_pos: torch.zeros(3))


# --- pieces ---------------------------------------------------------------------------------------------------------------------------


def from_start(q: Tensor, k: Tensor, start_pos: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(start_pos, start_pos + q.shape[-2])
    return turned(q, positions), turned(k, positions)


def from_zero(q: Tensor, k: Tensor, start_pos: int) -> tuple[Tensor, Tensor]:
    """The start is forgotten: every piece begins at 0."""
    return from_start(q, k, 0)


def test_pieces_from_a_start() -> None:
    report = ec.audit(from_start, head_dim=16, length=256)
    assert report.ok and report.nearest == "rope(pairing='half')"
    assert ec.audit(lambda x, offset: turned(x, torch.arange(offset, offset + x.shape[-2])), head_dim=16, length=256).ok
    assert not ec.audit(from_zero, head_dim=16, length=256).ok


class Cached:
    """Attention that keeps its keys and values, turned by the positions that ``shift`` is added to under a cache."""

    def __init__(self, shift: int = 0):
        self.shift = shift
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, start_pos: int) -> Tensor:
        late = start_pos + (self.shift if start_pos else 0)
        positions = torch.arange(late, late + q.shape[-2])
        q, k = turned(q, positions), turned(k, positions)
        if start_pos:
            assert self.kept is not None
            k, v = torch.cat([self.kept[0], k], -2), torch.cat([self.kept[1], v], -2)
        self.kept = k, v
        z = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1 + z.shape[-1] - z.shape[-2])
        return z.masked_fill(later, -torch.inf).softmax(-1) @ v


def test_a_cache_inside() -> None:
    report = ec.audit(Cached(), head_dim=16, length=128)
    assert report.ok is None and "cache" in report.checked  # the law is not read from it, and it does not say OK
    assert any("told where a piece begins" in why for why in report.unjudged)
    assert rules(ec.audit(Cached(1), head_dim=16, length=128), "fault") == ["cache"]


class CachedByPositions(Cached):
    """The same, told the positions of the piece."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        return super().__call__(q, k, v, int(positions[0]))


def test_a_cache_inside_that_is_given_positions() -> None:
    report = ec.audit(CachedByPositions(), head_dim=16, length=128)
    assert report.ok is None and "cache" in report.checked and not report.findings
    assert any("cache of its own" in why for why in report.unjudged)
    assert rules(ec.audit(CachedByPositions(1), head_dim=16, length=128), "fault") == ["cache"]


class Layer(torch.nn.Module):
    """Sound attention over hidden states (B, T, 32) with projections of its own, in one call or in pieces."""

    def __init__(self, causal: bool = True):
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.weights = torch.randn(3, 2, 32, 16, generator=random) / 32**0.5
        self.causal = causal
        self.kept: tuple[Tensor, Tensor] | None = None

    def attend(self, x: Tensor, positions: Tensor, cached: bool) -> Tensor:
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in self.weights)
        q, k = turned(q, positions), turned(k, positions)
        if cached and self.kept is not None:
            k, v = torch.cat([self.kept[0], k], -2), torch.cat([self.kept[1], v], -2)
        self.kept = k, v
        z = q @ k.mT / 4
        later = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1 + z.shape[-1] - z.shape[-2])
        z = z.masked_fill(later, -torch.inf) if self.causal else z
        return (z.softmax(-1) @ v).transpose(1, 2).flatten(2)


class LayerOfPositions(Layer):
    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.attend(x, positions, cached=False)


class LayerOfPieces(Layer):
    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        return self.attend(x, torch.arange(start_pos, start_pos + x.shape[1]), cached=start_pos > 0)


@pytest.mark.parametrize(
    "layer", [LayerOfPositions(), LayerOfPositions(causal=False), LayerOfPieces()], ids=["causal", "both ways", "pieces"]
)
def test_a_layer_of_hidden_states_is_not_judged(layer: Layer) -> None:
    """Its outputs are no turned vectors: sound ones are not called faulty for what attention does."""
    report = ec.audit(layer, head_dim=32, length=128)
    assert report.ok is None and not report.findings
    assert any("what other tokens hold" in why for why in report.unjudged)


# --- axes, steps ----------------------------------------------------------------------------------------------------------------------


def axial(x: Tensor, positions: Tensor) -> Tensor:
    """The first half of the channels by the row, the second by the column; positions (T, 2)."""
    half = x.shape[-1] // 2
    return torch.cat([turned(x[..., :half], positions[:, 0]), turned(x[..., half:], positions[:, 1])], -1)


def coupled(x: Tensor, positions: Tensor) -> Tensor:
    """The second half by the product of both: each axis alone keeps the law, both together do not."""
    half = x.shape[-1] // 2
    return torch.cat([turned(x[..., :half], positions[:, 0]), turned(x[..., half:], positions.prod(-1))], -1)


def test_positions_of_two_axes() -> None:
    report = ec.audit(axial, head_dim=16, length=128, axes=2)
    assert report.ok and not report.findings and report.form is not None
    assert all(f"axis {i}: 4R + 8Z" in report.form for i in (0, 1)) and "all axes: 8R" in report.form
    found = ec.audit(coupled, head_dim=16, length=128, axes=2)
    assert {f.where["layer"] for f in found.findings if f.rule == "shift_invariance"} == {"all axes"}
    assert ec.audit(lambda q, k, positions: (axial(q, positions.mT), axial(k, positions.mT)), head_dim=16, length=128, axes=2).ok

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        return (axial(q, positions) @ axial(k, positions).mT / 4).softmax(-1) @ v

    def scored(q: Tensor, k: Tensor, of: Tensor, at: Tensor) -> Tensor:
        return axial(q, of) @ axial(k, at).mT

    def scored_wrongly(q: Tensor, k: Tensor, of: Tensor, at: Tensor) -> Tensor:
        return axial(q, of) @ coupled(k, at).mT

    for function in (attend, scored):
        report = ec.audit(function, head_dim=16, length=128, axes=2)
        assert report.ok and report.form is not None and "axis 1: 4R + 8Z" in report.form and "all axes: 8R" in report.form
    assert ec.audit(scored_wrongly, head_dim=16, length=128, axes=2).ok is False
    with pytest.raises(ConfigError, match="axes=3"):
        ec.audit(lambda q, k, of, at: axial(q, of[:, :2]) @ at, head_dim=16, axes=3)
    with pytest.raises(ConfigError, match="axes=3"):
        ec.audit(lambda x, positions: turned(x, positions[:, 3]), axes=3)
    with pytest.raises(ShapeError, match="axes=0"):
        ec.audit(turn, axes=0)


def test_a_clock_of_nanoseconds_needs_a_step() -> None:
    enc = ec.decay_bias(8, heads=2, half_life=("1s", "4s"), clock=ec.Timestamps("ns", per="s"))
    report = ec.audit(enc, length=256, step="100ms")
    assert report.ok and any("100ms" in note for note in report.notes)
    rate = torch.tensor([block.rate.value for block in report.blocks if block.rate], dtype=torch.float64)
    plain = ec.audit(ec.decay_bias(8, heads=2, half_life=(10.0, 40.0)), length=256)
    wanted = torch.tensor([block.rate.value for block in plain.blocks if block.rate], dtype=torch.float64)
    torch.testing.assert_close(rate, wanted, rtol=1e-6, atol=0)
    assert any("one position is 1s" in note for note in ec.audit(enc, length=256).notes)
    coarse = ec.decay_bias(8, heads=2, half_life=("1h", "4h"), clock=ec.Timestamps("min", per="s"))
    assert any("one position is 1min" in note for note in ec.audit(coarse, length=256).notes)
    for wrong in ({"step": "1s"}, {"step": "0s"}, {"step": "often"}):
        with pytest.raises(ConfigError):
            ec.audit(ec.rope(8) if wrong["step"] == "1s" else enc, length=64, **wrong)


# --- a declaration, named places ------------------------------------------------------------------------------------------------------

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 10000.0}


@pytest.mark.parametrize("declared", ["rope(pairing='half')", ec.rope(16, heads=2, pairing="half"), LLAMA, 10000, 1e4, "10000"])
def test_what_is_as_declared(declared: Any) -> None:
    report = ec.audit(turn, head_dim=16, length=1024, declared=declared)
    assert report.ok and "declared" in report.checked


def test_frequencies_in_float32_are_as_declared() -> None:
    def single(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        freq = 1e4 ** -(torch.arange(8) / 8)
        a = positions.double()[:, None] * freq
        cos, sin = a.cos(), a.sin()

        def one(x: Tensor) -> Tensor:
            return torch.cat([x[..., :8] * cos - x[..., 8:] * sin, x[..., 8:] * cos + x[..., :8] * sin], -1).to(x.dtype)

        return one(q), one(k)

    for length in (256, 32768):
        assert ec.audit(single, head_dim=16, length=length, declared="rope(pairing='half')").ok
        assert ec.audit(single, head_dim=16, length=length, declared="rope(theta=10050, pairing='half')").ok is False


@pytest.mark.parametrize(
    "declared",
    ["rope(theta=500000, pairing='half')", "rope", "rope(pairing='half') * alibi", LLAMA | {"rope_theta": 500000.0}, 500000, "5e5"],
)
def test_what_is_not_as_declared(declared: Any) -> None:
    report = ec.audit(turn, head_dim=16, length=1024, declared=declared)
    assert rules(report, "fault") == ["declared"]
    found = next(f for f in report.findings if f.rule == "declared")
    assert "that was declared" in found.message and found.where["lag"] == 1
    assert report.nearest == "rope(pairing='half')"


def test_a_declared_base_takes_the_pairs_and_the_share_as_they_are() -> None:
    def some(x: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([turned(x[..., :8], positions), x[..., 8:]], -1)

    def beside(x: Tensor, positions: Tensor) -> Tensor:
        mixed = x.unflatten(-1, (-1, 2)).mT.flatten(-2)  # neighbours become halves
        return turned(mixed, positions).unflatten(-1, (2, -1)).mT.flatten(-2)

    for function in (some, beside):
        assert ec.audit(function, head_dim=16, length=1024, declared=10000).ok
        assert rules(ec.audit(function, head_dim=16, length=1024, declared=20000), "fault") == ["declared"]


def test_a_declaration_of_two_axes_is_held_to_all_of_them() -> None:
    def pairs(x: Tensor, positions: Tensor) -> Tensor:
        """Eight channels by each axis, neighbours paired, as ``axial_rope`` has them."""
        mixed = x.unflatten(-1, (2, -1, 2)).transpose(-1, -2).flatten(-3)
        return axial(mixed, positions).unflatten(-1, (2, 2, -1)).transpose(-1, -2).flatten(-3)

    sizes: dict[str, Any] = {"head_dim": 16, "length": 64, "axes": 2}
    assert ec.audit(pairs, declared="axial_rope(theta=10000)", **sizes).ok is ec.audit(pairs, **sizes).ok is True
    assert rules(ec.audit(pairs, declared="axial_rope", **sizes), "fault") == ["declared"]
    for one in ("rope", 10000):
        with pytest.raises(ConfigError, match="expected an encoding of so many axes"):
            ec.audit(pairs, declared=one, **sizes)


def test_declarations_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="says itself"):
        ec.audit("rope", head_dim=8, declared="rope")
    with pytest.raises(ShapeError, match="same sizes"):
        ec.audit(turn, head_dim=16, declared=ec.rope(8))


def test_the_law_where_the_caller_asks() -> None:
    def jumps(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """One position is wrong: 777 is taken for 778."""
        return turn(q, k, positions + (positions == 777))

    report = ec.audit(turn, head_dim=16, length=1024, at=[(1000, 990), (5000, 3)])
    assert report.ok and "asked" in report.checked
    assert [note for note in report.notes if note.startswith("asked at t = 1000, s = 990:")]
    found = ec.audit(jumps, head_dim=16, length=1024, at=[(777, 3), (776, 3)])
    assert [f.where for f in found.findings if f.rule == "asked"] == [{"t": 777.0, "s": 3.0}]
    wrongs: list[tuple[Any, str]] = [((1, 2, 3), "pairs of times"), ((-1, 0), "at least 0")]
    for wrong, words in wrongs:
        with pytest.raises(ShapeError, match=words):
            ec.audit(turn, head_dim=16, length=64, at=[wrong])
    with pytest.raises(ShapeError, match="whole"):
        ec.audit(from_start, head_dim=16, length=64, at=[(1.5, 0)])
    with pytest.raises(ShapeError, match="key after the query"):
        ec.audit("alibi", head_dim=8, heads=2, length=64, at=[(3, 5)])


def test_a_config_is_judged_for_its_own_length() -> None:
    assert ec.audit(LLAMA | {"max_position_embeddings": 1000}).length == 1000
    assert ec.audit(LLAMA | {"max_position_embeddings": 131072}).length == 131072
    report = ec.audit(LLAMA | {"max_position_embeddings": 8192}, length=512)
    assert report.length == 512 and any("for 8192" in note for note in report.notes)
    assert ec.audit(LLAMA).length == 4096 and ec.audit(turn, head_dim=16).length == 4096
