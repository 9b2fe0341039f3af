"""The files with which a walk begins: example image or saved state, and tiny decoder. The module imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...fields import text_of
from ...live.folder.settings import CAMERA, SETTINGS_FILE, STATE
from ...typed import check_types
from ..options import PARTS, SIZE

if TYPE_CHECKING:
    from ...live import Engine, Start

CAUSAL_FOLDER, EXAMPLE = "lingbot_world_fast", "example"
PROMPT = "A quiet place in the evening light; the camera moves through it."
RECOMMENDATIONS, RECOMMENDED = "live.json", ("width", "height", "chunk", "schedule")
"""The file in a model package that recommends walk options. RECOMMENDED: the options that this file may set."""
VAE_APPROX = "vae_approx"
"""The subfolder for tiny decoders, as in ComfyUI's folder `models`."""
DECODER_SUFFIXES = (".safetensors", ".pth")


def find_beginning(ckpt: str | Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a walk begins: model folder, image, prompt, state, and the recommended options.
    `ckpt` is the package or model folder. The user's options `named` take precedence."""
    folder = Path(ckpt)
    causal = folder / CAUSAL_FOLDER
    package = folder if causal.is_dir() else folder.absolute().parent
    example = package / EXAMPLE
    image, prompt, state = named.get("image"), named.get("prompt"), update_state(named.get("continue_from"))
    values: dict[str, Any] = {"ckpt_dir": causal if causal.is_dir() else folder}
    if image is None and state is None:
        image = example / "image.png"
        if not image.is_file():
            from ...loaders import find_package

            parts = {name: named.get(name) for name in PARTS}
            find_package(values["ckpt_dir"], assets=named.get("assets_dir"), release=named.get("release"), **parts)
            raise InputError("`image` is missing: the image in which a walk begins")  # the folder has a model
    if prompt is None and state is not None:
        from ...pipeline.state import last_prompt

        prompt = last_prompt(state)
    if prompt is None:
        file = example / "prompt.txt"
        prompt = text_of(file).strip() if file.is_file() else PROMPT
    values |= _recommended_options(example / RECOMMENDATIONS, named)
    return values | {"image": image, "prompt": prompt, "continue_from": state}


def update_state(path: str | Path | None) -> Path | None:
    """Return the path of a saved state. If `path` is a walk's folder, write the folder's state file if missing or
    outdated, and return this file. If `path` is a file or None, return it unchanged."""
    if path is None or not Path(path).is_dir():
        return None if path is None else Path(path)
    folder = Path(path)
    files = (folder / name for name in (STATE, f"{CAMERA}/poses.npy", "latent.f32"))
    state, poses, latents = (file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
    is_walk = (folder / SETTINGS_FILE).is_file()  # a state alone is enough
    if not state or (is_walk and (not poses or min(state, poses) < latents)):
        from ...live.folder.reading import write_state_and_camera

        write_state_and_camera(folder)
    return folder / STATE


def start_of(engine: Engine, default: Start, image: Any, prompt: str | None, state: Any) -> Start:
    """Return the Start of a walk from `image` or from the saved `state`. If both are None, return `default`. A `prompt`
    other than None replaces the Start's prompt. Raises InputError for both an image and a state."""
    from ...live import Start
    from ...pipeline.geometry import Geometry, first_frame
    from ...pipeline.state import WorldState, load_state
    from ..files.pictures import read_image

    check_types({"state": state}, {"state": str | Path | WorldState | None})
    if image is not None and state is not None:
        raise InputError("an image and a state are given; a state has a first frame of its own: give one of both")
    if state is not None:
        found = state if isinstance(state, WorldState) else load_state(update_state(state) or state)
        return Start.after(found, prompt or "")
    start = default if prompt is None else replace(default, prompt=prompt)
    if image is None:
        return start
    frame = first_frame(read_image(image), Geometry(*engine.size, frames=1))
    return Start(frame, start.prompt, start.lens)


def _recommended_options(file: Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a package's live.json recommends and that the user has not set."""
    if not file.is_file() or named.get("continue_from") is not None:
        return {}
    text = text_of(file)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error}); write the package again, or remove this file") from error
    if not isinstance(found, dict) or not found.keys() <= set(RECOMMENDED):
        raise InputError(
            f"{file}: {found!r:.200}, expected an object of {', '.join(RECOMMENDED)}; write the package again, "
            "or remove this file"
        )
    for name, value in found.items():
        if type(value) is not (str if name == "schedule" else int):
            expected = "text" if name == "schedule" else "a whole number"
            raise InputError(f"{file}: {name} is {value!r:.200}, expected {expected}; correct it, or remove this file")
    size = named.get("size")
    sized = named.get("width") or named.get("height") or (size is not None and tuple(size) != SIZE)
    return {
        name: value
        for name, value in found.items()
        if named.get(name) is None and not (sized and name in RECOMMENDED[:2])
    }


def find_tiny_decoder(decoder: str | Path, ckpt: str | Path) -> Path:
    """Return the file of a tiny decoder. `decoder` is the file, or its name without suffix. Look for a name in the
    model folder `ckpt`, and in subfolders vae_approx of this folder and its parents. Raises InputError if no file is
    found."""
    path = Path(decoder).expanduser()
    if path.is_file():
        return path
    if path.suffix in DECODER_SUFFIXES or len(path.parts) > 1:
        raise InputError(f"`decoder` {decoder}: there is no such file; name a file of taew2_1, or its name alone")
    folders = [*dict.fromkeys(_folders(Path(ckpt).absolute()))]
    found = [
        file for folder in folders for suffix in DECODER_SUFFIXES if (file := folder / f"{path}{suffix}").is_file()
    ]
    if found:
        return found[0]
    places = ", ".join(map(str, folders))
    raise InputError(f"`decoder` {decoder}: neither {path}.safetensors nor {path}.pth is in {places}; name the file")


def _folders(ckpt: Path) -> Iterator[Path]:
    yield ckpt if ckpt.is_dir() else ckpt.parent
    yield from (folder / VAE_APPROX for folder in (ckpt, *list(ckpt.parents)[:3]))
    yield Path.cwd() / "models" / VAE_APPROX
