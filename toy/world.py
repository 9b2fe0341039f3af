"""The trained toy package. Its causal model and both experts have the same weights, which generate views of a maze."""

import lzma
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from ..errors import InputError
from ..loaders import open_checkpoint
from ..outputs import lock_output
from .experts import expert_weights, write_expert_folder
from .package import CAUSAL, EXAMPLE, EXPERTS, LOCK_NAME, refuse_other, refuse_real

MAZE = Path(__file__).with_name("maze")
"""The folder of the shipped toy package, a set of small model files. Large files are compressed with xz."""
PACKED = ".xz"
VAE = "Wan2.1_VAE.pth"
KEPT = ("time_*", "head.head", "c2ws_*", "text_embedding*", "patch_embedding*")
"""The layers that stay in bf16 in the 4-bit expert."""


def write_toy_world(folder: str | Path) -> Path:
    """Write the trained toy package and its example, and return the folder. Raises InputError if the folder cannot be
    written or contains other models."""
    folder = Path(folder)
    refuse_real(folder)
    shipped = sorted(path.relative_to(MAZE) for path in MAZE.rglob("*") if path.is_file())
    parts = {place: [file for file in shipped if file.parts[0] == place] for place in (CAUSAL, EXAMPLE)}
    shards = [file.with_suffix("") for file in parts[CAUSAL] if file.suffix == PACKED]
    refuse_other(folder, [*shards, *(Path(place, "model.safetensors") for place in (CAUSAL, *EXPERTS))])
    try:
        with lock_output(folder / LOCK_NAME):
            for file in shipped:
                if file not in parts[CAUSAL] + parts[EXAMPLE]:
                    _copy(MAZE / file, folder / file)
            _write_models(folder, parts[CAUSAL])
            for file in shards:  # files of a maze from an earlier version
                (folder / file).unlink(missing_ok=True)
            for file in parts[EXAMPLE]:  # last, so that a prompt implies a complete package
                _copy(MAZE / file, folder / file)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


write_maze = write_toy_world


def _write_models(folder: Path, shipped: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in shipped:
            _copy(MAZE / file, Path(name, file))
        checkpoint = open_checkpoint(Path(name, CAUSAL))
        config, weights = checkpoint.config, expert_weights(checkpoint)
        del checkpoint
    write_expert_folder(folder / CAUSAL, config, weights.items(), quant_type=None)
    for place, quant_type in zip(EXPERTS, ("nf4", None), strict=True):
        base = replace(config, causal=False)
        write_expert_folder(folder / place, base, weights.items(), quant_type=quant_type, keep=KEPT)


def _copy(source: Path, target: Path) -> None:
    """Copy a shipped file to `target`. A compressed file is decompressed and loses its suffix."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != PACKED:
        shutil.copyfile(source, target)
        return
    with lzma.open(source) as packed, target.with_suffix("").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
