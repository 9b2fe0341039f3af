"""The command `lingbot-world inspect`: describe a model and its memory from the headers of the weight files."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from ...errors import InputError
from ...loaders import Checkpoint, find_package, open_checkpoint
from ...loaders.offload import weight_bytes
from ...loaders.package import ASSETS, ASSETS_PAGES, is_causal_folder, is_model_folder
from ...loaders.release import base_release, named_role
from ...model.choice.card import card_of
from ...model.choice.table import WORKS, candidates
from ...model.choice.trials import stored_choice
from ...model.kv.place import KeyValuePlace
from ...model.memory import decoded_bytes
from ...model.ops.linear_8bit import suited_arithmetic
from ...options import RELEASES, Arithmetic, DtypeName, Precision, torch_dtype
from ...pipeline.geometry import Geometry, explicit_geometry
from ...pipeline.memory import (
    StageEstimate,
    estimate_camera_cache,
    estimate_decoding,
    estimate_encoding,
    estimate_sampling,
    estimate_text,
)
from ...pipeline.rollout_memory import DecoderSettings, RolloutMemory, RolloutWork, converts_weights, estimate_rollout
from ...pipeline.world import WorldMemory
from ...text.weights import EMBEDDING, open_weights, wan_key
from ...vae import is_vae, read_vae, vae_width
from ...weights.files import read_tensors
from ..devices import find_device

PACKAGE_VAE_WIDTH = 96
CONTROLS = {None: "none (plain Wan)", 6: "camera (6 values a pixel)", 7: "action (7 values a pixel)"}


@dataclass(frozen=True)
class Report:
    """A report on a model: `lines` of text, and the memory estimates of a run's stages."""

    lines: list[str]
    stages: list[StageEstimate]

    def __add__(self, other: "Report") -> "Report":
        return Report(self.lines + other.lines, self.stages + other.stages)


class _Work(NamedTuple):
    geometry: Geometry
    precision: Precision
    window: int | None
    sink: int | None


def describe_model(
    path: str | Path,
    size: tuple[int, int],
    frames: int,
    dtype: DtypeName = "bf16",
    arithmetic: Arithmetic = "auto",
    window: int | None = None,
    sink: int | None = None,
    **where: str | None,
) -> str:
    """Return a text that describes a model file or package, and the memory of a run with it.

    size: (width, height) in pixels.
    window, sink: in latent frames; None selects the numbers of the model's release.
    where: optionally `assets`, a folder with the shared parts, and `release`, a key of RELEASES.
    """
    path, geometry = Path(path), explicit_geometry(*size, frames)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    precision = Precision(torch_dtype(dtype), suited_arithmetic(arithmetic, find_device(None)))
    report = _report(path, _Work(geometry, precision, window, sink), where)
    video = f"{geometry.width}x{geometry.height}, {geometry.frames} frames ({geometry.tokens} tokens), {dtype}"
    video += "" if arithmetic in ("auto", dtype) else f", arithmetic {arithmetic}"
    rows: list[tuple[str, ...]] = [("stage", "weights", "work", "all")]
    rows += [(stage.name, *map(_amount, (stage.weights, stage.work, stage.total))) for stage in report.stages]
    widest = max(len(name) for name, *_ in rows)
    table = [name.ljust(widest) + "".join(figure.rjust(11) for figure in figures) for name, *figures in rows]
    return "\n".join(
        [
            *report.lines,
            "",
            describe_kernels(find_device(None)),
            "",
            f"Memory on the device for {video}, computed:",
            *table,
        ]
    )


def describe_kernels(device: torch.device) -> str:
    """Return a line that names the kernel of each operation: the fastest in the stored benchmark of this device, else
    the first supported one."""
    card = card_of(device)
    names = {
        work: stored_choice(work, card) or candidates(work, card)[0].name for work in WORKS if candidates(work, card)
    }
    made = ", ".join(f"{work} by {name}" for work, name in names.items())
    return f"What computes on {card.known_as}: {made} (`lingbot-world doctor` tries each)"


def _report(path: Path, work: _Work, where: dict[str, str | None]) -> Report:
    if path.is_dir() and (where.get("release") or is_causal_folder(path) or not is_model_folder(path)):
        return _package(path, work, where)
    kind = _model_kind(path)
    if kind != "expert":
        _refuse_causal_options(path, work, where)
    if kind == "vae":
        return _vae(path, work.geometry)
    if kind == "text encoder":
        return _text(path, work.precision.dtype)
    checkpoint, release = open_checkpoint(path), where.get("release")
    checkpoint = checkpoint.with_release(release) if release else checkpoint
    if checkpoint.config.causal:
        return _causal(checkpoint, work)
    _refuse_causal_options(path, work, where)
    report = _expert("expert", checkpoint)
    if named_role(checkpoint.path) is None and not (checkpoint.files[0].parent / "config.json").is_file():
        report.lines.append(f"  or a causal model: the files do not show it, so --release {', '.join(RELEASES)} has to")
    return report + _steps(checkpoint, work)


def _model_kind(path: Path) -> str:
    """Return "vae", "text encoder" or "expert", by the tensor names if they show the kind, else by the file name."""
    name = path.name.lower()
    keys = read_tensors(path, hint="t5" if "text_encoder" in name else "")
    if is_vae(keys) or any(wan_key(key) == EMBEDDING for key in keys):
        return "vae" if is_vae(keys) else "text encoder"
    if any(key.endswith("patch_embedding.weight") for key in keys):
        return "expert"
    return "vae" if "vae" in name else "text encoder" if "t5" in name or "text_encoder" in name else "expert"


def _package(folder: Path, work: _Work, where: dict[str, str | None]) -> Report:
    package = find_package(folder, **where)
    missing = [name for name in ASSETS if getattr(package, name) is None]
    report = Report([f"package {folder}"] + [f"  {name}: missing" for name in missing], [])
    if missing:
        report.lines.append(f"  {ASSETS_PAGES} have them: put such a folder next to this one, or name it --assets_dir")
    if package.text_encoder is not None:
        report += _text(package.text_encoder, work.precision.dtype)
    if package.vae is not None:
        report += _vae(package.vae, work.geometry)
    if package.causal is not None:
        width = PACKAGE_VAE_WIDTH if package.vae is None else vae_width(read_vae(package.vae))
        checkpoint, release = open_checkpoint(package.causal), where.get("release")
        return report + _causal(checkpoint.with_release(release) if release else checkpoint, work, width)
    assert package.experts is not None  # a package has either experts or a causal model
    _refuse_causal_options(folder, work, where)
    high, low = map(open_checkpoint, package.experts)
    name, licence, assumed = base_release(high.names)
    report += Report([f"{name} ({licence})", *([assumed] if assumed else [])], [])
    report += _expert("high-noise expert", high) + _expert("low-noise expert", low)
    return report + _steps(high, work) + Report([], [_sampling([high, low], work)])


def _refuse_causal_options(path: Path, work: _Work, where: dict[str, str | None]) -> None:
    for option, given in (("release", where.get("release")), ("window", work.window), ("sink", work.sink)):
        if given is not None:
            raise InputError(f"`{option}` has no effect: {path} is not a causal model; leave it out")


def _expert(role: str, checkpoint: Checkpoint) -> Report:
    config = checkpoint.config
    line = (
        f"{role}: {checkpoint.kind}, {checkpoint.parameters / 1e6:,.1f} M parameters, {_amount(checkpoint.nbytes)}, "
        f"quantization {checkpoint.quantization or 'none'}, control: {CONTROLS[config.control]}"
    )
    first, *more = (file.name for file in checkpoint.files)
    files = f"{first} and {len(more)} more" if len(more) > 1 else ", ".join((first, *more))
    sizes = f"  {config.num_layers} blocks of {config.dim}, {config.num_heads} heads, in {files}"
    return Report([line, sizes], [])


def _causal(checkpoint: Checkpoint, work: _Work, width: int = PACKAGE_VAE_WIDTH) -> Report:
    """Build the report on a causal model: its description, and the memory of the run `work` in each memory mode.
    `width`: the VAE's base channels."""
    release, config = checkpoint.release, checkpoint.config
    assert release is not None  # a causal model has a release
    window, lat_f = release.window.changed(work.window, work.sink, release.chunk), work.geometry.lat_f
    held = window.in_cache(max(release.chunk, lat_f - lat_f % release.chunk), release.chunk)
    cells = work.geometry.lat_h, work.geometry.lat_w
    chunks = RolloutWork(config, cells, release.chunk, held.frames, work.precision, release.guided)
    report = _expert(f"{release.name} ({release.licence})", checkpoint) + Report([*checkpoint.release_lines[1:]], [])
    host = WorldMemory(KeyValuePlace(on_host=True))
    modes = [
        RolloutMemory(),
        RolloutMemory(WorldMemory(KeyValuePlace(int8=True))),
        RolloutMemory(host),
        RolloutMemory(host, resident_blocks=0, vae_tiling=True, park_decoder=True),
    ]
    for memory in modes:
        weights = weight_bytes(checkpoint.rounded(work.precision.dtype), memory.resident_blocks)
        stage = estimate_rollout(chunks, memory, weights, DecoderSettings(width, half=True))
        pinned = chunks.key_values(memory.place).host
        name = f"{stage.name}{f' ({_amount(pinned)})' if pinned else ''}"
        stage = replace(stage, name=name if memory.resident_blocks is None else f"{name}, blocks streamed")
        report += Report([], [stage])
    kept, name = chunks.camera_cache("gpu", 0), "camera cache, used where there is room"
    if converts_weights(checkpoint, work.precision):
        kept += config.num_layers * decoded_bytes(config, work.precision.dtype, work.precision.arithmetic)
        name = "camera cache and decoded weights, used where there is room"
    return report + Report([], [StageEstimate(name, 0, kept)])


def _steps(checkpoint: Checkpoint, work: _Work) -> Report:
    stages = [_sampling([checkpoint], work), _if_short(_sampling([checkpoint], work, blocks=0))]
    cache = estimate_camera_cache(checkpoint, work.geometry, work.precision.dtype)
    if cache:
        stages.append(StageEstimate("camera cache, used where there is room", 0, cache))
    return Report([], stages)


def _sampling(checkpoints: list[Checkpoint], work: _Work, blocks: int | None = None) -> StageEstimate:
    return estimate_sampling(checkpoints, work.geometry, work.precision, camera=True, resident_blocks=blocks)


def _if_short(stage: StageEstimate) -> StageEstimate:
    return replace(stage, name=f"{stage.name}, used if memory is short")


def _text(path: Path, dtype: torch.dtype) -> Report:
    weights = open_weights(path)
    config, nbytes = weights.config, sum(tensor.nbytes for tensor in weights.tensors.values())
    form = f", quantization {weights.quantization}" if weights.quantization else ""
    line = f"text encoder: umt5, {config.num_layers} blocks of {config.dim}, {_amount(nbytes)} on disk{form}, {path}"
    notes = [f"  {weights.note}"] if weights.note else []
    return Report([line, *notes], [estimate_text(config, dtype)])


def _vae(path: Path, geometry: Geometry) -> Report:
    width = vae_width(read_vae(path))
    stages = [partial(estimate_encoding, width, geometry), partial(estimate_decoding, width, geometry, half=True)]
    tiled = [_if_short(stage(tiling=True)) for stage in stages]
    return Report([f"VAE: Wan 2.1, width {width}, {path}"], [*(stage() for stage in stages), *tiled])


def _amount(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.2f} MB"
