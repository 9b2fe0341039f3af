"""Files that are not what a ComfyUI expects in its model and input folders, for the tests of bad input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lingbot_world.model.config import ModelConfig
from lingbot_world.toy.experts import write_expert, write_expert_folder
from lingbot_world.toy.weights import EXPERT
from release_cases import write_shards
from safetensors.torch import save_file


def write_bad_files(base: Path) -> None:
    """All of them, below ComfyUI's base directory with the toy package in it."""
    models, toy = base / "models", base / "models" / "lingbot_world" / "toy"
    write_plain_experts(models / "diffusion_models")
    write_bad_experts(models / "diffusion_models", toy)
    write_bad_vaes(models / "vae", toy)
    write_bad_poses(base / "input")
    write_bad_loras(models / "loras")


def write_plain_experts(folder: Path) -> None:
    """Two experts without camera layers."""
    folder.mkdir(parents=True, exist_ok=True)
    config = replace(EXPERT, control=None)
    for seed, name in enumerate(("plain_high_noise", "plain_low_noise")):
        write_expert(folder / f"{name}.safetensors", config, _random_tensors(config, seed), quant_type=None)


def write_bad_causal_models(folder: Path) -> None:
    """One of which half is there, one whose widths 8-bit products do not take, a 1.3B that lacks a shard, and another
    model under its name."""
    for name, config in (("half", EXPERT), ("odd", replace(EXPERT, ffn_dim=264))):
        write_expert_folder(folder / name, replace(config, causal=True), _random_tensors(config, 0))
    file = folder / "half" / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (write_shards(folder / "shards-1.3b", EXPERT, 3) / "model-00002-of-00003.safetensors").unlink()
    write_shards(folder / "wan-1.3b", replace(EXPERT, control=None), 2)


def _random_tensors(config: ModelConfig, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = config.parameter_shapes().items()
    return ((key, torch.randn(shape, generator=generator) * 0.02) for key, shape in shapes)


def write_bad_experts(models: Path, toy_package: Path) -> None:
    """Files of other kinds and half of an expert."""
    (models / "gguf.safetensors").write_bytes(b"GGUF" + bytes(400))
    save_file({"blocks.0.action_model.keyboard_embed.0.weight": torch.zeros(4, 4)}, models / "matrix_game.safetensors")
    save_file({"text_model.embeddings.weight": torch.zeros(4, 4)}, models / "something_else.safetensors")
    whole = next((toy_package / "high_noise_model_bnb_nf4").glob("*.safetensors")).read_bytes()
    (models / "truncated.safetensors").write_bytes(whole[: len(whole) // 2])


def write_bad_vaes(folder: Path, toy_package: Path) -> None:
    """Half of a VAE, another model's VAE, and a text under a VAE's name."""
    folder.mkdir(exist_ok=True)
    whole = (toy_package / "Wan2.1_VAE.pth").read_bytes()
    (folder / "truncated.pth").write_bytes(whole[: len(whole) // 2])
    save_file({"decoder.conv_in.weight": torch.zeros(4, 4)}, folder / "ae.safetensors")
    (folder / "text.safetensors").write_text("<html>Access to this model is restricted</html>")


def write_bad_loras(folder: Path) -> None:
    """One for a wider model, and one for a model with other layers."""
    folder.mkdir(exist_ok=True)
    width = EXPERT.dim + 32
    for name, layer in (("wide", "blocks.0.self_attn.q"), ("foreign", "transformer_blocks.0.attn.to_q")):
        down, up = torch.zeros(4, width), torch.zeros(width, 4)
        key = f"diffusion_model.{layer}"
        save_file({f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}, folder / f"{name}.safetensors")


def write_bad_poses(folder: Path) -> None:
    still = np.tile(np.eye(4), (9, 1, 1))
    cases = {"few": still[:3], "nan": still * np.nan, "flat": np.zeros((9, 3)), "sheared": still + 0.3}
    for name, poses in cases.items():
        (folder / name).mkdir(exist_ok=True)
        np.save(folder / name / "poses.npy", poses)
        np.save(folder / name / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (9, 1)))
