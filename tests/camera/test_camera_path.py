"""The path type: what must hold of its operations whatever the path."""

import numpy as np
import pytest
from lingbot_world.camera import camera_embedding
from lingbot_world.camera.easing import EASINGS
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.rotation import angle_deg, from_angles, from_quaternions, inverse, slerp, to_angles
from lingbot_world.errors import CameraError
from scipy.spatial.transform import Rotation


def random_path(random: np.random.Generator, frames: int | None = None) -> CameraPath:
    n = random.integers(1, 12) if frames is None else frames
    c2w = np.tile(np.eye(4), (n, 1, 1))
    c2w[:, :3, :3] = from_quaternions(random.normal(size=(n, 4)))
    c2w[:, :3, 3] = random.normal(size=(n, 3)) * 10.0 ** random.uniform(-3, 4)
    return CameraPath(c2w, lens_from_fov(random.uniform(20, 120)))


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def same(a: CameraPath, b: CameraPath, atol: float = 1e-9) -> None:
    scale = max(1.0, float(np.abs(a.positions).max()))
    np.testing.assert_allclose(a.c2w / [[1, 1, 1, scale]], b.c2w / [[1, 1, 1, scale]], atol=atol)
    np.testing.assert_allclose(a.intrinsics, b.intrinsics)
    assert a.fps == b.fps


def test_joining_is_associative_and_a_single_pose_is_its_unit(random):
    a, b, c = (random_path(random) for _ in range(3))
    same((a + b) + c, a + (b + c))
    still = CameraPath(np.eye(4)[None], a.intrinsics[-1])
    same(a + still, a)
    same(CameraPath(a.c2w[:1], a.intrinsics[0]) + a, a)
    assert len(a + b) == len(a) + len(b) - 1


def test_a_path_and_its_reverse_end_where_they_began(random):
    path = random_path(random, 9)
    same(path.reversed().reversed(), path)
    there_and_back = path + path.reversed()
    np.testing.assert_allclose(there_and_back.c2w[-1], path.c2w[0], atol=1e-9)
    same(path.looped(), there_and_back)


def test_moving_the_world_is_a_group_action(random):
    path, one, two = (random_path(random, 6) for _ in range(3))
    a, b = one.c2w[0], two.c2w[0]
    same(path.moved(a).moved(b), path.moved(b @ a))
    same(path.moved(a).moved(inverse(a)), path)
    same(path.moved(a).relative(), path.relative())


def test_scales_multiply_and_cutting_undoes_joining(random):
    a, b = random_path(random, 7), random_path(random, 4)
    same(a.scaled(3).scaled(0.5), a.scaled(1.5))
    same((a + b)[:7], a)
    same(a.scaled(1), a)
    assert not np.ptp(a.scaled(0).positions, axis=0).any()


def test_resampling_to_the_same_length_and_back_is_the_path(random):
    path = random_path(random, 9)
    same(path.resampled(9), path)
    same(path.resampled(33).resampled(9), path)
    assert len(path.for_video(83)) == 81


def test_easing_keeps_both_ends_and_smoothing_nothing_keeps_all(random):
    path = random_path(random, 13)
    for name in EASINGS:
        same(path.eased(name)[:1], path[:1])
        same(path.eased(name)[12:], path[12:])
    same(path.eased("linear"), path)
    same(path.smoothed(0), path)


def test_smoothing_takes_out_jitter_and_keeps_a_straight_move():
    straight = np.tile(np.eye(4), (41, 1, 1))
    straight[:, 2, 3] = np.arange(41)
    path = CameraPath(straight, lens_from_fov())
    np.testing.assert_allclose(path.smoothed(2).positions[10:-10], path.positions[10:-10], atol=1e-9)
    shaky = straight.copy()
    shaky[:, 0, 3] += np.where(np.arange(41) % 2, 0.5, -0.5)
    assert np.abs(CameraPath(shaky, lens_from_fov()).smoothed(2).positions[10:-10, 0]).max() < 0.01


def test_between_poses_is_the_middle_of_the_line_and_of_the_arc():
    c2w = np.tile(np.eye(4), (2, 1, 1))
    c2w[1, :3, :3], c2w[1, :3, 3] = from_angles("Y", 90)[0], [2, 0, 4]
    middle = CameraPath(c2w, lens_from_fov()).at([0.5])
    np.testing.assert_allclose(middle.rotations[0], from_angles("Y", 45)[0], atol=1e-12)
    np.testing.assert_allclose(middle.positions[0], [1, 0, 2])


def test_a_path_cannot_be_changed(random):
    path = random_path(random, 5)
    for array in (path.c2w, path.intrinsics):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        path.fps = 3


def test_a_path_conditions_as_its_poses_do(random):
    path = random_path(random, 9)
    request = {"frames": 9, "height": 32, "width": 48}
    moved = camera_embedding(path.moved(path.c2w[3]).c2w, path.intrinsics, **request)
    np.testing.assert_allclose(moved, camera_embedding(path.c2w, path.intrinsics, **request), atol=1e-6)


OPERATIONS = [
    lambda path, random: path + random_path(random),
    lambda path, random: path.reversed(),
    lambda path, random: path[: random.integers(1, len(path) + 1)],
    lambda path, random: path.resampled(int(random.integers(1, 18))),
    lambda path, random: path.smoothed(random.uniform(0, 3)),
    lambda path, random: path.scaled(random.normal() * 10),
    lambda path, random: path.looped(),
    lambda path, random: path.eased(random.choice(list(EASINGS))),
    lambda path, random: path.relative(),
    lambda path, random: path.for_video(int(random.integers(5, 30))),
]


def test_hundreds_of_random_paths_stay_rotations(random):
    """Each goes through one operation after another; every operation comes up at least thirty times."""
    for index in range(300):
        path = OPERATIONS[index % len(OPERATIONS)](random_path(random), random)
        path = random.choice(OPERATIONS)(path, random)
        gram = path.rotations @ path.rotations.swapaxes(1, 2)
        assert np.isfinite(path.c2w).all()
        assert np.abs(gram - np.eye(3)).max() < 1e-9
        assert (np.linalg.det(path.rotations) > 0).all()


def test_angles_and_axes():
    """+y turns z (forward) to x (right), +x turns z up (-y), +z turns x (right) down (y); "YX" is Y @ X."""
    quarter = {axis: from_angles(axis, [90.0])[0] for axis in "XYZ"}
    np.testing.assert_allclose(quarter["Y"] @ [0, 0, 1], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(quarter["X"] @ [0, 0, 1], [0, -1, 0], atol=1e-12)
    np.testing.assert_allclose(quarter["Z"] @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(from_angles("YX", [[90.0, 90.0]])[0], quarter["Y"] @ quarter["X"], atol=1e-12)
    for axis in "XYZ":
        turned = from_angles(axis, [0.0, 1e-5, 30.0, -120.0])
        np.testing.assert_allclose(angle_deg(turned), [0, 1e-5, 30, 120], atol=1e-9)


def test_angles_are_those_of_scipy_there_and_back(random):
    angles = random.uniform([-180, -90, -180], [180, 90, 180], (500, 3))
    rotations = from_angles("YXZ", angles)
    np.testing.assert_allclose(rotations, Rotation.from_euler("YXZ", angles, degrees=True).as_matrix(), atol=1e-14)
    np.testing.assert_allclose([to_angles(rotation) for rotation in rotations], angles, atol=1e-9)
    for pitch in (-90.0, 90.0):
        straight = from_angles("YXZ", [[30.0, pitch, 20.0]])
        yaw, found, roll = to_angles(straight[0])
        assert (found, roll) == (pytest.approx(pitch), 0)
        np.testing.assert_allclose(from_angles("YXZ", [[yaw, found, roll]]), straight, atol=1e-12)


def test_slerp_turns_evenly_the_short_way():
    start, end = from_angles("Y", [0.0, 170.0]), from_angles("Y", [100.0, -170.0])
    turned = slerp(start, end, np.array([0.3, 0.25]))
    np.testing.assert_allclose(turned, from_angles("Y", [30.0, 175.0]), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda p: p + CameraPath(p.c2w, p.intrinsics, 30), "frames a second"),
        (lambda p: p.scaled(np.nan), "scale"),
        (lambda p: p.smoothed(-1), "smoothing"),
        (lambda p: p.resampled(0), "resample"),
        (lambda p: p.eased("bouncy"), "easing"),
        (lambda p: p[3:3], "0 poses"),
        (lambda _: lens_from_fov(180), "field of view"),
        (lambda p: CameraPath(p.c2w, p.intrinsics[:3]), "3 rows of intrinsics"),
        (lambda p: CameraPath(p.c2w, p.intrinsics, 0), "frames a second"),
    ],
)
def test_what_makes_no_path_is_refused(random, change, complaint):
    with pytest.raises(CameraError, match=complaint):
        change(random_path(random, 9))
