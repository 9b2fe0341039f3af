"""The defaults of a walk's start: a package's example, or a state's prompt. Importing this module does not import
torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ..options import PARTS, SIZE

if TYPE_CHECKING:
    from ...live import Engine, Start

CAUSAL_FOLDER, EXAMPLE, EVENTS = "lingbot_world_fast", "example", "events.json"
PROMPT = "A quiet place in the evening light; the camera moves through it."
WISHES, WISHED = "live.json", ("width", "height", "chunk", "schedule")
"""The file in which a package's example may set good options for a walk, and the options that it may set."""


def find_beginning(ckpt: str | Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `ckpt_dir`, `image`, `prompt` and `continue_from` of a walk, plus those options of the
    package's example/live.json that are not `named`.

    `named`: options of GenerateOptions, None for an unset one. A package is the folder of a toy, which contains the
    causal model's folder, or the parent of the model's folder. Raises a LingBotError."""
    folder = Path(ckpt)
    causal = folder / CAUSAL_FOLDER
    package = folder if causal.is_dir() else folder.absolute().parent
    example = package / EXAMPLE
    image, prompt, state = named.get("image"), named.get("prompt"), state_of(named.get("continue_from"))
    values: dict[str, Any] = {"ckpt_dir": causal if causal.is_dir() else folder}
    if image is None and state is None:
        image = example / "image.png"
        if not image.is_file():
            _find_model(values["ckpt_dir"], named)
            raise InputError("`image` is missing: the image in which a walk begins")
    if prompt is None and state is not None:
        from ...pipeline.state import last_prompt

        prompt = last_prompt(state)
    if prompt is None:
        told = example / "prompt.txt"
        prompt = _text(told) if told.is_file() else PROMPT
    values |= _wishes(example / WISHES, named)
    return values | {"image": image, "prompt": prompt, "continue_from": state}


def state_of(path: str | Path | None) -> Path | None:
    """Return the path of the state file. For a walk's folder, write its state and camera path first if they are
    missing."""
    if path is None or not Path(path).is_dir():
        return None if path is None else Path(path)
    from ...live.folder.reading import whole_state

    return whole_state(Path(path))


def start_of(engine: Engine, default: Start, image: Any, prompt: str | None, state: Any) -> Start:
    """Return the start of a walk at an image (a file, a Pillow image or an array) or after a state (a file, the folder
    of a walk, or a WorldState), by default that of `default`. Raises InputError."""
    from ...live import Start
    from ...pipeline.geometry import Geometry, first_frame
    from ...pipeline.state import WorldState, load_state
    from ..files.pictures import read_image

    if image is not None and state is not None:
        raise InputError("an image and a state are given; a state has a first frame of its own: give one of both")
    if state is not None:
        found = state if isinstance(state, WorldState) else load_state(state_of(state) or state)
        return Start.after(found, prompt or "")
    start = default if prompt is None else replace(default, prompt=prompt)
    if image is None:
        return start
    frame = first_frame(read_image(image), Geometry(*engine.size, frames=1))
    return Start(frame, start.prompt, start.lens)


def _text(file: Path) -> str:
    """Return the content of an example's text file. Raises InputError."""
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except ValueError as error:
        raise InputError(f"{file}: not UTF-8 text ({error}); save it as UTF-8, or give `prompt`") from error


def _find_model(folder: Path, named: Mapping[str, Any]) -> None:
    """Raise a LingBotError for a folder without a model."""
    from ...loaders import find_package

    parts = {name: named.get(name) for name in PARTS}
    find_package(folder, assets=named.get("assets_dir"), release=named.get("release"), **parts)


def _wishes(file: Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a package's file that are not `named`. Nothing is returned for a continued state, which has
    its own size and chunk."""
    if not file.is_file() or named.get("continue_from") is not None:
        return {}
    try:
        told = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error}); write the package again, or remove this file") from error
    if not isinstance(told, dict) or not told.keys() <= set(WISHED):
        raise InputError(
            f"{file}: {told!r:.200}, expected an object of {', '.join(WISHED)}; write the package again, "
            "or remove this file"
        )
    for name, value in told.items():
        if type(value) is not (str if name == "schedule" else int):
            expected = "text" if name == "schedule" else "a whole number"
            raise InputError(f"{file}: {name} is {value!r:.200}, expected {expected}; mend it, or remove this file")
    size = named.get("size")
    sized = named.get("width") or named.get("height") or (size is not None and tuple(size) != SIZE)
    return {
        name: value for name, value in told.items() if named.get(name) is None and not (sized and name in WISHED[:2])
    }
