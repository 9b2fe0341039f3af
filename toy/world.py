"""The trained toy: tiny models that know a little world of rooms, in which the camera moves as asked."""

import lzma
import shutil
from pathlib import Path

from ..errors import InputError
from .causal import write_causal
from .package import CAUSAL, EXAMPLE

TRAINED = Path(__file__).with_name("trained")
"""The package as it is shipped; `tools/toyworld/`, which is not shipped, made it. docs/quality.md: how good it is."""
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
    shipped = sorted(path.relative_to(TRAINED) for path in TRAINED.rglob("*") if path.is_file())
    try:
        for file in shipped:
            if file.parts[0] != EXAMPLE:
                _copy(file, folder)
        write_causal(folder / CAUSAL, folder / LOW, folder / CHANGE)
        for file in shipped:
            if file.parts[0] == EXAMPLE:  # last: whoever finds the prompt finds all
                _copy(file, folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


def _copy(file: Path, folder: Path) -> None:
    """A shipped file, named by its path in the package, to its place in the folder; a compressed one is unpacked."""
    source, target = TRAINED / file, folder / file
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix != PACKED:
        shutil.copyfile(source, target)
        return
    with lzma.open(source) as packed, target.with_suffix("").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
