"""The trained toys: tiny models that know a little world of rooms, or a maze, in which the camera moves as asked."""

import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from .causal import CAUSAL_FILE, write_causal
from .package import CAUSAL, EXAMPLE, refuse_other, refuse_real

TRAINED, MAZE = (Path(__file__).with_name(name) for name in ("trained", "maze"))
"""The packages as they are shipped; `tools/toyworld/` and `tools/maze/`, which are not shipped, made them.
docs/quality.md: how good they are."""
PACKED = ".xz"
"""At the end of the names of files that are shipped compressed."""
LOW = "low_noise_model_bnb_nf4"
CHANGE = "loras/causal/low_noise.safetensors"
"""What makes a causal model of the low-noise expert."""


def write_toy_world(folder: str | Path) -> Path:
    """Writes two NF4 experts and a causal model in bf16, text encoder, tokenizer and VAE; in `example/` a room's first
    frame, prompt and path; in `loras/night/` a LoRA for each expert.
    160x96 and 33 frames are what the models were trained for, the causal one up to 117.

    About 23 MB. Files of these names are replaced. Returns the folder; raises InputError where it cannot be written.
    """
    folder = Path(folder)
    return _written(TRAINED, folder, lambda: write_causal(folder / CAUSAL, folder / LOW, folder / CHANGE))


def write_maze(folder: str | Path) -> Path:
    """Writes a maze to walk in: a causal model in bf16, text encoder, tokenizer and VAE; in `example/` a first frame, a
    prompt and a path through a door, and four more first frames with their prompts. It was trained at 256x144, window
    18, sink 6, chunks of 1, 3 and 4.

    About 17 MB. Files of these names are replaced. Returns the folder; raises InputError where it cannot be written.
    """
    return _written(MAZE, Path(folder))


def _written(package: Path, folder: Path, finish: Callable[[], object] | None = None) -> Path:
    """The files of a shipped package in a folder, and what `finish` makes of them."""
    refuse_real(folder)
    shipped = sorted(path.relative_to(package) for path in package.rglob("*") if path.is_file())
    plain = [file.with_suffix("") if file.suffix == PACKED else file for file in shipped]
    refuse_other(folder, [*plain, *([] if finish is None else [Path(CAUSAL, CAUSAL_FILE)])])
    try:
        for file in shipped:
            if file.parts[0] != EXAMPLE:
                _copy(package / file, folder / file)
        if finish is not None:
            finish()
        for file in shipped:
            if file.parts[0] == EXAMPLE:  # last: whoever finds the prompt finds all
                _copy(package / file, folder / file)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


def _copy(source: Path, target: Path) -> None:
    """A shipped file to its place; a compressed one is unpacked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != PACKED:
        shutil.copyfile(source, target)
        return
    with lzma.open(source) as packed, target.with_suffix("").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
