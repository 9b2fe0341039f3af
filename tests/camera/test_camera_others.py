"""Camera files as strangers have them: other orders of columns, matrices and axes than the usual ones."""

import json

import numpy as np
import pytest
from camera_cases import BLENDER, BLENDER_START, EXTRINSIC, INTRINSIC, LENS, START, THERE, colmap, transforms, write
from lingbot_world.camera.formats import read_camera
from lingbot_world.errors import CameraError

HALF = 0.7071067811865476
EUROC = (
    "#timestamp, p_RS_R_x [m], p_RS_R_y [m], p_RS_R_z [m], q_RS_w [], q_RS_x [], q_RS_y [], q_RS_z [], "
    "v_RS_R_x [m s^-1], v_RS_R_y [m s^-1], v_RS_R_z [m s^-1], "
    "b_w_RS_S_x [rad s^-1], b_w_RS_S_y [rad s^-1], b_w_RS_S_z [rad s^-1], "
    "b_a_RS_S_x [m s^-2], b_a_RS_S_y [m s^-2], b_a_RS_S_z [m s^-2]\n"
)
CYCLE = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])
"""A turn whose transpose is another turn."""
REST = ", 9" * 9
X_FIRST = f"1 0 0 0 0 0 0 1\n2 1 2 3 0 {HALF} 0 {HALF}\n"
W_FIRST = f"1 0 0 0 1 0 0 0\n2 1 2 3 {HALF} 0 {HALF} 0\n"
TABLES = {
    "euroc.csv": EUROC + f"1, 0, 0, 0, 1, 0, 0, 0{REST}\n2, 1, 2, 3, {HALF}, 0, {HALF}, 0{REST}\n",
    "comment.txt": "# timestamp tx ty tz qw qx qy qz\n" + W_FIRST,
    "words.txt": "# time, position (x y z), quaternion (w x y z)\n" + W_FIRST,
    "twice.txt": "# t x y z w x y z\n" + W_FIRST,
    "names.txt": "timestamp tx ty tz qx qy qz qw\n" + X_FIRST,
    "quaternion_first.csv": f"t,q_w,q_x,q_y,q_z,x,y,z\n1,1,0,0,0,0,0,0\n2,{HALF},0,{HALF},0,1,2,3\n",
    "ros.csv": ".header.stamp,.pose.position.x,.pose.position.y,.pose.position.z,"
    ".pose.orientation.x,.pose.orientation.y,.pose.orientation.z,.pose.orientation.w\n" + X_FIRST.replace(" ", ","),
    "excel.csv": "\ufefftime;x;y;z;qx;qy;qz;qw\n" + X_FIRST.replace(" ", ";").replace(".", ","),
    "no_names.tum": X_FIRST,
    "frames.csv": f"frame,qx,qy,qz,qw,x,y,z\n1,0,0,0,1,0,0,0\n2,0,{HALF},0,{HALF},1,2,3\n",
    "quoted.csv": '"time","tx","ty","tz","qw","qx","qy","qz"\n' + W_FIRST.replace(" ", ","),
    "tabs.csv": "'time'\t,\ttx,\t'ty',tz\t,qw,qx,qy,qz\n" + W_FIRST.replace(" ", ","),
    "seconds.csv": "Seconds,Px,Py,Pz,Qw,Qx,Qy,Qz\n" + W_FIRST.replace(" ", ","),
    "remarks.txt": X_FIRST.replace("\n", " # a keyframe\n"),
}


@pytest.mark.parametrize("name", TABLES)
def test_names_of_columns_tell_their_order(tmp_path, name):
    path, _ = read_camera(write(tmp_path / name, TABLES[name]))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)


def frame(pose, lens, by_column: bool) -> dict:
    turned = (lambda each: np.transpose(each).tolist()) if by_column else (lambda each: np.array(each).tolist())
    return {"cameraTransform": turned(pose), "intrinsics": turned(lens), "imageResolution": [1664, 960]}


@pytest.mark.parametrize("by_column", [True, False])
def test_arkits_turn_on_the_spot_has_the_order_of_its_lens(tmp_path, by_column):
    poses = [BLENDER_START, CYCLE]
    file = write(tmp_path / "scan.json", json.dumps([frame(pose, INTRINSIC, by_column) for pose in poses]))
    path, notes = read_camera(file)
    np.testing.assert_allclose(path.c2w[1], CYCLE @ np.diag([1, -1, -1, 1]))
    assert not any("by column" in note for note in notes)


def test_arkits_turn_on_the_spot_without_a_lens_is_reported(tmp_path):
    frames = [{"cameraTransform": np.transpose(each).tolist()} for each in (BLENDER_START, CYCLE)]
    path, notes = read_camera(write(tmp_path / "scan.json", json.dumps(frames)))
    np.testing.assert_allclose(path.c2w[1], CYCLE @ np.diag([1, -1, -1, 1]))
    assert any("by row or by column" in note for note in notes)


def test_mitsubas_axes(tmp_path):
    data = transforms(from_mitsuba=True)
    for each in data["frames"]:
        each["transform_matrix"] = (np.array(each["transform_matrix"]) @ np.diag([-1, 1, -1, 1])).tolist()
    path, _ = read_camera(write(tmp_path / "transforms.json", json.dumps(data)))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)


def test_a_field_that_is_null_is_absent(tmp_path):
    path, _ = read_camera(write(tmp_path / "t.json", json.dumps(transforms(camera_model=None, k1=None, y_fov=None))))
    np.testing.assert_allclose(path.intrinsics[0], LENS)


@pytest.mark.parametrize("key", ["type", "camera_type"])
@pytest.mark.parametrize("kind", ["ORTHO", "PANO"])
def test_blenders_other_cameras_are_refused(tmp_path, key, kind):
    file = write(tmp_path / "b.json", json.dumps({"matrices": [BLENDER_START, BLENDER], key: kind}))
    with pytest.raises(CameraError, match=f"{key} '{kind}' is no pinhole camera"):
        read_camera(file, convention="opengl_c2w")
    assert read_camera(file, convention="opengl_c2w", fov_deg=60)[0].fov_deg == pytest.approx(60)


def test_blenders_pixels_that_are_not_square(tmp_path):
    data = {"matrices": [BLENDER_START, BLENDER], "lens": 36, "resolution_x": 480, "resolution_y": 480}
    path, _ = read_camera(
        write(tmp_path / "b.json", json.dumps({**data, "pixel_aspect_x": 2})), convention="opengl_c2w"
    )
    np.testing.assert_allclose(path.intrinsics[0], [832, 960, 416, 240])


@pytest.mark.parametrize("terms", ["500 416 240 0.1", "500 416", "500 500 416 240 0"])
def test_colmaps_models_have_their_count_of_numbers(tmp_path, terms):
    with pytest.raises(CameraError, match="SIMPLE_PINHOLE, expected 3"):
        read_camera(colmap(tmp_path, cameras=f"7 SIMPLE_PINHOLE 832 480 {terms}"))


@pytest.mark.parametrize(
    ("key", "poses"),
    [
        ("c2w", [START, THERE]),
        ("w2c", np.array([START, EXTRINSIC])[:, :3]),
        ("cam2world", [START, THERE]),
        ("T_wc", [START, THERE]),
        ("extrinsics_c2w", [START, THERE]),
        ("world_to_camera", [START, EXTRINSIC]),
    ],
)
@pytest.mark.parametrize("by_column", [True, False])
def test_arrays_by_other_names_and_a_lens_by_column(tmp_path, key, poses, by_column):
    lens = np.array(INTRINSIC, np.float32)
    np.savez(tmp_path / "p.npz", **{key: np.float32(poses), "K": lens.T if by_column else lens})
    path, _ = read_camera(tmp_path / "p.npz")
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-6)
    np.testing.assert_allclose(path.intrinsics[0], LENS, rtol=1e-6)


def test_no_poses_and_a_lens_of_unequal_rows_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", c2w=np.zeros((0, 3, 4)))
    with pytest.raises(CameraError, match="p.npz: c2w: 0 poses"):
        read_camera(tmp_path / "p.npz")
    frames = [{"cameraTransform": BLENDER_START, "intrinsics": [1, [], 2]}] * 5
    with pytest.raises(CameraError, match="unequal length"):
        read_camera(write(tmp_path / "scan.json", json.dumps(frames)))


def test_arrays_of_both_directions_have_to_agree(tmp_path):
    np.savez(tmp_path / "p.npz", c2w=[START, THERE], extrinsics=[START, EXTRINSIC])
    np.testing.assert_allclose(read_camera(tmp_path / "p.npz")[0].c2w, [START, THERE], atol=1e-9)
    np.savez(tmp_path / "p.npz", c2w=[START, THERE], extrinsics=[START, THERE])
    with pytest.raises(CameraError, match="c2w and extrinsics are different paths"):
        read_camera(tmp_path / "p.npz")


K = {"intrinsics": INTRINSIC, "width": 1664, "height": 960}
W2C = [START.tolist(), EXTRINSIC]
NAMED = {
    "a list": {"w2c": W2C, **K},
    "an object in an object": {"extrinsics": {"w2c": W2C}, **K},
    "frames": [{"frame_index": i, "world_to_cam": W2C[i], **K} for i in (1, 0)],
    "frames in an object": {"frames": [{"image": f"{i}.png", "extrinsics": {"T_cw": W2C[i]}} for i in (1, 0)], **K},
    "frames by name": {f"frame_{i + 9}": {"extrinsic": W2C[i], **K} for i in (1, 0)},
    "a lens for each": {"viewmats": W2C, "K": [INTRINSIC, INTRINSIC], "width": 1664, "height": 960},
    "twelve numbers": {"w2c": [np.ravel(each[:3]).tolist() for each in W2C], **K},
    "a name for each image": [{"img_name": f"{i}", "w2c": W2C[i], **K} for i in (1, 0)],
    "Open3D, by column": {
        "class_name": "PinholeCameraTrajectory",
        "parameters": [
            {
                "extrinsic": np.transpose(each).ravel().tolist(),
                "intrinsic": {
                    "width": 1664,
                    "height": 960,
                    "intrinsic_matrix": np.transpose(INTRINSIC).ravel().tolist(),
                },
            }
            for each in W2C
        ],
    },
    "axes": {"w2c": W2C, "coordinate_system": "OpenCV (RDF)", **K},
}


@pytest.mark.parametrize("name", NAMED)
def test_names_in_json_state_the_direction(tmp_path, name):
    file = write(tmp_path / "m.json", json.dumps(NAMED[name]))
    path, _ = read_camera(file, convention=None if name == "axes" else "opencv_w2c")
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
    np.testing.assert_allclose(path.intrinsics, [LENS, LENS])
    if name != "axes":
        with pytest.raises(CameraError, match="states no axes: .*expected one of opencv_w2c, opengl_w2c "):
            read_camera(file)


@pytest.mark.parametrize("header", ["# T fx fy cx cy k1 k2 c2w", "cam_to_world 3x4 by row"])
def test_a_header_that_states_another_direction_is_refused(tmp_path, header):
    rows = [
        f"{i} 0.6 1 0.5 0.5 0 0 {' '.join(map(str, np.ravel(each[:3])))}\n" for i, each in enumerate((START, THERE))
    ]
    file = write(tmp_path / "a.txt", f"{header}\n{''.join(rows)}")
    with pytest.raises(CameraError, match="header is 'c2w', and this format is read as opencv_w2c.*`convention`"):
        read_camera(file)
    np.testing.assert_allclose(read_camera(file, convention="opencv_c2w")[0].c2w, [START, THERE], atol=1e-6)
    write(file, f"https://youtube.com/c2w\n{''.join(rows)}")
    assert read_camera(file)[0].origin.convention == "opencv_w2c"


def test_frames_by_name_without_axes(tmp_path):
    frames = {
        f"frame_{i:06}": {"pose": pose, "intrinsic": INTRINSIC} for i, pose in enumerate((BLENDER_START, BLENDER))
    }
    path, notes = read_camera(write(tmp_path / "pose_intrinsic_imu.json", json.dumps(frames)))
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
    assert "pose states no axes" in notes[0]


def test_camera_poses_of_an_archive(tmp_path):
    np.savez(tmp_path / "a.npz", camera_poses=np.array([START, THERE], np.float32))
    np.testing.assert_allclose(read_camera(tmp_path / "a.npz")[0].c2w, [START, THERE], atol=1e-6)


def test_a_pose_without_axes_is_reported(tmp_path):
    file = write(tmp_path / "m.json", json.dumps([{"pose": BLENDER_START, "time": 0}, {"pose": BLENDER, "time": 1}]))
    assert "pose states no axes: ARKit's are taken" in read_camera(file)[1][0]


def test_a_tripods_pan_in_sixteen_bits_stands_still(tmp_path):
    """World-to-camera matrices in float16: their rounding moves the place by a thousandth of its distance."""
    angles = np.deg2rad(np.linspace(0, 40, 41))
    w2c = np.zeros((41, 3, 4))
    for matrix, angle in zip(w2c, angles, strict=True):
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        matrix[:, :3], matrix[:, 3] = turn.T, -turn.T @ [5, 1.7, -3.3]
    np.savez(tmp_path / "p.npz", extrinsic=w2c.astype(np.float16))
    path, _ = read_camera(tmp_path / "p.npz")
    assert not np.diff(path.c2w[:, :3, 3], axis=0).any()
