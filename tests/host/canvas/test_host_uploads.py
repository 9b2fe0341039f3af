"""Camera files sent to a real ComfyUI: kept under a name made from what is in them, and nothing else offered."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import zipfile

import numpy as np
import pytest
from comfy_server import ComfyServer

pytestmark = pytest.mark.host


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def damaged(method: int) -> bytes:
    """A zip of poses whose compressed bytes are not what was written."""
    whole, begin = zipped({"poses.npy": POSES}, method), 50  # behind its names and sizes
    return whole[:begin] + b"\xff" * 8 + whole[begin + 8 :]


POSES, LENS = npy(np.tile(np.eye(4), (9, 1, 1))), npy(np.array([[500.0, 500.0, 416.0, 240.0]]))


def send(server: ComfyServer, kind: str, files: dict[str, bytes]) -> dict:
    mark = "lingbot-world-upload"
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="kind"\r\n\r\n{kind}\r\n'.encode()]
    for name, data in files.items():
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    body = b"".join(parts) + f"--{mark}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    request = urllib.request.Request(f"{server.url}/lingbot_world/camera_files", body, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def refusal(server: ComfyServer, kind: str, files: dict[str, bytes]) -> str:
    with pytest.raises(urllib.error.HTTPError) as refused:
        send(server, kind, files)
    assert refused.value.code == 400
    return json.load(refused.value)["error"]


@pytest.mark.parametrize(
    "files",
    [
        {"poses.npy": POSES, "intrinsics.npy": LENS},
        {"walk|poses.npy": POSES, "walk|intrinsics.npy": LENS},
        {"walk.zip": zipped({"walk/poses.npy": POSES, "walk/intrinsics.npy": LENS, "walk/note.md": b"not kept"})},
    ],
)
def test_files_a_folder_and_a_zip_become_a_path_that_loads(comfy_server, files):
    name = send(comfy_server, "poses", files)["chosen"]
    folder = comfy_server.base / "input" / name
    assert sorted(path.name for path in folder.iterdir()) == ["intrinsics.npy", "poses.npy"]
    inputs = {"poses": name, "lens": "beside the poses", "frames": 9, "start": 0}
    prompt = {"1": {"class_type": "LingBotWorldLoadPoses", "inputs": inputs}}
    prompt["2"] = {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}}
    assert comfy_server.queue(prompt).outputs["2"]["text"] == ["9"]


def test_the_same_contents_have_one_name_and_others_another(comfy_server):
    first = send(comfy_server, "poses", {"poses.npy": POSES})
    assert send(comfy_server, "poses", {"poses.npy": POSES}) == first
    other = send(comfy_server, "poses", {"poses.npy": npy(np.tile(np.eye(4), (13, 1, 1)))})
    assert other["chosen"] != first["chosen"]
    assert {first["chosen"], other["chosen"]} <= set(other["choices"])


def test_a_zip_keeps_the_folders_that_a_format_needs(comfy_server):
    arrays = {"data": np.tile(np.eye(4), (9, 1, 1)), "inds": np.arange(9)}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    lens = io.BytesIO()
    np.savez(lens, data=np.tile([700.0, 700.0, 640.0, 360.0], (9, 1)), inds=np.arange(9))
    files = {"pose/a.npz": stream.getvalue(), "intrinsics/a.npz": lens.getvalue()}
    answer = send(comfy_server, "cameras", {"vipe.zip": zipped(files)})
    folder, _, file = answer["chosen"].partition("/pose/")
    assert file == "a.npz"
    assert f"{folder}/intrinsics/a.npz" not in answer["choices"]  # a lens is no path


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"walk.zip": zipped({"../../../evil.npy": POSES})}, "is not the name of a camera file"),
        ({"..|evil.npy": POSES}, "is not the name of a camera file"),
        ({"walk.zip": b"PK broken"}, "not a zip that can be unpacked"),
        ({"walk.zip": damaged(zipfile.ZIP_DEFLATED)}, "not a zip that can be unpacked"),
        ({"walk.zip": damaged(zipfile.ZIP_LZMA)}, "not a zip that can be unpacked"),
        ({"walk.zip": zipped({"n" * 300 + ".npy": POSES})}, "File name too long"),
        ({"lens.npy": LENS}, "none of these files is"),
        ({"film.mp4": b"x"}, "expected .npy, .npz, .json, .txt, .csv, .tum, .bin or a .zip"),
    ],
)
def test_what_is_no_camera_path_is_refused_and_not_kept(comfy_server, files, words):
    kept = comfy_server.base / "input" / "camera"
    before = sorted(kept.rglob("*")) if kept.is_dir() else []
    assert words in refusal(comfy_server, "poses", files)
    assert (sorted(kept.rglob("*")) if kept.is_dir() else []) == before
    assert not list(comfy_server.base.rglob("evil.npy"))


def test_lists_offer_only_what_they_can_read(comfy_server):
    place = comfy_server.base / "input"
    (place / "workflow.json").write_text(json.dumps({"1": {"class_type": "LoadImage", "inputs": {}}}))
    (place / "notes.txt").write_text("buy milk")
    (place / "audio.npy").write_bytes(npy(np.zeros((2, 44100))))
    (place / "matrices.json").write_text(json.dumps(np.tile(np.eye(4), (9, 1, 1)).tolist()))
    offered = {
        name: comfy_server.object_info(node)[node]["input"]["required"][name][1]["options"]
        for node, name in (("LingBotWorldLoadPoses", "poses"), ("LingBotWorldCameraImport", "file"))
    }
    assert "matrices.json" in offered["file"]
    for name in ("workflow.json", "notes.txt", "audio.npy"):
        assert name not in offered["file"] + offered["poses"]
