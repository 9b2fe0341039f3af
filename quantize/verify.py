"""Verification of a package's files: checksums, finite values, tensor shapes, and kinds of models."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from ..loaders import Checkpoint, find_package, open_checkpoint
from ..loaders.package import is_causal_folder, is_model_folder, open_experts
from ..loaders.release import named_role
from ..options import ShowProgress
from ..text.weights import open_weights
from ..vae import check_values, read_vae, vae_width
from ..weights.files import read_json
from ..weights.tensors import MappedFile, TensorEntry, check_all_finite, check_scales
from .package import TEXT_ENCODER, checksum_path, is_text_encoder
from .writer import bytes_of

_THREADS = 4


@dataclass(frozen=True)
class VerifiedFile:
    """The result of the verification of one file.

    kind: a description of the model and the format.
    checked: the number of tensors with a matching checksum; None if none were compared.
    """

    path: Path
    kind: str
    tensors: int
    checked: int | None


def verify(path: str | Path, show: ShowProgress, fast: bool = False) -> list[VerifiedFile]:
    """Compare a package, model or text encoder with its stored checksums; without checksums, look for NaN and infinity.
    With `fast`, check only headers and scales. Raise CheckpointError or TextError for a faulty file."""
    path = Path(path).expanduser()
    alone = path / TEXT_ENCODER
    if path.is_dir() and {item.name for item in path.iterdir()} == {alone.name, checksum_path(alone).name}:
        path = alone  # the folder that quantizing only a text encoder makes
    if is_text_encoder(path):
        return [_text_encoder(path, show, fast)]
    if path.is_dir() and (is_causal_folder(path) or not is_model_folder(path)):
        return list(_package(path, show, fast))
    return [_model(open_checkpoint(path), "", show, fast)]


def _package(root: Path, show: ShowProgress, fast: bool) -> Iterator[VerifiedFile]:
    package = find_package(root)
    if package.experts is not None:
        experts = open_experts(package.experts)
        yield _model(experts.high, "high-noise ", show, fast)
        yield _model(experts.low, "low-noise ", show, fast)
    if package.causal is not None:
        yield _model(open_checkpoint(package.causal), "", show, fast)
    if package.text_encoder is not None:
        yield _text_encoder(package.text_encoder, show, fast)
    if package.vae is not None:
        weights = read_vae(package.vae)
        if not fast:
            check_values(str(package.vae), weights)
        yield VerifiedFile(package.vae, f"Wan 2.1 VAE of width {vae_width(weights)}", len(weights), None)


def _model(checkpoint: Checkpoint, role: str, show: ShowProgress, fast: bool) -> VerifiedFile:
    check_scales(checkpoint.entries(checkpoint.quantized))
    named = named_role(checkpoint.path)
    role = role or (f"{named}-noise " if named else "")
    kind = f"{role}{checkpoint.kind}, {checkpoint.quantization or 'not quantized'}"
    return _compare_checksums(checkpoint.files[0], kind, checkpoint.tensors, show, fast)


def _text_encoder(path: Path, show: ShowProgress, fast: bool) -> VerifiedFile:
    weights = open_weights(path)  # this checks the scales
    kind = f"umt5 text encoder, {weights.quantization or 'not quantized'}"
    kind += f"; {weights.note}" if weights.note else ""
    return _compare_checksums(path, kind, weights.tensors, show, fast)


def _compare_checksums(
    file: Path, kind: str, tensors: Mapping[str, TensorEntry], show: ShowProgress, fast: bool
) -> VerifiedFile:
    meta = read_json(checksum_path(file), optional=True)
    source = f", made from {meta['source']}" if isinstance(meta.get("source"), str) else ""
    stored = meta.get("sha256")
    if not isinstance(stored, dict):
        if not fast:
            with show(f"read {file.name}", "B") as progress:
                check_all_finite(tensors.values(), progress)
        return VerifiedFile(file, kind + source, len(tensors), None)
    differing = sorted(stored.keys() ^ tensors.keys())
    if differing:
        raise CheckpointError(
            f"{file}: {len(differing)} tensors are in the file or in {checksum_path(file).name} only "
            f"({', '.join(differing[:3])}); the files do not belong together"
        )
    if not fast:
        wrong = _find_damaged(file.name, tensors, stored, show)
        if wrong:
            raise CheckpointError(
                f"{file}: {len(wrong)} of {len(tensors)} tensors are not what was written "
                f"({', '.join(wrong[:5])}); the file is damaged, make or download it again"
            )
    return VerifiedFile(file, kind + source, len(tensors), None if fast else len(tensors))


def _find_damaged(
    name: str, tensors: Mapping[str, TensorEntry], stored: Mapping[str, str], show: ShowProgress
) -> list[str]:
    wrong, done, total = [], 0, sum(entry.nbytes for entry in tensors.values())
    with show(f"verify {name}", "B") as progress, ThreadPoolExecutor(_THREADS) as pool:
        for key, digest in zip(tensors, pool.map(_digest, tensors.values()), strict=True):
            if digest != stored[key]:
                wrong.append(key)
            done += tensors[key].nbytes
            progress(done, total)
    return wrong


def _digest(entry: TensorEntry) -> str:
    if not isinstance(entry.source, MappedFile):
        return hashlib.sha256(bytes_of(entry.source)).hexdigest()
    digest = hashlib.sha256()
    for piece in entry.source.read(entry.offset, entry.nbytes):
        digest.update(piece)
    return digest.hexdigest()
