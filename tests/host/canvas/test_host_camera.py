"""The camera nodes on a real ComfyUI: what each gives the model equals the engine's own conditioning."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from comfy_server import ComfyServer, FailedPromptError
from comfy_tree import PACK
from lingbot_world.camera import action_embedding, actions_from_keys, camera_embedding
from lingbot_world.camera.formats import write_camera
from lingbot_world.camera.moves import path_from_editor, path_from_keys, path_from_load3d, preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.plucker import scaled_lens
from PIL import Image
from refused_prompts import refuses
from rendered_room import render_room

pytestmark = pytest.mark.host

HEIGHT, WIDTH = 64, 96
NODES = [
    "LingBotWorldLoadPoses",
    "LingBotWorldApplyCamera",
    "LingBotWorldCameraPreset",
    "LingBotWorldCameraChain",
    "LingBotWorldCameraKeys",
    "LingBotWorldCameraKeyframes",
    "LingBotWorldCameraImport",
    "LingBotWorldCameraPreview",
    "LingBotWorldMeasureCamera",
    "LingBotWorldCameraFromVideo",
    "LingBotWorldCameraEditor",
]
EDITOR = (Path(__file__).parents[2] / "data" / "editor_cases.json").read_text()


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def load(poses: str = "walk", **changes) -> dict:
    defaults = {"lens": "beside the poses", "frames": 17, "start": 0}
    return node("LingBotWorldLoadPoses", poses=poses, **{**defaults, **changes})


def preset(name: str = "orbit_left", frames: int = 17, **changes) -> dict:
    defaults = {"amount": 0, "easing": "linear", "radius": 4, "shake": 0, "seed": 0, "fov_deg": 79}
    return node("LingBotWorldCameraPreset", preset=name, frames=frames, **{**defaults, **changes})


def keys(script: str) -> dict:
    return node("LingBotWorldCameraKeys", script=script, step=0.05, turn_deg=2, fov_deg=79)


def chained(cameras: dict, **changes) -> dict:
    defaults = {"frames": 0, "reverse": False, "loop": False, "smooth": 0, "easing": "linear"}
    links = {f"cameras.{name}": link for name, link in cameras.items()}
    return node("LingBotWorldCameraChain", **links, **{**defaults, **changes})


def keyframes(views: int) -> dict:
    links = {f"cameras.camera{i}": [f"view{i}", 0] for i in range(views)}
    options = {"spacing": "even", "turns": "smooth", "easing": "linear", "fov_deg": 0}
    return node("LingBotWorldCameraKeyframes", **links, frames=17, **options)


def imported(file: str, format: str, **changes) -> dict:
    defaults = {"convention": "set by the format", "frames": 17, "fit": "cut", "start": 0}
    sizes = {"image_width": 0, "image_height": 0, "fov_deg": 0}
    return node("LingBotWorldCameraImport", file=file, format=format, **{**defaults, **sizes, **changes})


def graph(camera: dict, frames: int = 17, control: str = "camera", **more) -> dict:
    """A camera node applied to a latent of so many frames; both branches saved."""
    apply = {"positive": ["text", 0], "negative": ["text", 0], "camera": ["camera", 0], "latent": ["latent", 0]}
    return {
        "camera": camera,
        "text": node("TestConditioning"),
        "latent": node("EmptyHunyuanLatentVideo", width=WIDTH, height=HEIGHT, length=frames, batch_size=1),
        "apply": node("LingBotWorldApplyCamera", **apply, control=control),
        "positive": node("TestSave", conditioning=["apply", 0], name="positive"),
        "negative": node("TestSave", conditioning=["apply", 1], name="negative"),
        **more,
    }


def given(server: ComfyServer, prompt: dict) -> torch.Tensor:
    """What the model would be given, the same for both branches."""
    server.queue(prompt)
    positive, negative = (torch.load(server.base / "output" / f"{name}.pt") for name in ("positive", "negative"))
    assert torch.equal(positive, negative)
    assert positive.dtype == torch.float32
    return positive


def expected(path: CameraPath, frames: int = 17) -> torch.Tensor:
    return camera_embedding(path.c2w, path.intrinsics, frames=frames, height=HEIGHT, width=WIDTH)


def walk(frames: int = 33) -> CameraPath:
    return path_from_keys("wl-16,wi-17")[:frames]


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer, golden: Path) -> ComfyServer:
    """The shared server with recorded paths in its input folder, and one outside of it."""
    base = comfy_server.base
    write_camera(walk(), base / "input" / "walk")
    write_camera(walk(), base / "input" / "walk" / "transforms.json")
    write_camera(walk(9), base / "input" / "short")
    with np.load(golden / "camera" / "synthetic_f17_64x96.npz") as data:
        write_camera(CameraPath(data["poses"], data["intrinsics"]), base / "input" / "golden")
    write_camera(walk(), base / "input" / "seven")
    np.save(base / "input" / "seven" / "intrinsics.npy", walk().intrinsics[:7])
    (base / "input" / "broken").mkdir()
    (base / "input" / "broken" / "poses.npy").write_bytes(b"nothing")
    (base / "input" / "broken" / "intrinsics.npy").write_bytes(b"nothing")
    np.save(base / "outside.npy", walk().c2w)
    return comfy_server


def test_load_and_apply_equal_the_official_embedding(server, golden):
    with np.load(golden / "camera" / "synthetic_f17_64x96.npz") as data:
        np.testing.assert_allclose(given(server, graph(load("golden"))), data["plucker"], atol=2e-6)


def test_load_poses_from_a_later_start_and_with_the_default_lens(server):
    got = given(server, graph(load(start=10, lens="default (79 degrees)")))
    torch.testing.assert_close(got, expected(CameraPath(walk().c2w[10:27], lens_from_fov(79))))


def test_a_short_file_shortens_the_video_by_its_frames_output(server):
    """The latent's length is wired to the frames output, as in the shipped workflows."""
    prompt = graph(load("short", frames=81))
    prompt["latent"]["inputs"]["length"] = ["camera", 1]
    torch.testing.assert_close(given(server, prompt), expected(walk(9), 9))


def test_a_lens_file_of_another_length_is_cut_to_its_first_row_and_the_log_says_so(server):
    torch.testing.assert_close(given(server, graph(load("seven"))), expected(walk(17)))
    assert "intrinsics.npy has 7 rows for 33 poses: the first row is used for all of them." in server.log()


def test_apply_says_what_the_model_will_not_follow(server):
    given(server, graph(preset("pan_right", 17, amount=177)))
    assert "Fast turn: 44 degrees between frames" in server.log()


@pytest.mark.parametrize(
    ("camera", "path"),
    [
        (preset(), lambda: preset_path("orbit_left", frames=17)),
        (
            preset("dolly_in", easing="ease_in", amount=3, shake=1, seed=5),
            lambda: preset_path("dolly_in", frames=17, easing="ease_in", amount=3, shake=1, seed=5),
        ),
        (keys("wl-17"), lambda: path_from_keys("wl-17")),
        (imported("walk/transforms.json", "transforms"), lambda: walk(17)),
        (imported("walk/poses.npy", "lingbot", fit="resample"), lambda: walk().resampled(17)),
    ],
)
def test_each_source_conditions_as_the_engine_does(server, camera, path):
    torch.testing.assert_close(given(server, graph(camera)), expected(path()), atol=1e-6, rtol=1e-6)


def test_a_chain_goes_on_where_the_last_path_ended(server):
    parts = {"one": preset("pan_right", 9), "two": preset("dolly_in", 9)}
    prompt = graph(chained({"camera0": ["one", 0], "camera1": ["two", 0]}, loop=True, frames=17), **parts)
    joined = preset_path("pan_right", frames=9) + preset_path("dolly_in", frames=9)
    torch.testing.assert_close(given(server, prompt), expected(joined.looped().for_video(17)), atol=1e-6, rtol=1e-6)
    said = server.queue(prompt | {"two": preset("dolly_in", 9, fov_deg=40)}).texts
    assert ("camera", "The lens varies by 126.5%; the model uses the first frame's only.") in said


def test_keyframes_come_from_comfyui_3d_cameras(server):
    target = {"x": 0, "y": 0, "z": 0}
    views = [{"position": {"x": x, "y": 1, "z": 5}, "target": target, "cameraType": "perspective"} for x in (0, 1, 3)]
    nodes = {f"view{i}": node("TestView", view=json.dumps(view)) for i, view in enumerate(views)}
    torch.testing.assert_close(given(server, graph(keyframes(3), **nodes)), expected(path_from_load3d(views, 17)))


def test_a_keyframe_comes_from_create_camera_info_with_its_zoom(server):
    """Half way between two orbits of the same distance, seen through a lens that the first one's zoom narrows."""
    made = {"roll": 0, "target_x": 0, "target_y": 0, "target_z": 0, "fov": 60, "camera_type": "perspective"}
    orbits = {
        f"view{i}": node(
            "CreateCameraInfo",
            mode="orbit",
            zoom=2 - i,
            **{"mode.yaw": 40 * i, "mode.pitch": 0, "mode.distance": 4},
            **made,
        )
        for i in (0, 1)
    }
    angles = np.deg2rad([0, 40])
    views = [
        {
            "position": {"x": 4 * np.sin(a), "y": 0, "z": 4 * np.cos(a)},
            "target": {"x": 0, "y": 0, "z": 0},
            "fov": 60,
            "zoom": 2,
        }
        for a in angles
    ]
    path = path_from_load3d(views, 17)
    assert path.fov_deg == pytest.approx(np.rad2deg(2 * np.arctan(np.tan(np.deg2rad(30)) / 2 * 832 / 480)))
    torch.testing.assert_close(given(server, graph(keyframes(2), **orbits)), expected(path), atol=1e-5, rtol=1e-5)


def test_the_editor_state_is_what_the_model_gets(server):
    state = next(case["state"] for case in json.loads(EDITOR)["paths"] if len(case["state"]["keyframes"]) == 3)
    camera = node("LingBotWorldCameraEditor", path=json.dumps(state))
    wanted = path_from_editor(state)
    torch.testing.assert_close(given(server, graph(camera, len(wanted))), expected(wanted, len(wanted)))


def test_action_control_takes_the_keys_along(server):
    got = given(server, graph(keys("wl-17"), control="action (W, A, S, D)"))
    path = path_from_keys("wl-17")
    size = {"frames": 17, "height": HEIGHT, "width": WIDTH}
    torch.testing.assert_close(got, action_embedding(path.c2w, path.intrinsics, actions_from_keys("wl-17"), **size))


def test_the_preview_is_shown_on_the_node_with_the_first_frame(server):
    image = node("EmptyImage", width=64, height=48, batch_size=1, color=0xFF0000)
    picture = {"image": image, "camera": preset(), "size": node("TestConditioning")}
    shown = node("LingBotWorldCameraPreview", camera=["camera", 0], image=["image", 0], frames=0, width=800, height=500)
    run = server.queue({**picture, "preview": shown})
    drawing, light = (np.asarray(Image.open(file).convert("RGB"), int) for file in run.files(server.base / "temp"))
    assert light.mean() > 128 > drawing.mean()  # one for each theme of the canvas
    assert drawing.shape == (500, 800, 3)
    assert (np.abs(drawing - [235, 2, 3]).max(-1) < 40).sum() > 1000


def test_an_unchanged_file_is_cached_and_a_new_one_is_read(server):
    prompt = graph(load("short", frames=9), 9)
    given(server, prompt)
    assert "camera" not in server.queue(prompt).executed
    write_camera(walk(9).scaled(2).smoothed(1), server.base / "input" / "short")
    assert "camera" in server.queue(prompt).executed
    write_camera(walk(9), server.base / "input" / "short")


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (
            graph(load(), latent=node("EmptyLatentImage", width=WIDTH, height=HEIGHT, batch_size=1)),
            "wire the video latent",
        ),
        (graph(keyframes(1), view0=node("TestView", view="{}")), "camera 1: no position"),
        (graph(load(start=["last", 0]), last=node("PrimitiveInt", value=-9)), "`start` is -9, expected 0 or more"),
        (
            graph(imported("walk/poses.npy", "lingbot", start=["last", 0]), last=node("PrimitiveInt", value=-9)),
            "`start` is -9, expected 0 or more",
        ),
    ],
)
def test_what_cannot_be_filmed_is_an_error_in_words(server, prompt, complaint):
    with pytest.raises(FailedPromptError, match=complaint):
        server.queue(prompt)
    given(server, graph(preset()))


@pytest.mark.parametrize(
    ("camera", "complaint"),
    [
        (load("../outside.npy"), "inside ComfyUI's input folder"),
        (load("/etc/passwd"), "inside ComfyUI's input folder"),
        (load("nowhere"), "was not found"),
        (load(5), "5 was not found"),
        (load("broken"), "not a plain .npy array"),
        (load(start=30), "fewer than 5 of them from frame 30"),
        (imported("walk/transforms.json", "realestate10k"), "format"),
        (imported("walk/transforms.json", "matrices"), "expected one of opencv_c2w"),
        (imported("..\\outside.npy", "lingbot"), "inside ComfyUI's input folder"),
        (keys("walk on"), "cannot read"),
        (node("LingBotWorldCameraEditor", path='{"version": 9}'), "version 9"),
        (node("LingBotWorldCameraEditor", path="{"), "not JSON"),
    ],
)
def test_bad_names_and_scripts_are_refused_before_anything_runs(server, camera, complaint):
    refuses(server, graph(camera), "camera", complaint)


@pytest.mark.parametrize("name", NODES)
def test_every_socket_is_explained(server, name):
    info = server.object_info(name)[name]
    assert info["category"] == "LingBot-World/camera"
    assert info["description"]
    assert "lingbot" in info["search_aliases"]
    assert all(info["output_tooltips"])
    page = (PACK / "web" / "docs" / f"{name}.md").read_text("utf-8")
    for input_name, (_, options) in {**info["input"]["required"], **info["input"].get("optional", {})}.items():
        assert options.get("tooltip"), input_name
        assert f"**{options.get('display_name') or input_name}**" in page, input_name


def measured(camera: dict, images: list, **more) -> dict:
    """A prompt that measures images against a camera."""
    options = {"every": 0, "width": 800, "height": 500}
    asked = node("LingBotWorldMeasureCamera", images=images, camera=["camera", 0], **options)
    return {"camera": camera, "measure": asked, "report": node("PreviewAny", source=["measure", 1]), **more}


def test_a_video_is_measured_and_drawn(server):
    """Frames come out of a file, as a user's do. The same frames make a path, and are looked through for drift."""
    pytest.importorskip("cv2")
    pytest.importorskip("pycolmap")
    path = preset_path("truck_left", frames=9, amount=0.4)
    lens = scaled_lens(path.intrinsics[0], 96, 160)
    for index, picture in enumerate(render_room(path.c2w, lens, 96, 160, 3.0)):
        Image.fromarray(picture).save(server.base / "input" / f"{index}.png")
    loads = {f"load{index}": node("LoadImage", image=f"{index}.png") for index in range(9)}
    batch = node("BatchImagesNode", **{f"images.image{index}": [f"load{index}", 0] for index in range(9)})
    for asked, verdict in (("truck_left", "The video follows"), ("truck_right", "The video does not follow")):
        run = server.queue(measured(preset(asked, 9), ["batch", 0], batch=batch, **loads))
        (report,) = run.outputs["report"]["text"]
        assert verdict in report
        assert "The camera was found in 9 of 9 keyframes: RotErr" in report
        assert any(verdict in text for _, text in run.texts)
        (file,) = run.files(server.base / "temp")
        assert Image.open(file).size == (800, 500)
    made = node("LingBotWorldCameraFromVideo", images=["batch", 0], fov_deg=79.0)
    drift = node("LingBotWorldMeasureDrift", images=["batch", 0], fps=16.0, width=800, height=500)
    notes, figures = (node("PreviewAny", source=[name, port]) for name, port in (("made", 2), ("drift", 1)))
    run = server.queue({"made": made, "drift": drift, "notes": notes, "figures": figures, "batch": batch, **loads})
    assert "Lens: 79.0 degrees, as given" in run.outputs["notes"]["text"][0]
    assert "No drift found in 9 frames" in run.outputs["figures"]["text"][0]
    assert run.progress("drift")[-1] == (9, 9)


def test_cancel_ends_the_look_through_a_video_at_its_next_frame(server):
    pytest.importorskip("cv2")
    video = node("EmptyImage", width=640, height=640, batch_size=400, color=random.randrange(2**24))
    drift = node("LingBotWorldMeasureDrift", images=["video", 0], fps=16.0, width=800, height=500)

    def cancel(kind: str, data: dict) -> None:
        if kind == "progress" and data["node"] == "drift" and data["value"] < 400:
            server.interrupt()

    run = server.queue({"video": video, "drift": drift}, on_event=cancel)
    assert run.interrupted
    assert "drift" not in run.outputs
