"""Camera files of programs that state the frames' order, the quaternions' order or the lens in their own way."""

import json
import random
from zipfile import ZipFile

import numpy as np
import pytest
from camera_cases import BLENDER, BLENDER_START, LENS, START, THERE, line, transforms, write
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.formats.frame_names import sort_by_name
from lingbot_world.errors import CameraError

HALF = 0.7071067811865476
LENSES = {"fl_x": 1000, "fl_y": 1000, "cx": 832, "cy": 480, "w": 1664, "h": 960}


def steps(count=9) -> list[list]:
    """Poses 1 apart, the longest way in the viewing direction of Blender's axes."""
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, 2, 3] = -np.arange(count)
    return poses.tolist()


FRAME_KEYS = {
    **{key: [f"images/{i:03}.png" for i in range(9)] for key in ("image", "imageName", "filename", "img_name")},
    **{key: [float(i) for i in range(9)] for key in ("time", "frame_index")},
    **{key: [*range(1, 10)] for key in ("frame", "frame_id", "frame_idx", "index", "id")},
}


@pytest.mark.parametrize("key", FRAME_KEYS)
@pytest.mark.parametrize("name", ["transforms.json", "arkit.json", "named.json", "cameras.json"])
def test_any_key_of_frames_gives_their_order(tmp_path, name, key):
    matrix = {"transforms.json": "transform_matrix", "arkit.json": "cameraTransform", "named.json": "c2w"}.get(name)
    frames = [{key: at, matrix: pose} for at, pose in zip(FRAME_KEYS[key], steps(), strict=True)]
    if matrix is None:
        size = {"width": 1664, "height": 960, "fx": 1000, "fy": 1000}
        frames = [
            {key: at, "position": [0, 0, float(i)], "rotation": np.eye(3).tolist(), **size}
            for i, at in enumerate(FRAME_KEYS[key])
        ]
    frames = [frames[at] for at in (3, 0, 8, 1, 7, 2, 6, 5, 4)]
    data = {**LENSES, "frames": frames} if name == "transforms.json" else frames
    path, notes = read_camera(
        write(tmp_path / name, json.dumps(data)), convention="opengl_c2w" if name == "named.json" else None
    )
    np.testing.assert_allclose(path.c2w[:, 2, 3] * path.c2w[-1, 2, 3], 8.0 * np.arange(9))
    assert not any("Not read" in note for note in notes)


@pytest.mark.parametrize("key", ["image", "time"])
def test_gaps_and_values_that_are_all_the_same(tmp_path, key):
    for values, fails in ((FRAME_KEYS[key][:1] * 9, False), ([*FRAME_KEYS[key][:5], *FRAME_KEYS[key][-1:]], True)):
        frames = [{key: at, "transform_matrix": pose} for at, pose in zip(values, steps(), strict=False)]
        file = write(tmp_path / "t.json", json.dumps({**LENSES, "frames": frames}))
        if fails:
            with pytest.raises(CameraError, match="missing or out of order between"):
                read_camera(file)
        else:
            np.testing.assert_allclose(read_camera(file)[0].c2w[:, 2, 3], -np.arange(9.0))


def test_ids_with_gaps_are_no_order(tmp_path):
    frames = [{"id": at, "transform_matrix": pose} for at, pose in zip((7, 99, 3), steps(3), strict=True)]
    file = write(tmp_path / "t.json", json.dumps({**LENSES, "frames": frames}))
    np.testing.assert_allclose(read_camera(file)[0].c2w[:, 2, 3], [0, -1, -2])


def splats(**keys) -> list[dict]:
    """Cameras of 3D Gaussian splatting, 1 apart in the file's order, with a value of each key in `keys`."""
    size = {"width": 1664, "height": 960, "fx": 1000, "fy": 1000, "rotation": np.eye(3).tolist()}
    rows = zip(*keys.values(), strict=True)
    return [{**size, "position": [0, 0, i], **dict(zip(keys, row, strict=True))} for i, row in enumerate(rows)]


@pytest.mark.parametrize("key", ["frame_id", "frame"])
@pytest.mark.parametrize(
    ("values", "others", "order", "noted"),
    [
        ([3, 7, 8, 30], {}, [0, 1, 2, 3], False),
        ([0, 0, 1, 1], {}, [0, 1, 2, 3], False),
        ([0, 1, 0, 1], {}, [0, 1, 2, 3], True),
        ([8, 3, 30, 7], {"id": [0, 1, 2, 3]}, [0, 1, 2, 3], True),
        ([3, 7, 8, 30], {"id": [2, 0, 1, 3]}, [0, 1, 2, 3], False),
        ([0, 1, 0, 1], {"id": [0, 2, 1, 3]}, [0, 2, 1, 3], False),
    ],
)
def test_numbers_with_gaps_or_repeats_are_no_order(tmp_path, key, values, others, order, noted):
    path, notes = read_camera(write(tmp_path / "cameras.json", json.dumps(splats(**{key: values}, **others))))
    np.testing.assert_allclose(np.argsort(path.c2w[:, 2, 3] * np.sign(path.c2w[-1, 2, 3])), np.argsort(order))
    assert [f"{key} has gaps or repeats" in note for note in notes] == [True] * noted
    frames = [{key: at, "transform_matrix": pose} for at, pose in zip(values, steps(4), strict=True)]
    assert len(read_camera(write(tmp_path / "t.json", json.dumps({**LENSES, "frames": frames})))[0]) == 4


@pytest.mark.parametrize("values", [[17, 16, 19, 18], [1.5, 1.0, 2.5, 2.0], ["17", 16, 19, "18"]])
def test_names_may_be_numbers(tmp_path, values):
    file = write(tmp_path / "cameras.json", json.dumps(splats(id=range(4), img_name=values)))
    np.testing.assert_allclose(read_camera(file)[0].c2w[:, 2, 3], [1, 0, 3, 2])


def test_a_scans_times_come_before_its_names(tmp_path):
    names = ["a41f", "07c2", "ee", "5b90"]
    frames = [
        {"imageName": name, "timestamp": time, "cameraTransform": pose}
        for name, time, pose in zip(names, (0.2, 0.1, 0.4, 0.3), steps(4), strict=True)
    ]
    path, _ = read_camera(write(tmp_path / "scan.json", json.dumps(frames)))
    np.testing.assert_allclose(path.c2w[:, 2, 3], [-1, 0, -3, -2])


def test_an_archive_may_have_other_members(tmp_path):
    file = tmp_path / "p.npz"
    np.savez(file, c2w=np.array(steps(3)))
    with ZipFile(file, "a") as archive:
        archive.writestr("meta.json", "{}")
        archive.writestr("c2w.txt", "")
    path, notes = read_camera(file)
    np.testing.assert_allclose(path.c2w[:, 2, 3], [0, -1, -2])
    assert not any("meta" in note for note in notes)


@pytest.mark.parametrize(
    "values", [np.array(["a", "c", "b"]), np.array([1, None, "b"], object), np.array([3, 1, 2], "datetime64[s]")]
)
def test_an_archives_indices_that_are_not_numbers_are_not_read(tmp_path, values):
    np.savez(tmp_path / "p.npz", c2w=np.array(steps(3)), timestamps=values)
    np.testing.assert_allclose(read_camera(tmp_path / "p.npz")[0].c2w[:, 2, 3], [0, -1, -2])


@pytest.mark.parametrize("name", ["frame_ids", "timestamps"])
def test_an_archives_frame_numbers_have_to_rise(tmp_path, name):
    file, poses = tmp_path / "p.npz", np.array(steps(5))
    np.savez(file, c2w=poses, depth_conf=np.ones(3), zoom=np.ones(3), **{name: np.arange(5)})
    path, notes = read_camera(file)
    np.testing.assert_allclose(path.c2w[:, 2, 3], -np.arange(5.0))
    assert notes[0] == "Not read, since this reader does not know them: zoom."
    for numbers in ([0, 1, 2, 9, 10], [0, 2, 1, 3, 4]):
        np.savez(file, c2w=poses, **{name: np.array(numbers)})
        with pytest.raises(CameraError, match=rf"\({name}\): frames are missing or out of order"):
            read_camera(file)


def test_realestate10k_with_the_same_time_in_every_line(tmp_path):
    lines = [line(0, 0.6, 1.04, 0.5, 0.5, 0, 0, *np.ravel(np.linalg.inv(each)[:3])) for each in (START, THERE)]
    path, _ = read_camera(write(tmp_path / "Pan_Left.txt", "\n" + "".join(lines)))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)


SHARES = [[0.6, 0, 0.5], [0, 1.04, 0.5], [0, 0, 1]]


@pytest.mark.parametrize(
    "data",
    [
        transforms(fl_x=0.6, fl_y=1.04, cx=0.5, cy=0.5),
        {"w2c": [START.tolist()] * 5, "K": SHARES, "width": 1664, "height": 960, "convention": "opencv_w2c"},
    ],
)
def test_a_lens_in_fractions_of_a_large_image_is_refused(tmp_path, data):
    file = write(tmp_path / "t.json", json.dumps(data))
    with pytest.raises(CameraError, match="focal length 0.6 and centre 0.5 are fractions of a 1664x960 image"):
        read_camera(file)
    assert read_camera(file, fov_deg=60)[0].fov_deg == pytest.approx(60)
    if "K" in data:  # a size of 1x1 is twice cx, cy
        path, _ = read_camera(write(file, json.dumps({key: data[key] for key in ("w2c", "K", "convention")})))
        np.testing.assert_allclose(path.intrinsics[0], [0.6 * 832, 1.04 * 480, 416, 240])


def test_a_side_alone_is_no_size(tmp_path):
    data = transforms()
    for each in data["frames"]:
        each["height"] = 1.6  # the camera's, in metres
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)))
    np.testing.assert_allclose(path.intrinsics[0], LENS)
    assert notes == []


@pytest.mark.parametrize("sides", [{"w": 1664, "height": 960}, {"imageWidth": 1664.0, "h": 960}])
def test_sides_of_an_image_by_mixed_names(tmp_path, sides):
    data = {key: value for key, value in transforms().items() if key not in ("w", "h")} | sides
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)))
    np.testing.assert_allclose(path.intrinsics[0], LENS)
    assert notes == []
    metres = write(tmp_path / "metres.json", json.dumps({**data, "w": 1664, "h": None, "height": 1.6}))
    with pytest.raises(CameraError, match="no h"):
        read_camera(metres)


def test_nerfstudios_exported_cameras_and_blenders_matrix_world(tmp_path):
    frames = [{"file_path": f"{i}.jpg", "transform": pose[:3]} for i, pose in enumerate((BLENDER_START, BLENDER))]
    path, _ = read_camera(write(tmp_path / "transforms_train.json", json.dumps(frames)))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
    frames = [{"frame": i, "matrix_world": pose} for i, pose in enumerate((BLENDER_START, BLENDER))]
    file = write(tmp_path / "camera.json", json.dumps({"fps": 24, "frames": frames}))
    np.testing.assert_allclose(read_camera(file, convention="opengl_c2w")[0].c2w, [START, THERE], atol=1e-9)
    with pytest.raises(CameraError, match="matrix_world states no axes: .*opencv_c2w, opengl_c2w"):
        read_camera(file)


@pytest.mark.parametrize("first", ["matrixWorld", "matrixWorldInverse"])
def test_threes_inverse_is_world_to_camera(tmp_path, first):
    """`elements` are by column, as three.js writes them."""
    frames = []
    for pose in (BLENDER_START, BLENDER):
        matrices = {"matrixWorld": np.array(pose), "matrixWorldInverse": np.linalg.inv(pose)}
        keys = sorted(matrices, key=lambda key: key != first)
        frames.append(
            {"matrixWorldNeedsUpdate": True} | {key: {"elements": matrices[key].T.ravel().tolist()} for key in keys}
        )
    both = write(tmp_path / "both.json", json.dumps(frames))
    for convention in ("opengl_c2w", "opengl_w2c"):
        np.testing.assert_allclose(read_camera(both, convention=convention)[0].c2w, [START, THERE], atol=1e-9)
    one = write(tmp_path / "one.json", json.dumps([{first: frame[first]} for frame in frames]))
    with pytest.raises(CameraError, match=f"expected one of opencv_{'w2c' if 'Inverse' in first else 'c2w'}"):
        read_camera(one)


NAMES = {
    "times": [f"rgb/{1305031102.175304 + i / 30:.6f}.png" for i in range(81)],
    "times of one second": [f"rgb/{1305031102.175304 + i / 30:.6f}.png" for i in range(30)],
    "times without a suffix": [f"{0.1 * i:.3f}" for i in range(81)],
    "a factor": [f"images_4/{i:05d}_x4.png" for i in range(81)],
    "a size": [f"frame_{i:04d}_1920x1080.jpg" for i in range(81)],
    "a suffix with a number": [f"frame{i}.jp2" for i in range(81)],
    "no zeros": [f"{i}.png" for i in range(5, 86)],
    "a part before a dot": [f"take1.{i}.png" for i in range(81)],
    "nanoseconds": [f"{1403636579763555584 + i * 50_000_000}.png" for i in range(81)],
    "number and time": [f"{i:04d}_{0.033 * i:.3f}.png" for i in range(81)],
    "every tenth": [f"clip-2024-05-01-{10 * i:04d}.png" for i in range(81)],
}


@pytest.mark.parametrize("case", NAMES)
def test_names_are_ordered_by_the_number_that_varies(case):
    names = NAMES[case].copy()
    random.Random(0).shuffle(names)
    assert sort_by_name(names, str, "file") == NAMES[case]


@pytest.mark.parametrize(
    "names",
    [
        [f"{i:05d}_x4.png" for i in range(81) if not 7 < i < 20],
        [f"rgb/{1305031102.175304 + i / 30:.6f}.png" for i in range(81) if not 7 < i < 20],
        [f"cam{camera}/{i:04d}.png" for camera in (0, 1) for i in range(40)],
        [f"{side}/{i:04d}.png" for side in ("left", "right") for i in range(40)],
        ["thumbnail.png", *(f"frame_{i}.png" for i in range(4))],
    ],
)
def test_names_with_gaps_of_several_cameras_and_without_numbers_are_refused(names):
    with pytest.raises(CameraError, match=r"missing or out of order|thumbnail has no number"):
        sort_by_name(names, str, "file")
