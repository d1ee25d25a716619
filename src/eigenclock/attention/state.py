"""What linear attention carries from one piece of a sequence to the next, as a value."""

import os
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigenclock.attention.kept import read_tensors, row_numbers, write_tensors
from eigenclock.encodings import Encoding
from eigenclock.encodings.spec import to_text
from eigenclock.errors import ConfigError, ShapeError

_FORMAT = "eigenclock.state.1"
_TENSORS = ("S", "z", "tick", "origin", "count", "document", "since", "pending_key", "pending_value")


@dataclass(frozen=True, eq=False)
class State:
    """The sum S = sum_s exp((tau - tau_s) L) k_s v_s^T at the last token of time tau: everything linear attention needs to go on.

    All keys stand at the last token's time, rotations included: nothing in S grows with absolute time. Each counts with its weight, where
    tokens have weights. No call writes into a state, so keeping it is a fork already; :meth:`fork` copies the memory as well, for code
    that edits tensors in place. Gradients flow through all its floating tensors until :meth:`detach`. It belongs to the document open at
    its last token: a piece whose first document id equals ``document`` goes on with it, any other id starts from nothing.

    Args:
        S: (B, G, D, V), float32 (float64 from float64 queries).
        z: (B, G, D), the same sum without values, where outputs are normalised; else None.
        tick: the last token's time in float64 less ``origin``, (B|1, heads|1, 1), with a last axis where the clock has several times.
        origin: what the clock subtracts from the next piece, in its own exact dtype, with the axes of ``tick``.
        count: tokens read so far, padding left out, (B|1,).
        document: the id of the open document, (B|1,), None where no ids were given.
        given: whether times were given; a clock's own count goes on only without them.
        spec: the encoding as text, to refuse another one.
        since: the last given time as it arrived, exact, with the axes of ``tick``: what has passed since then is the first step of a gate
            on elapsed time. None where no times were given.
        pending_key, pending_value: key and value of the last token, (B, G, D) and (B, G, V), where the rule of the encoding looks one
            step ahead (Mamba-3): the next token of the document still adds to the weight of this one. Else None.
    Units: tick in the unit of the clock, origin and since as times arrive.

    >>> import eigenclock as ec
    >>> q = torch.randn(1, 2, 6, 4)
    >>> enc = ec.decay(4, half_life=8)
    >>> _, state = ec.linear_attention(q[:, :, :5], q[:, :, :5], q[:, :, :5], enc)
    >>> out, state = ec.linear_attention(q[:, :, 5:], q[:, :, 5:], q[:, :, 5:], enc, state=state)
    >>> torch.allclose(out, ec.linear_attention(q, q, q, enc)[0][:, :, 5:], atol=1e-6), state.count.tolist()
    (True, [6])
    """

    S: Float[Tensor, "B G D V"]
    z: Float[Tensor, "B G D"] | None
    tick: Float[Tensor, "batch heads 1 *width"]
    origin: Tensor | None
    count: Int[Tensor, "batch"]
    document: Int[Tensor, "batch"] | None
    given: bool
    spec: str
    since: Tensor | None = None
    pending_key: Float[Tensor, "B G D"] | None = None
    pending_value: Float[Tensor, "B G V"] | None = None

    @property
    def pending(self) -> tuple[Tensor, Tensor] | None:
        """Key and value of the last token, where the next one adds to its weight."""
        return None if self.pending_key is None or self.pending_value is None else (self.pending_key, self.pending_value)

    def _each(self, change: Any) -> "State":
        return replace(self, **{name: None if x is None else change(x) for name in _TENSORS for x in (getattr(self, name),)})

    def fork(self) -> "State":
        """A copy that shares no memory; gradients still flow to the original."""
        return self._each(torch.clone)

    def detach(self) -> "State":
        """The same numbers without their history, for training over one piece at a time."""
        return self._each(torch.Tensor.detach)

    def to(self, device: torch.device | str) -> "State":
        """The same state on another device."""
        return self._each(lambda x: x.to(device))

    def select(self, rows: Int[Tensor, "n"] | list[int]) -> "State":
        """The chosen rows of the batch, in this order and as often as named: one step of a beam search.

        Raises: ShapeError where ``rows`` are no list of row numbers below the batch size.
        """
        batch = self.S.shape[0]
        index = row_numbers(rows, batch, self.S.device, "state")
        whole = (self.S, self.z, self.pending_key, self.pending_value)  # these have all rows, others may have one for all
        return self._each(lambda x: x[index] if any(x is own for own in whole) or x.shape[0] == batch > 1 else x)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as a safetensors file, whole or not at all.

        Raises: UnsupportedError without the package safetensors; EigenclockError where the file cannot be written.
        """
        about = {"format": _FORMAT, "spec": self.spec, "given": str(int(self.given))}
        write_tensors(path, {name: getattr(self, name) for name in _TENSORS}, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "State":
        """Read a state written by :meth:`save`, onto the CPU.

        Raises: UnsupportedError without the package safetensors; ConfigError where the file is no state; EigenclockError where it cannot
            be read.
        """
        tensors, about = read_tensors(path, _FORMAT, {"S", "tick", "count"}, set(_TENSORS), "a state that State.save wrote")
        parts = {name: tensors.get(name) for name in _TENSORS}
        return cls(**parts, given=about["given"] == "1", spec=about["spec"])  # type: ignore[arg-type]


_TEXTS: weakref.WeakKeyDictionary[Encoding, str] = weakref.WeakKeyDictionary()


def text_of(encoding: Encoding) -> str:
    """The encoding as text, written once: a decode step takes less time than a long list of rates takes to print."""
    if encoding not in _TEXTS:
        _TEXTS[encoding] = to_text(encoding.spec)
    return _TEXTS[encoding]


def check_state(
    state: State, encoding: Encoding, k: Tensor, v: Tensor, *, normalize: bool, given: bool, documents: Tensor | None
) -> None:  # fmt: skip
    """Refuse a state of another encoding, shape, device or way of calling."""
    if not isinstance(state, State):
        raise ConfigError(f"got {type(state).__name__} as state; expected the State that linear_attention returned")
    if state.spec != text_of(encoding):
        raise ConfigError(f"got a state of {state.spec} with the encoding {encoding}; expected the encoding it was made with")
    expected = (k.shape[0], k.shape[1], encoding.width, v.shape[3])
    if tuple(state.S.shape) != expected:
        raise ShapeError(
            f"got a state of shape {tuple(state.S.shape)}; expected (batch, key heads, D, V) = {expected}: "
            "state.select(rows) picks rows of the batch"
        )
    if state.S.device != k.device:
        raise ShapeError(f"got a state on {state.S.device} and tensors on {k.device}; expected one device: state.to('{k.device}')")
    if normalize != (state.z is not None):
        raise ConfigError(
            f"got normalize={normalize} with a state made with normalize={not normalize}; expected the same for all pieces of a sequence"
        )
    if given != state.given:
        was, now = ("given times", "none") if state.given else ("the clock's own count", "given times")
        raise ConfigError(
            f"got a state made with {was} and {now} now; expected the same for all pieces of a sequence: "
            + ("pass times= again" if state.given else "leave times out")
        )
    if given and encoding.clock.sums and state.since is None and bool((state.count > 0).any()):
        raise ConfigError(
            f"got a state without its last given time for {encoding}, whose steps are elapsed time; "
            "expected state.since, which linear_attention returns: an older file has none, so run the piece before again"
        )
    if documents is not None and state.document is None and bool((state.count > 0).any()):
        raise ConfigError(
            "got documents with a state made without them; expected ids from the first piece on, so that the open document is known"
        )


def check_pending(state: State, encoding: Encoding, ahead: bool) -> None:
    """Refuse a state that lacks what the weights of the encoding need."""
    shapes = [None if x is None else tuple(x.shape) for x in (state.pending_key, state.pending_value)]
    expected = [tuple(state.S.shape[:3]), (*state.S.shape[:2], state.S.shape[3])]
    if ahead and None not in shapes and shapes != expected:
        raise ShapeError(f"got a state with pending key and value of shapes {shapes}; expected {expected}, those of its S")
    if ahead and state.pending is None and bool((state.count > 0).any()):
        raise ConfigError(
            f"got a state without the key and value of its last token for {encoding}, which weighs {encoding.weighs}; "
            "expected state.pending_key and state.pending_value, which linear_attention returns"
        )
