"""The first frame as the canvas prepares it: official sizes and pixels, and two ways that keep the aspect ratio."""

import json

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless.files.pictures import read_image
from lingbot_world.host.files.image import AREAS, EXPLICIT, fit_image, target_geometry
from lingbot_world.pipeline.geometry import Geometry
from PIL import Image


def test_sizes_follow_the_official_rule(golden):
    cases = json.loads((golden / "geometry" / "geometry.json").read_text())
    checked = 0
    for case in cases:
        name = next((name for name, area in AREAS.items() if area == case["max_area"]), None)
        if name is None or "error" in case:
            continue
        image = torch.zeros(1, case["image_height"], case["image_width"], 3)
        geometry = target_geometry(image, name, 16, 16)
        assert (geometry.height, geometry.width) == (case["height"], case["width"]), case
        checked += 1
    assert checked >= 5


@pytest.mark.parametrize("case", ["down", "up"])
def test_stretch_is_the_official_first_frame(golden, case):
    with np.load(golden / "geometry" / "image_preprocess.npz") as data:
        image, expected = data[f"image_{case}"], data[f"vae_first_frame_{case}"]
    ours = fit_image(torch.from_numpy(image)[None] / 255, Geometry(*expected.shape[1:], 1), "stretch")
    np.testing.assert_allclose(ours[0].movedim(-1, 0) * 2 - 1, expected, atol=1e-4)


@pytest.mark.parametrize(("fit", "corner"), [("crop", 1.0), ("pad", 0.0)])
def test_crop_fills_and_pad_frames(fit, corner):
    image = torch.ones(1, 100, 400, 3)
    ours = fit_image(image, Geometry(64, 64, 1), fit)
    assert ours.shape == (1, 64, 64, 3)
    assert ours[0, 0, 0, 0] == pytest.approx(corner, abs=1e-5)
    assert ours[0, 32, 32, 0] == pytest.approx(1, abs=1e-5)


def test_crop_keeps_the_middle():
    image = torch.zeros(1, 64, 192, 3)
    image[:, :, 64:128] = 1
    assert fit_image(image, Geometry(64, 64, 1), "crop").min() > 0.3


def test_alpha_is_dropped():
    assert fit_image(torch.rand(1, 32, 32, 4), Geometry(32, 32, 1), "stretch").shape[-1] == 3


def test_bad_choices_name_the_good_ones():
    image = torch.zeros(1, 32, 32, 3)
    with pytest.raises(InputError, match="multiple of 16"):
        target_geometry(image, EXPLICIT, 100, 64)
    with pytest.raises(InputError, match="expected one of: 832x480"):
        target_geometry(image, "4k", 64, 64)
    with pytest.raises(InputError, match="stretch, crop, pad"):
        fit_image(image, Geometry(32, 32, 1), "squeeze")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_sixteen_bits_become_eight(tmp_path, dtype):
    levels = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(dtype)
    Image.fromarray(levels).save(tmp_path / "deep.tif")
    assert np.abs(read_image(tmp_path / "deep.tif")[..., 1] - levels / 257).max() <= 0.5
