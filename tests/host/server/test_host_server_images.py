"""Image files that ComfyUI's Load Image reads otherwise than browsers and the command: the next node says so."""

import numpy as np
import pytest
from lingbot_world.pipeline.images.colours import PRIMARIES, matrix_profile
from PIL import Image

pytestmark = pytest.mark.host
SCENE = np.full((64, 64, 3), (200, 60, 50), np.uint8)
SCENE[:, 32:] = 60, 160, 70
PREPARE = "LingBotWorldPrepareImage"
MADE = {
    "plain.png": lambda file: Image.fromarray(SCENE).save(file),
    "plain.jpg": lambda file: Image.fromarray(SCENE).save(file, quality=90),
    "p3.png": lambda file: Image.fromarray(SCENE).save(file, icc_profile=matrix_profile(PRIMARIES[12], None)),
    "clear.png": lambda file: Image.fromarray(np.dstack([SCENE, SCENE[..., 0]])).save(file),
    "twelve.tif": lambda file: Image.fromarray(SCENE[..., 0].astype(np.uint16) * 16).save(file, tiffinfo={341: 4095}),
    "float.tif": lambda file: Image.fromarray(SCENE[..., 0].astype(np.float32)).save(file),
}


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_load_image_shows_in_other_colours(comfy_server, name):
    MADE[name](comfy_server.base / "input" / name)
    node = {"class_type": PREPARE, "inputs": {"image": ["1", 0], "width": 64, "height": 64, "fit": "stretch"}}
    node["inputs"]["size"] = "width and height"
    run = comfy_server.queue(
        {
            "1": {"class_type": "LoadImage", "inputs": {"image": name}},
            "2": node,
            "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
        }
    )
    said = " ".join(text for at, text in run.texts if at == "2")
    if "plain" in name:
        assert said == ""
    elif "float" in name:
        assert "float.tif: its pixels are floating-point numbers" in said
    else:
        assert f"{name} has other colours in a browser, and in `lingbot-world generate`: ComfyUI's Load Image" in said
