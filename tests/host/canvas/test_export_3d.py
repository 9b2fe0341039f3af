"""The node Export for 3D on a real ComfyUI: its folder, its points in core's preview, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from comfy_server import FailedPromptError, RejectedPromptError
from lingbot_world.camera.formats.files import read_camera
from lingbot_world.camera.moves import path_from_load3d, preset_path
from lingbot_world.camera.moves.keyframes import load3d_camera
from lingbot_world.camera.plucker import scaled_lens
from lingbot_world.export.preview import DOWN_DEG
from PIL import Image
from rendered_room import render_room

pytestmark = pytest.mark.host
FRAMES, HEIGHT, WIDTH = 9, 192, 320


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def export(frames: int = FRAMES, **changes) -> dict:
    preset = {"preset": "truck_left", "amount": 0.4, "easing": "linear", "radius": 4, "shake": 0, "seed": 0}
    given = {"format": "nerfstudio", "every": 1, "points": True, "filename_prefix": "3d/walk", "camera": ["camera", 0]}
    return {
        "camera": node("LingBotWorldCameraPreset", **preset, frames=frames, fov_deg=79),
        "export": node("LingBotWorldExport3D", **{**given, "images": ["batch", 0], **changes}),
        "report": node("PreviewAny", source=["export", 3]),
        "folder": node("PreviewAny", source=["export", 0]),
    }


@pytest.fixture
def video(comfy_server):
    """The nodes that load a room's frames; they are the last camera's whose path `export` has."""
    path = preset_path("truck_left", frames=FRAMES, amount=0.4)
    lens = scaled_lens(path.intrinsics[0], HEIGHT, WIDTH)
    for index, picture in enumerate(render_room(path.c2w, lens, HEIGHT, WIDTH, 1.0)):
        Image.fromarray(picture).save(comfy_server.base / "input" / f"room{index}.png")
    loads = {f"load{index}": node("LoadImage", image=f"room{index}.png") for index in range(FRAMES)}
    return {**loads, "batch": node("BatchImagesNode", **{f"images.image{i}": [f"load{i}", 0] for i in range(FRAMES)})}


def test_a_video_is_exported_and_its_points_are_shown(comfy_server, video):
    pytest.importorskip("pycolmap")
    size = {"width": 64, "height": 64}
    shown = node("PreviewPointCloud", model_3d=["export", 1], camera_info=["export", 2], viewport_state="", **size)
    run = comfy_server.queue({**export(), **video, "shown": shown})
    (report,), (folder,) = run.outputs["report"]["text"], run.outputs["folder"]["text"]
    assert "9 of 9 frames" in report
    assert "points; mean reprojection error" in report
    made = comfy_server.base / "output" / "3d"
    assert folder == str(made / "walk_00001_")
    path, _ = read_camera(made / "walk_00001_/transforms.json")
    expected = preset_path("truck_left", frames=FRAMES, amount=0.4)
    assert np.allclose(path.c2w, expected.c2w, atol=1e-6)
    assert json.loads((made / "walk_00001_/transforms.json").read_text())["ply_file_path"] == "points.ply"
    name, camera, _ = run.outputs["shown"]["result"]
    (cloud,) = comfy_server.base.rglob(name)
    # The viewer moves the middle of the points' box to the origin, and scales the farthest point to a distance of 1.
    _, rows = cloud.read_bytes().split(b"end_header\n")
    places = np.frombuffer(rows, [("place", "<f4", 3), ("colour", "u1", 3)])["place"]
    centre = (places.min(0) + places.max(0)) / 2
    radius = np.linalg.norm(places - centre, axis=1).max()
    again = path_from_load3d([camera, camera], 5)
    down = np.deg2rad(DOWN_DEG)
    assert np.allclose(again.c2w[0, :3, 2], [0, np.sin(down), np.cos(down)], atol=1e-6)
    ahead = expected.c2w[0, :3, 3] - again.c2w[0, :3, 3] * radius - centre * [1, -1, -1]
    assert abs(ahead[0]) < 1e-5
    assert (ahead[1:] > 0).all()  # the view is above and behind the first camera
    assert np.allclose(again.intrinsics[0], expected.intrinsics[0])
    second = comfy_server.queue({**export(format="colmap"), **video}).outputs["folder"]["text"][0]
    assert second == str(made / "walk_00002_")


def test_without_points_the_preview_does_not_run_and_the_frames_are_there(comfy_server, video):
    size = {"width": 64, "height": 64}
    shown = node("PreviewPointCloud", model_3d=["export", 1], viewport_state="", **size)
    run = comfy_server.queue({**export(points=False, filename_prefix="3d/frames"), **video, "shown": shown})
    assert "shown" not in run.outputs
    assert (comfy_server.base / "output/3d/frames_00001_/transforms.json").is_file()


def test_what_cannot_be_exported_is_refused_in_a_sentence(comfy_server, video):
    with pytest.raises(FailedPromptError, match="the video has 9 frames, and its path 13 poses"):
        comfy_server.queue({**export(frames=13, points=False), **video})
    with pytest.raises(FailedPromptError, match="more than the 5 frames that its path has poses for"):
        comfy_server.queue({**export(frames=5, points=False), **video})
    with pytest.raises(RejectedPromptError, match="is not a name inside ComfyUI's output folder"):
        comfy_server.queue({**export(points=False, filename_prefix="../away"), **video})
    with pytest.raises(RejectedPromptError, match="a point cloud has nothing else"):
        comfy_server.queue({**export(points=False, format="ply"), **video})


def test_a_camera_of_a_3d_view_is_the_paths_again():
    path = preset_path("orbit_left", frames=9, amount=0.5)
    view = load3d_camera(path, 4)
    again = path_from_load3d([view], 1)
    assert np.allclose(again.c2w[0], path.c2w[4], atol=1e-9)
    target = dict(view)
    del target["quaternion"]
    assert np.allclose(path_from_load3d([target], 1).c2w[0], path.c2w[4], atol=1e-6)
