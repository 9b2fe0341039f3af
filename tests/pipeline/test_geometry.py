"""Sizes and the first frame against the official implementation's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.errors import CameraError, InputError
from lingbot_world.pipeline.geometry import (
    Geometry,
    explicit_geometry,
    first_frame,
    image_conditioning,
    output_geometry,
)

CASES = json.loads((Path(__file__).parents[1] / "golden/geometry/geometry.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['image_width']}x{case['image_height']}")
def test_sizes_equal_the_official_ones(case):
    arguments = [case[name] for name in ("image_width", "image_height", "max_area", "frame_num", "n_poses")]
    found = output_geometry(*arguments)
    if "error" in case:  # the official code crashes on frame counts that are not 4n+1
        assert found.frames == (case["frame_num"] - 1) // 4 * 4 + 1
        return
    names = ("height", "width", "lat_h", "lat_w", "lat_f", "frames")
    assert {name: getattr(found, name) for name in names} == {name: case[name] for name in names}
    assert found.tokens == case["seq_len"]


def test_an_explicit_size_is_taken_as_it_is():
    assert explicit_geometry(832, 480, 81) == Geometry(height=480, width=832, frames=81)
    assert explicit_geometry(832, 480, 81, n_poses=50).frames == 49


@pytest.mark.parametrize(("width", "height"), [(830, 480), (832, 484), (0, 480), (832, -16), (16384, 480)])
def test_sizes_that_are_not_multiples_of_16_are_refused(width, height):
    with pytest.raises(InputError, match="multiple of 16 .* try"):
        explicit_geometry(width, height, 81)


def test_too_thin_an_image_and_too_few_poses_are_refused():
    with pytest.raises(InputError, match="name width and height"):
        output_geometry(100_000, 10, 240 * 416, 5)
    with pytest.raises(CameraError):
        output_geometry(832, 480, 480 * 832, 81, n_poses=4)
    with pytest.raises(CameraError):
        output_geometry(832, 480, 480 * 832, 0)


def test_the_first_frame_equals_the_official_one(golden):
    data = np.load(golden / "geometry/image_preprocess.npz")
    for case in ("down", "up"):
        expected = data[f"vae_first_frame_{case}"]
        frame = first_frame(data[f"image_{case}"], Geometry(*expected.shape[1:], frames=1))
        np.testing.assert_allclose(frame, expected, rtol=0, atol=1e-4)


def test_the_mask_marks_the_first_latent_frame(golden):
    y = torch.from_numpy(np.load(golden / "e2e/inputs.npz")["y"])[None]
    assert torch.equal(image_conditioning(y[:, 4:]), y)
