"""Camera paths of causal models: whole chunks of latent frames, and paths that go on later."""

import json

import numpy as np
import pytest
from lingbot_world.camera import (
    CameraTrack,
    begin_track,
    camera_embedding,
    continue_track,
    continued_poses,
    frame_count,
    latent_poses,
    longest_step,
    model_poses,
    poses_from_keys,
)
from lingbot_world.camera.plucker import pixel_rays
from lingbot_world.errors import CameraError, LingBotError
from lingbot_world.pipeline.geometry import explicit_geometry, output_geometry

LENS = [500.0, 500.0, 416.0, 240.0]
SIZE = {"height": 16, "width": 32}


@pytest.mark.parametrize("name", ["global_f33", "window6_sink3_f69", "stretched_f41"])
def test_shapes_and_rays_equal_the_official_ones(golden, name):
    cases = json.loads((golden / "causal" / "manifest.json").read_text())
    (case,) = (case for case in cases if case["name"] == name)
    image = (case["image_w"], case["image_h"], case["max_area"])
    geometry = output_geometry(*image, case["frame_num"], case["n_poses"], chunk=3)
    with np.load(golden / "causal" / case["file"]) as data:
        assert (geometry.lat_f, geometry.lat_h, geometry.lat_w) == data["latent"].shape[1:]
        size = {"frames": case["frame_num"], "height": geometry.height, "width": geometry.width}
        rays = camera_embedding(data["poses"], data["intrinsics"], **size, chunk=3)
        np.testing.assert_allclose(rays, data["plucker"], rtol=0, atol=1e-6)


def test_the_chunks_of_a_video_share_the_rays_of_its_lens():
    rays = pixel_rays(LENS, **SIZE)
    assert pixel_rays([LENS, LENS], **SIZE) is rays
    other = pixel_rays([250.0, *LENS[1:]], **SIZE)
    assert not np.array_equal(other, rays)
    np.testing.assert_array_equal(pixel_rays(LENS, **SIZE), rays)


@pytest.mark.parametrize(
    ("frames", "poses", "used"),
    [(81, None, 81), (41, None, 33), (40, None, 33), (9, None, 9), (12, 900, 9), (161, 90, 81), (81, 20, 9)],
)
def test_what_fills_no_chunk_is_cut(frames, poses, used):
    assert frame_count(frames, poses, chunk=3) == used
    assert explicit_geometry(64, 64, frames, poses, chunk=3).frames == used


def test_nothing_left_is_refused():
    for n_poses in (None, 8):
        with pytest.raises(LingBotError, match="8 frames do not fill a chunk of 3 latent frames: at least 9"):
            output_geometry(832, 480, 480 * 832, 8, n_poses, chunk=3)
    with pytest.raises(CameraError, match="8 camera poses do not fill a chunk of 3 latent frames: at least 9"):
        camera_embedding(walk(81)[:8], LENS, frames=81, chunk=3, **SIZE)


def walk(frames: int) -> np.ndarray:
    """Walks and turns at changing speeds."""
    poses = poses_from_keys(f"wl-{frames // 3},wd-{frames // 3},wi-{frames}")[:frames]
    poses[:, :3, 3] *= np.linspace(1, 2, frames)[:, None]
    return poses


def test_a_path_in_two_parts_is_the_path():
    """The second part begins at latent frame 6, frame 24; frame 20 is the pose before it."""
    poses = walk(45)
    whole = camera_embedding(poses, LENS, frames=45, chunk=3, **SIZE)
    scale = longest_step(poses, frames=45, chunk=3)
    first = camera_embedding(poses[:21], LENS, frames=21, chunk=3, scale=scale, **SIZE)
    second = camera_embedding(poses[24:], LENS, frames=21, chunk=3, scale=scale, before=poses[20], **SIZE)
    assert whole.shape[2] == 12
    assert first.shape[2] == second.shape[2] == 6
    np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole, rtol=0, atol=1e-6)


def test_a_path_that_continues_another_is_the_later_part_of_one_path():
    """The new path is the frames from 20 on, in another place: it has to be moved to where the first one ended."""
    poses = walk(45)
    whole, scale = model_poses(poses, 45), longest_step(poses, frames=45)
    elsewhere = poses_from_keys("sl-9")[-1] @ np.linalg.inv(poses[20]) @ poses[20:]
    later, world = continued_poses(elsewhere, 6, before=poses[20], scale=scale)
    np.testing.assert_allclose(later, whole[6:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(world, latent_poses(poses, 45)[6:], rtol=0, atol=1e-9)


def test_after_a_camera_that_stood_still_a_path_has_its_own_scale():
    later, world = continued_poses(walk(25), 6, before=np.eye(4), scale=None)
    assert np.linalg.norm(later[:, :3, 3], axis=1).max() == pytest.approx(1)
    np.testing.assert_allclose(world, latent_poses(walk(25), 25)[1:], rtol=0, atol=1e-9)
    with pytest.raises(CameraError, match="camera scale -1"):
        continued_poses(walk(25), 6, before=np.eye(4), scale=-1)


def go_on(track: CameraTrack, path: np.ndarray | None, frames: int) -> CameraTrack:
    return continue_track(path, track.lens, frames, 3, before=track.world[-1], scale=track.scale)


def dolly(frames: int, speed: float = 1.0) -> np.ndarray:
    """Walks straight on by `speed` a frame."""
    poses = np.tile(np.eye(4), (frames, 1, 1))
    poses[:, 2, 3] = speed * np.arange(frames)
    return poses


def step_lengths(track: CameraTrack) -> np.ndarray:
    return np.linalg.norm(track.poses[:, :3, 3], axis=1)


@pytest.mark.parametrize("first", [None, poses_from_keys("l-12")], ids=["still", "turns"])
def test_the_first_path_that_moves_sets_the_scale(first):
    still = begin_track(first, None, 9, 3)
    assert (still.scale, go_on(still, first, 9).scale) == (0, 0)
    slow = go_on(go_on(still, first, 9), dolly(13), 13)
    fast = go_on(slow, dolly(13, 10), 13)
    np.testing.assert_allclose(step_lengths(slow), 1)
    np.testing.assert_allclose(step_lengths(fast), 10)
    assert slow.scale == fast.scale == pytest.approx(4)


@pytest.mark.parametrize(("speed", "times"), [(1, None), (1.04, None), (1.06, "1.06"), (10, "10"), (1e6, "1,000,000")])
def test_steps_that_no_first_path_could_have_are_told(speed, times):
    first = begin_track(dolly(9), None, 9, 3)
    assert not first.notes
    notes = go_on(first, dolly(13, speed), 13).notes
    assert len(notes) == (times is not None)
    if notes:
        assert f"longest step is {times} times that of the video's first path" in notes[0]
        assert f"divide its translations by {times}" in notes[0]


def test_poses_that_are_left_over_are_told():
    """Fewer than a latent frame's are not: they make no step."""
    for frames, given, used in ((9, 12, None), (9, 13, 9), (41, 81, 41), (81, 81, None), (81, 24, None)):
        (note, *_) = begin_track(dolly(given), None, frames, 3).notes or [None]
        assert (note or "").startswith(f"The first {used} of the camera path's {given} poses" if used else "")
        assert (note is None) == (used is None)
    still = begin_track(None, None, 9, 3)
    assert not still.notes
    assert not go_on(still, None, 40).notes
    (note,) = go_on(still, dolly(33), 24).notes
    assert note == (
        "The first 24 of the camera path's 33 poses are used; a continued run begins with the first "
        "pose of its own path."
    )


def test_the_scale_is_the_longest_step_unless_given():
    poses = walk(33)
    own = camera_embedding(poses, LENS, frames=33, chunk=3, **SIZE)
    scale = longest_step(poses, frames=33, chunk=3)
    assert scale == pytest.approx(np.linalg.norm(poses[4:33:4, :3, 3] - poses[:32:4, :3, 3], axis=1).max())
    np.testing.assert_array_equal(camera_embedding(poses, LENS, frames=33, chunk=3, scale=scale, **SIZE), own)
    halved = camera_embedding(poses, LENS, frames=33, chunk=3, scale=2 * scale, **SIZE)
    np.testing.assert_allclose(halved[:, :192], own[:, :192] / 2, rtol=1e-6)
    np.testing.assert_array_equal(halved[:, 192:], own[:, 192:])


def test_a_camera_that_stands_still_has_no_step_at_any_scale():
    still = np.tile(np.eye(4), (9, 1, 1))
    still[:, 0, 3] = 1e4 + 1e-9 * np.arange(9)
    assert longest_step(still, frames=9, chunk=3) == 0
    assert not camera_embedding(still, LENS, frames=9, chunk=3, scale=1e-9, **SIZE)[:, :192].any()


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_a_scale_that_is_no_length_is_refused(scale):
    with pytest.raises(CameraError, match="camera scale"):
        camera_embedding(walk(9), LENS, frames=9, scale=scale, **SIZE)


def test_a_pose_before_that_is_none_is_refused():
    with pytest.raises(CameraError, match="the pose before"):
        camera_embedding(walk(9), LENS, frames=9, before=np.eye(3), **SIZE)
