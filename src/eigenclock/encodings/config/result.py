"""What reading a config gives: one encoding per layer type, and how the config was understood."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from eigenclock.encodings.base import Encoding
from eigenclock.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class Conventions:
    """The conventions of a model, as its config states them.

    Args:
        source: "huggingface", "meta", "mistral" or "deepseek" (their own params.json), "gguf" or "nanochat".
        model_type: the model, where it is named.
        pairing: which channels turn together, "half" or "interleaved"; None where none do.
        sign: both sides turn by sign * freq * time.
        amplitude: where the factor of a schedule stands: "cos and sin" is squared in a score, on the channels that turn alone.
        bias: where ALiBi is added.
        scale: the factor on the inner product, to be given as ``scale=``; None is 1/sqrt(head_dim).
        temperature: a factor on queries by their position t, in words; it stands beside the encodings and is no part of their scores.

    >>> import eigenclock as ec
    >>> ec.encodings({"model_type": "cohere", "head_dim": 8, "rope_theta": 5e5}).conventions.pairing
    'interleaved'
    """

    source: str
    model_type: str | None = None
    pairing: str | None = None
    sign: int = 1
    amplitude: str | None = None
    bias: str | None = None
    scale: float | None = None
    temperature: str | None = None


class Encodings(dict[str, Encoding]):
    """Layer type -> encoding, with the layers of the model and how its config was read.

    A config that names no layer types has one, "full_attention". Layers of a type of which only some turn are split: those without
    rotation are under "<type>_nope", those with a base or a share of their own under "<type>_2" and so on. Layers that are no softmax
    attention (``linear_attention``) stand in ``layers`` and have no encoding.

    Printed, it lists the encodings, the layers and everything that was noticed.

    >>> import eigenclock as ec
    >>> print(ec.encodings({"head_dim": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "rope_theta": 5e5, "no_rope_layers": [1, 1, 0],
    ...     "model_type": "smollm3"}))
    full_attention (layers 0-1): rope(head_dim=8, heads=2, theta=500000.0, pairing='half')
    full_attention_nope (layer 2): nope(head_dim=8, heads=2)
    conventions: huggingface, smollm3, half pairing, both sides turn by +freq * time
    note: no_rope_layers is read as 1 = the layer turns, 0 = it has no position; 2 of 3 layers turn, not those with the index 2
    """

    def __init__(
        self,
        encodings: Mapping[str, Encoding],
        conventions: Conventions,
        layers: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        warnings: tuple[str, ...] = (),
    ):
        """``layers`` holds the key of every layer in order; empty where the config names no number of layers."""
        super().__init__(encodings)
        self.conventions, self.layers, self.notes, self.warnings = conventions, layers, notes, warnings

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The layer types that have an encoding, in the order of their first layer."""
        return tuple(self)

    @property
    def rotates(self) -> tuple[bool, ...]:
        """Whether each layer of the model turns its queries and keys."""
        turns = {name: bool(encoding.generator().form.kinds & {"R", "S"}) for name, encoding in self.items()}
        return tuple(turns.get(name, False) for name in self.layers)

    def layer(self, index: int) -> Encoding:
        """The encoding of one layer.

        Raises: ConfigError where the config names no layers, or not that many; UnsupportedError where the layer has no encoding.
        """
        if not -len(self.layers) <= index < len(self.layers):
            raise ConfigError(f"got layer {index} of a config with {len(self.layers)} layers; expected one of them, or a layer type")
        name = self.layers[index]
        if name not in self:
            raise UnsupportedError(f"layer {index} is of type {name!r}, which is no softmax attention and has no encoding here")
        return self[name]

    @property
    def only(self) -> Encoding:
        """The encoding of a model whose layers all share one law.

        Raises: ConfigError where they do not.
        """
        specs = {str(encoding) for encoding in self.values()}
        if len(specs) != 1:
            raise ConfigError(f"got layer types with {len(specs)} different encodings ({', '.join(self)}); expected one: name a layer type")
        return next(iter(self.values()))

    def to_dict(self) -> dict[str, object]:
        """Plain data that JSON can hold."""
        return {
            "encodings": {name: encoding.spec for name, encoding in self.items()},
            "layers": list(self.layers),
            "conventions": asdict(self.conventions),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        lines = [f"{name}{_where(name, self.layers)}: {encoding}" for name, encoding in self.items()]
        lines += [f"{name}{_where(name, self.layers)}: no encoding" for name in dict.fromkeys(self.layers) if name not in self]
        said = self.conventions
        words = [said.source, said.model_type, said.pairing and f"{said.pairing} pairing"]
        words += [said.pairing and f"both sides turn by {'+' if said.sign > 0 else '-'}freq * time"]
        words += [said.amplitude and f"amplitude on {said.amplitude}", said.bias and f"bias {said.bias}"]
        words += [said.scale and f"scale {said.scale:.6g}", said.temperature]
        lines.append("conventions: " + ", ".join(word for word in words if word))
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes), *(f"warning: {text}" for text in self.warnings)])


def _where(name: str, layers: tuple[str, ...]) -> str:
    """Which layers are of a type, as runs of numbers.

    >>> _where("a", ("a", "a", "b", "a"))
    ' (layers 0-1, 3)'
    """
    runs: list[list[int]] = []
    for i in (i for i, layer in enumerate(layers) if layer == name):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return "" if not runs else f" (layer {text})" if runs[0][0] == runs[-1][1] else f" (layers {text})"
