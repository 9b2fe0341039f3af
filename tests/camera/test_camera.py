"""The conditioning that the model gets of a camera path, against the official implementation's numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world import camera
from lingbot_world.camera.plucker import model_poses, scaled_lens
from lingbot_world.errors import CameraError

LENS = [502.9116, 503.10812, 415.77786, 239.77779]
BESIDE = Path(__file__).parents[3] / "shared" / "golden" / "camera"


@pytest.mark.parametrize("shelf", ["moves", "formats", "preview"])
def test_shelves_stand_on_the_core_and_not_on_each_other(shelf):
    room = Path(camera.__file__).parent
    for file in (room / shelf).glob("*.py"):
        found = re.findall(r"^ *from (\.+)(\w+)", file.read_text(), re.MULTILINE)
        assert all((room / f"{module}.py").is_file() for dots, module in found if dots == ".."), file
    for file in room.glob("[a-z]*.py"):
        assert not re.search(r"^ *from \.(moves|formats|preview)\b", file.read_text(), re.MULTILINE), file


def walk(n: int = 17) -> np.ndarray:
    return camera.poses_from_keys(f"w-{n},wl-{n}")[:n]


def case(data) -> tuple[np.ndarray, np.ndarray, dict]:
    size = {name: int(data[name]) for name in ("height", "width")}
    return data["poses"], data["intrinsics"], {"frames": int(data["frame_num"]), **size}


def test_synthetic_golden(golden):
    with np.load(golden / "camera" / "synthetic_f17_64x96.npz") as data:
        poses, lens, request = case(data)
        embedding = camera.camera_embedding(poses, lens, **request)
        assert embedding.dtype == torch.float32
        assert tuple(embedding.shape) == tuple(data["plucker_shape"])
        np.testing.assert_allclose(embedding.numpy(), data["plucker"], atol=2e-6)
        seen = model_poses(camera.check_poses(poses), request["frames"])
        np.testing.assert_allclose(seen, data["c2ws_infer_fp64"], atol=1e-12)
        scaled = scaled_lens(camera.check_intrinsics(lens)[0], request["height"], request["width"])
        np.testing.assert_allclose(scaled, data["Ks"], atol=1e-4)


def test_example00_golden(example00):
    with np.load(BESIDE / "example00_f81_480x832.npz") as data:
        poses, lens, request = case(data)
        from_file = camera.load_poses(example00)
        np.testing.assert_array_equal(from_file[0], poses)
        embedding = camera.camera_embedding(*from_file, **request).numpy()
        np.testing.assert_allclose(
            embedding.ravel()[data["plucker_sample_index"]], data["plucker_sample_value"], atol=2.7e-5
        )
        row, column = data["pixel_yx"]
        np.testing.assert_allclose(embedding[0, :, :, row, column], data["plucker_pixel"], atol=2.7e-5)
        sums = embedding[0].reshape(6, 64, 21, -1).sum((1, 3), dtype=np.float64)
        np.testing.assert_allclose(sums, data["plucker_sum_component_frame"], rtol=1e-4, atol=10)
        np.testing.assert_allclose(model_poses(from_file[0], 81), data["c2ws_infer_fp64"], atol=1e-12)


def test_end_to_end_golden(golden):
    with np.load(golden / "e2e" / "inputs.npz") as data:
        poses, lens, request = case(data)
        np.testing.assert_allclose(camera.camera_embedding(poses, lens, **request), data["plucker"], atol=6e-6)


def test_geometry_golden_frames(golden):
    cases = json.loads((golden / "geometry" / "geometry.json").read_text())
    checked = [case for case in cases if "frames" in case]
    assert checked
    for entry in checked:
        assert camera.frame_count(entry["frame_num"], entry["n_poses"]) == entry["frames"]


@pytest.mark.parametrize(("requested", "poses", "frames"), [(81, 81, 81), (81, 80, 77), (80, None, 77), (5, 900, 5)])
def test_frame_count(requested, poses, frames):
    assert camera.frame_count(requested, poses) == frames


def test_few_frames_are_refused():
    with pytest.raises(CameraError, match="at least 5"):
        camera.frame_count(81, 4)
    with pytest.raises(CameraError, match="frames is 0"):
        camera.frame_count(0)
    for chunk in (0, -1):
        with pytest.raises(CameraError, match="chunk is .*; it must be at least 1"):
            camera.frame_count(81, chunk=chunk)


def test_a_short_path_shortens_the_embedding():
    assert camera.camera_embedding(walk(12), LENS, frames=81, height=64, width=96).shape[2] == 3


def test_a_camera_that_stands_still_stays_at_zero():
    """Poses made by inverting world-to-camera matrices far from the origin carry rounding, which must not be seen."""
    there = camera.poses_from_keys("il-16")[:17]
    place = np.array([5771.0, -300.0, 1234.5])
    turned_back = np.swapaxes(there[:, :3, :3], 1, 2)
    there[:, :3, 3] = (there[:, :3, :3] @ (turned_back @ place)[..., None])[..., 0]
    assert np.abs(there[:, :3, 3] - place).max() > 0
    assert not camera.camera_embedding(there, LENS, frames=17, height=64, width=96)[:, :192].any()


def test_speed_of_a_uniform_move_cancels():
    slow, fast = walk(), walk()
    fast[:, :3, 3] *= 100
    request = {"frames": 17, "height": 64, "width": 96}
    torch.testing.assert_close(
        camera.camera_embedding(slow, LENS, **request), camera.camera_embedding(fast, LENS, **request)
    )


def test_action_embedding_is_direction_and_flags():
    poses, request = walk(), {"frames": 17, "height": 64, "width": 96}
    flags = camera.actions_from_keys("w-4,sd-4,none-4,a-5")
    action = camera.action_embedding(poses, LENS, flags, **request)
    assert tuple(action.shape) == (1, 448, 5, 8, 12)
    torch.testing.assert_close(action[:, :192], camera.camera_embedding(poses, LENS, **request)[:, 192:])
    expected = torch.from_numpy(flags[::4]).T.repeat_interleave(64, 0)
    assert torch.equal(action[0, 192:], expected[:, :, None, None].expand(256, 5, 8, 12))


@pytest.mark.parametrize("flags", [np.zeros((9, 4)), np.zeros((17, 3)), np.full((17, 4), np.nan), np.array("w")])
def test_bad_actions_are_refused(flags):
    with pytest.raises(CameraError, match="actions"):
        camera.action_embedding(walk(), LENS, flags, frames=17, height=64, width=96)


def _broken(frame: int, change) -> np.ndarray:
    poses = walk()
    change(poses[frame])
    return poses


def _scaled(pose):
    pose[:3, :3] *= 1.01


def _mirrored(pose):
    pose[:3, 0] *= -1


@pytest.mark.parametrize(
    ("poses", "complaint"),
    [
        (np.eye(4), r"shape \[4, 4\]"),
        (np.zeros((9, 3, 3)), r"shape \[9, 3, 3\]"),
        (np.zeros((9, 3, 4)), r"is not rigid"),
        (_broken(3, lambda pose: pose.__setitem__((0, 3), np.nan)), "frame 3 is not finite"),
        (_broken(7, _scaled), "frame 7 is not rigid"),
        (_broken(2, _mirrored), "frame 2 is mirrored"),
        (_broken(4, lambda pose: pose.__setitem__((3, 0), 1)), "frame 4 has a last row"),
        (np.array([["a"] * 4] * 4), "expected numbers"),
        ([[1, 2], [3]], "unequal length"),
    ],
)
def test_bad_poses_are_refused(poses, complaint):
    with pytest.raises(CameraError, match=complaint):
        camera.check_poses(poses)


@pytest.mark.parametrize(
    ("lens", "complaint"),
    [
        ([0, 500, 416, 240], "frame 0 has a focal length"),
        ([[500, 500, 416, 240], [500, -500, 416, 240]], "frame 1 has a focal length"),
        ([500, 500, 416], r"shape \[1, 3\]"),
        (np.zeros((0, 4)), r"shape \[0, 4\]"),
        ([500, 500, np.inf, 240], "not finite"),
    ],
)
def test_bad_intrinsics_are_refused(lens, complaint):
    with pytest.raises(CameraError, match=complaint):
        camera.check_intrinsics(lens)


@pytest.mark.parametrize("size", [(60, 96), (64, 0), (64, -8)])
def test_sizes_that_latent_cells_do_not_fill_are_refused(size):
    with pytest.raises(CameraError, match="multiples of 8"):
        camera.camera_embedding(walk(), LENS, frames=17, height=size[0], width=size[1])


def save(folder: Path, poses=None, lens=LENS) -> Path:
    np.save(folder / "poses.npy", walk() if poses is None else poses)
    np.save(folder / "intrinsics.npy", lens)
    return folder


def test_folder_or_file_of_poses(tmp_path):
    save(tmp_path)
    poses, lens = camera.load_poses(tmp_path)
    assert poses.dtype == lens.dtype == np.float64
    np.testing.assert_array_equal(camera.load_poses(tmp_path / "poses.npy")[0], poses)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(CameraError, match=r"poses\.npy: no such file"):
        camera.load_poses(tmp_path)
    np.save(tmp_path / "poses.npy", walk())
    with pytest.raises(CameraError, match=r"intrinsics\.npy: no such file"):
        camera.load_poses(tmp_path)


def test_a_pickle_is_not_opened(tmp_path):
    save(tmp_path, np.array([{"a": 1}], dtype=object))
    with pytest.raises(CameraError, match="not a plain .npy array"):
        camera.load_poses(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not numpy at all", b"\x93NUMPY\x01\x00"])
def test_other_files_are_refused(tmp_path, content):
    (save(tmp_path) / "poses.npy").write_bytes(content)
    with pytest.raises(CameraError, match=r"poses\.npy"):
        camera.load_poses(tmp_path)


def test_a_huge_file_is_refused_unread(tmp_path):
    with (save(tmp_path) / "poses.npy").open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(CameraError, match="at most 64 MiB"):
        camera.load_poses(tmp_path)


def test_too_few_poses_are_refused(tmp_path):
    with pytest.raises(CameraError, match="4 poses"):
        camera.load_poses(save(tmp_path, walk(4)))
