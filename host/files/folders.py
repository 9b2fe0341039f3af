"""The model files that nodes list, from ComfyUI's model folders and the packages in `models/lingbot_world`."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import folder_paths

from ...errors import CheckpointError, InputError
from ...loaders.package import (
    PART_FOLDERS,
    TOKENIZER_FOLDERS,
    is_causal_file,
    is_causal_folder,
    is_model_folder,
    tokenizer_in,
)
from ...loaders.release import named_causal, noise_role
from ...weights.files import read_tensors
from .search import SHARD, is_true_of, merge_shards, probe_folder, resolve, sort_by_patterns

PACKAGES = "lingbot_world"
AUTO = "auto"
TOY = "toy"
TOKENIZER_PAGE = "https://huggingface.co/cahlen/lingbot-world-base-cam-nf4/tree/main/tokenizer"
_EXAMPLE = Path(__file__).parents[2] / "toy" / "maze" / "example" / "image.png"
_GGUF = ".gguf"
_WEIGHTS = (".safetensors", ".sft", ".pt", ".pth", _GGUF)
_WITH_GGUF = ("diffusion_models", "text_encoders")
"""The model folders in which users also keep GGUF files, which ComfyUI itself does not list."""
_TEXT_ENCODER, _VAE = PART_FOLDERS
_ONE_FILE, SHARDS = "model.safetensors", "*.safetensors"
"""The ends of causal models' names in a node's model list: "folder/model.safetensors" for a single weight file,
"folder/*.safetensors" for several."""


def register() -> None:
    """Register the model folder `lingbot_world` with ComfyUI, and lists of GGUF files: models and text encoders."""
    folder_paths.add_model_folder_path(PACKAGES, os.path.join(folder_paths.models_dir, PACKAGES))
    for name in _WITH_GGUF:  # the same list object, so folders added later are searched too
        folders = folder_paths.folder_names_and_paths[name][0]
        folder_paths.folder_names_and_paths[_gguf_files(name)] = (folders, {_GGUF})


def _gguf_files(model_folder: str) -> str:
    return f"{PACKAGES}_gguf_{model_folder}"


def toy_folder() -> Path:
    """Return the folder of the toy model (a tiny model for trials) in `models/lingbot_world`. It may not exist yet."""
    roots = [Path(root) for root in folder_paths.get_folder_paths(PACKAGES)]
    return next((root / TOY for root in roots if is_true_of(Path.is_dir, root / TOY)), roots[0] / TOY)


def write_example_image() -> None:
    """Write the example workflows' start image into ComfyUI's input folder if it is writable and has no files."""
    folder = Path(folder_paths.get_input_directory())
    with suppress(OSError):  # a read-only folder: Load Image reports the missing file
        folder.mkdir(parents=True, exist_ok=True)
        if not any(path.is_file() for path in folder.iterdir()):
            shutil.copyfile(_EXAMPLE, folder / "example.png")


def package_choices() -> list[str]:
    """Return the names of the folders in `models/lingbot_world` that contain a high-noise expert."""
    return sorted(
        {
            folder.name
            for folder in _folders()
            if any(noise_role(item.name) == "high" for item in folder.iterdir()) or (folder / "transformer_2").is_dir()
        }
    )


def resolve_package(name: str) -> Path:
    """Return the path of the folder `name` in `models/lingbot_world`. Raise InputError if it is missing."""
    return resolve(name, (PACKAGES,), "package", Path.is_dir)


def expert_choices() -> list[str]:
    """Return the names of all experts in the model folders. A model's shards are listed once, as their folder."""
    return sorted(merge_shards([*_list_weights("diffusion_models"), *_package_experts()]))


def resolve_expert(name: str, label: str = "expert") -> Path:
    """Return the file or folder of the expert `name`. Raise InputError, worded with `label`, if it is missing."""
    return resolve(name, ("diffusion_models", PACKAGES), label, Path.exists)


def causal_choices() -> list[str]:
    """Return the names of all causal models (LingBot-World Fast and 2.0) in ComfyUI's model folders."""
    files = list(_list_weights("diffusion_models"))
    names = {name.rpartition("/")[0] for name in files} - {""}
    roots = map(Path, folder_paths.get_folder_paths("diffusion_models"))
    found = {_causal_name(root, name) for root in roots for name in names if is_true_of(_is_causal, root / name)}
    found |= {name for name in files if named_causal([name.rpartition("/")[2]]) and not SHARD.search(name)}
    for package in _folders():
        folders = (package, *sorted(folder for folder in package.iterdir() if not _unfinished(folder)))
        root, causal = package.parent, (folder for folder in folders if is_true_of(_is_causal, folder))
        found |= {_causal_name(root, folder.relative_to(root).as_posix()) for folder in causal}
    return sorted(found)


def _causal_name(root: Path, name: str) -> str:
    """Return the name that a loader's model list shows for the causal model in the folder `root / name`, such as
    "my-model/model.safetensors"."""
    alone = next((file.name for file in (root / name).glob(f"*{_GGUF}")), _ONE_FILE)
    if (root / name / alone).is_file():
        return f"{name}/{alone}"
    return f"{name}/{SHARDS}" if any(SHARD.search(file.name) for file in (root / name).glob(SHARDS)) else name


def resolve_causal(name: str) -> Path:
    """Return the folder or file of a causal model in `causal_choices`. Raise InputError if it is missing."""
    folder = re.sub(rf"[\\/]({re.escape(_ONE_FILE)}|{re.escape(SHARDS)})$", "", str(name))
    return resolve(folder, ("diffusion_models", PACKAGES), "causal model", _is_causal)


def _is_causal(path: Path) -> bool:
    with suppress(CheckpointError):
        return is_causal_folder(path) or is_causal_file(path)
    return False


def text_encoder_choices() -> list[str]:
    """Return the names of all text encoders, umt5 first."""
    packages = _names_in_packages(_TEXT_ENCODER, "*t5*")
    return sort_by_patterns({*_list_weights("text_encoders"), *packages}, ("*/*umt5*", f"*/{_TEXT_ENCODER}", "*umt5*"))


def resolve_text_encoder(name: str) -> Path:
    """Return the text encoder's file, or its folder in diffusers' format. Raise InputError if it is missing."""
    return resolve(name, ("text_encoders", PACKAGES), "text encoder", _holds_weights)


def vae_choices() -> list[str]:
    """Return the names of all VAEs, those of Wan 2.1 first."""
    packages = _names_in_packages(_VAE, "*vae*")
    return sort_by_patterns({*_list_weights("vae"), *packages}, ("*/*wan2.1*", f"*/{_VAE}", "*wan*2*1*vae*"))


def resolve_vae(name: str) -> Path:
    """Return the VAE's file, or its folder in diffusers' format. Raise InputError if it is missing."""
    return resolve(name, ("vae", PACKAGES), "VAE", _holds_weights)


def _holds_weights(path: Path) -> bool:
    return path.is_file() or is_model_folder(path)


def tiny_decoder_choices() -> list[str]:
    """Return the names of the tiny decoders for latents of Wan 2.1 (TAEHV, LightTAE) in `models/vae_approx`."""
    found = [name.replace(os.sep, "/") for name in folder_paths.get_filename_list("vae_approx")]
    return [name for name in found if "taew2_1" in name.lower()]


def resolve_tiny_decoder(name: str) -> Path:
    """Return the file of the tiny decoder `name`. Raise InputError if it is missing."""
    path = folder_paths.get_full_path("vae_approx", name)
    if path is None:
        raise InputError(f"{name} is no longer in models/vae_approx; choose another decoder, or the VAE")
    return Path(path)


def tokenizer_choices() -> list[str]:
    """Return the choices of a tokenizer input: AUTO, then the tokenizer folders in `models/lingbot_world`."""
    pairs = ((folder, name) for folder in _folders() for name in TOKENIZER_FOLDERS)
    return [
        AUTO,
        *sorted({f"{folder.name}/{name}" for folder, name in pairs if is_true_of(tokenizer_in, folder / name)}),
    ]


def resolve_tokenizer(choice: str, encoder: Path) -> Path:
    """Return a tokenizer's folder, or a weight file that contains a tokenizer. AUTO searches near `encoder` first.
    Raise InputError if none is found."""
    if choice != AUTO:
        return resolve(choice, (PACKAGES,), "tokenizer", Path.is_dir)
    for folder in (encoder.parent, *_folders()):
        for name in TOKENIZER_FOLDERS:
            if is_true_of(tokenizer_in, folder / name):
                return folder / name
    umt5 = (name for name in _list_weights("text_encoders") if "umt5" in name.lower())
    for file in (encoder, *map(resolve_text_encoder, umt5)):
        with suppress(CheckpointError):
            if file.suffix == ".safetensors" and "spiece_model" in read_tensors(file):
                return file
    raise InputError(
        f"{encoder.name} needs a tokenizer and there is none: put tokenizer.json ({TOKENIZER_PAGE}) into "
        f"{encoder.parent / 'tokenizer'}"
    )


def _folders() -> Iterator[Path]:
    """Yield the readable folders in `models/lingbot_world`, except those of unfinished quantizations."""
    for root in map(Path, folder_paths.get_folder_paths(PACKAGES)):
        folders = sorted(root.iterdir()) if is_true_of(probe_folder, root) else []
        yield from (folder for folder in folders if is_true_of(probe_folder, folder) and not _unfinished(folder))


def _unfinished(folder: Path) -> bool:
    """Whether a folder is the result of a quantization that is running or was stopped."""
    return folder.name.endswith(".part")


def _package_experts() -> Iterator[str]:
    for package in _folders():
        patterns = ("*/*", "*[nN]oise*", *(() if _is_causal(package) else ("model.safetensors",)))
        files = (
            file
            for pattern in patterns
            for file in package.glob(pattern)
            if not _unfinished(file.parent) and file.parent.name not in PART_FOLDERS
        )
        weights = (file for file in files if file.suffix in _WEIGHTS and is_true_of(Path.is_file, file))
        yield from (f"{package.name}/{file.relative_to(package).as_posix()}" for file in weights)


def _names_in_packages(subfolder: str, file_pattern: str) -> Iterator[str]:
    """Yield "package/name" for each model in the packages, which are the folders in models/lingbot_world. The name is
    `subfolder`, if it holds a model, or that of a weight file that matches `file_pattern`."""
    for package in _folders():
        if is_true_of(is_model_folder, package / subfolder):
            yield f"{package.name}/{subfolder}"
        found = (file for file in package.glob("*") if file.suffix in _WEIGHTS and file.is_file())
        yield from (f"{package.name}/{file.name}" for file in found if fnmatch(file.name.lower(), file_pattern))


def _list_weights(model_folder: str) -> Iterator[str]:
    if model_folder in _WITH_GGUF:
        yield from (name.replace(os.sep, "/") for name in folder_paths.get_filename_list(_gguf_files(model_folder)))
    names = folder_paths.get_filename_list(model_folder)
    yield from (name.replace(os.sep, "/") for name in names if name.endswith(_WEIGHTS))
