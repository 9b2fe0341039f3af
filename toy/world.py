"""The trained toy: tiny models that know a little world of rooms, in which the camera moves as asked."""

import shutil
from pathlib import Path

from ..errors import InputError
from .package import EXAMPLE

TRAINED = Path(__file__).with_name("trained")
"""The package as it is shipped; `toyworld/`, which is not shipped, has made it. docs/quality.md says how good it is."""


def write_toy_world(folder: str | Path) -> Path:
    """Writes two NF4 experts, text encoder, tokenizer and VAE; in `example/` a room's first frame, prompt and path; in
    `loras/night/` a LoRA for each expert.
    160x96 and 33 frames are what the models were trained for. There is no causal model.

    About 10 MB. Files of these names are replaced. Returns the folder; raises InputError where it cannot be written.
    """
    folder = Path(folder)
    files = sorted(path.relative_to(TRAINED) for path in TRAINED.rglob("*") if path.is_file())
    try:
        for file in sorted(files, key=lambda path: path.parts[0] == EXAMPLE):  # whoever finds the prompt finds all
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TRAINED / file, folder / file)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return folder
