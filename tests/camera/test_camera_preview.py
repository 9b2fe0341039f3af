"""The drawing of a path: what is drawn where, and that nothing makes it fail."""

import numpy as np
import pytest
from lingbot_world.camera.moves import PRESETS, preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.plucker import latent_poses
from lingbot_world.camera.preview.drawing import END, FROM_ABOVE, START, View, frustum
from lingbot_world.camera.preview.render import received_poses, render_preview
from lingbot_world.errors import CameraError, InputError
from PIL import Image

RED_CARD = Image.new("RGB", (64, 48), (250, 10, 10))


def pixels_like(image: Image.Image, color, tolerance: int = 30) -> np.ndarray:
    """Rows and columns of the pixels of a color."""
    return np.argwhere(np.abs(np.asarray(image, int) - color).max(-1) < tolerance)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_drawn(name):
    image = render_preview(preset_path(name, frames=17), RED_CARD)
    assert image.size == (800, 500)
    assert image.mode == "RGB"
    assert len(pixels_like(image, START)) > 20


def test_from_above_a_path_to_the_right_ends_on_the_right():
    left_column = (0, 0, 215, 215)
    image = render_preview(preset_path("truck_right")).crop(left_column)
    assert pixels_like(image, END)[:, 1].mean() > pixels_like(image, START)[:, 1].mean() + 50


def test_a_light_drawing_has_light_grounds_and_the_first_frame_as_it_is():
    path, red = preset_path("orbit_left", frames=17), (250, 10, 10)
    dark, light = (render_preview(path, RED_CARD, light=light) for light in (False, True))
    assert np.median(np.asarray(dark)) < 60 < 200 < np.median(np.asarray(light))
    assert len(pixels_like(light, red, 40)) == pytest.approx(len(pixels_like(dark, red, 40)), rel=0.1)


def test_the_first_frame_is_drawn_in_the_3d_view():
    path = preset_path("orbit_left", frames=17)
    with_card, without = render_preview(path, RED_CARD), render_preview(path)
    found = pixels_like(with_card, (250, 10, 10), 40)
    assert len(found) > 2000
    assert found[:, 1].min() > 215
    assert found[:, 1].max() < 555
    assert not len(pixels_like(without, (250, 10, 10), 40))


def test_received_is_asked_at_another_scale():
    path = preset_path("orbit_left", easing="ease_in_out")
    asked, received = latent_poses(path.c2w, 81), received_poses(path, 81)
    np.testing.assert_allclose(received[:, :3, :3], asked[:, :3, :3], atol=1e-12)
    longest = np.linalg.norm(np.diff(asked[:, :3, 3], axis=0), axis=1).max()
    np.testing.assert_allclose(received[:, :3, 3] * longest, asked[:, :3, 3], atol=1e-12)


def test_a_view_keeps_every_point_inside_its_box():
    corners = np.concatenate([frustum(pose, lens_from_fov(), 1.0) for pose in preset_path("spiral").c2w])
    pixels = View(Image.new("RGB", (300, 200)), (20, 30, 280, 190), FROM_ABOVE, corners).pixels(corners)
    assert (pixels >= [20, 30]).all()
    assert (pixels <= [280, 190]).all()


def test_a_frustum_by_hand():
    lens = np.array([416.0, 240, 416, 240])
    corners = frustum(np.eye(4), lens, 2.0)
    np.testing.assert_allclose(corners[:3], [[0, 0, 0], [-2, -2, 2], [2, -2, 2]])
    assert corners[5, 1] < corners[1, 1]


@pytest.mark.parametrize("size", [(400, 250), (640, 400), (1600, 1000), (500, 900)])
def test_other_sizes(size):
    assert render_preview(preset_path("dolly_in", frames=9), RED_CARD, size=size).size == size


def test_extreme_paths_can_be_drawn():
    poses = preset_path("orbit_left", frames=33).c2w.copy()
    for scale in (1e-9, 1e9):
        poses[:, :3, 3] *= scale
        render_preview(CameraPath(poses, lens_from_fov(170), fps=1000))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="at least 400x250"):
        render_preview(preset_path("static"), size=(100, 100))
    with pytest.raises(CameraError, match="at least 5"):
        render_preview(preset_path("static")[:3])
