"""`generate` notices poses in another convention, as `camera show` does."""

import numpy as np
import pytest
from lingbot_world.camera.moves import path_from_keys
from lingbot_world.camera.rotation import OPENGL_TO_OPENCV, inverse
from lingbot_world.headless.command.cli import main
from PIL import Image


def plan(package, folder, c2w, capsys) -> str:
    folder.mkdir()
    np.save(folder / "poses.npy", c2w)
    np.save(folder / "intrinsics.npy", np.array([500.0, 500, 416, 240]))
    Image.new("RGB", (64, 48), (90, 120, 60)).save(folder / "image.png")
    files = ["--ckpt_dir", str(package), "--image", str(folder / "image.png"), "--action_path", str(folder)]
    more = ["--output", str(folder / "video.mp4"), "--device", "cpu", "--frame_num", "21", "--prompt", "a yard"]
    assert main(["generate", *files, *more, "--dry_run"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "convention"),
    [(lambda c2w: c2w @ OPENGL_TO_OPENCV, "opengl_c2w"), (inverse, "opencv_w2c"), (lambda c2w: c2w, "")],
)
def test_another_convention_is_noticed(toy_package, tmp_path, capsys, change, convention):
    c2w = path_from_keys("w-8,wl-12,w-8").c2w.copy()
    c2w[:, :3, 3] += 3, 1, -4
    said = plan(toy_package, tmp_path / "camera", change(c2w), capsys)
    assert (f"try the convention {convention}" in said) == bool(convention)
    assert ("try the convention" in said) == bool(convention)
