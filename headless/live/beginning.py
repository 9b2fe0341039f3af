"""What a walk begins with where nothing is named: the example of a package, a state's prompt. This imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..options import PARTS, SIZE

CAUSAL_FOLDER, EXAMPLE, EVENTS = "lingbot_world_fast", "example", "events.json"
PROMPT = "A quiet place in the evening light; the camera moves through it."
WISHES, WISHED = "live.json", ("width", "height", "chunk", "schedule")
"""A package's example may say in such a file how it is walked in best: what it may name."""


def find_beginning(ckpt: str | Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `ckpt_dir`, `image`, `prompt` and `continue_from` of a walk, and those of the package's
    example/live.json that are not `named`.

    `named`: options of GenerateOptions, None where one is left out. A package is the folder of a toy, whose causal
    model lies in it, or the folder that the model's lies in. Raises a LingBotError."""
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
            raise InputError("`image` is missing: the picture in which a walk begins")
    if prompt is None and state is not None:
        from ...pipeline.state import last_prompt

        prompt = last_prompt(state)
    if prompt is None:
        told = example / "prompt.txt"
        prompt = _text(told) if told.is_file() else PROMPT
    values |= _wishes(example / WISHES, named)
    return values | {"image": image, "prompt": prompt, "continue_from": state}


def state_of(path: str | Path | None) -> Path | None:
    """Return the state that is named. Of a walk's folder state and camera path are written first, if need be."""
    if path is None or not Path(path).is_dir():
        return None if path is None else Path(path)
    from ...live.kept import whole_state

    return whole_state(Path(path))


def _text(file: Path) -> str:
    """What an example's text file says. Raises InputError."""
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
    """What a package's file asks for of what is not named; a state has its own size and chunk."""
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
