"""Fields of camera files that change what the numbers mean: applied, refused or reported."""

import json

import numpy as np
import pytest
from camera_cases import (
    BLENDER,
    BLENDER_START,
    EXTRINSIC,
    INTRINSIC,
    LENS,
    START,
    THERE,
    assert_there,
    camera_path,
    megasam,
    record3d,
    splats,
    transforms,
    vggt,
    write,
)
from lingbot_world.camera.formats import FORMATS, read_camera
from lingbot_world.camera.origin_report import report_origin
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.errors import CameraError


def told(path: CameraPath, notes: list[str]) -> str:
    return " ".join([*report_origin(path), *notes])


NO_PINHOLES = [{"is_fisheye": True}, {"camera_model": "OPENCV_FISHEYE", "k1": 0.0}, {"camera_model": "EQUIRECTANGULAR"}]
NO_PINHOLES += [{"camera_model": "FISHEYE624"}, {"latlong": 1}, {"ftheta_p0": 0.1}, {"orthographic": True}]


@pytest.mark.parametrize("changes", NO_PINHOLES)
def test_transforms_of_lenses_that_are_no_pinhole(tmp_path, changes):
    file = write(tmp_path / "transforms.json", json.dumps(transforms(**changes)))
    with pytest.raises(CameraError, match=f"{next(iter(changes))} .*{list(changes.values())[0]}.* no pinhole.*fov_deg"):
        read_camera(file)
    path, notes = read_camera(tmp_path, fov_deg=90)
    assert_there(path, lens_from_fov(90))
    assert next(iter(changes)) in " ".join(notes)


@pytest.mark.parametrize("changes", [{"is_fisheye": False}, {"camera_model": "SIMPLE_PINHOLE"}, {"ftheta_p0": 0.0}])
def test_transforms_of_pinholes_by_other_names(tmp_path, changes):
    assert_there(read_camera(write(tmp_path / "t.json", json.dumps(transforms(**changes))))[0])


WIDER = [[400, 0, 416], [0, 400, 240], [0, 0, 1]]
TWO_LENSES = {
    "transforms.json": transforms(intrinsics=WIDER),
    "sizes.json": transforms(width=832, height=480),
    "cameras.json": [{**each, "K": WIDER} for each in splats()],
    "named.json": [{"c2w": each, "K": WIDER, "fl_x": 500, "w": 832, "h": 480} for each in [BLENDER_START, BLENDER]],
    "fov.json": {"matrices": [BLENDER_START, BLENDER], "K": WIDER, "w": 832, "h": 480, "fov_deg": 30},
    "blender.json": {"matrices": [BLENDER_START, BLENDER], "lens": 35, "angle_x": 0.5},
}


@pytest.mark.parametrize("name", TWO_LENSES)
def test_two_lenses_in_one_file_are_refused(tmp_path, name):
    file = write(tmp_path / name, json.dumps(TWO_LENSES[name]))
    with pytest.raises(CameraError, match=r"\(.*\) state a different .*; remove the wrong one.*fov_deg"):
        read_camera(file, convention="opengl_c2w" if name[0] in "nfb" else None)


def test_a_fisheye_frame_among_pinholes_is_refused(tmp_path):
    data = transforms()
    data["frames"][0]["camera_model"] = "OPENCV_FISHEYE"
    with pytest.raises(CameraError, match="frame 1: camera_model 'OPENCV_FISHEYE'"):
        read_camera(write(tmp_path / "t.json", json.dumps(data)))


def test_a_frames_own_angle_comes_before_the_files_focal_length(tmp_path):
    data = transforms()
    for frame in data["frames"]:
        frame["camera_angle_x"] = 2 * np.arctan(0.416)
    path, _ = read_camera(write(tmp_path / "t.json", json.dumps(data)))
    np.testing.assert_allclose(path.intrinsics[:, 0], 1000)


def test_transforms_lens_by_other_fields(tmp_path):
    data = transforms(x_fov=np.rad2deg(2 * np.arctan(0.832)), y_fov=np.rad2deg(2 * np.arctan(0.48)))
    del data["fl_x"], data["fl_y"]
    assert_there(read_camera(write(tmp_path / "t.json", json.dumps(data)))[0])
    data = transforms()
    del data["w"], data["h"]
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)))
    assert_there(path)
    assert "twice cx, cy is taken, 1664x960" in " ".join(notes)
    data = {**transforms(), "width": 1664, "height": 960, "camera_angle_x": 0.5}
    lens = {ours: data.pop(ours) for ours in ("fl_x", "fl_y", "cx", "cy", "w", "h")}
    for named in ({"fx": 1000, "fy": 1000, "cx": 832, "cy": 480}, {"intrinsics": INTRINSIC}):
        path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data | named)))
        assert_there(path)
        assert "fl_x and camera_angle_x state different lenses: fl_x is taken" in notes[0]
    data |= lens
    with pytest.raises(CameraError, match="between 0 and 180 degrees"):
        read_camera(write(tmp_path / "t.json", json.dumps(transforms(x_fov=200))))


def test_a_lens_that_is_missing_has_a_way_out(tmp_path):
    data = transforms()
    for key in ("fl_x", "fl_y", "cx", "cy", "w", "h"):
        del data[key]
    file = write(tmp_path / "t.json", json.dumps(data))
    with pytest.raises(CameraError, match="give a field of view"):
        read_camera(file)
    assert_there(read_camera(file, fov_deg=90)[0], lens_from_fov(90))
    file = write(tmp_path / "p.json", json.dumps(camera_path(camera_type="equirectangular")))
    assert_there(read_camera(file, fov_deg=90)[0], lens_from_fov(90))


def test_keys_that_no_reader_knows_are_named(tmp_path):
    data = transforms(aabb=[[0, 0, 0], [1, 1, 1]], applied_scale=2.0, zoom=3, rolling_shutter=[0, 0, 1, 0])
    _, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)))
    assert notes == [
        "Not read, since this reader does not know them: zoom.",
        "rolling_shutter is ignored: the model's camera exposes the whole image at once.",
    ]


def test_frames_without_names_go_by_their_times(tmp_path):
    frames = [{"transform_matrix": BLENDER, "timestamp": 2.5}, {"transform_matrix": BLENDER_START, "timestamp": 2.4}]
    assert_there(read_camera(write(tmp_path / "t.json", json.dumps(transforms(frames=frames))))[0])


@pytest.mark.parametrize(("make", "key"), [(megasam, "cam_c2w"), (vggt, "extrinsic")])
def test_reconstructions_in_npz(tmp_path, make, key):
    path, notes = read_camera(make(tmp_path / "a.npz"))
    assert_there(path)
    assert notes == []
    path, notes = read_camera(make(tmp_path / "a.npz", images=np.zeros(1)))
    assert_there(path)
    assert "twice cx, cy" in notes[0]
    with pytest.raises(CameraError, match=r"intrinsic \[2\], expected \[3, 3\]"):
        read_camera(make(tmp_path / "a.npz", intrinsic=np.zeros(2)))
    with pytest.raises(CameraError, match=f"{key}: frame 0 .*is not finite"):
        read_camera(make(tmp_path / "a.npz", **{key: np.full((2, 4, 4), np.nan)}))


def test_vggt_with_a_batch_and_plural_names(tmp_path):
    arrays = {"extrinsics": np.float32([[START, EXTRINSIC]])[:, :, :3], "depth": np.zeros((2, 960, 1664))}
    np.savez(tmp_path / "a.npz", **arrays)
    path, notes = read_camera(tmp_path / "a.npz")
    assert_there(path, lens_from_fov(79))
    assert "No lens" in notes[0]


def test_record3d(tmp_path):
    path, notes = read_camera(write(tmp_path / "metadata.json", json.dumps(record3d())))
    assert_there(path)
    assert path.fps == 60
    assert notes == []
    data = record3d(perFrameIntrinsicCoeffs=[[1000, 1000, 832, 480], [1100, 1100, 832, 480]])
    assert read_camera(write(tmp_path / "m.json", json.dumps(data)))[0].intrinsics[1, 0] == pytest.approx(550)


def arkit_frames(by_column: bool) -> list[dict]:
    turned = (lambda m: np.transpose(m).ravel().tolist()) if by_column else (lambda m: np.ravel(m).tolist())
    lens = [[1000, 0, 832], [0, 1000, 480], [0, 0, 1]]
    frames = [(0.2, BLENDER), (0.1, BLENDER_START)]
    size = {"intrinsics": turned(lens), "imageResolution": {"width": 1664, "height": 960}}
    return [{"timestamp": time, "cameraTransform": turned(pose), **size} for time, pose in frames]


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_arkit_frames_by_row_and_by_column(tmp_path, by_column, wrapped):
    frames = arkit_frames(by_column)
    path, notes = read_camera(write(tmp_path / "a.json", json.dumps({"frames": frames} if wrapped else frames)))
    assert_there(path)
    assert notes == []


def test_polycams_folder(tmp_path):
    for number, pose in ((109, BLENDER), (98, BLENDER_START)):
        matrix = {f"t_{row}{column}": pose[row][column] for row in range(3) for column in range(4)}
        lens = {"fx": 1000, "fy": 1000, "cx": 832, "cy": 480, "width": 1664, "height": 960}
        frame = {**matrix, **lens, "timestamp": number, "blur_score": 3}
        write(tmp_path / "scan" / "keyframes" / "corrected_cameras" / f"{number}.json", json.dumps(frame))
    for chosen in ("scan", "scan/keyframes/corrected_cameras/98.json"):
        path, notes = read_camera(tmp_path / chosen)
        assert_there(path)
        assert notes == []


def test_gaussian_splattings_cameras(tmp_path):
    path, notes = read_camera(write(tmp_path / "cameras.json", json.dumps(splats())).parent)
    assert_there(path)
    assert notes == []
    broken = splats()
    broken[0]["rotation"] = [1, 2]
    with pytest.raises(CameraError, match=r"rotation \[2\], expected \[3, 3\]"):
        read_camera(write(tmp_path / "cameras.json", json.dumps(broken)))


def test_blenders_lens_for_each_frame(tmp_path):
    data = {"matrices": [BLENDER_START, BLENDER], "lens": [36 * 500 / 832, 36 * 600 / 832], "sensor_width": 36}
    path, notes = read_camera(write(tmp_path / "m.json", json.dumps(data)), convention="opengl_c2w")
    np.testing.assert_allclose(path.intrinsics, [LENS, [600, 600, 416, 240]])
    assert "varies by 20.0%" in notes[0]
    data = {"matrices": [BLENDER_START, BLENDER], "angle_x": 2 * np.arctan(0.832)}
    assert_there(read_camera(write(tmp_path / "m.json", json.dumps(data)), convention="opengl_c2w")[0])
    matrices = {"matrices": [BLENDER_START, BLENDER]}
    for lens in ({"angle_y": 2 * np.arctan(0.48)}, {"K": [500, 500, 416, 240], "w": 832, "h": 480}):
        file = write(tmp_path / "m.json", json.dumps(matrices | lens))
        assert_there(read_camera(file, convention="opengl_c2w")[0])
    bad = write(tmp_path / "m.json", json.dumps(data | {"lens": [1, 2, 3]}))
    with pytest.raises(CameraError, match=r"lens \[3\], expected a number, or one for each pose"):
        read_camera(bad, convention="opengl_c2w")


def test_every_reader_lists_its_fields():
    for name, format in FORMATS.items():
        assert format.fields, name
        assert all(field.how.endswith(".") for field in format.fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"camera_convention": "opencv"}, "camera_convention is 'opencv', .*read as opengl_c2w"),
        ({"coordinate_system": "COLMAP w2c"}, "opencv_w2c or opengl_c2w"),
        ({"projection": "equirectangular"}, "projection 'equirectangular' is no pinhole camera"),
    ],
)
def test_texts_that_state_other_axes_or_another_lens(tmp_path, fields, words):
    with pytest.raises(CameraError, match=words):
        read_camera(write(tmp_path / "t.json", json.dumps(transforms(**fields))))
    if "projection" not in fields:
        read_camera(write(tmp_path / "t.json", json.dumps(transforms(**fields))), convention="opencv_c2w")


@pytest.mark.parametrize("key", ["camera_convention", "coordinate_system", "axes"])
@pytest.mark.parametrize("text", [{"up": "z"}, "z is up"])
def test_only_a_text_that_states_the_formats_own_axes_is_not_called_unread(tmp_path, key, text):
    file = write(tmp_path / "t.json", json.dumps(transforms(**{key: "OpenGL"})))
    assert read_camera(file)[1] == []
    file = write(tmp_path / "t.json", json.dumps(transforms(**{key: text})))
    assert read_camera(file)[1] == [f"Not read, since this reader does not know them: {key}."]
    with pytest.raises(CameraError, match="is_left_handed is 'True': left-handed axes"):
        read_camera(write(tmp_path / "t.json", json.dumps(transforms(is_left_handed=True))))


def test_matrices_in_the_convention_that_they_state(tmp_path):
    matrices = {"matrices": [np.array(each).tolist() for each in (START, THERE)], "convention": "opencv_c2w"}
    path, notes = read_camera(write(tmp_path / "m.json", json.dumps(matrices)))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-6)
    assert not any("Not read" in note for note in notes)


TURNED = np.diag([-1.0, 1.0, -1.0, 1.0])
BESIDE_A_GOOD_LENS = [
    {"intrinsic": "intr/0.txt"},
    {"intrinsics": None},
    {"angle_x": -0.3},
]


@pytest.mark.parametrize("other", BESIDE_A_GOOD_LENS)
def test_a_field_that_is_no_lens_stands_beside_a_good_one(tmp_path, other):
    frames = [{"file_path": f"{i}.png", "transform_matrix": TURNED.tolist(), **other} for i in range(5)]
    size = {"w": 800, "h": 600, "height": 1.7}  # the last one is the camera's height
    data = {**size, "fl_x": 400, "fl_y": 400, "cx": 400, "cy": 300, **other, "frames": frames}
    (tmp_path / "transforms.json").write_text(json.dumps(data), encoding="utf-8")
    path, _ = read_camera(tmp_path / "transforms.json")
    np.testing.assert_allclose(path.intrinsics[0], [416, 320, 416, 240])


def test_rotations_beside_matrices_are_no_gaussian_splatting(tmp_path):
    rows = [{"c2w": TURNED.tolist(), "rotation": [0, 0, 0], "time": i} for i in range(5)]
    (tmp_path / "path.json").write_text(json.dumps(rows), encoding="utf-8")
    path, _ = read_camera(tmp_path / "path.json", convention="opencv_c2w", fov_deg=60)
    assert len(path.c2w) == 5
