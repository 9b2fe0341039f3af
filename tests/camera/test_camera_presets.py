"""What each preset's name says is what a point in the world does in the picture."""

from itertools import cycle

import numpy as np
import pytest
from lingbot_world.camera import camera_embedding
from lingbot_world.camera.easing import EASINGS
from lingbot_world.camera.moves import PRESETS, preset_path
from lingbot_world.camera.path import CameraPath
from lingbot_world.errors import CameraError

AHEAD = np.array([0.0, 0.0, 4.0])


def seen(path: CameraPath, point: np.ndarray, frame: int = -1) -> np.ndarray:
    """Pixel x (right) and y (down) at 832x480 of a world point in one frame."""
    x, y, z = path.rotations[frame].T @ (point - path.positions[frame])
    fx, fy, cx, cy = path.intrinsics[frame]
    assert z > 0, "the point is behind the camera"
    return np.array([fx * x / z + cx, fy * y / z + cy])


def shift(name: str, **options) -> np.ndarray:
    path = preset_path(name, frames=17, **options)
    return seen(path, AHEAD) - seen(path, AHEAD, 0)


LEFT, RIGHT, UP, DOWN = (-1, 0), (1, 0), (0, -1), (0, 1)


@pytest.mark.parametrize(
    ("name", "direction"),
    [(f"{move}_{way}", side) for move in ("truck", "pan") for way, side in (("left", RIGHT), ("right", LEFT))]
    + [(f"{move}_{way}", side) for move in ("pedestal", "tilt") for way, side in (("up", DOWN), ("down", UP))],
)
def test_a_point_ahead_moves_the_right_way(name, direction):
    moved = shift(name, amount=0.5 if PRESETS[name].unit == "world units" else 10)
    along = np.abs(np.array(direction)) == 1
    assert np.sign(moved[along]) == np.array(direction)[along]
    np.testing.assert_allclose(moved[~along], 0, atol=1e-9)
    assert np.abs(moved[along]) > 20


def spread(path: CameraPath, frame: int) -> float:
    """How far apart two points ahead are in the picture."""
    return float(np.linalg.norm(seen(path, AHEAD + [0.5, 0, 0], frame) - seen(path, AHEAD - [0.5, 0, 0], frame)))


def test_dolly_in_makes_things_grow_and_out_shrinks_them():
    dolly_in, dolly_out = preset_path("dolly_in", amount=1), preset_path("dolly_out", amount=1)
    assert spread(dolly_in, -1) > 1.2 * spread(dolly_in, 0)
    assert spread(dolly_out, -1) < 0.9 * spread(dolly_out, 0)


@pytest.mark.parametrize(("name", "sign"), [("roll_clockwise", -1), ("roll_counterclockwise", 1)])
def test_a_rolling_camera_turns_the_picture_the_other_way(name, sign):
    """A point on the right of the picture goes up when the camera rolls clockwise."""
    path = preset_path(name, amount=20)
    moved = seen(path, AHEAD + [1, 0, 0]) - seen(path, AHEAD + [1, 0, 0], 0)
    assert np.sign(moved[1]) == sign


@pytest.mark.parametrize(
    ("name", "axis", "sign"),
    [
        ("orbit_left", 0, -1),
        ("orbit_right", 0, 1),
        ("arc_left", 0, -1),
        ("arc_right", 0, 1),
        ("arc_over", 1, -1),
        ("crane_up", 1, -1),
        ("crane_down", 1, 1),
        ("spiral", 0, 1),
    ],
)
def test_moves_round_a_subject_keep_it_in_the_middle(name, axis, sign):
    path = preset_path(name, frames=17, radius=4.0, amount=2 if name.startswith("crane") else 50)
    assert np.sign(path.positions[-1, axis]) == sign
    for frame in range(len(path)):
        np.testing.assert_allclose(seen(path, AHEAD, frame), [416, 240], atol=1e-6)


def test_an_orbit_keeps_its_distance_and_turns_by_its_amount():
    path = preset_path("orbit_right", amount=90, radius=4.0)
    np.testing.assert_allclose(np.linalg.norm(path.positions - AHEAD, axis=1), 4.0, atol=1e-12)
    np.testing.assert_allclose(path.positions[-1], [4, 0, 4], atol=1e-12)
    np.testing.assert_allclose(path.rotations[-1, :, 2], [-1, 0, 0], atol=1e-12)


def test_figure_eight_comes_back():
    path = preset_path("figure_eight")
    np.testing.assert_allclose(path.positions[-1], 0, atol=1e-12)
    assert path.positions[:, 0].max() > 0.9
    assert path.positions[:, 0].min() < -0.9


def test_one_seed_is_one_shake():
    first, again, other = (preset_path("handheld", seed=seed).c2w for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert not first[:, :3, 3].any()


def test_shake_on_top_of_a_move_keeps_where_it_goes():
    shaken, plain = preset_path("dolly_in", shake=1.0), preset_path("dolly_in")
    np.testing.assert_array_equal(shaken.positions, plain.positions)
    assert np.abs(shaken.rotations - plain.rotations).max() > 1e-3


@pytest.mark.parametrize(("name", "easing"), [*zip(PRESETS, cycle(EASINGS), strict=False)])
def test_every_preset_starts_at_the_identity_and_conditions_the_model(name, easing):
    path = preset_path(name, frames=20, easing=easing)
    assert len(path) == 17
    np.testing.assert_allclose(path.c2w[0], np.eye(4), atol=1e-12)
    embedding = camera_embedding(path.c2w, path.intrinsics, frames=17, height=16, width=32)
    assert embedding.isfinite().all()
    moves = np.abs(np.diff(path.c2w, axis=0)).max()
    assert (moves == 0) == (name == "static")


def test_the_default_lens_is_that_of_the_official_examples():
    assert preset_path("static").fov_deg == pytest.approx(79)
    assert preset_path("static", fov_deg=40).fov_deg == pytest.approx(40)


def test_notes_say_where_the_amount_cancels():
    assert "cancels" in PRESETS["dolly_in"].note
    assert not PRESETS["pan_left"].note
    assert all(preset.description for preset in PRESETS.values())


@pytest.mark.parametrize(
    "options",
    [{"amount": float("nan")}, {"radius": 0}, {"radius": float("inf")}, {"fov_deg": 0}, {"easing": "x"}, {"frames": 0}],
)
def test_bad_options_are_refused(options):
    with pytest.raises(CameraError):
        preset_path("orbit_left", **{"frames": 17, **options})


def test_an_unknown_preset_is_refused():
    with pytest.raises(CameraError, match="dolly_in"):
        preset_path("zoom")
