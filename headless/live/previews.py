"""The search for the file of a tiny decoder, a small network that decodes previews of a walk faster than the VAE."""

from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError

FOLDER = "vae_approx"
"""ComfyUI's folder for small decoders in its folder `models`."""
SUFFIXES = (".safetensors", ".pth")


def find_tiny_decoder(decoder: str | Path, ckpt: str | Path) -> Path:
    """Return the file of a tiny decoder. `decoder`: this file, or a name such as taew2_1, which is looked up in the
    model's folder `ckpt`, in the `vae_approx` folders of `ckpt` and its parents, and in models/vae_approx of the
    current folder. Raises InputError if no file is found."""
    path = Path(decoder).expanduser()
    if path.is_file():
        return path
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        raise InputError(f"`decoder` {decoder}: there is no such file; name a file of taew2_1, or its name alone")
    folders = [*dict.fromkeys(_folders(Path(ckpt).absolute()))]
    found = [file for folder in folders for suffix in SUFFIXES if (file := folder / f"{path}{suffix}").is_file()]
    if found:
        return found[0]
    places = ", ".join(map(str, folders))
    raise InputError(f"`decoder` {decoder}: neither {path}.safetensors nor {path}.pth is in {places}; name the file")


def _folders(ckpt: Path) -> Iterator[Path]:
    yield ckpt if ckpt.is_dir() else ckpt.parent
    yield from (folder / FOLDER for folder in (ckpt, *list(ckpt.parents)[:3]))
    yield Path.cwd() / "models" / FOLDER
