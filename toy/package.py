"""The random toy package: tiny random models in the official layout."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from ..outputs import lock_output
from . import scene
from .experts import write_expert_folder
from .tokenizer import write_tokenizer
from .weights import EXPERT, expert_tensors, text_tensors, vae_tensors

EXAMPLE = "example"
CAUSAL = "lingbot_world_fast"
"""The folder of the causal model, named as in the official package."""
EXPERTS = ("high_noise_model_bnb_nf4", "low_noise_model")
"""The folders of the trained toy package's experts: high-noise and low-noise."""
MODEL_FOLDERS = (CAUSAL, *EXPERTS, "low_noise_model_bnb_nf4")
"""The names of all model folders in the trained and the random toy package. Each package has some of them."""
LOCK_NAME = "toy"
"""The name of the lock file in a toy package's folder, without its suffix."""
LARGEST = 2**26
"""The maximum size of a toy package's file, in bytes. Real weight files are larger."""


def write_toy_package(folder: str | Path, seed: int = 0) -> Path:
    """Write a toy package of random models, drawn with `seed`, and return its folder. Raises InputError if the folder
    cannot be written or contains other models."""
    folder = Path(folder)
    refuse_real(folder)
    refuse_other(folder, [Path(place, "model.safetensors") for place in MODEL_FOLDERS if place != EXPERTS[1]])
    try:
        with lock_output(folder / LOCK_NAME):
            _write_models(folder, seed)
            write_example(folder / EXAMPLE)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


def refuse_other(folder: Path, own: Iterable[Path]) -> None:
    """Raise InputError if a model folder below `folder` has a .safetensors file that is not in `own`. `own` lists the
    files that the toy package writes, relative to `folder`."""
    found = (file for place in MODEL_FOLDERS for file in sorted((folder / place).glob("*.safetensors")))
    other = next((file for file in found if file.relative_to(folder) not in set(own)), None)
    if other is not None:
        raise InputError(f"{other}: a model that is not this toy's; name another folder, or remove this one")


def refuse_real(folder: Path) -> None:
    """Raise InputError if `folder` has weight files larger than LARGEST, which the toy package would replace."""
    models = [file for place in MODEL_FOLDERS for file in sorted((folder / place).glob("*.safetensors"))]
    for file in (*models, folder / "models_t5_umt5-xxl-enc-bf16.pth", folder / "Wan2.1_VAE.pth"):
        size = file.stat().st_size if file.is_file() else 0
        if size > LARGEST:
            raise InputError(
                f"{file}: {size / 1e9:.1f} GB, which no toy has; name another folder, because the toy would replace "
                "real weights here"
            )


def _write_models(folder: Path, seed: int) -> None:
    for number, name in enumerate(("high", "low")):
        tensors = expert_tensors(10 * seed + number)
        write_expert_folder(folder / f"{name}_noise_model_bnb_nf4", EXPERT, tensors)
    write_expert_folder(folder / CAUSAL, replace(EXPERT, causal=True), expert_tensors(10 * seed + 4))
    vocab_size = write_tokenizer(folder / "tokenizer")
    torch.save(text_tensors(10 * seed + 2, vocab_size), folder / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save(vae_tensors(10 * seed + 3), folder / "Wan2.1_VAE.pth")


def write_example(folder: Path) -> None:
    """Write an image, its prompt and a short camera path into a folder."""
    folder.mkdir(exist_ok=True)
    poses, intrinsics = scene.camera_path()
    scene.landscape().save(folder / "image.png")
    np.save(folder / "poses.npy", poses)
    np.save(folder / "intrinsics.npy", intrinsics)
    (folder / "prompt.txt").write_text(scene.PROMPT + "\n", encoding="utf-8")
