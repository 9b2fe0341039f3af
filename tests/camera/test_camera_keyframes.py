"""Paths through keyframes, and through the cameras of ComfyUI's 3D nodes."""

import numpy as np
import pytest
from lingbot_world.camera.moves.keyframes import knots_by_distance, path_from_load3d, path_through, rotations_at, spline
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.camera.rotation import angle_deg, from_angles
from lingbot_world.errors import CameraError


def xyz(*values) -> dict:
    return dict(zip("xyzw", values, strict=False))


def at(*position, target=(0, 0, 0), **more) -> dict:
    """A camera_info as ComfyUI's 3D nodes give it: y up, looking down -z."""
    view = {"position": xyz(*position), "target": xyz(*target), "zoom": 1, "cameraType": "perspective"}
    return {**view, **more}


def test_the_spline_goes_through_its_keyframes_and_is_smooth():
    knots, values = np.array([0.0, 3, 10, 12]), np.array([[0.0, 1], [2, 0], [5, 5], [5, 6]])
    np.testing.assert_allclose(spline(knots, values, knots), values, atol=1e-12)
    before, after = (spline(knots, values, knots[1:3] + step) for step in (-1e-6, 1e-6))
    slope = (values[2:] - values[:2]) / (knots[2:] - knots[:2])[:, None]
    np.testing.assert_allclose((after - before) / 2e-6, slope, atol=1e-5)


def test_smooth_turns_have_no_kink_at_a_keyframe():
    rotations = from_angles("Y", [0.0, 10, 60, 70])
    times = np.array([7.99, 8.0, 8.01])

    def kink(smooth: bool) -> float:
        turned = rotations_at(np.array([0, 8, 16, 24]), rotations, times, smooth=smooth)
        first, second = angle_deg(turned[:-1].swapaxes(1, 2) @ turned[1:])
        return abs(second / first - 1)

    assert kink(smooth=True) < 0.01
    assert kink(smooth=False) > 1


def test_smooth_turns_pass_through_their_keyframes():
    knots = np.array([0.0, 1, 5, 6])
    rotations = from_angles("YXZ", [[0.0, 10, 5], [20, -30, 0], [50, 40, 90], [60, 0, 0]])
    np.testing.assert_allclose(rotations_at(knots, rotations, knots, smooth=True), rotations, atol=1e-12)


def test_the_camera_stands_still_outside_its_keyframes():
    positions, rotations = np.array([[0.0, 0, 0], [4, 0, 0]]), from_angles("Y", [0.0, 40])
    path = path_through([2, 4], positions, rotations, np.arange(7), lens=lens_from_fov())
    np.testing.assert_allclose(path.positions[:, 0], [0, 0, 0, 2, 4, 4, 4], atol=1e-12)
    np.testing.assert_allclose(path.rotations, from_angles("Y", [0.0, 0, 0, 20, 40, 40, 40]), atol=1e-12)


def test_distance_spaces_keyframes_by_the_root_of_it():
    np.testing.assert_allclose(knots_by_distance(np.array([[0, 0, 0], [1, 0, 0], [5, 0, 0]]), 31), [0, 10, 30])
    assert np.isfinite(knots_by_distance(np.zeros((3, 3)), 9)).all()
    assert (np.diff(knots_by_distance(np.array([[0, 0, 0], [0, 0, 0], [1, 0, 0.0]]), 9)) > 0).all()


def test_a_3d_camera_turns_over_into_opencv_axes():
    """In front of the origin (z towards the viewer) and above it, level and looking at it, is OpenCV's -z and -y."""
    path = path_from_load3d([at(0, 2, 5, target=(0, 2, 0)), at(3, 2, 5, target=(3, 2, 0))], 9)
    np.testing.assert_allclose(path.c2w[0], [[1, 0, 0, 0], [0, 1, 0, -2], [0, 0, 1, -5], [0, 0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(path.positions[-1], [3, -2, -5], atol=1e-12)
    np.testing.assert_allclose(path.positions[4], [1.5, -2, -5], atol=1e-12)


def test_target_and_quaternion_say_the_same():
    """Looking at the origin from +x is a quarter turn about the vertical."""
    half = np.sqrt(0.5)
    by_target = path_from_load3d([at(4, 0, 0)], 5)
    by_quaternion = path_from_load3d([at(4, 0, 0, quaternion=xyz(0, half, 0, half))], 5)
    np.testing.assert_allclose(by_target.c2w, by_quaternion.c2w, atol=1e-12)
    np.testing.assert_allclose(by_target.rotations[0, :, 2], [-1, 0, 0], atol=1e-12)
    straight_down = path_from_load3d([at(0, 4, 0)], 5)
    np.testing.assert_allclose(straight_down.rotations[0, :, 2], [0, 1, 0], atol=1e-12)


def test_the_lens_is_the_first_cameras_unless_told():
    assert path_from_load3d([at(0, 0, 1)], 5).fov_deg == pytest.approx(79)
    wide = path_from_load3d([at(0, 0, 1, fov=2 * np.rad2deg(np.arctan(240 / 416)))], 5)
    assert wide.fov_deg == pytest.approx(90)
    np.testing.assert_allclose(wide.intrinsics[0], [416, 416, 416, 240])
    assert path_from_load3d([at(0, 0, 1, fov=60)], 5, fov_deg=50).fov_deg == pytest.approx(50)
    zoomed = path_from_load3d([at(0, 0, 1, fov=2 * np.rad2deg(np.arctan(240 / 416)), zoom=2)], 5)
    np.testing.assert_allclose(zoomed.intrinsics[0], [832, 832, 416, 240])
    with pytest.raises(CameraError, match="camera 1: zoom -2"):
        path_from_load3d([at(0, 0, 1, fov=60, zoom=-2)], 5)


@pytest.mark.parametrize(
    ("camera", "complaint"),
    [
        ("front", "camera 2: str"),
        ({"position": xyz(0, 0, 1)}, "camera 2: no target; found position"),
        (at(0, 0, 0), "stands at its own target"),
        (at(0, 0, float("nan")), "not finite"),
        (at(0, 0, "far"), "expected numbers x, y, z"),
        (at(0, 0, 1, quaternion=xyz(0, 0, 0, 0)), "or zero"),
        (at(0, 0, 1, cameraType="orthographic"), "orthographic projection"),
    ],
)
def test_bad_3d_cameras_are_refused_by_number(camera, complaint):
    with pytest.raises(CameraError, match=complaint):
        path_from_load3d([at(0, 0, 1), camera], 9)


def test_no_cameras_or_an_unknown_spacing_are_refused():
    with pytest.raises(CameraError, match="0 keyframes"):
        path_from_load3d([], 9)
    with pytest.raises(CameraError, match="spacing"):
        path_from_load3d([at(0, 0, 1)], 9, spacing="random")
