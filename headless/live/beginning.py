"""The files with which a walk begins: the example image of a model's package or a saved state, and a tiny decoder, a
small network that decodes previews faster than the VAE. Needs no torch."""

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
"""RECOMMENDATIONS is the name of a JSON file in the folder `example` of a model's package. For walks (steered videos),
this file may recommend values of the options RECOMMENDED."""
VAE_APPROX = "vae_approx"
"""The name of the subfolder for tiny decoders (fast approximations of the VAE decoder), as in ComfyUI's folder
`models`."""
DECODER_SUFFIXES = (".safetensors", ".pth")


def find_beginning(ckpt: str | Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a walk (a steered video) begins, as a dict by name: `ckpt_dir`, `image`, `prompt`,
    `continue_from`, and those recommended by the package's example/live.json.

    ckpt: the folder of a causal model, or of a package with the folder lingbot_world_fast.
    named: the options of GenerateOptions that the user set. They take precedence; None means unset.

    If the walk continues a saved state, an unset prompt is the state's last prompt, and an unset image stays None.
    Otherwise both come from the package's example. Raises a LingBotError for a missing or invalid file.
    """
    folder = Path(ckpt)
    causal = folder / CAUSAL_FOLDER
    package = folder if causal.is_dir() else folder.absolute().parent
    example = package / EXAMPLE
    image, prompt, state = named.get("image"), named.get("prompt"), state_of(named.get("continue_from"))
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


def state_of(path: str | Path | None) -> Path | None:
    """Return the path of the saved state that `path` names. For the folder of a walk, this is the state's file in it.
    Any other `path` is returned unchecked, and None for None.

    During a walk, and after its process was killed, the folder's state and camera path may be missing or older than the
    latents. This function then writes both files first. Raises InputError if they cannot be written, for instance
    because the walk has no complete chunk.
    """
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
    """Return the Start of a walk (its first frame, prompt, camera and seed). The walk begins at `image` or at the end
    of `state`. If both are None, return `default` with the `prompt`.

    image: a file, a Pillow image, or an array uint8 [H, W, 3]. The camera's lens is that of `default`, and the seed is
        0.
    prompt: the prompt; None means that of `state` if it is set, else that of `default`.
    state: a file, a walk's folder, or a WorldState. The seed is 0.

    Raises InputError if both an image and a state are given, and for an invalid file.
    """
    from ...live import Start
    from ...pipeline.geometry import Geometry, first_frame
    from ...pipeline.state import WorldState, load_state
    from ..files.pictures import read_image

    check_types({"state": state}, {"state": str | Path | WorldState | None})
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


def _recommended_options(file: Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `file`, the live.json of a package, recommends. Options that the user set, which are in
    `named`, are left out. Width and height are both left out if the user set a size.

    Return an empty dict if the file does not exist. Also return an empty dict if the walk continues a state, because
    the state determines size and chunk. Raises InputError for an invalid file.
    """
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
    """Return the file of a tiny decoder. `decoder`: this file, or a name such as taew2_1, without a suffix. Raises
    InputError if no file is found.

    A name is looked up in these folders, in this order:

    - the model's folder `ckpt`;
    - the folder `vae_approx` of `ckpt` and of its three nearest parents;
    - models/vae_approx in the current folder.
    """
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
