"""Camera files of other programs, written out by hand.

The camera of each is one and the same: frame 1 stands at (1, 2, 3) in OpenCV axes and looks to the right (world +x),
its lens 500 pixels at 832x480 with the centre at (416, 240).
"""

import struct
from pathlib import Path

import numpy as np

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


RE10K = (
    "https://example.org/video\n"
    "0 0.6009615384615384 1.0416666666666667 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0\n"
    "33366 0.6009615384615384 1.0416666666666667 0.5 0.5 0 0 0 0 -1 3 0 1 0 -2 1 0 0 -1\n"
)


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


def colmap_binary(folder: Path, model=1, terms=(1000, 1000, 832, 480)) -> Path:
    """The files of `colmap`, as COLMAP writes them in binary; each image has a point."""
    folder.mkdir(exist_ok=True)
    cameras = struct.pack(f"<QiiQQ{len(terms)}d", 1, 7, model, 1664, 960, *terms)
    poses = {"frame10.png": (HALF, 0, -HALF, 0, 3, -2, -1), "frame9.png": (1, 0, 0, 0, 0, 0, 0)}
    images = b"".join(
        struct.pack("<i7di", 2 - n, *pose, 7) + name.encode() + b"\0" + struct.pack("<Qddq", 1, 5, 6, -1)
        for n, (name, pose) in enumerate(poses.items())
    )
    (folder / "cameras.bin").write_bytes(cameras)
    (folder / "images.bin").write_bytes(struct.pack("<Q", 2) + images)
    return folder


def transforms(**changes) -> dict:
    frames = [
        {"file_path": "images/frame_00010.png", "transform_matrix": BLENDER},
        {"file_path": "images/frame_00009.png", "transform_matrix": BLENDER_START},
    ]
    lens = {"fl_x": 1000, "fl_y": 1000, "cx": 832, "cy": 480, "w": 1664, "h": 960}
    return {"camera_model": "OPENCV", **lens, "frames": frames, **changes}


def camera_path(**changes) -> dict:
    """A field of view of 2 atan(240 / 500) from top to bottom is a focal length of 500 at 480 rows."""
    fov = np.rad2deg(2 * np.arctan(0.48))
    poses = [{"camera_to_world": np.ravel(m).tolist(), "fov": fov, "aspect": 1.7} for m in (BLENDER_START, BLENDER)]
    size = {"render_width": 1664, "render_height": 960}
    return {"camera_type": "perspective", **size, "fps": 24, "camera_path": poses, **changes}


def vipe(folder: Path, data=None, inds=(0, 1), lens=((1000, 1000, 832, 480),) * 2) -> Path:
    for name, rows in (("pose", [START, THERE] if data is None else data), ("intrinsics", lens)):
        (folder / name).mkdir(exist_ok=True)
        np.savez(folder / name / "clip.npz", data=np.asarray(rows, np.float32), inds=np.array(inds))
    return folder / "pose" / "clip.npz"


# x y z w of the turn of THERE: a quarter turn to the right about y
TUM = (
    "# ground truth trajectory\n# file: 'clip.bag'\n# timestamp tx ty tz qx qy qz qw\n"
    f"1305031102.1758 0 0 0 0 0 0 1\n1305031102.2091 1 2 3 0 {HALF} 0 {HALF}\n"
)
INTRINSIC = [[1000, 0, 832], [0, 1000, 480], [0, 0, 1]]


def megasam(file: Path, **changes) -> Path:
    images = np.zeros((2, 960, 1664, 1), np.uint8)
    arrays = {"images": images, "intrinsic": np.float32(INTRINSIC), "cam_c2w": np.float32([START, THERE])}
    np.savez_compressed(file, **(arrays | changes))
    return file


def vggt(file: Path, **changes) -> Path:
    images, lens = np.zeros((2, 3, 960, 1664), np.uint8), np.float32([INTRINSIC] * 2)
    extrinsic = np.float32([START, EXTRINSIC])[:, :3]
    np.savez_compressed(file, **({"images": images, "intrinsic": lens, "extrinsic": extrinsic} | changes))
    return file


def record3d(**changes) -> dict:
    """Record3D's metadata: K by column, quaternions x, y, z, w of ARKit's camera-to-world."""
    turn = [HALF, 0, -HALF, 0]  # the columns of BLENDER: -z, -y, -x
    lens = {"K": np.ravel(np.transpose(INTRINSIC)).tolist(), "w": 1664, "h": 960, "fps": 60}
    return {**lens, "poses": [[1, 0, 0, 0, 0, 0, 0], [*turn, 1, 2, 3]], **changes}


def splats() -> list[dict]:
    size = {"width": 1664, "height": 960, "fx": 1000, "fy": 1000}
    poses = {"00010": THERE, "00009": START}
    return [
        {"id": i, "img_name": name, "position": pose[:3, 3].tolist(), "rotation": pose[:3, :3].tolist(), **size}
        for i, (name, pose) in enumerate(poses.items())
    ]


def walk(frames: int, degrees: float) -> np.ndarray:
    """Poses that go 0.1 ahead and 0.02 to the right a frame, and turn right by so many degrees a frame."""
    poses = np.tile(np.eye(4), (frames, 1, 1))
    for i, angle in enumerate(np.deg2rad(degrees * np.arange(frames))):
        poses[i, :3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
        poses[i, :3, 3] = 0.02 * i, 0, 0.1 * i
    return poses


def image_lines(poses: np.ndarray, name="frame_{:05d}.jpg") -> list[str]:
    """COLMAP's lines of images with these poses, turns about y only."""
    lines = []
    for i, pose in enumerate(poses):
        half = np.arctan2(pose[0, 2], pose[0, 0]) / 2
        shift = -pose[:3, :3].T @ pose[:3, 3]
        lines.append(" ".join(map(str, [i + 1, np.cos(half), 0, -np.sin(half), 0, *shift, 7, name.format(i)])))
    return lines


def assert_there(path, lens=LENS, atol=1e-6) -> None:
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=atol)
    np.testing.assert_allclose(path.intrinsics, [lens, lens], rtol=1e-6)


def line(*numbers) -> str:
    return " ".join(map(str, numbers)) + "\n"
