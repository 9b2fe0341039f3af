"""The sizes of a LingBot-World transformer, read from the shapes of its weights."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ..errors import CheckpointError
from ..options import CELL

PATCH = (1, 2, 2)  # a token's size in latent frames, rows and columns
CONTROLS = {6: "camera: ray origin and direction", 7: "action: ray direction and W, A, S, D flags"}

_NAMES = {
    "patch": "patch_embedding.weight",
    "ffn": "blocks.0.ffn.0.weight",
    "time": "time_embedding.0.weight",
    "text": "text_embedding.0.weight",
    "head": "head.head.weight",
}
_CONTROL = "patch_embedding_wancamctrl.weight"
MAX_LISTED = 10
"""An error message lists at most this many missing blocks."""


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of one LingBot-World transformer.

    control: the number of camera channels per pixel: 6, or 7 with actions; None without camera layers.
    causal: whether the model predicts the video chunk by chunk.
    """

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    freq_dim: int
    text_dim: int
    in_dim: int = 36
    out_dim: int = 16
    text_len: int = 512
    eps: float = 1e-6
    control: int | None = 6
    causal: bool = False

    @classmethod
    def from_shapes(
        cls,
        shapes: Mapping[str, Sequence[int]],
        text_len: int = 512,
        num_heads: int | None = None,
        causal: bool = False,
    ) -> "ModelConfig":
        """Return the config of a model with these logical (dequantized) weight shapes, by official name. Raise
        CheckpointError if shapes do not fit a LingBot-World transformer.

        num_heads: None assumes a head size of 128.
        text_len: the number of tokens of a padded prompt.
        """
        missing = [name for name in _NAMES.values() if name not in shapes]
        if missing:
            raise CheckpointError(f"not a LingBot-World expert: {', '.join(missing)} missing")
        for name in (*list(_NAMES.values())[1:], _CONTROL):
            if len(shapes.get(name, (1, 1))) != 2:
                raise CheckpointError(f"{name} is {list(shapes[name])}, expected a matrix")
        patch, ffn, time, text, head = (tuple(shapes[name]) for name in _NAMES.values())
        if len(patch) != 5 or patch[2:] != PATCH:
            raise CheckpointError(f"{_NAMES['patch']} is {patch}, expected [dim, channels, 1, 2, 2]")
        dim = patch[0]
        return cls(
            dim=dim,
            ffn_dim=ffn[0],
            num_heads=_heads(dim, num_heads),
            num_layers=_layers(shapes),
            freq_dim=time[1],
            text_dim=text[1],
            in_dim=patch[1],
            out_dim=head[0] // 4,
            text_len=text_len,
            control=_control(shapes),
            causal=causal,
        )

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    def shared_by(self, processes: int) -> "ModelConfig":
        """Return a copy with `dim` and `num_heads` divided by `processes`: one process's attention sizes in sequence
        parallelism."""
        return replace(self, dim=self.dim // processes, num_heads=self.num_heads // processes)

    @property
    def control_channels(self) -> int:
        """The channels of the camera tensor: `control` values for each of the 8x8 pixels of a latent pixel. 0 without
        camera layers."""
        return (self.control or 0) * CELL * CELL

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the logical (dequantized) shape of each parameter, by official name."""
        dim = self.dim
        shapes: dict[str, tuple[int, ...]] = {
            "patch_embedding.weight": (dim, self.in_dim, *PATCH),
            "patch_embedding.bias": (dim,),
            "head.modulation": (1, 2, dim),
        }
        linears = {
            "text_embedding.0": (dim, self.text_dim),
            "text_embedding.2": (dim, dim),
            "time_embedding.0": (dim, self.freq_dim),
            "time_embedding.2": (dim, dim),
            "time_projection.1": (6 * dim, dim),
            "head.head": (self.out_dim * 4, dim),
        }
        if self.control is not None:
            linears["patch_embedding_wancamctrl"] = (dim, self.control_channels * 4)
            linears |= {f"c2ws_hidden_states_layer{n}": (dim, dim) for n in (1, 2)}
        shapes |= _with_biases(linears)
        for index in range(self.num_layers):
            shapes |= {f"blocks.{index}.{name}": shape for name, shape in self._block_shapes().items()}
        return shapes

    def _block_shapes(self) -> dict[str, tuple[int, ...]]:
        dim = self.dim
        square = [f"{part}.{name}" for part in ("self_attn", "cross_attn") for name in "qkvo"]
        if self.control is not None:
            square += ["cam_injector_layer1", "cam_injector_layer2", "cam_scale_layer", "cam_shift_layer"]
        linears = dict.fromkeys(square, (dim, dim)) | {"ffn.0": (self.ffn_dim, dim), "ffn.2": (dim, self.ffn_dim)}
        vectors = [f"{part}.norm_{name}.weight" for part in ("self_attn", "cross_attn") for name in "qk"]
        vectors += ["norm3.weight", "norm3.bias"]
        return {"modulation": (1, 6, dim)} | _with_biases(linears) | dict.fromkeys(vectors, (dim,))


def _with_biases(linears: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight": shape for name, shape in linears.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in linears.items()}


def _heads(dim: int, num_heads: int | None) -> int:
    heads = num_heads or dim // 128
    if heads < 1 or dim % heads or (dim // heads) % 2:
        expected = "heads of 128" if num_heads is None else f"{num_heads} heads"
        raise CheckpointError(
            f"a width of {dim} does not divide into {expected}; put a config.json with num_heads next to the weights"
        )
    return heads


def _layers(shapes: Mapping[str, Sequence[int]]) -> int:
    found = {int(match[1]) for match in (re.match(r"blocks\.(\d{1,9})\.", name) for name in shapes) if match}
    layers = max(found) + 1
    if len(found) != layers:
        missing = list(islice((number for number in range(layers) if number not in found), MAX_LISTED))
        others = layers - len(found) - len(missing)
        more = f" and {others} others" if others else ""
        raise CheckpointError(f"blocks {missing}{more} missing: the highest block is {layers - 1}")
    return layers


def _control(shapes: Mapping[str, Sequence[int]]) -> int | None:
    if _CONTROL not in shapes:
        return None
    width = tuple(shapes[_CONTROL])[-1]
    for values in CONTROLS:
        if width == values * CELL * CELL * 4:
            return values
    raise CheckpointError(f"{_CONTROL} takes {width} values a token; 1536 (camera) and 1792 (action) are known")
