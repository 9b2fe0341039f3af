"""Tables of other programs: TUM's trajectories with any header, KITTI's and ScanNet's matrices."""

import numpy as np
import pytest
from camera_cases import HALF, INTRINSIC, LENS, START, THERE, TUM, assert_there, line, write
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.origin_report import convention_warnings
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.camera.rotation import from_angles, rigid
from lingbot_world.errors import CameraError
from scipy.spatial.transform import Rotation

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


def test_a_camera_that_looks_down_while_it_moves_ahead_is_read_with_a_note(tmp_path):
    """With w first its viewing direction would be that of its motion, but the camera upside down."""
    down = rigid(from_angles("X", np.full(9, -35)), np.outer(np.arange(9), [0, 0, 1]))
    path, notes = read_camera(write(tmp_path / "drone.txt", trajectory(down)))
    np.testing.assert_allclose(path.c2w, down, atol=1e-9)
    assert "first number of the quaternions seems to be w" in notes[0]


@pytest.mark.parametrize(
    "header",
    [
        "time,px,py,pz,rx,ry,rz,rw",
        "Time,Position X,Position Y,Position Z,Rotation X,Rotation Y,Rotation Z,Rotation W",
        "t,p_wc_x,p_wc_y,p_wc_z,q_wc_x,q_wc_y,q_wc_z,q_wc_w",
        "t,x,y,z,qvec_x,qvec_y,qvec_z,qvec_w",
        "frame,loc_x,loc_y,loc_z,qi,qj,qk,qw",
        "frame,camera_tx,camera_ty,camera_tz,camera_qx,camera_qy,camera_qz,camera_qw",
        "t,pose.position.x,pose.position.y,pose.position.z,orientation.x,orientation.y,orientation.z,orientation.w",
    ],
)
def test_names_of_columns(tmp_path, header):
    rows = trajectory(walk_in_a_curve()).replace(" ", ",")
    for text in (f"{header}\n{rows}", f"sep=,\nCommunity edition: my/Unity/c2w.bag\n{header}\n{rows}"):
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


def test_a_folder_of_several_paths_is_refused(tmp_path):
    for name in ("00", "01"):
        write(tmp_path / f"poses/{name}.txt", "".join(line(*np.ravel(pose[:3])) for pose in walk_in_a_curve()))
    for folder in (tmp_path, tmp_path / "poses"):
        with pytest.raises(CameraError, match=r"00\.txt: more than one pose in a file of a folder.*name a file"):
            read_camera(folder)
    assert len(read_camera(tmp_path / "poses/01.txt")[0]) == 41


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


def test_tum(tmp_path):
    path, notes = read_camera(write(tmp_path / "trajectory.txt", TUM))
    assert_there(path, lens_from_fov(79))
    assert "No lens" in notes[0]
    assert_there(read_camera(tmp_path / "trajectory.txt", fov_deg=90)[0], lens_from_fov(90))
    with pytest.raises(CameraError, match="quaternion of length 2"):
        read_camera(write(tmp_path / "t.txt", TUM.replace("0 0 0 0 0 0 1\n", "0 0 0 0 0 0 2\n")))


def test_tum_at_uneven_times_is_interpolated(tmp_path):
    rows = [(0, 0), (1, 1), (2, 2), (5, 5), (6, 6), (7, 7)]
    text = "\n".join(f"{time} 0 0 {z} 0 0 0 1" for time, z in rows)
    path, notes = read_camera(write(tmp_path / "t.txt", text), "tum")
    np.testing.assert_allclose(path.positions[:, 2], np.arange(8))
    assert "interpolated at 8 even times" in notes[0]
    with pytest.raises(CameraError, match="out of order"):
        read_camera(write(tmp_path / "t.txt", text.replace("5 0 0", "1.5 0 0")), "tum")


def test_rows_of_sixteen_and_with_a_frames_number(tmp_path):
    rows = [" ".join(map(str, np.ravel(pose))) for pose in (START, THERE)]
    assert_there(read_camera(write(tmp_path / "a.txt", "\n".join(rows)))[0], lens_from_fov(79))
    blocks = "\n\n".join("\n".join(" ".join(map(str, row)) for row in pose) for pose in (START, THERE))
    assert_there(read_camera(write(tmp_path / "blocks.txt", blocks))[0], lens_from_fov(79))
    for name, block in zip(("frame-000010.pose.txt", "frame-000009.pose.txt"), blocks.split("\n\n")[::-1], strict=True):
        write(tmp_path / "scenes" / name, block)
    assert_there(read_camera(tmp_path / "scenes")[0], lens_from_fov(79))
    numbered = [f"{i} {row}" for i, row in enumerate(rows)]
    assert_there(read_camera(write(tmp_path / "a.txt", "\n".join(numbered)))[0], lens_from_fov(79))
