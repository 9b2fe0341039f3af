"""The record of a run in its video's metadata, from which `generate --like VIDEO` repeats the run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ...errors import DependencyError, InputError
from ...options import LoraFile
from ...version import __version__
from ..checks import Plan
from ..many.inputs import named_files, part_files
from ..options import GenerateOptions
from .encoding import RECIPE
from .pictures import BROKEN, reason
from .video_reader import open_video

NOT_RECORDED = ("output", "overwrite", "save_state", "seed", "device", "image")
MAX_PROCESSES = 4096
PIECE_BYTES, PIECES = 2**16, 64
"""The size and number of the hashed pieces of a large file. A file up to PIECES * PIECE_BYTES is hashed whole."""


def make_recipe(plan: Plan, seed: int, processes: int = 1) -> str:
    """Return the record of a run as JSON: version, seed, device, processes, threads, changed options, and hashes of the
    input files."""
    options = plan.options
    defaults = {field.name: field.default for field in fields(GenerateOptions)}
    given = {
        name: value for name, value in vars(options).items() if value != defaults[name] and name not in NOT_RECORDED
    }
    if isinstance(options.image, str | Path):
        given["image"] = options.image
    given["lora"] = [asdict(lora) for lora in options.lora]
    record = {
        "version": __version__,
        "seed": seed,
        "device": plan.device.type,
        "threads": torch.get_num_threads() if plan.device.type == "cpu" else None,
        "processes": processes,
        "options": {name: value for name, value in given.items() if value != []},
        "files": hash_files(options),
    }
    return json.dumps(record, default=str)


def hash_files(options: GenerateOptions) -> dict[str, str]:
    """Return a hash for each option that names files, such as "image", and each part of the model package, such as
    "vae". If a file is missing, the entry is left out."""
    files = {**named_files(options), **part_files(options)}
    return {name: _hash(paths) for name, paths in files.items() if all(path.is_file() for path in paths)}


def _hash(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            if size <= PIECE_BYTES * PIECES:
                digest.update(file.read())
                continue
            for index in range(PIECES):
                file.seek((size - PIECE_BYTES) * index // (PIECES - 1))
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()[:32]


def read_recipe(video: str | Path) -> dict[str, Any]:
    """Return the record of a run from a video, a PNG file, or a folder's first PNG file. Raises InputError without a
    record."""
    path = Path(video)
    if not path.exists():
        raise InputError(f"`like` {path}: no such file; name a video that `lingbot-world generate` made")
    if path.is_dir():
        path = min(path.glob("*.png"), default=path)
    found = _metadata(path)
    try:
        record = json.loads(found[RECIPE])
        record["seed"], record["options"]["prompt"], record["files"].items()  # these raise
        counts = record.get("processes", 1), record.get("threads") or 1
        if not all(isinstance(count, int) and 0 < count <= MAX_PROCESSES for count in counts):
            raise ValueError("not a number of processes or threads")
        kinds = {"path": str, "strength": int | float, "expert": str | None}
        for lora in record["options"].get("lora", []):
            if lora.keys() != kinds.keys() or not all(isinstance(lora[name], kind) for name, kind in kinds.items()):
                raise ValueError("not a LoRA")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        canvas = "; ComfyUI made it: drop it onto the canvas, which opens its workflow" if "prompt" in found else ""
        lost = "no record of a run in its metadata, which other programs drop when they write a video again"
        raise InputError(f"`like` {video}: {lost}{canvas or '; give the options themselves'}") from error
    return record


def _metadata(path: Path) -> Mapping[str, str]:
    try:
        if path.suffix.lower() == ".png" and path.is_file():
            with Image.open(path) as image:
                image.load()
                return {str(name): value for name, value in image.info.items() if isinstance(value, str)}
        with open_video(path) as container:
            return {name.lower(): value for name, value in container.metadata.items()}  # matroska uses capitals
    except DependencyError:
        raise
    except (*BROKEN, Image.DecompressionBombError) as error:
        raise InputError(f"`like` {path}: not a video or PNG file that can be read ({reason(error)})") from error


def options_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's options and seed as arguments of GenerateOptions. Raises InputError for an unknown option."""
    known = {field.name for field in fields(GenerateOptions)} - {*NOT_RECORDED} | {"image"}
    unknown = [name for name in record["options"] if name not in known]
    if unknown:
        raise InputError(
            f"`like`: version {record.get('version')} made it with --{unknown[0]}, which this version does not have"
        )
    as_tuples = {name: tuple(value) for name, value in record["options"].items() if isinstance(value, list)}
    options = {**record["options"], **as_tuples, "seed": record["seed"]}
    if "lora" in options:
        options["lora"] = tuple(LoraFile(**{**each, "path": Path(each["path"])}) for each in options["lora"])
    return options


def changes_since(record: dict[str, Any], options: GenerateOptions) -> list[str]:
    """Return notes on input files changed since the recorded run, and a note if the package version differs."""
    before, now = record["files"], hash_files(options)
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    notes = [f"The content of `{name}` has changed since that video was made." for name in changed]
    if record.get("version") != __version__:
        notes.append(f"Version {record.get('version')} made that video, this is {__version__}: bits may differ.")
    return notes
