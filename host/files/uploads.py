"""The HTTP route by which a browser uploads camera files, each upload to a new folder of ComfyUI's input folder."""

import asyncio
import hashlib
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import folder_paths

from ...camera.pose_folder import LARGEST_FILE
from ...errors import CameraError
from . import camera

ADDRESS = "/lingbot_world/camera_files"
FOLDER = "camera"
KINDS = (".npy", ".npz", ".json", ".txt", ".csv", ".tum", ".bin")
LISTS: dict[str, Callable[[], list[str]]] = {"poses": camera.pose_choices, "cameras": camera.camera_files}
LARGEST_SUM = 512 * 2**20
SLASH = "|"  # stands for a slash in an upload's file name, because browsers send only the part after the last slash
Files = list[tuple[str, bytes]]


def register(server) -> None:
    """Add the route ADDRESS to `server`, ComfyUI's PromptServer."""
    from aiohttp import web

    @server.routes.post(ADDRESS)
    async def keep(request: web.Request) -> web.Response:
        if (request.content_length or 0) > LARGEST_SUM:
            return web.json_response({"error": "more than a camera path needs"}, status=413)
        kind, files = "", []
        async for part in await request.multipart():
            if part.name == "kind":
                kind = await part.text()
            elif part.filename:
                files.append((part.filename.replace(SLASH, "/"), bytes(await part.read())))
        try:
            chosen, choices = await asyncio.to_thread(store_files, kind, files)
        except (CameraError, OSError) as error:  # OSError: a full disk, a name that is too long
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"chosen": chosen, "choices": choices})


def store_files(kind: str, files: Files) -> tuple[str, list[str]]:
    """Store uploaded camera files in a folder of ComfyUI's input folder, and unpack zip archives. Raise CameraError,
    with nothing stored, if no file is usable.

    kind: the node input that lists the files, a key of LISTS.
    files: a pair (name, content) for each file.

    Return the name to select in the input, and all its choices.
    """
    if kind not in LISTS:
        raise CameraError(f"kind is {kind!r}, expected one of {', '.join(LISTS)}")
    found_files: dict[str, bytes] = {}
    for name, data in files:
        known = _unpack(name, data) if name.lower().endswith(".zip") else [(name, data)]
        found_files |= {str(_relative_path(each)): content for each, content in known if each.lower().endswith(KINDS)}
    found = _without_common_folder(sorted(found_files.items()))
    names = ", ".join(name for name, _ in files) or "nothing"
    if not found:
        raise CameraError(f"{names}: expected {', '.join(KINDS)} or a .zip of such files")
    folder = Path(folder_paths.get_input_directory()) / FOLDER / _folder_name(files, found)
    is_new = not folder.exists()
    if is_new:
        _write(folder, found)
    choices = LISTS[kind]()
    below = f"{FOLDER}/{folder.name}"
    ours = [name for name in choices if name == below or name.startswith(below + "/")]
    if not ours:
        if is_new:
            shutil.rmtree(folder)
        expected = "camera-to-world matrices [n, 4, 4] in an .npy" if kind == "poses" else "a camera path"
        raise CameraError(f"{names}: none of these files is {expected}")
    return ours[0], choices


def _unpack(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.lower().endswith(KINDS)]
            if any(entry.file_size > LARGEST_FILE for entry in entries) or (
                sum(entry.file_size for entry in entries) > LARGEST_SUM
            ):
                raise CameraError(f"{name}: unpacks to more than a camera path needs")
            yield from [(entry.filename, archive.read(entry)) for entry in entries]
    except CameraError:
        raise
    except Exception as error:  # raised by zipfile, zlib and lzma
        raise CameraError(f"{name}: not a zip that can be unpacked ({error})") from error


def _relative_path(name: str) -> PurePosixPath:
    parts = [part for part in re.split(r"[\\/]+", name) if part not in ("", ".")]
    if not parts or any(part == ".." or re.search(r"[:\0]", part) for part in parts):
        raise CameraError(f"{name!r} is not the name of a camera file")
    return PurePosixPath(*parts)


def _without_common_folder(files: Files) -> Files:
    tops = {PurePosixPath(name).parts[0] for name, _ in files}
    if len(tops) != 1 or any(len(PurePosixPath(name).parts) == 1 for name, _ in files):
        return files
    return _without_common_folder([(str(PurePosixPath(*PurePosixPath(name).parts[1:])), data) for name, data in files])


def _folder_name(sent: Files, files: Files) -> str:
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    first = _relative_path(sent[0][0]).parts[0].rsplit(".", 1)[0]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', first)[:40] or 'path'}-{digest.hexdigest()[:8]}"


def _write(folder: Path, files: Files) -> None:
    """Write the files to a temporary folder, then rename it, so readers never see an incomplete folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        whole = Path(temporary) / "files"
        for name, data in files:
            path = whole.joinpath(*PurePosixPath(name).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        whole.rename(folder)
