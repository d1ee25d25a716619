"""The state as a value: fork, select, detach, files; and what is refused, with one clear error each."""

import dataclasses
import errno

import pytest
import torch

import eigenclock as ec
from linear.conftest import ENCODED, F64, B, D, H, V, close, inputs, irregular, oracle


def example(**keywords) -> ec.State:
    encoding = ENCODED["damped_rope, per head and pair"](H)
    return ec.linear_attention(*inputs(12, dtype=torch.float32), encoding, **keywords)[1]


def equal(a: ec.State, b: ec.State) -> bool:
    for name in (f.name for f in dataclasses.fields(ec.State)):
        one, other = getattr(a, name), getattr(b, name)
        same = torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, torch.Tensor) else one == other
        if not same:
            return False
    return True


CALLS = {
    "count": {},
    "stamps": {"times": torch.arange(12) + 1_700_000_000_000_000_000},
    "float times": {"times": irregular(B, 12) + 1e9},
    "documents": {"documents": torch.tensor([3] * 5 + [8] * 7)},
    "normalised": {"normalize": True, "feature_map": torch.exp},
    "padding": {"mask": torch.arange(12).expand(B, 12) >= torch.tensor([[2], [5]])},
}


@pytest.mark.parametrize("name", CALLS)
def test_files_hold_everything(tmp_path, name):
    pytest.importorskip("safetensors")
    state = example(**CALLS[name])
    state.save(tmp_path / "folder" / "state.safetensors")
    back = ec.State.load(tmp_path / "folder" / "state.safetensors")
    assert equal(back, state)


def test_a_loaded_state_goes_on(tmp_path):
    pytest.importorskip("safetensors")
    q, k, v = inputs(30)
    times = torch.randint(1, 10**9, (30,), generator=torch.Generator().manual_seed(0)).cumsum(-1) + 1_700_000_000_000_000_000
    encoding = ec.jordan_rope(D, heads=H, eta=0.2, half_life="9s", clock=ec.Timestamps("ns"))
    _, state = ec.linear_attention(*(x[:, :, :20] for x in (q, k, v)), encoding, times=times[:20])
    state.save(tmp_path / "state.safetensors")
    out, _ = ec.linear_attention(
        *(x[:, :, 20:] for x in (q, k, v)), encoding, times=times[20:], state=ec.State.load(tmp_path / "state.safetensors")
    )  # fmt: skip
    close(out, ec.linear_attention(q, k, v, encoding, times=times)[0][:, :, 20:])


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    from eigenclock.present import files

    state, path = example(), tmp_path / "state.safetensors"
    state.save(path)
    before = path.read_bytes()

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_write_all", full)
    with pytest.raises(ec.EigenclockError, match="no space is left"):
        example(**CALLS["documents"]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_files_that_are_no_states(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    text, other = tmp_path / "text.safetensors", tmp_path / "other.safetensors"
    text.write_text("not a state")
    package.save_file({"weight": torch.zeros(3)}, other)
    for path in (text, other):
        with pytest.raises(ec.ConfigError, match=r"expected a state that State\.save wrote"):
            ec.State.load(path)
    with pytest.raises(ec.EigenclockError, match="no such file"):
        ec.State.load(tmp_path / "missing.safetensors")


def test_rows_are_picked_in_any_order():
    """A beam search: the rows of the new batch go on as their ancestors would."""
    encoding, (q, k, v) = ENCODED["jordan_rope"](H), inputs(20)
    keep = torch.arange(20).expand(B, 20) >= torch.tensor([[0], [4]])
    _, state = ec.linear_attention(q, k, v, encoding, mask=keep, documents=torch.tensor([[1] * 20, [2] * 20]))
    rows = torch.tensor([1, 1, 0])
    picked = state.select(rows)
    assert picked.S.shape == (3, H, D, V)
    assert picked.document is not None
    assert picked.document.tolist() == [2, 2, 1]
    new = inputs(3, seed=30)
    got, _ = ec.linear_attention(*(x[rows] for x in new), encoding, state=picked)
    close(got, ec.linear_attention(*new, encoding, state=state)[0][rows], 1e-15)
    shared = ec.linear_attention(*(x[:1] for x in (q, k, v)), encoding)[1].select([0, 0])
    assert shared.S.shape[0] == 2


@pytest.mark.parametrize("rows", [[2], [-1], [[0]], [0.5], [True]])
def test_rows_that_are_not_there(rows):
    with pytest.raises(ec.ShapeError, match="rows"):
        example().select(rows)


def test_fork_and_detach():
    encoding, tensors = ENCODED["decay"](H), inputs(6, grad=True)
    _, state = ec.linear_attention(*tensors, encoding)
    fork = state.fork()
    assert equal(fork, state)
    assert fork.S.data_ptr() != state.S.data_ptr()
    assert fork.S.requires_grad
    assert not state.detach().S.requires_grad
    assert state.detach().S.data_ptr() == state.S.data_ptr()
    assert equal(state.to("cpu"), state)


def test_the_state_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        example().S = torch.zeros(1)  # type: ignore[misc]


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (F64, F64)])
def test_dtypes(dtype, kept):
    encoding = ENCODED["damped_rope"](H)
    out, state = ec.linear_attention(*inputs(12, dtype=dtype), encoding)
    assert out.dtype == dtype
    assert state.S.dtype == kept
    assert state.tick.dtype == F64


def test_what_the_state_is():
    """S = sum of exp((tau - tau_s) L) k_s v_s^T at the last token, written out with the dense generator."""
    for name in ("damped_rope, per head and pair", "jordan_rope", "hyperbolic", "grape_m", "xpos"):
        encoding, (q, k, v), times = ENCODED[name](H), inputs(9), irregular(9)
        _, state = ec.linear_attention(q, k, v, encoding, times=times)
        expected = torch.zeros(B, H, D, V, dtype=F64)
        for s in range(9):
            moved = encoding.generator().act(k[:, :, s : s + 1], (times[-1] - times[s]).expand(1, H, 1))
            expected += moved.mT @ v[:, :, s : s + 1]
        close(state.S, expected.detach())


# --- what is refused ---------------------------------------------------------------------------------------------------------------


def refuse(error: type[Exception], words: str, *, length: int = 6, encoding: ec.Encoding | None = None, **keywords) -> None:
    encoding = encoding or ENCODED["decay"](H)
    with pytest.raises(error, match=words) as caught:
        ec.linear_attention(*inputs(length), encoding, **keywords)
    assert "\n" not in str(caught.value)


def test_biases_name_their_gain_twin():
    for encoding in (
        ec.alibi(D, heads=H), ec.decay_bias(D, heads=H, half_life=3.0), ec.gaussian_bias(D, heads=H, sigma=3.0),
        ec.rope(D) * ec.alibi(D, heads=H),
    ):  # fmt: skip
        refuse(ec.UnsupportedError, "gain twin.*decay.*retnet", encoding=encoding)


def test_two_sided_encodings():
    refuse(ec.UnsupportedError, "one-sided", encoding=ec.two_sided(ec.decay(D, half_life=3.0)))


def test_bad_times():
    nan = torch.arange(6.0)
    nan[2] = torch.nan
    refuse(ec.ClockError, "NaN", times=nan)
    refuse(ec.ClockError, "go back at token 3", times=torch.tensor([0.0, 1, 2, 1, 4, 5]))
    refuse(ec.ShapeError, "times for 5 tokens", times=torch.arange(5))
    refuse(
        ec.ClockError, "go back", times=torch.tensor([0, 1, 2, 1, 4, 5]), encoding=ec.decay(D, rate=0.1, clock=ec.Index(decreasing="sort"))
    )
    encoding = ENCODED["decay"](H)
    _, state = ec.linear_attention(*inputs(6), encoding, times=torch.arange(6) + 10)
    with pytest.raises(ec.ClockError, match="go back at token 0 .*from the last token of the state"):
        ec.linear_attention(*inputs(6), encoding, times=torch.arange(6) + 14, state=state)


def test_times_may_go_back_where_nothing_decays():
    encoding, (q, k, v), times = ENCODED["rope"](H), inputs(6), torch.tensor([0.0, 3, 1, 1, 9, 2])
    close(ec.linear_attention(q, k, v, encoding, times=times)[0], oracle(q, k, v, encoding, times=times))


def test_states_that_do_not_fit():
    encoding = ENCODED["decay"](H)
    _, state = ec.linear_attention(*inputs(6), encoding)
    refuse(ec.ConfigError, "expected the encoding it was made with", encoding=ENCODED["damped_rope"](H), state=state)
    refuse(ec.ShapeError, "got a state of shape", state=state.select([0]))
    refuse(ec.ConfigError, "normalize=True", state=state, normalize=True)
    refuse(ec.ConfigError, "own count and given times", state=state, times=torch.arange(6) + 6)
    refuse(ec.ConfigError, "got documents with a state made without", state=state, documents=torch.zeros(6, dtype=torch.int64))
    refuse(ec.ConfigError, "expected the State", state=state.S)
    _, timed = ec.linear_attention(*inputs(6), encoding, times=torch.arange(6))
    refuse(ec.ConfigError, "given times and none", state=timed)


def test_other_arguments():
    refuse(ec.UnknownNameError, "chunked", form="chunk")
    refuse(ec.ConfigError, "chunk_size", chunk_size=0)
    refuse(ec.ShapeError, "key padding", mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    refuse(ec.ShapeError, "width 3", feature_map=lambda x: x[..., :3])
    refuse(ec.ShapeError, "document id that comes back", documents=torch.tensor([1, 1, 2, 2, 1, 1]))
    q, k, v = inputs(6)
    with pytest.raises(ec.ShapeError, match="6 queries and 5 keys"):
        ec.linear_attention(q, k[:, :, :5], v[:, :, :5], ENCODED["decay"](H))
    with pytest.raises(ec.ShapeError, match="float64 on|got dtypes"):
        ec.linear_attention(q, k.float(), v, ENCODED["decay"](H))
