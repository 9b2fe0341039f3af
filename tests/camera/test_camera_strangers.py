"""Camera files of programs that state the frames' order, the quaternions' order or the lens in their own way."""

import json
from zipfile import ZipFile

import numpy as np
import pytest
from camera_cases import BLENDER, BLENDER_START, INTRINSIC, LENS, START, THERE, transforms, write
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.origin_report import convention_warnings
from lingbot_world.camera.rotation import from_angles, rigid
from lingbot_world.errors import CameraError
from scipy.spatial.transform import Rotation

HALF = 0.7071067811865476
LENSES = {"fl_x": 1000, "fl_y": 1000, "cx": 832, "cy": 480, "w": 1664, "h": 960}


def line(*numbers) -> str:
    return " ".join(map(str, numbers)) + "\n"


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


TILTED, UNTURNED = (HALF, -HALF, 0, 0), (1, 0, 0, 0)
"""Quaternions w, x, y, z of cameras that look along y, in a world whose z axis is up, and along z."""


def w_first(turn=TILTED) -> str:
    """A trajectory whose camera goes where it looks."""
    return "".join(line(i, 0, *((i, 0) if turn == TILTED else (0, i)), *turn) for i in range(9))


def walk_in_a_curve(turned=UNTURNED) -> np.ndarray:
    """Poses of a camera that walks forward and turns by 80 degrees, then turned by the quaternion `turned`."""
    turns = from_angles("Y", np.linspace(0, 80, 41))
    path = rigid(turns, np.cumsum(turns[:, :, 2], 0))
    path[:, :3, :3] = path[:, :3, :3] @ Rotation.from_quat(turned, scalar_first=True).as_matrix()
    return path


def trajectory(c2w, scalar_first=False) -> str:
    quaternions = Rotation.from_matrix(c2w[:, :3, :3]).as_quat(scalar_first=scalar_first)
    return "".join(line(i, *pose[:3, 3], *turn) for i, (pose, turn) in enumerate(zip(c2w, quaternions, strict=True)))


@pytest.mark.parametrize("rows", [w_first(), trajectory(walk_in_a_curve(), scalar_first=True)])
@pytest.mark.parametrize("comment", ["# ", "% ", "// ", "Exported by me\n"])
def test_quaternions_that_seem_to_begin_with_w_need_a_header(tmp_path, rows, comment):
    file = write(tmp_path / "traj.txt", rows)
    with pytest.raises(CameraError, match="first number of the quaternions seems to be w.*`# timestamp tx ty tz qw qx"):
        read_camera(file)
    path, _ = read_camera(write(file, f"{comment}timestamp tx ty tz qw qx qy qz\n{rows}"))
    steps = np.diff(path.c2w[:, :3, 3], axis=0)
    assert (np.einsum("ni,ni->n", steps, path.c2w[:-1, :3, 2]) > 0.99).all()
    assert len(read_camera(write(file, f"{comment}timestamp tx ty tz qx qy qz qw\n{rows}"))[0]) == len(path)


@pytest.mark.parametrize("rows", [w_first(UNTURNED), trajectory(walk_in_a_curve((0, 1, 0, 0)))])
def test_a_camera_turned_about_x_that_moves_backwards_is_read_with_a_note(tmp_path, rows):
    """A camera in OpenGL's axes in a file without a header: the order x, y, z, w is right."""
    path, notes = read_camera(write(tmp_path / "traj.txt", rows))
    np.testing.assert_allclose(path.c2w[0, :3, 2], [0, 0, -1], atol=1e-9)
    assert "first number of the quaternions seems to be w" in notes[0]
    turned, notes = read_camera(tmp_path / "traj.txt", convention="opengl_c2w")
    np.testing.assert_allclose(turned.c2w[0, :3, 2], [0, 0, 1], atol=1e-9)
    assert not any("quaternions" in note for note in notes)


@pytest.mark.parametrize(
    "header",
    [
        "time,px,py,pz,rx,ry,rz,rw",
        "Time,Position X,Position Y,Position Z,Rotation X,Rotation Y,Rotation Z,Rotation W",
        "frame,loc_x,loc_y,loc_z,qi,qj,qk,qw",
        "frame,camera_tx,camera_ty,camera_tz,camera_qx,camera_qy,camera_qz,camera_qw",
        "t,pose.position.x,pose.position.y,pose.position.z,orientation.x,orientation.y,orientation.z,orientation.w",
    ],
)
def test_names_of_columns(tmp_path, header):
    rows = trajectory(walk_in_a_curve()).replace(" ", ",")
    for text in (f"{header}\n{rows}", f"sep=,\nTrajectory\n{header}\n{rows}"):
        np.testing.assert_allclose(read_camera(write(tmp_path / "a.csv", text))[0].c2w, walk_in_a_curve(), atol=1e-9)


def test_a_table_of_ros_has_two_times_and_a_text(tmp_path):
    names = ["%time", "field.header.stamp", "field.header.frame_id"]
    names += [f"field.pose.position.{axis}" for axis in "xyz"] + [f"field.pose.orientation.{axis}" for axis in "xyzw"]
    rows = [line.split() for line in trajectory(walk_in_a_curve()).splitlines()]
    text = "".join(",".join([row[0], row[0], "map", *row[1:]]) + "\n" for row in rows)
    path, _ = read_camera(write(tmp_path / "pose.csv", ",".join(names) + "\n" + text))
    np.testing.assert_allclose(path.c2w, walk_in_a_curve(), atol=1e-9)
    with pytest.raises(CameraError, match="line 3: could not convert string to float: 'x"):
        read_camera(write(tmp_path / "pose.csv", ",".join(names) + "\n" + text.replace("\n1,1,map,", "\n1,1,map,x", 1)))


def test_a_header_that_names_unity_is_refused(tmp_path):
    rows = trajectory(walk_in_a_curve()).replace(" ", ",")
    file = write(tmp_path / "b.csv", "# recorded in Unity\ntime,px,py,pz,rx,ry,rz,rw\n" + rows)
    with pytest.raises(CameraError, match="in the header is 'Unity': left-handed axes and robots' axes are not read"):
        read_camera(file)
    assert len(read_camera(file, convention="opencv_c2w")[0]) == 41


@pytest.mark.parametrize("name", ["poses/{}.txt", "pose_{:04}.txt", "pose/0_{:05}.txt", "{:06}.txt"])
def test_folders_with_a_file_for_each_frame(tmp_path, name):
    for number, pose in enumerate(walk_in_a_curve()):
        write(tmp_path / name.format(number), "".join(line(*row) for row in pose))
    np.testing.assert_allclose(read_camera(tmp_path)[0].c2w, walk_in_a_curve(), atol=1e-9)


def test_a_folder_without_a_camera_file_is_named(tmp_path):
    write(tmp_path / "transforms_train.json", "{}")
    with pytest.raises(CameraError, match="no camera file is found in this folder; name a file, or give `format`"):
        read_camera(tmp_path)


def test_a_walk_in_a_world_whose_y_axis_is_up_has_w_last(tmp_path):
    rows = "".join(line(i, 0, 0, -i, 1, 0, 0, 0) for i in range(9))
    np.testing.assert_allclose(read_camera(write(tmp_path / "a.txt", rows))[0].c2w[:, 2, 2], -1)


def test_a_camera_upside_down_that_moves_sideways_is_reported(tmp_path):
    rows = "".join(line(i, i, 0, 0, 1, 0, 0, 0) for i in range(9))
    path, notes = read_camera(write(tmp_path / "a.txt", rows))
    np.testing.assert_allclose(path.c2w[:, 2, 2], -1)
    assert "first number of the quaternions seems to be w" in notes[0]
    _, notes = read_camera(write(tmp_path / "b.txt", "# timestamp tx ty tz qx qy qz qw\n" + rows))
    assert not any("quaternions" in note for note in notes)


def test_monst3rs_trajectory_has_w_first_and_a_lens(tmp_path):
    file = write(tmp_path / "pred_traj.txt", w_first())
    write(tmp_path / "pred_intrinsics.txt", "".join(line(*np.ravel(INTRINSIC)) for _ in range(9)))
    path, notes = read_camera(file)
    np.testing.assert_allclose(path.c2w[0, :3, 2], [0, 1, 0], atol=1e-9)
    np.testing.assert_allclose(path.intrinsics[0], LENS)
    assert "twice cx, cy" in notes[0]
    write(tmp_path / "pred_intrinsics.txt", "broken\n")
    assert read_camera(file, fov_deg=60)[0].fov_deg == pytest.approx(60)


def test_a_tables_columns_of_a_lens(tmp_path):
    rows = "".join(line(i, f"{i:06}", 0, 0, i, 0, 0, 0, 1, 1000 + 200 * i, 1000, 832, 480) for i in range(5))
    header = "timestamp, frame, x, y, z, qx, qy, qz, qw, fx, fy, cx, cy\n"
    path, notes = read_camera(write(tmp_path / "odometry.csv", header + rows))
    np.testing.assert_allclose(path.intrinsics[0], LENS)
    assert "No image size in the file: taken for twice cx, cy." in notes
    assert any("lens varies by" in note for note in notes)


def test_columns_that_nobody_reads_are_named(tmp_path):
    rows = "".join(line(i, 0, 0, i, 0, 0, 0, 1, 60, 7) for i in range(5))
    file = write(tmp_path / "a.csv", "time,x,y,z,qx,qy,qz,qw,fov,frame\n" + rows.replace(" ", ","))
    assert "Not read, since this reader does not know them: fov." in read_camera(file)[1]


def test_euroc_states_the_imus_poses(tmp_path):
    header = "#timestamp, p_RS_R_x [m], p_RS_R_y [m], p_RS_R_z [m], q_RS_w [], q_RS_x [], q_RS_y [], q_RS_z []\n"
    _, notes = read_camera(write(tmp_path / "data.csv", header + w_first(UNTURNED).replace(" ", ", ")))
    assert "EuRoC's IMU, not of a camera" in notes[0]


def test_scannets_folder_has_a_lens(tmp_path):
    for number, pose in enumerate((START, THERE)):
        write(tmp_path / f"pose/{number}.txt", "".join(line(*row) for row in pose))
    matrix = np.eye(4)
    matrix[:3, :3] = INTRINSIC
    write(tmp_path / "intrinsic/intrinsic_color.txt", "".join(line(*row) for row in matrix))
    for folder in (tmp_path, tmp_path / "pose"):
        path, notes = read_camera(folder)
        np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
        np.testing.assert_allclose(path.intrinsics, [LENS, LENS])
        assert notes == ["No image size in the file: taken for twice cx, cy."]


def test_poses_of_a_car_are_doubted(tmp_path):
    """The x axis points ahead, as in KITTI-360's poses.txt, or the camera really moves sideways."""
    ahead = "".join(line(i, 1, 0, 0, i, 0, 1, 0, 0, 0, 0, 1, 0) for i in range(20))
    assert "a car, a robot or an IMU" in convention_warnings(read_camera(write(tmp_path / "poses.txt", ahead))[0])[0]
    still = "".join(line(i, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0) for i in range(20))
    assert convention_warnings(read_camera(write(tmp_path / "still.txt", still))[0]) == []


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


@pytest.mark.parametrize("name", ["00.txt", "traj.txt", "p.npz", "poses"])
def test_a_tripod_in_a_direction_that_the_user_names_stands_still(tmp_path, name):
    """World-to-camera matrices with six decimals in formats of camera-to-world ones."""
    angles = np.deg2rad(np.arange(20))
    w2c = np.tile(np.eye(4), (20, 1, 1))
    w2c[:, 0, 0] = w2c[:, 2, 2] = np.cos(angles)
    w2c[:, 2, 0], w2c[:, 0, 2] = np.sin(angles), -np.sin(angles)
    w2c[:, :3, 3] = w2c[:, :3, :3] @ [3, 1, -4]
    file, w2c = tmp_path / name, np.round(w2c, 6)
    turns = zip(*np.round([np.sin(-angles / 2), np.cos(angles / 2)], 6), w2c[:, :3, 3], strict=True)
    if name == "p.npz":
        np.savez(file, c2w=w2c.astype(np.float32))
    elif name == "poses":
        file.mkdir()
        np.save(file / "poses.npy", w2c.astype(np.float32))
        np.save(file / "intrinsics.npy", np.float32(LENS))
    elif name == "traj.txt":
        rows = (line(i, *place, 0, y, 0, w) for i, (y, w, place) in enumerate(turns))
        write(file, "# timestamp tx ty tz qx qy qz qw\n" + "".join(rows))
    else:
        write(file, "".join(line(*np.ravel(each[:3])) for each in w2c))
    path, _ = read_camera(file, convention="opencv_w2c", fov_deg=60)
    assert not np.diff(path.c2w[:, :3, 3], axis=0).any()
    np.testing.assert_allclose(path.c2w[0, :3, 3], [-3, -1, 4], atol=1e-3)


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
