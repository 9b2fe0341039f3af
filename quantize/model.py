"""Quantization of one model or text encoder into a file, parameter by parameter."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..loaders.uploader import Uploader, UploadSettings
from ..model.layers.operations import materialise
from ..model.quantized import codec
from ..options import LoraFile, Progress, QuantizeFormat
from ..version import __version__
from ..weights.quantized import quantized_tensors
from ..weights.tensors import MappedFile, TensorEntry
from . import comfy
from .journal import Journal, WrittenParameter
from .source import Source
from .writer import QUANT, TensorFile, Values, linear_weights

SETTINGS = UploadSettings(threads=8, buffers=2, chunk_bytes=8 << 20)
WORST = 10
"""The number of weights that the report lists, largest errors first."""
WRITERS = 4
"""The number of threads that compute checksums and write the file. Each holds one encoded weight."""


@dataclass(frozen=True)
class QuantizeOptions:
    """The settings of a quantization.

    format: the format of the linear layers' matrices.
    search: for nf4, whether to search for the scales with the smallest error.
    blocksize: for nf4, the number of values that share a scale.
    keep: linear layers that stay in bf16, such as `head.head` or `blocks.0.*`.
    loras: LoRAs that are merged into the weights first.
    t5: whether to quantize a package's text encoder, too.
    assets: a folder whose text encoder, tokenizer and VAE replace the package's.
    device: the computing device; None means the GPU if there is one.
    """

    search: bool = False
    keep: tuple[str, ...] = ()
    blocksize: int = 64
    loras: tuple[LoraFile, ...] = ()
    t5: bool = False
    device: str | None = None
    assets: str | Path | None = None
    format: QuantizeFormat = "nf4"

    @property
    def quant_type(self) -> str:
        return self.format.removeprefix("comfy-")

    @property
    def multiple(self) -> int:
        """The number that must divide a quantized matrix's rows and columns."""
        return 16 if self.format == "nvfp4" else 1


def quantize_source(
    source: Source, file: Path, options: QuantizeOptions, progress: Progress, checking: Progress
) -> dict:
    """Write and verify a quantized file, and return the content of quantization_meta.json. An interrupted run is
    resumed.

    progress: called with the source's bytes (done, total) after each parameter.
    checking: called with the number of parameters (done, total) read back for a check.
    """
    with (
        Journal(journal_path(file), _resume_key(source, options)) as journal,
        TensorFile(
            file,
            source.shapes,
            source.quantized,
            quant_type=options.quant_type,
            blocksize=options.blocksize,
            resume=True,
        ) as target,
    ):
        for item in journal.written.values():
            target.states |= {key: state.encode() for key, state in item.states.items()}
        for name in find_damaged(target, journal.written, checking):
            del journal.written[name]
        _write_missing(source, target, journal, options, progress)
        target.finish()
        wrong = find_damaged(target, journal.written, checking)
        if wrong:
            raise CheckpointError(
                f"{file}: {len(wrong)} tensors read back otherwise than they were written "
                f"({', '.join(wrong[:3])}); the disk may be failing. Run it again"
            )
        return _meta(source, options, journal.written)


def journal_path(file: Path) -> Path:
    return file.with_name(file.name + ".journal")


def find_damaged(target: TensorFile, written: Mapping[str, WrittenParameter], progress: Progress) -> list[str]:
    """Read back the parameters in `written`, and return the names of those that do not match their checksums."""
    wrong = []
    with ThreadPoolExecutor(WRITERS) as pool:
        intact = pool.map(
            lambda item: all(target.digest(key) == digest for key, digest in item.sha256.items()), written.values()
        )
        try:
            for done, (name, whole) in enumerate(zip(written, intact, strict=True), 1):
                if not whole:
                    wrong.append(name)
                progress(done, len(written))
        except BaseException:  # Ctrl-C or ComfyUI's interrupt: do not read the rest of 30 GB
            pool.shutdown(cancel_futures=True)
            raise
    return wrong


def _resume_key(source: Source, options: QuantizeOptions) -> dict:
    """Return the settings that determine the file's content. An interrupted run is resumed only with equal settings."""
    files = [*source.files, *(lora.path for lora in options.loras)]
    return {
        "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
        "quantized": sorted(source.quantized),
        "blocksize": options.blocksize,
        "search": options.search,
        "format": options.format,
        "strengths": [lora.strength for lora in options.loras],
    }


def _write_missing(
    source: Source, target: TensorFile, journal: Journal, options: QuantizeOptions, progress: Progress
) -> None:
    missing = {name: entries for name, entries in source.parameters.items() if name not in journal.written}
    done = source.nbytes - sum(entry.nbytes for entries in missing.values() for entry in entries)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    pending: deque[tuple[str, float | None, Future]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool, torch.inference_mode():
        for name, tensors in _tensors(missing, device):
            values, error = _encode(source, name, _decode(source, name, tensors, device), options)
            pending.append((name, error, pool.submit(target.write, name, values)))
            del tensors, values
            if len(pending) > WRITERS:
                _record(journal, target, *pending.popleft())
            done += sum(entry.nbytes for entry in missing[name])
            progress(done, source.nbytes)
        while pending:
            _record(journal, target, *pending.popleft())


def _record(journal: Journal, target: TensorFile, name: str, error: float | None, writing: Future) -> None:
    sha256 = writing.result()
    states = {key: target.states[key].decode() for key in sha256 if key in target.states}
    journal.add(name, WrittenParameter(sha256, states, error))


def _tensors(
    parameters: Mapping[str, list[TensorEntry]], device: torch.device
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    if device.type == "cpu":
        for name, entries in parameters.items():
            for entry in entries:
                if isinstance(entry.source, MappedFile):
                    deque(entry.source.read(entry.offset, entry.nbytes), maxlen=0)
            yield name, {entry.name: entry.view() for entry in entries}
        return
    with Uploader(device, SETTINGS) as uploader:
        following = [*list(parameters.values())[1:], []]
        ahead = uploader.upload(next(iter(parameters.values()), []))
        for name, entries in zip(parameters, following, strict=True):
            (tensors, upload), ahead = ahead, uploader.upload(entries)
            upload.wait()
            yield name, tensors


def _decode(source: Source, name: str, tensors: dict[str, Tensor], device: torch.device) -> Tensor:
    """Return a parameter's values, decoded if it is quantized. Unquantized 8-bit floats become float32."""
    if name in source.packed:
        made = quantized_tensors({name: source.packed[name]}, tensors, None, device)
        return materialise(made[name], torch.empty(0, device=device))
    tensor = tensors[name]
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _encode(source: Source, name: str, tensor: Tensor, options: QuantizeOptions) -> tuple[Values, float | None]:
    """Return a parameter's values to write, and their relative RMS error, or None if unquantized."""
    changes = source.changes.get(name, ())
    for change in changes:
        tensor = change.apply_to(tensor.float())
    total = codec.squared_sum(tensor)
    if not math.isfinite(total):
        path = source.parameters[name][0].path
        where = " with ".join(dict.fromkeys(map(str, (path, *(change.up.path for change in changes)))))
        raise CheckpointError(
            f"{where}: {name} holds NaN or infinity, expected finite numbers; a corrupt file, download it again"
        )
    if name not in source.quantized:
        return tensor, None
    if options.quant_type in comfy.FORMATS:
        values, scales, error = comfy.encode(tensor, options.quant_type)
        return (values, scales), math.sqrt(error / total) if total else 0.0
    candidates = [codec.encode(tensor, options.blocksize, search=search) for search in {False, options.search}]
    errors = [codec.squared_error(tensor, *candidate) for candidate in candidates]
    best = errors.index(min(errors))
    return candidates[best], math.sqrt(errors[best] / total) if total else 0.0


def _meta(source: Source, options: QuantizeOptions, written: Mapping[str, WrittenParameter]) -> dict:
    kind = options.quant_type
    quant = QUANT | {"blocksize": options.blocksize, "scales": "searched" if options.search else "largest value"}
    return {
        "quant": {"format": options.format, "quant_type": kind} if kind in comfy.FORMATS else quant,
        "source": source.folder_name,
        "kept": sorted({*linear_weights(source.shapes)} - source.quantized),
        "loras": [{"file": lora.path.name, "strength": lora.strength} for lora in options.loras],
        "sizes": {"source_bytes": source.nbytes, "parameters": sum(map(math.prod, source.shapes.values()))},
        "versions": {"torch": str(torch.__version__), "lingbot-world": __version__},
        "relative_rms": {name: item.error for name, item in sorted(written.items()) if item.error is not None},
        "sha256": dict(sorted(pair for item in written.values() for pair in item.sha256.items())),
    }


def report(file: Path, meta: dict) -> str:
    """Return a summary for the user: the average error and the weights with the largest errors. `meta` is the content
    of quantization_meta.json; `file` is the path shown in the summary."""
    errors = meta["relative_rms"]
    mean = sum(errors.values()) / max(1, len(errors))
    worst = (f"  {errors[name]:.4f}  {name}" for name in sorted(errors, key=errors.__getitem__, reverse=True)[:WORST])
    bits = 8 if meta["quant"]["quant_type"] in ("fp8", "int8") else 4
    return "\n".join((f"{file}: {len(errors)} weights in {bits} bits, relative error {mean:.4f} on average", *worst))
