"""Hash jobs' input files, so that a later run of the batch detects changed files."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ...errors import LingBotError
from ...loaders import find_package
from ...text.tokenizer import find_tokenizer
from ...weights.files import weight_files
from ..options import PARTS, POSE_FILES, GenerateOptions

KNOWN_BY_CONTENT = 64 * 2**20
"""Files of at most this many bytes are hashed by content, larger ones by size and modification time."""


class InputHashes:
    """A cache of hashes of the jobs' input files."""

    def __init__(self) -> None:
        self._contents: dict[tuple[str, int, int], str] = {}

    def of(self, options: GenerateOptions) -> dict[str, str]:
        """Return SHA-256 hashes of a job's input files, by option or package part. Unreadable files have no entry."""
        marks = {}
        for name, files in {**named_files(options), **part_files(options)}.items():
            with suppress(OSError):
                if all(file.is_file() for file in files):  # a pipe has no end
                    marks[name] = hashlib.sha256(json.dumps(list(map(self._stamp, files))).encode()).hexdigest()
        return marks

    def _stamp(self, file: Path) -> tuple[int, str | int]:
        stat = file.stat()
        if stat.st_size > KNOWN_BY_CONTENT:
            return stat.st_size, stat.st_mtime_ns
        key = str(file), stat.st_size, stat.st_mtime_ns
        if key not in self._contents:
            self._contents[key] = hashlib.sha256(file.read_bytes()).hexdigest()
        return stat.st_size, self._contents[key]


def named_files(options: GenerateOptions) -> dict[str, list[Path]]:
    """Return the input files that a job's options name, by option, without those of the model package."""
    given = {name: getattr(options, name) for name in ("image", "continue_from", "events")}
    found = {name: [Path(path)] for name, path in given.items() if isinstance(path, str | Path)}
    if options.lora:
        found["lora"] = [lora.path for lora in options.lora]
    if options.action_path is not None:
        path = Path(options.action_path)
        folder, poses = (path, path / "poses.npy") if path.is_dir() else (path.parent, path)
        found["action_path"] = [poses, *(file for name in POSE_FILES[1:] if (file := folder / name).is_file())]
    return found


def part_files(options: GenerateOptions) -> dict[str, list[Path]]:
    """Return the files of a job's model package by part, or {} for an invalid package."""
    found: dict[str, list[Path]] = {}
    with suppress(LingBotError, OSError):
        named = {name: getattr(options, name) for name in PARTS}
        package = find_package(options.ckpt_dir, assets=options.assets_dir, release=options.release, **named)
        models = {"causal": package.causal} if package.experts is None else vars(package.experts)
        paths = {**models, "text_encoder": package.text_encoder, "vae": package.vae}
        for name, path in paths.items():
            if path is not None:
                found[name] = _weights(path, "t5" if name == "text_encoder" else "")
        if package.tokenizer is not None:
            found["tokenizer"] = [find_tokenizer(package.tokenizer)]
    return found


def _weights(path: Path, hint: str) -> list[Path]:
    config = path / "config.json"
    return [*weight_files(path, hint), *([config] if config.is_file() else [])]
