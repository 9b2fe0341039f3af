"""The trained models as a package in the official layout."""

import tarfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.writer import write_expert_folder
from .prompts import write_text_files
from .settings import CONFIG

VAE = "Wan2.1_VAE.pth"


def write_package(
    folder: Path, vae: Mapping[str, Tensor], high: Mapping[str, Tensor], low: Mapping[str, Tensor]
) -> None:
    """Two NF4 experts, the VAE in float16, text encoder and tokenizer into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_files(folder)
    torch.save({name: tensor.half().cpu() for name, tensor in vae.items()}, folder / VAE)
    for name, tensors in (("high", high), ("low", low)):
        write_expert_folder(folder / f"{name}_noise_model_bnb_nf4", CONFIG,
                            ((key, tensor.cpu()) for key, tensor in tensors.items()))  # fmt: skip


def archive(folder: Path, path: Path) -> None:
    """The folder's files in one file."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=folder.name)
