"""Quantization of a model or package: the plan, a check of disk space, and the writing of the folder."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError
from ..loaders import Package, find_package, open_checkpoint
from ..loaders.lora import loras_for, refuse_loras_for_one_expert
from ..loaders.package import is_causal_folder, is_model_folder
from ..options import BLOCK_SIZES, QUANTIZE_FORMATS, ShowProgress
from ..outputs import PART, lock_output
from ..text.weights import EMBEDDING, open_weights, wan_key
from ..weights.files import read_tensors
from .model import QuantizeOptions, journal_path, quantize_source
from .source import CONFIG, Source, open_model, open_text_encoder
from .writer import file_bytes, write_json

WEIGHTS, META = "model.safetensors", "quantization_meta.json"
TEXT_ENCODER = "models_t5_umt5-xxl-enc-bnb_nf4.safetensors"
_SUFFIXES = {"nf4": "bnb_nf4", "comfy-fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4"}
_SPARE = 64 << 20
"""Disk space, in bytes, to leave free for journals and small files."""


@dataclass(frozen=True)
class ModelJob:
    """The quantization of one model into one file.

    name: the model's name in progress messages.
    file: the new file's path, relative to the destination.
    """

    name: str
    source: Source
    file: Path
    options: QuantizeOptions


@dataclass(frozen=True)
class QuantizePlan:
    """The files that `quantize` writes to the folder `destination`.

    copies: the files to copy unchanged, by the copy's relative path.
    notes: messages for the user.
    """

    destination: Path
    jobs: list[ModelJob]
    copies: dict[Path, Path]
    notes: list[str]

    @property
    def unfinished(self) -> Path:
        """The folder for unfinished files, next to the destination. An interrupted run resumes from this folder."""
        return self.destination.with_name(self.destination.name + ".part")


def checksum_path(file: Path) -> Path:
    """Return the path of the JSON file with a weight file's checksums."""
    return file.with_name(META if file.name == WEIGHTS else f"{file.stem}_meta.json")


def plan_quantize(source: str | Path, destination: str | Path, options: QuantizeOptions) -> QuantizePlan:
    """Return the plan for a quantization, checked from headers alone. Raise InputError for impossible options or paths,
    CheckpointError for unusable weights."""
    source, destination = Path(source).expanduser(), Path(destination).expanduser().absolute()
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    _refuse_existing(destination)
    if options.format not in QUANTIZE_FORMATS:
        raise InputError(f"`format` {options.format!r}: expected one of {', '.join(QUANTIZE_FORMATS)}")
    if options.blocksize not in BLOCK_SIZES:
        raise InputError(f"`blocksize` {options.blocksize}: expected one of {', '.join(map(str, BLOCK_SIZES))}")
    if options.format != "nf4" and (options.search or options.blocksize != QuantizeOptions.blocksize):
        raise InputError(f"`search` and `blocksize` are for nf4, `format` is {options.format}; leave them out")
    if source.is_dir() and (is_causal_folder(source) or not is_model_folder(source)):
        return _plan_package(source, destination, options)
    if is_text_encoder(source):
        if options.loras or options.keep or options.format != "nf4":
            raise InputError(f"{source}: a text encoder takes neither `lora`, `keep` nor `format`; they are for models")
        job = _text_job(source, options)
    else:
        job = _single("model", source, options)
    return QuantizePlan(destination, [job], {}, [])


def _refuse_existing(destination: Path) -> None:
    if destination.exists():
        raise InputError(f"{destination} exists already; name a folder that does not, or remove it")


def _plan_package(root: Path, destination: Path, options: QuantizeOptions) -> QuantizePlan:
    package = find_package(root, assets=options.assets)
    jobs = list(_models(package, options))
    copies, notes = _unchanged_parts(root, package)
    if options.t5:
        if package.text_encoder is None:
            raise InputError(f"{root}: no text encoder in it, so `t5` has nothing to quantize")
        copies = {target: file for target, file in copies.items() if target.parts[0] != package.text_encoder.name}
        jobs.append(_text_job(package.text_encoder, options))
    return QuantizePlan(destination, jobs, copies, notes)


def _models(package: Package, options: QuantizeOptions) -> Iterator[ModelJob]:
    if package.causal is not None:
        yield _single("causal model", package.causal, options)
    for role, path in zip(("high", "low"), package.experts or (), strict=False):
        loras = loras_for(options.loras, role)
        source = open_model(path, options.keep, loras, options.multiple)
        file = Path(f"{role}_noise_model_{_SUFFIXES[options.format]}", WEIGHTS)
        yield ModelJob(f"{role}-noise expert", source, file, replace(options, loras=loras))


def _single(name: str, path: Path, options: QuantizeOptions) -> ModelJob:
    refuse_loras_for_one_expert(options.loras, path)
    return ModelJob(name, open_model(path, options.keep, options.loras, options.multiple), Path(WEIGHTS), options)


def _text_job(path: Path, options: QuantizeOptions) -> ModelJob:
    return ModelJob(
        "text encoder", open_text_encoder(path), Path(TEXT_ENCODER), replace(options, loras=(), format="nf4")
    )


def is_text_encoder(path: Path) -> bool:
    """Return whether a file or folder has a text encoder's tensors. Raise CheckpointError if it is unreadable."""
    weights = path.is_file() or is_model_folder(path)
    return weights and any(wan_key(name) == EMBEDDING for name in read_tensors(path))


def _unchanged_parts(root: Path, package: Package) -> tuple[dict[Path, Path], list[str]]:
    parts = {"text encoder": package.text_encoder, "VAE": package.vae, "tokenizer": package.tokenizer}
    copies: dict[Path, Path] = {}
    for name, path in parts.items():
        if path is not None and path.is_dir():
            folder = name if path is package.tokenizer else path.name  # the official folder is called umt5-xxl
            copies |= {Path(folder, item.name): item for item in path.iterdir() if item.is_file()}
        elif path is not None:
            copies[Path(path.name)] = path
    absent = ", ".join(name for name, path in parts.items() if path is None)
    return copies, [f"{root}: no {absent} in it, so none in the new package"] if absent else []


def quantize(plan: QuantizePlan, show: ShowProgress) -> dict[Path, dict]:
    """Write a plan's files, and return the contents of their checksum files by relative path. An interrupted run is
    resumed. Raise InputError for a locked destination or a full disk, CheckpointError for bad weights."""
    with lock_output(plan.destination):
        return _quantize_alone(plan, show)


def _quantize_alone(plan: QuantizePlan, show: ShowProgress) -> dict[Path, dict]:
    _refuse_existing(plan.destination)  # another run may have finished since the plan was made
    try:
        plan.unfinished.mkdir(parents=True, exist_ok=True)
        for part in plan.unfinished.rglob(f"*{PART}"):  # small files of a killed run
            part.unlink()
        _require_room(plan)
        metas = {checksum_path(job.file): _run_job(job, plan.unfinished, show) for job in plan.jobs}
        for target, source in plan.copies.items():
            _link(source, plan.unfinished / target)
        os.replace(plan.unfinished, plan.destination)
        for job in plan.jobs:  # last: without the journals a run after a failed rename would start from zero
            journal_path(plan.destination / job.file).unlink()
    except OSError as error:
        where = error.filename2 or error.filename or plan.unfinished
        done = f": finished parts are in {plan.unfinished}" if plan.unfinished.is_dir() else ""
        raise InputError(f"{where}: {error.strerror or error}. Mend that and run it again{done}") from error
    return metas


def _run_job(job: ModelJob, folder: Path, show: ShowProgress) -> dict:
    file = folder / job.file
    file.parent.mkdir(parents=True, exist_ok=True)
    with show(job.name, "B") as progress, show(f"{job.name}, read back", "tensors") as checking:
        meta = quantize_source(job.source, file, job.options, progress, checking)
    write_json(folder / checksum_path(job.file), meta)
    if job.source.config is not None:
        write_json(file.with_name(CONFIG), job.source.config)
        open_checkpoint(file)
    else:
        open_weights(file)
    return meta


def _require_room(plan: QuantizePlan) -> None:
    needed = _SPARE
    for job in plan.jobs:
        source, options = job.source, job.options
        needed += file_bytes(source.shapes, source.quantized, options.blocksize, options.quant_type)
        if (plan.unfinished / job.file).exists():  # the file is written in any order, so it may have holes
            status = (plan.unfinished / job.file).stat()
            needed -= status.st_blocks * 512 if hasattr(status, "st_blocks") else 0
    device = plan.unfinished.stat().st_dev
    for copied in plan.copies.values():
        needed += copied.stat().st_size if copied.stat().st_dev != device else 0
    free = shutil.disk_usage(plan.unfinished).free
    if free < needed:
        raise InputError(
            f"{plan.unfinished.parent}: {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB are free; "
            "make room, or name a folder on another disk"
        )


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
