"""Vision towers: rotations whose tokens are patches, with one coordinate per axis."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenclock.clocks import Axes
from eigenclock.encodings.axial_rope import axial_rope
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.config.keys import Account, number
from eigenclock.encodings.config.layers import Sizes, layer_types, raw_section, sizes
from eigenclock.encodings.config.per_layer import FULL, Part, split
from eigenclock.encodings.config.result import Conventions, Encodings
from eigenclock.encodings.mixed_rope import mixed_rope
from eigenclock.encodings.nope import nope
from eigenclock.errors import ConfigError, UnsupportedError

AXIAL = "axial"  # the rope_type of towers in transformers
Build = Callable[[Sizes, float, "Tower"], Encoding]


@dataclass(frozen=True)
class Tower:
    """How a family turns its patches.

    ``build`` makes the encoding; ``axes`` are the coordinates of a token in the order in which they are given, and ``times`` says what they
    are; ``width`` is the key of the width of all heads together; ``scale`` multiplies the inner product where 1/sqrt(head_dim) does not.
    """

    build: Build
    axes: tuple[str, ...] = ("height", "width")
    pairing: str = "half"
    theta: float = 10000.0
    times: str = "the row and the column of each patch"
    width: str = "hidden_size"
    scale: float | None = None


def blocks(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """Each axis has a block of pairs of its own, with the same frequencies."""
    if size.head_dim % (2 * len(tower.axes)):
        raise ConfigError(f"got head_dim={size.head_dim} for {len(tower.axes)} axes; expected a multiple of {2 * len(tower.axes)}")
    clock, heads = Axes(tower.axes), {"heads": size.heads, "kv_heads": size.kv_heads}
    return axial_rope(size.head_dim, theta=theta, pairing=tower.pairing, clock=clock, **heads)


def _explicit(size: Sizes, freq: Float[np.ndarray, "axes n"], tower: Tower) -> Encoding:
    heads = {"heads": size.heads, "kv_heads": size.kv_heads}
    rows = tuple(tuple(row) for row in freq.tolist())
    return mixed_rope(2 * freq.shape[1], freq=rows, learn=(), pairing=tower.pairing, clock=Axes(tower.axes), **heads)


def _powers(theta: float, n: int) -> Float[np.ndarray, "n"]:
    return theta ** (-np.arange(n) / n)


def _block_diagonal(values: Float[np.ndarray, "n"], axes: int) -> Float[np.ndarray, "axes m"]:
    return np.kron(np.eye(axes), values)


def of_the_picture(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """DINOv3: blocks, and coordinates from -1 to 1 that stand for half a turn each way: angle = 2 pi coordinate theta^(-i / (n/2))."""
    return _explicit(size, 2 * math.pi * _block_diagonal(_powers(theta, size.head_dim // 4), 2), tower)


def every_second(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """Pixtral: of the frequencies theta^(-i/n), rows take those with an even i and columns those with an odd one, in blocks."""
    values = _powers(theta, size.head_dim // 2)
    nothing = np.zeros(len(values) // 2)
    return _explicit(size, np.stack([np.r_[values[::2], nothing], np.r_[nothing, values[1::2]]]), tower)


def taking_turns(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """Kimi: the axes take turns pair by pair, with the same frequencies."""
    values = np.repeat(_powers(theta, size.head_dim // 4), 2)
    first = np.arange(len(values)) % 2 == 0
    return _explicit(size, np.stack([np.where(first, values, 0), np.where(first, 0, values)]), tower)


def halves_of_the_head(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """Gemma 4: each half of the channels turns by one axis, paired within itself."""
    half = Sizes(size.head_dim // 2, size.heads, size.kv_heads)
    values = _powers(theta, size.head_dim // 4)
    return _explicit(half, np.stack([values, 0 * values]), tower) + _explicit(half, np.stack([0 * values, values]), tower)


def as_many_as_fit(size: Sizes, theta: float, tower: Tower) -> Encoding:
    """MiniMax M3: three blocks as wide as a head holds three of; what is left does not turn."""
    pairs = size.head_dim // 3 // 2
    turned = _explicit(size, _block_diagonal(_powers(theta, pairs), 3), tower)
    rest = size.head_dim - turned.head_dim
    return turned + nope(rest, heads=size.heads, kv_heads=size.kv_heads) if rest else turned


_PICTURE = Tower(
    of_the_picture,
    theta=100.0,
    times="the row and the column of each patch as (i + 1/2) / n * 2 - 1, n patches to the axis; class and register tokens do not turn",
)
_COLUMN_FIRST, _COLUMN = ("width", "height"), "the column and the row of each patch"
_FROM_ONE = f"{_COLUMN}, counted from 1; the class token stands at 0, 0"
TOWERS: Mapping[str, Tower] = {
    **dict.fromkeys(
        (
            *("cohere_compass_vision", "ernie4_5_vl_moe_vision", "exaone4_5_vision", "glm4v_vision", "glm4v_moe_vision"),
            *("glm5_next_vision", "glm_ocr_vision", "lfm3_vl_vision", "paddleocr_vl_vision", "qwen2_5_omni_vision_encoder"),
            *("qwen2_5_vl_vision", "qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision", "qwen3_5_moe_vision"),
            *("qwen3_omni_moe_vision_encoder", "qwen4_exp_vision", "video_llama_3_vision"),
        ),
        Tower(blocks),
    ),
    "qwen2_vl_vision": Tower(blocks, width="embed_dim"),
    **dict.fromkeys(("dinov3_vit", "eomt_dinov3", "sapiens2"), _PICTURE),
    "gemma4_vision": Tower(halves_of_the_head, axes=_COLUMN_FIRST, theta=100.0, times=_COLUMN, scale=1.0),
    "inkling2_vision": Tower(blocks, axes=_COLUMN_FIRST, pairing="interleaved", times=_FROM_ONE),
    "kimi_k25_vision": Tower(taking_turns, axes=_COLUMN_FIRST, times=_COLUMN),
    "llama4_vision_model": Tower(blocks, axes=_COLUMN_FIRST, pairing="interleaved", times=_FROM_ONE),
    "minimax_m3_vl_vision": Tower(
        as_many_as_fit, axes=("time", "height", "width"), times="the frame, the row and the column of each patch"
    ),
    **dict.fromkeys(("muse_glimmer_vision", "muse_spark_vision"), Tower(blocks, axes=_COLUMN_FIRST, times=f"{_COLUMN}, counted from 1")),
    "pixtral": Tower(every_second),
    "sam3_vit_model": Tower(
        blocks,
        axes=_COLUMN_FIRST,
        pairing="interleaved",
        times=f"{_COLUMN} within its window; in layers without windows those of the picture, times window_size / patches to the side",
    ),
    "step3p5_vision": Tower(blocks, axes=_COLUMN_FIRST, times=_COLUMN),
}
_SIZES_OF_PICTURES = ("patch_size", "spatial_patch_size", "image_size")


def tower_of(config: Mapping[str, Any]) -> str | None:
    """The tower that a config is one of; older configs of Qwen-VL towers have the model type of the whole.

    Raises: UnsupportedError where tokens have several coordinates and the family is not known.
    """
    name = str(config.get("model_type") or "")
    if name in TOWERS:
        return name
    of_pictures = any(config.get(key) is not None for key in _SIZES_OF_PICTURES) and "vocab_size" not in config
    if of_pictures and f"{name}_vision" in TOWERS:
        return f"{name}_vision"
    section = raw_section(config)
    parts = [section, *(part for part in section.values() if isinstance(part, Mapping))]
    if any(part.get("rope_type") == AXIAL for part in parts):
        raise UnsupportedError(
            f"got rope_type='axial' (model_type {name or 'not named'}): each token has several coordinates, such as its row and column. "
            f"Which pairs turn by which is known for {', '.join(TOWERS)}; build others with ec.axial_rope or ec.mixed_rope"
        )
    return None


def read_tower(config: Mapping[str, Any], name: str, given: Mapping[str, int | None], account: Account) -> Encodings:
    """The encodings of a vision tower.

    Raises: ConfigError where a size is missing or does not fit.
    """
    tower = TOWERS[name]
    if tower.width != "hidden_size":
        config = {**config, "hidden_size": config.get(tower.width)}
    section = raw_section(config)
    if (kind := section.get("rope_type")) not in (None, "default", AXIAL):
        raise ConfigError(f"got rope_type={kind!r} for the patches of {name}; expected 'axial'")
    theta = section.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        account.note(f"rope_theta is named nowhere: {tower.theta:g} is used, the default of {name}")
    base = tower.theta if theta is None else number(theta, "rope_theta", above=0)
    layers = layer_types({**config, "num_hidden_layers": config.get("num_hidden_layers", config.get("depth"))}, name)
    keys, parts = split(config, name, layers, ()) if layers else ((), {FULL: Part(FULL, {})})
    found = {key: tower.build(sizes({**config, **part.own}, name, given, account), base, tower) for key, part in parts.items()}
    account.note(f"each token has {len(tower.axes)} axes ({', '.join(tower.axes)}): its times are {tower.times}")
    said = Conventions("huggingface", name, tower.pairing, scale=tower.scale)
    return Encodings(found, said, keys, tuple(account.notes), tuple(account.warnings))


__all__ = ["TOWERS", "read_tower", "tower_of"]
