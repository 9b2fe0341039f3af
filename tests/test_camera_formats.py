"""Camera files of other programs, each convention pinned by numbers worked out by hand.

The camera of every fixture is one and the same: frame 1 stands at (1, 2, 3) in OpenCV axes and looks to the right
(world +x), its lens 500 pixels at 832x480 with the centre at (416, 240).
"""

import json
from pathlib import Path

import numpy as np
import pytest
from lingbot_world.camera import camera_embedding, load_poses
from lingbot_world.camera.conventions import CONVENTIONS
from lingbot_world.camera.formats import FORMATS, read_camera, write_camera
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.presets import PRESETS, preset_path
from lingbot_world.errors import CameraError

START = np.eye(4)
# right of the camera is world -z, down is +y, forward is +x
THERE = np.array([[0, 0, 1, 1], [0, 1, 0, 2], [-1, 0, 0, 3], [0, 0, 0, 1.0]])
LENS = [500.0, 500.0, 416.0, 240.0]
# world-to-camera of THERE: rotation transposed, translation -R^T t = (3, -2, -1)
EXTRINSIC = [[0, 0, -1, 3], [0, 1, 0, -2], [1, 0, 0, -1], [0, 0, 0, 1.0]]
# THERE with the camera's y and z turned round
BLENDER = [[0, 0, -1, 1], [0, -1, 0, 2], [-1, 0, 0, 3], [0, 0, 0, 1.0]]
# the inverse of BLENDER
VIEW = [[0, 0, -1, 3], [0, -1, 0, 2], [-1, 0, 0, 1], [0, 0, 0, 1.0]]
BLENDER_START = np.diag([1.0, -1, -1, 1]).tolist()


def assert_there(path: CameraPath, lens=LENS) -> None:
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
    np.testing.assert_allclose(path.intrinsics, [lens, lens], atol=1e-9)


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


MATRICES = {
    "opencv_c2w": [START.tolist(), THERE.tolist()],
    "opencv_w2c": [START.tolist(), EXTRINSIC],
    "opengl_c2w": [BLENDER_START, BLENDER],
    "opengl_w2c": [BLENDER_START, VIEW],
    "threejs": [
        [1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1],
        [0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, 0, 1, 2, 3, 1],
    ],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_matrices_under_each_convention(tmp_path, convention):
    file = write(tmp_path / "m.json", json.dumps(MATRICES[convention]))
    path, notes = read_camera(file, "matrices", convention=convention, fov_deg=79)
    assert_there(path, lens_from_fov(79))
    assert notes == []


def test_matrices_as_rows_of_sixteen_and_as_three_by_four(tmp_path):
    flat = [np.ravel(matrix).tolist() for matrix in MATRICES["opencv_c2w"]]
    short = [matrix[:3] for matrix in MATRICES["opencv_c2w"]]
    for entries in (flat, short):
        file = write(tmp_path / "m.json", json.dumps({"matrices": entries, "fps": 24}))
        path, notes = read_camera(file, "matrices", convention="opencv_c2w")
        assert_there(path, lens_from_fov(79))
        assert path.fps == 24
        assert "No lens" in notes[0]


RE10K = (
    "https://example.org/video\n"
    "0 0.6009615384615384 1.0416666666666667 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0\n"
    "33366 0.6009615384615384 1.0416666666666667 0.5 0.5 0 0 0 0 -1 3 0 1 0 -2 1 0 0 -1\n"
)


def test_realestate10k(tmp_path):
    for text in (RE10K, RE10K.split("\n", 1)[1]):
        path, notes = read_camera(write(tmp_path / "clip.txt", text), "realestate10k")
        assert_there(path)
        assert notes == []


# qw qx qy qz of world-to-camera: a quarter turn about y, to the left (-90 degrees): w = cos 45, y = -sin 45
HALF = 0.7071067811865476
IMAGES = (
    "# Image list with two lines of data per image\n"
    f"2 {HALF} 0 {-HALF} 0 3 -2 -1 7 frame10.png\n"
    "100.0 200.0 -1 110.0 210.0 5\n"
    "1 1 0 0 0 0 0 0 7 frame9.png\n"
    "\n"
)


def colmap(folder: Path, images=IMAGES, cameras="7 PINHOLE 1664 960 1000 1000 832 480") -> Path:
    write(folder / "images.txt", images)
    write(folder / "cameras.txt", f"# Camera list\n{cameras}\n")
    return folder


@pytest.mark.parametrize(
    ("cameras", "note"),
    [
        ("7 PINHOLE 1664 960 1000 1000 832 480", None),
        ("7 SIMPLE_PINHOLE 832 480 500 416 240", None),
        ("7 SIMPLE_RADIAL 832 480 500 416 240 0.1", "distortion (up to 0.1)"),
        ("7 OPENCV 832 480 500 500 416 240 0.01 -0.2 0 0", "distortion (up to 0.2)"),
    ],
)
def test_colmap(tmp_path, cameras, note):
    path, notes = read_camera(colmap(tmp_path, cameras=cameras), "colmap")
    assert_there(path)
    assert (note in notes[0]) if note else not notes


def transforms(**changes) -> dict:
    frames = [
        {"file_path": "images/frame_00010.png", "transform_matrix": BLENDER},
        {"file_path": "images/frame_00009.png", "transform_matrix": BLENDER_START},
    ]
    lens = {"fl_x": 1000, "fl_y": 1000, "cx": 832, "cy": 480, "w": 1664, "h": 960}
    return {"camera_model": "OPENCV", **lens, "frames": frames, **changes}


def test_transforms(tmp_path):
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(transforms())), "transforms")
    assert_there(path)
    assert notes == []


def test_transforms_with_distortion_and_a_lens_for_each_frame(tmp_path):
    data = transforms(k1=0.25)
    data["frames"][0]["fl_x"] = 1100
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)), "transforms")
    assert "distortion" in " ".join(notes)
    assert "varies by 10.0%" in " ".join(notes)
    np.testing.assert_allclose(path.intrinsics[:, 0], [500, 550])


def test_transforms_with_an_angle_of_view(tmp_path):
    data = transforms(camera_angle_x=2 * np.arctan(0.832))
    for key in ("fl_x", "fl_y", "cx", "cy"):
        del data[key]
    assert_there(read_camera(write(tmp_path / "t.json", json.dumps(data)), "transforms")[0])


def camera_path(**changes) -> dict:
    """A field of view of 2 atan(240 / 500) from top to bottom is a focal length of 500 at 480 rows."""
    fov = np.rad2deg(2 * np.arctan(0.48))
    poses = [{"camera_to_world": np.ravel(m).tolist(), "fov": fov, "aspect": 1.7} for m in (BLENDER_START, BLENDER)]
    size = {"render_width": 1664, "render_height": 960}
    return {"camera_type": "perspective", **size, "fps": 24, "camera_path": poses, **changes}


def test_camera_path(tmp_path):
    path, notes = read_camera(write(tmp_path / "p.json", json.dumps(camera_path())), "camera_path")
    assert_there(path)
    assert path.fps == 24
    assert notes == []


def vipe(folder: Path, data=None, inds=(0, 1), lens=((1000, 1000, 832, 480),) * 2) -> Path:
    for name, rows in (("pose", [START, THERE] if data is None else data), ("intrinsics", lens)):
        (folder / name).mkdir(exist_ok=True)
        np.savez(folder / name / "clip.npz", data=np.asarray(rows, np.float32), inds=np.array(inds))
    return folder / "pose" / "clip.npz"


def test_vipe(tmp_path):
    file = vipe(tmp_path)
    path, notes = read_camera(file, "vipe", image_size=(1664, 960))
    assert_there(path)
    assert notes == []
    with pytest.raises(CameraError, match="width and height of the video"):
        read_camera(file, "vipe")
    (tmp_path / "intrinsics" / "clip.npz").unlink()
    assert "No lens" in read_camera(file, "vipe")[1][0]


def test_another_shape_of_picture_is_remarked_on(tmp_path):
    _, notes = read_camera(vipe(tmp_path), "vipe", image_size=(960, 960))
    assert "960x960" in notes[0]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_its_export(tmp_path, name):
    path = preset_path(name, frames=9)
    size = {"frames": 9, "height": 16, "width": 32}
    write_camera(path, tmp_path / "folder")
    exported = camera_embedding(*load_poses(tmp_path / "folder"), **size)
    np.testing.assert_array_equal(exported, camera_embedding(path.c2w, path.intrinsics, **size))
    write_camera(path, tmp_path / "transforms.json")
    for target, format in (("folder", "lingbot"), ("transforms.json", "transforms")):
        back, notes = read_camera(tmp_path / target, format)
        np.testing.assert_allclose(back.c2w, path.c2w, atol=1e-12)
        np.testing.assert_allclose(back.intrinsics, path.intrinsics, atol=1e-9)
        assert notes == []


def test_official_example_reads_as_lingbot(example00):
    path, _ = read_camera(example00, "lingbot")
    np.testing.assert_allclose(path.c2w, load_poses(example00)[0], atol=1e-4)


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
        (IMAGES, "7 PINHOLE 832 480 500", "expected at least 4"),
        ("1 1 0 0 0 0 0 0 7\n\n", "7 PINHOLE 832 480 1 1 1 1", "9 columns, expected 10"),
        ("1 0 0 0 0 0 0 0 7 a.png\n\n", "7 PINHOLE 832 480 1 1 1 1", "zero quaternion"),
        ("# nothing\n", "7 PINHOLE 832 480 1 1 1 1", "no images"),
    ],
)
def test_bad_colmap_is_refused(tmp_path, images, cameras, complaint):
    with pytest.raises(CameraError, match=complaint):
        read_camera(colmap(tmp_path, images, cameras), "colmap")


@pytest.mark.parametrize("format", FORMATS)
def test_missing_and_huge_files_are_refused_by_every_reader(tmp_path, format):
    convention = "opencv_c2w" if format == "matrices" else None
    with pytest.raises(CameraError, match="no such file"):
        read_camera(tmp_path / "nowhere", format, convention=convention)
    for name in ("poses.npy", "cameras.txt", "big.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(100 * 2**20)
    target = tmp_path if format in ("lingbot", "colmap") else tmp_path / "big.json"
    with pytest.raises(CameraError, match="at most 64 MiB"):
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
    with pytest.raises(CameraError, match="the format settles it"):
        read_camera(file, "transforms", convention="opencv_c2w")
    with pytest.raises(CameraError, match="expected one of lingbot"):
        read_camera(file, "auto")
    with pytest.raises(CameraError, match="16 numbers by column"):
        read_camera(file, "matrices", convention="threejs")
