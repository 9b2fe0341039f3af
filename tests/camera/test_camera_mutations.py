"""Camera files with random damage: read, or refused with our error; nothing else comes out."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from camera_cases import (
    BLENDER,
    BLENDER_START,
    LENS,
    MATRICES,
    RE10K,
    TUM,
    camera_path,
    colmap,
    megasam,
    record3d,
    splats,
    transforms,
    vggt,
    write,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lingbot_world.camera.formats import read_camera
from lingbot_world.errors import CameraError

TOKENS = ["nan", "inf", "-1", "0", "1e308", "[]", "{}", "null", '"x"', "true", "-", ",", "[[1]]", "", " ", "\n"]
TOKENS += ["9" * 30]
FRAME = {"cameraTransform": np.ravel(BLENDER_START).tolist(), "intrinsics": [500, 0, 416, 0, 500, 240, 0, 0, 1]}
SPLIT = {f"t_{row}{column}": BLENDER[row][column] for row in range(3) for column in range(4)}
TEXTS = {
    "tum.txt": TUM,
    "odometry.csv": "time,frame,x,y,z,qx,qy,qz,qw,fx,fy,cx,cy\n"
    + "1,1,0,0,0,0,0,0,1,9,9,9,9\n2,2,0,0,1,0,0,0,1,9,9,9,9\n",
    "re10k.txt": RE10K,
    "kitti.txt": "1 0 0 0 0 1 0 0 0 0 1 0\n" * 3,
    "transforms.json": json.dumps(transforms(k1=0.1, camera_model="OPENCV")),
    "camera_path.json": json.dumps(camera_path()),
    "matrices.json": json.dumps({"matrices": MATRICES["opengl_c2w"], "lens": [35, 40], "sensor_width": 36, "fps": 24}),
    "named.json": json.dumps([{"w2c": m, "K": LENS, "w": 832, "h": 480} for m in MATRICES["opencv_w2c"]]),
    "blocks.txt": "1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n" * 3,
    "metadata.json": json.dumps(record3d()),
    "arkit.json": json.dumps([{**FRAME, "timestamp": time, "imageResolution": [832, 480]} for time in (1, 2, 3)]),
    "polycam.json": json.dumps([{**SPLIT, "fx": 1, "cx": 1, "cy": 2, "width": 3, "height": 4}] * 2),
    "cameras.json": json.dumps(splats()),
}
ARCHIVES = {"megasam": megasam, "vggt": vggt}
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from(TOKENS)), min_size=1, max_size=4)
WAYS = st.tuples(st.sampled_from([None, 90.0]), st.sampled_from([None, "opencv_c2w", "opencv_w2c", "threejs"]))
COUNT = int(os.environ.get("CAMERA_MUTATIONS", "60"))
"""Damaged files of a format."""


def check(path: Path, fov_deg: float | None, convention: str | None) -> None:
    try:
        camera, notes = read_camera(path, fov_deg=fov_deg, convention=convention)
    except CameraError:
        return
    assert np.isfinite(camera.c2w).all()
    assert np.isfinite(camera.intrinsics).all()
    assert (camera.intrinsics[:, :2] > 0).all()
    assert all(isinstance(note, str) for note in notes)


def damaged(text: str, edits: list[tuple[int, int, str]]) -> str:
    for at, length, token in edits:
        at %= len(text) + 1
        text = text[:at] + token + text[at + length :]
    return text


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    @settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(edits=EDITS, ways=WAYS)
    def run(edits, ways):
        with TemporaryDirectory() as folder:
            check(write(Path(folder) / name, damaged(TEXTS[name], edits) or " "), *ways)

    run()


@pytest.mark.parametrize("name", ["images.txt", "cameras.txt"])
def test_colmap_texts(name):
    @settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(edits=EDITS, ways=WAYS)
    def run(edits, ways):
        with TemporaryDirectory() as folder:
            file = colmap(Path(folder)) / name
            write(file, damaged(file.read_text(), edits) or " ")
            check(file.parent, *ways)

    run()


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("key", ["images", "intrinsic", "poses"])
def test_archives_of_other_shapes_and_numbers(name, key):
    shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4)
    values = st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, 1e300])
    kinds = st.sampled_from(["f4", "f8", "i4", "u1", "S3", "?", "c16"])

    @settings(max_examples=COUNT // 2, deadline=None, suppress_health_check=list(HealthCheck))
    @given(shape=shapes, value=values, kind=kinds, ways=WAYS)
    def run(shape, value, kind, ways):
        with np.errstate(all="ignore"), TemporaryDirectory() as folder:
            array = np.full(shape, value).astype(kind)
            poses = {"megasam": "cam_c2w", "vggt": "extrinsic"}[name]
            file = ARCHIVES[name](Path(folder) / "a.npz", **{poses if key == "poses" else key: array})
            check(file, *ways)

    run()


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_with_damaged_bytes(name, tmp_path):
    data = ARCHIVES[name](tmp_path / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8)).read_bytes()

    @settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(at=st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=6))
    def run(at):
        broken = bytearray(data)
        for place, value in at:
            broken[place] = value
        with TemporaryDirectory() as folder:
            file = Path(folder) / "a.npz"
            file.write_bytes(broken)
            check(file, None, None)

    run()
