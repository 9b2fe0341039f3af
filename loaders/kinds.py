"""Files that are not experts, told by their names and shapes, so that the error can say what they are."""

from collections.abc import Mapping
from pathlib import Path

import torch

from ..errors import CheckpointError
from .entries import TensorEntry

_BY_KEY = (
    ("a LoRA", ("lora_A", "lora_B", "lora_down", "lora_up", "lora.up", "lora.down", "diff_b")),
    ("an image encoder (CLIP)", ("vision_model.", "visual.", "log_scale")),
    ("a T5 text encoder", ("token_embedding.", "shared.weight", "encoder.block.", "relative_attention_bias")),
    ("a VAE", ("encoder.conv1.", "decoder.conv1.", "encoder.downsamples.", "encoder.down_blocks.", "quant_conv.")),
    ("an expert in diffusers' key names", ("condition_embedder.", ".attn1.to_q.")),
    ("a Matrix-Game model", (".action_model.", "keyboard_", "mouse_")),
    ("a Wan 2.1 image-to-video model with image cross-attention", ("img_emb.", ".k_img.", ".v_img.")),
    ("a GPTQ or AWQ quantization", (".qweight", ".qzeros")),
    ("an 8-bit bitsandbytes quantization", (".SCB",)),
    ("a scaled fp8 or int8 quantization", ("scaled_fp8", ".scale_weight", ".weight_scale", ".comfy_quant")),
)  # fmt: skip
_PLAIN_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_EXPECTED = "expected a LingBot-World expert: bitsandbytes NF4 or FP4, bf16, fp16 or fp32, in the official key names"


def refuse_magic(path: Path) -> None:
    """Raise CheckpointError for a file whose first bytes belong to another format."""
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise CheckpointError(f"{path.name}: the file is empty; get it again")
    if start.startswith(b"GGUF"):
        raise CheckpointError(f"{path.name}: a GGUF file; {_EXPECTED}")
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path.name}: a git-lfs pointer, not the weights; fetch them with `git lfs pull`")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path.name}: a web page, not weights; the download went wrong")


def refuse_other_kinds(name: str, entries: Mapping[str, TensorEntry], four_bit: frozenset[str]) -> None:
    """Raise CheckpointError for tensors that belong to another kind of model or quantization.

    `four_bit` names the tensors that are part of a bitsandbytes 4-bit weight."""
    all_keys = "\n".join(entries)
    for kind, marks in _BY_KEY:
        mark = next((mark for mark in marks if mark in all_keys), None)
        if mark is not None:
            sample = next(key for key in entries if mark in key)
            raise CheckpointError(f"{name}: this is {kind} (it has {sample}); {_EXPECTED}")
    if not any(key.startswith("blocks.") for key in entries):
        sample = ", ".join(list(entries)[:3])
        raise CheckpointError(f"{name}: no transformer block in it (it has {sample}); {_EXPECTED}")
    for key, entry in entries.items():
        if key not in four_bit and entry.dtype not in _PLAIN_DTYPES:
            raise CheckpointError(f"{name}: {key} is {str(entry.dtype).removeprefix('torch.')} without a bitsandbytes "
                                  f"quant_state; {_EXPECTED}")  # fmt: skip
    _refuse_shapes(name, entries)


def _refuse_shapes(name: str, entries: Mapping[str, TensorEntry]) -> None:
    patch = entries.get("patch_embedding.weight")
    if patch is None or len(patch.shape) != 5:
        return
    channels = patch.shape[1]
    if channels == 48:
        camera = any("wancamctrl" in key or "cam_" in key for key in entries)
        kind = "Matrix-Game 3.0" if camera else "Wan 2.2 TI2V 5B"
        raise CheckpointError(f"{name}: {kind} by its shapes (patch_embedding takes 48 channels); {_EXPECTED}")
    if channels != 36:
        kind = "a text-to-video model" if channels == 16 else "another model"
        raise CheckpointError(f"{name}: {kind}: patch_embedding takes {channels} channels, expected 36 "
                              "(16 noise, 4 mask, 16 image latent)")  # fmt: skip
