"""A package: a folder with the model or the two experts, the text encoder, the tokenizer and the VAE."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ..errors import CheckpointError
from ..options import RELEASES, LoraFile, PerExpert
from ..weights.files import WEIGHT_SUFFIXES, hub_snapshot, list_visible, read_json, unfinished_download
from ..weights.tensors import are_equal
from .checkpoint import Checkpoint, open_checkpoint
from .lora import loras_for
from .release import find_release, named_role, names_of, noise_role, role_of, stated_causal

log = logging.getLogger(__name__)
TOKENIZER_FILES = ("tokenizer.json", "spiece.model")
TOKENIZER_FOLDERS = ("tokenizer", "google/umt5-xxl")
ASSETS = ("text_encoder", "tokenizer", "vae")
"""The parts of a package besides the model. All releases share them."""
ASSETS_PAGES = "robbyant/lingbot-world-v2-14b-causal-fast and robbyant/lingbot-world-base-cam"
"""The Hugging Face repositories that contain ASSETS, for error messages."""
PART_FOLDERS = ("text_encoder", "vae")
"""The folders of the text encoder and the VAE in diffusers' layout."""
_COMPARED_WEIGHTS = 8
_PARTS = {
    "high": "the high-noise expert (high_noise_model*)",
    "low": "the low-noise expert (low_noise_model*)",
    "text_encoder": "the text encoder (models_t5_umt5-xxl-enc-bf16.pth)",
    "tokenizer": "the tokenizer (a folder with tokenizer.json)",
    "vae": "the VAE (Wan2.1_VAE.pth)",
}


@dataclass(frozen=True)
class Package:
    """The paths of a package's parts, None for a missing one. Either `experts` or `causal` is set."""

    experts: PerExpert[Path] | None
    causal: Path | None
    text_encoder: Path | None
    tokenizer: Path | None
    vae: Path | None


def find_package(
    folder: str | Path | None,
    *,
    assets: str | Path | None = None,
    release: str | None = None,
    **overrides: str | Path | None,
) -> Package:
    """Return the paths of a package's parts. The text encoder, tokenizer or VAE is None if not found.

    folder: a package, or a causal model; None if `overrides` has both experts.
    assets: a folder with text encoder, tokenizer and VAE.
    release: the causal model's release, a key of RELEASES; None to detect it.
    overrides: preferred paths of high, low, text_encoder, tokenizer and vae.

    Raise CheckpointError if a path does not exist, an expert is missing, or `folder` is no LingBot-World model.
    """
    root = None if folder is None else hub_snapshot(Path(folder).expanduser())
    if root is not None and not root.exists():
        name = f"; a repository of that name is downloaded by `hf download {root} --local-dir FOLDER`"
        repository = name if len(root.parts) == 2 and not root.is_absolute() and not root.parent.exists() else ""
        raise CheckpointError(f"{root}: no such folder; give the folder of the downloaded package{repository}")
    given = {part: Path(path).expanduser() for part, path in overrides.items() if path is not None}
    for part, path in given.items():
        if not path.exists():
            raise CheckpointError(f"{path}: no such file or folder, given as {_PARTS[part]}")
    given = ({} if assets is None else _find_assets(Path(assets).expanduser())) | given
    if root is not None and root.is_file():
        return _file_package(root.absolute(), given, release)
    items = list_visible(root) if root else []
    parts = {part: given.get(part) or find(items) for part, find in _FINDERS.items()}
    high, low = parts.pop("high"), parts.pop("low")
    causal = None if root is None or high or low else _causal_model(root, items, release)
    if causal is not None:
        return Package(None, causal, **{part: path or _find_near(causal, part) for part, path in parts.items()})
    if high is None or low is None:
        raise _missing_experts(root, items, {"high": high, "low": low, **parts})
    return Package(PerExpert(high, low), None, **parts)


def _file_package(file: Path, given: Mapping[str, Path], release: str | None) -> Package:
    if release is not None:
        find_release(release)
    elif not is_causal_file(file):
        kind = open_checkpoint(file).kind  # raises for another model
        raise CheckpointError(
            f"{file}: a file of one {kind}; give the package's folder, or, if it is a causal model, "
            f"`release` {', '.join(RELEASES)}"
        )
    parts = {part: given.get(part) or _find_near(file, part) or _find_near(file.parent, part) for part in ASSETS}
    return Package(None, file, **parts)


def _find_assets(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder, given as `assets_dir`")
    items = list_visible(folder)
    found = {part: path for part in ASSETS if (path := _FINDERS[part](items)) is not None}
    if not found:
        raise CheckpointError(
            f"{folder}: neither text encoder, tokenizer nor VAE in it, given as `assets_dir`; name "
            "the folder that has them, such as that of the 14B"
        )
    return found


def _find_near(model: Path, part: str) -> Path | None:
    """Return the path of `part`, such as "vae", in the parent folder of `model` or in the parent's subfolders, else
    None."""
    parent = model.absolute().parent
    folders = sorted(parent.iterdir(), key=lambda item: ("lingbot" not in item.name.lower(), item.name))
    for folder in (parent, *(item for item in folders if item.is_dir())):
        with suppress(OSError):  # a folder without read permission
            found = _FINDERS[part]([item for item in list_visible(folder) if "Wan2.2_VAE" not in item.name])
            if found is not None:
                return found
    return None


def is_causal_folder(folder: Path) -> bool:
    """Return whether a folder directly contains a causal model's weights. False for a package or unreadable files."""
    if not is_model_folder(folder) or folder.name in PART_FOLDERS:
        return False
    stated = stated_causal(names_of(folder.absolute()), read_json(folder / "config.json", optional=True))
    return _has_causal_shapes(folder) if stated is None and any(folder.glob("*.safetensors")) else bool(stated)


def is_causal_file(file: Path) -> bool:
    """Return whether the names of a file and its folders, or its tensor shapes, show a causal model. Return False if
    the shapes are needed and cannot be read."""
    if not (file.is_file() and file.suffix in WEIGHT_SUFFIXES):
        return False
    return stated_causal(names_of(file.absolute()), {}) or _has_causal_shapes(file)


def _has_causal_shapes(path: Path) -> bool:
    with suppress(CheckpointError):  # opening the model reports the error
        return open_checkpoint(path).config.causal
    return False


def _causal_model(root: Path, items: list[Path], release: str | None) -> Path | None:
    folders = (root, *items)
    if release is not None:
        find_release(release)
        return next(filter(is_model_folder, folders), None)
    found = [folder for folder in folders if is_causal_folder(folder)]
    return min(found, key=lambda folder: "transformer_causal" in folder.name, default=None)


def open_experts(paths: PerExpert[Path], loras: Sequence[LoraFile] = ()) -> PerExpert[Checkpoint]:
    """Return the experts' checkpoints with LoRAs. Raise CheckpointError if the two do not form one model."""
    experts = PerExpert(*(open_checkpoint(getattr(paths, role), loras_for(loras, role)) for role in ("high", "low")))
    _check_roles(experts)
    for line in (line for checkpoint in experts for line in checkpoint.merge_warnings):
        log.warning("%s", line)
    return experts


def tokenizer_in(folder: Path) -> Path | None:
    """Return the path of tokenizer.json or spiece.model directly in a folder, or None."""
    return next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)


def is_model_folder(path: str | Path) -> bool:
    """Return whether a folder directly contains the weights of one model of any kind."""
    folder = Path(path)
    names = ("model.safetensors", "model.pt", "*.safetensors.index.json", "diffusion_pytorch_model*")
    if not folder.is_dir():
        return False
    if any(any(folder.glob(name)) for name in names):
        return True
    weights = [file for file in list_visible(folder) if file.suffix in WEIGHT_SUFFIXES and file.is_file()]
    return len(weights) == 1 and weights[0].suffix == ".gguf"


def _missing_experts(root: Path | None, items: list[Path], parts: dict[str, Path | None]) -> CheckpointError:
    missing = [_PARTS[part] for part in ("high", "low") if parts[part] is None]
    found = [f"{part}: {path.name}" for part, path in parts.items() if path is not None]
    content = ", ".join(item.name for item in items[:8]) or "nothing"
    hint = "" if root is None or not (left := unfinished_download(root)) else f" {left[0].upper()}{left[1:]}."
    if root is not None and is_model_folder(root):
        kind = open_checkpoint(root).kind  # raises for another model
        hint = (
            f" This is the folder of one {kind}; give the folder above it, or, if it is a causal model, `release` "
            f"{', '.join(RELEASES)}."
        )
    return CheckpointError(
        f"{root or 'package'}: missing {' and '.join(missing)}; found "
        f"{', '.join(found) or 'no part'} (the folder holds {content}).{hint}"
    )


def _find_expert(role: str, items: list[Path]) -> Path | None:
    """Return the path of the expert `role`, recognised by name, preferably nf4; None without one."""
    models = [each for each in items if is_model_folder(each) or (each.is_file() and each.suffix in WEIGHT_SUFFIXES)]
    named = [each for each in models if noise_role(each.name) == role]
    named = named or [each for each in models if role_of(each, models) == role]
    folders = {item.name: item for item in items if is_model_folder(item)}
    if not named and "transformer_2" in folders:
        return folders.get("transformer" if role == "high" else "transformer_2")
    return min(named, key=lambda item: ("nf4" not in item.name.lower(), item.name), default=None)


def _find_weights(word: str, folder: str, items: list[Path]) -> Path | None:
    files = (item for item in items if item.is_file() and item.suffix in WEIGHT_SUFFIXES)
    folders = (item for item in items if item.name == folder and _is_encoder_or_vae(item))
    return next(chain((file for file in files if word in file.name.lower()), folders), None)


def _is_encoder_or_vae(folder: Path) -> bool:
    stated: dict = {}
    with suppress(CheckpointError):
        stated = read_json(folder / "config.json")
    vae = stated.get("_class_name") == "AutoencoderKLWan" and stated.get("z_dim", 16) == 16
    return is_model_folder(folder) and (vae or "UMT5EncoderModel" in str(stated.get("architectures")))


def _find_tokenizer(items: list[Path]) -> Path | None:
    folders = [item for item in items if item.is_dir()]
    nested = (inner for folder in folders if not is_model_folder(folder) for inner in sorted(folder.iterdir()))
    return next((folder for folder in (*folders, *nested) if tokenizer_in(folder)), None)


_FINDERS: dict[str, Callable[[list[Path]], Path | None]] = {
    "high": partial(_find_expert, "high"),
    "low": partial(_find_expert, "low"),
    "text_encoder": partial(_find_weights, "t5", PART_FOLDERS[0]),
    "tokenizer": _find_tokenizer,
    "vae": partial(_find_weights, "vae", PART_FOLDERS[1]),
}


def _check_roles(experts: PerExpert[Checkpoint]) -> None:
    high, low = map(_short_path, experts)
    paths = [checkpoint.path for checkpoint in experts]
    roles = PerExpert(*(named_role(path, paths) for path in paths))
    if roles.high == "low" and roles.low != "low" or roles.low == "high" and roles.high != "high":
        raise CheckpointError(
            f"the experts look swapped: high-noise is {high}, low-noise is {low}; "
            "exchange them, or rename the files if their names are wrong"
        )
    causal = next((_short_path(checkpoint) for checkpoint in experts if checkpoint.config.causal), None)
    if causal is not None:
        raise CheckpointError(
            f"{causal} is a causal model (LingBot-World Fast or 2.0), not one of two experts; it "
            "makes videos by itself: give its own folder as the package"
        )
    if _same_weights(experts):
        raise CheckpointError(f"{high} and {low} are the same weights; give the high-noise and the low-noise expert")
    if experts.high.config != experts.low.config:
        ours, theirs = asdict(experts.high.config), asdict(experts.low.config)
        other = [f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
        raise CheckpointError(
            f"the experts are of different architectures: {high} and {low} have {', '.join(other)}; "
            "both have to come from one release"
        )


def _short_path(checkpoint: Checkpoint) -> str:
    return "/".join(checkpoint.path.parts[-2:])


def _same_weights(experts: PerExpert[Checkpoint]) -> bool:
    high, low = experts
    if [file.resolve() for file in high.files] == [file.resolve() for file in low.files]:
        return True
    weights = sorted(name for name in high.shapes if name.endswith(".weight"))
    some = weights[:: max(1, len(weights) // _COMPARED_WEIGHTS)]
    return high.shapes == low.shapes and all(are_equal(high.tensors[name], low.tensors[name]) for name in some)
