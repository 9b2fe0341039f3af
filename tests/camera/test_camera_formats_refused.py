"""Camera files that are refused, and in which words."""

import json

import numpy as np
import pytest
from camera_cases import (
    BLENDER,
    IMAGES,
    LENS,
    MATRICES,
    START,
    camera_path,
    colmap,
    colmap_binary,
    transforms,
    vipe,
    write,
)
from lingbot_world.camera.formats import FORMATS, read_camera
from lingbot_world.errors import CameraError


def re10k(*lines: str) -> str:
    return "\n".join(lines)


LINE = "0 .6 1 .5 .5 0 0 1 0 0 0 0 1 0 0 0 0 1 0"


@pytest.mark.parametrize(
    ("format", "name", "text", "complaint"),
    [
        ("realestate10k", "a.txt", re10k(LINE, "1 2 3"), "line 2 has 3 columns, expected 19"),
        ("realestate10k", "a.txt", re10k(LINE.replace(".6", "600")), "in pixels"),
        ("realestate10k", "a.txt", re10k(LINE.replace(".6", "x")), "line 1: could not convert"),
        ("realestate10k", "a.txt", re10k(LINE.replace("1 0 0 0 0", "nan 0 0 0 0", 1)), "frame 0 is not finite"),
        ("realestate10k", "a.txt", re10k(*(f"{t}{LINE[1:]}" for t in (0, 1, 2, 5, 6))), "missing or out of order"),
        ("realestate10k", "a.txt", "https://example.org\n", "no camera lines"),
        ("realestate10k", "a.txt", "", "0 bytes"),
        ("transforms", "a.json", "{", "not JSON"),
        ("transforms", "a.json", "[]", "list, expected an object"),
        ("transforms", "a.json", json.dumps({"w": 1}), "no frames; found w"),
        ("transforms", "a.json", json.dumps(transforms(frames=[])), "frames is not a list"),
        ("transforms", "a.json", json.dumps(transforms(w=0)), "image size 0"),
        ("transforms", "a.json", json.dumps(transforms(fl_x="long")), "fl_x"),
        ("transforms", "a.json", json.dumps(transforms(fl_x=-5)), "focal length of zero or less"),
        ("transforms", "a.json", json.dumps(transforms(frames=[{"transform_matrix": [[1], []]}])), "unequal length"),
        ("transforms", "a.json", json.dumps(transforms(handedness="left")), "handedness is 'left': left-handed"),
        ("transforms", "a.json", json.dumps(transforms(coordinate_system="Unity")), "'Unity': left-handed axes"),
        ("tum", "a.csv", "time,x,y,z,q0,q1,q2,q3\n0,0,0,0,1,0,0,0\n", "columns 'time,x,.*' are not understood"),
        ("tum", "a.csv", "frame,x,y,z,pitch,yaw,roll,fov\n0,0,0,0,0,0,0,1\n", "are not understood"),
        ("kitti", "a.txt", "1 0 0 0\n0 1 0 0\n0 0 1 0\n", "3 lines of 4 numbers, expected 4 for each frame"),
        ("camera_path", "a.json", json.dumps(camera_path(camera_type="fisheye")), "fisheye"),
        ("camera_path", "a.json", json.dumps(camera_path(camera_path=[{"fov": 1}])), "no camera_to_world"),
    ],
)
def test_bad_files_are_refused_in_words(tmp_path, format, name, text, complaint):
    with pytest.raises(CameraError, match=complaint) as raised:
        read_camera(write(tmp_path / name, text), format)
    assert len(str(raised.value)) < 400


def test_missing_frames_are_refused_by_name(tmp_path):
    frames = [{"file_path": f"{n}.png", "transform_matrix": BLENDER} for n in (1, 2, 3, 7)]
    with pytest.raises(CameraError, match="between 3 and 7"):
        read_camera(write(tmp_path / "t.json", json.dumps(transforms(frames=frames))), "transforms")
    gappy = vipe(tmp_path, [START] * 4, (0, 1, 2, 5), [LENS] * 4)
    with pytest.raises(CameraError, match="between 2 and 5"):
        read_camera(gappy, "vipe", image_size=(832, 480))


@pytest.mark.parametrize(
    ("images", "cameras", "complaint"),
    [
        (IMAGES.replace(" 7 frame10", " 8 frame10"), "7 PINHOLE 832 480 1 1 1 1", "camera 8, which cameras.txt lacks"),
        (IMAGES, "7 LENSLESS 832 480 1", "LENSLESS"),
        (IMAGES, "7 PINHOLE 832 480 500", "expected 4"),
        ("1 1 0 0 0 0 0 0 7\n\n", "7 PINHOLE 832 480 1 1 1 1", "9 columns, expected 10"),
        ("1 0 0 0 0 0 0 0 7 a.png\n\n", "7 PINHOLE 832 480 1 1 1 1", "zero quaternion"),
        ("# nothing\n", "7 PINHOLE 832 480 1 1 1 1", "no images"),
    ],
)
def test_bad_colmap_is_refused(tmp_path, images, cameras, complaint):
    with pytest.raises(CameraError, match=complaint):
        read_camera(colmap(tmp_path, images, cameras), "colmap")


@pytest.mark.parametrize(
    ("name", "format", "right"),
    [("poses.npy", "transforms", "lingbot"), ("clip.npz", "transforms", "vipe"), ("t.json", "vipe", "transforms or")],
)
def test_a_file_of_another_format_names_the_right_one(tmp_path, name, format, right):
    with pytest.raises(CameraError, match=f"the `format` is {format}; a .* file is {right}.*choose that"):
        read_camera(tmp_path / name, format)


@pytest.mark.parametrize("format", FORMATS)
def test_missing_and_huge_files_are_refused_by_every_reader(tmp_path, format):
    convention = "opencv_c2w" if format == "matrices" else None
    with pytest.raises(CameraError, match="no such file"):
        read_camera(tmp_path / "nowhere", format, convention=convention)
    big = f"big{FORMATS[format].suffixes[0]}"
    for name in ("poses.npy", "images.txt", big):
        with (tmp_path / name).open("wb") as file:
            file.truncate(100 * 2**20 if format not in ("megasam", "vggt") else 20 * 2**30)
    target = tmp_path if format in ("lingbot", "colmap") else tmp_path / big
    with pytest.raises(CameraError, match="at most (64|16384) MiB"):
        read_camera(target, format, convention=convention)


def test_vipe_files_that_are_something_else(tmp_path):
    for content in (b"no archive", b"PK\x03\x04 broken"):
        file = tmp_path / "clip.npz"
        file.write_bytes(content)
        with pytest.raises(CameraError, match="not a ViPE"):
            read_camera(file, "vipe")
    np.savez(tmp_path / "clip.npz", poses=np.eye(4))
    with pytest.raises(CameraError, match="data"):
        read_camera(tmp_path / "clip.npz", "vipe")


def test_the_convention_is_never_guessed(tmp_path):
    file = write(tmp_path / "m.json", json.dumps(MATRICES["opencv_c2w"]))
    with pytest.raises(CameraError, match="expected one of opencv_c2w"):
        read_camera(file, "matrices")
    with pytest.raises(CameraError, match="`convention` threejs for kitti, expected one of opencv_c2w"):
        read_camera(write(tmp_path / "00.txt", "1 0 0 0 0 1 0 0 0 0 1 0"), "kitti", convention="threejs")
    with pytest.raises(CameraError, match="expected one of lingbot"):
        read_camera(file, "auto")
    with pytest.raises(CameraError, match="16 numbers by column"):
        read_camera(file, "matrices", convention="threejs")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("images.bin", lambda data: data[:-1], "breaks off in image 1; copy it again"),
        ("images.bin", lambda data: data[:40], "breaks off after 40 bytes"),
        ("images.bin", lambda data: (2**60).to_bytes(8, "little") + data[8:], "breaks off after"),
        ("images.bin", lambda data: bytes(8), "no images"),
        ("cameras.bin", lambda data: data[:-8], "breaks off"),
        ("cameras.bin", lambda data: data[:12] + b"\x63" + data[13:], "of model 99, expected SIMPLE_PINHOLE"),
        ("cameras.bin", lambda data: bytes(8), "camera 7, which cameras.bin lacks"),
    ],
)
def test_bad_colmap_in_binary_is_refused(tmp_path, name, change, complaint):
    file = colmap_binary(tmp_path) / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CameraError, match=complaint):
        read_camera(tmp_path, "colmap")


def test_what_cannot_be_told_or_was_told_wrong_names_the_option(tmp_path):
    with pytest.raises(
        CameraError, match="the format of the camera file is not recognised; give `format`, one of lingbot, vipe"
    ):
        read_camera(write(tmp_path / "a.txt", "milk"))
    with pytest.raises(CameraError, match=r"line 2 has 3 columns, .* \(read as kitti; `format` names another one\)"):
        read_camera(write(tmp_path / "a.txt", "1 0 0 0 0 1 0 0 0 0 1 0\n1 2 3"))
    with pytest.raises(CameraError, match="`convention` None for matrices"):
        read_camera(write(tmp_path / "m.json", json.dumps(MATRICES["opencv_c2w"])))


@pytest.mark.parametrize("name", ["poses.json", "poses.txt", "poses.csv"])
def test_a_file_in_utf_16_is_refused_as_such(tmp_path, name):
    """PowerShell 5 writes what `>` redirects in UTF-16."""
    (tmp_path / name).write_text("1 0 0 0 0 1 0 0 0 0 1 0\n" * 9, encoding="utf-16")
    with pytest.raises(CameraError, match="not UTF-8 text; save it as UTF-8"):
        read_camera(tmp_path / name)
