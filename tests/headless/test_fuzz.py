"""Damaged files of every kind end in the pack's own error or load: no other exception, no hang, no runaway memory.

The suite tries a few hundred mutations; LINGBOT_FUZZ=20000 tries as many of each kind."""

import json
import shutil

import numpy as np
import pytest
import torch
from camera_cases import colmap_binary
from fuzz_cases import fuzz
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.pose_folder import load_array
from lingbot_world.errors import LingBotError
from lingbot_world.headless.files.pictures import read_image
from lingbot_world.loaders import open_checkpoint, state_tensors
from lingbot_world.text import load_tokenizer
from lingbot_world.weights.files import read_tensors
from PIL import Image, features
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def expert(golden, tmp_path_factory):
    """A folder that the mutations are written into."""
    folder = tmp_path_factory.mktemp("expert")
    shutil.copytree(golden / "nf4/high_noise_model_bnb_nf4", folder, dirs_exist_ok=True)
    (folder / "quantization_meta.json").write_text('{"quant": {"quant_type": "nf4"}}')
    return folder


def load(folder):
    for parameter in state_tensors(open_checkpoint(folder), torch.float32).values():
        if hasattr(parameter, "decode"):
            parameter.decode(torch.float32)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "quantization_meta.json"])
def test_experts(expert, tmp_path, name):
    folder = tmp_path / "expert"
    shutil.copytree(expert, folder)
    fuzz(lambda: load(folder), (folder / name).read_bytes(), folder / name, head=30_000)


def test_torch_save_files(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(100), "b": torch.ones(3, 4)}, file)
    fuzz(lambda: read_tensors(file), file.read_bytes(), file, head=3000)


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.webp", "x.tif", "x.avif"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pictures(tmp_path, name):
    if name == "x.avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    Image.fromarray(np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)).save(tmp_path / name)
    fuzz(lambda: read_image(tmp_path / name), (tmp_path / name).read_bytes(), tmp_path / name, head=600)


def test_indexes_of_shards(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    save_file({"a": torch.zeros(4)}, tmp_path / "model-00001-of-00001.safetensors")
    content = json.dumps({"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}})
    fuzz(lambda: read_tensors(tmp_path), content.encode(), index)


@pytest.mark.parametrize("name", ["x" * 3000, "a\0b", "", ".."])
def test_names_in_an_index_that_are_no_files(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(LingBotError, match="1 of its 1 shards missing|expected the name of a file next to it"):
        read_tensors(index)


def test_tokenizers(toy_package, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = (toy_package / "tokenizer/tokenizer.json").read_bytes()
    fuzz(lambda: load_tokenizer(file).encode("A castle by the sea, and <0x41>"), content, file, head=3000)


def test_pose_arrays(toy_package, tmp_path):
    for name in ("poses.npy", "intrinsics.npy"):
        fuzz(
            lambda: load_array(tmp_path / "x.npy"),
            (toy_package / "example" / name).read_bytes(),
            tmp_path / "x.npy",
            head=130,
        )


def test_pose_folders(toy_package, tmp_path):
    folder = tmp_path / "path"
    shutil.copytree(toy_package / "example", folder)
    fuzz(lambda: read_camera(folder, "lingbot"), (folder / "poses.npy").read_bytes(), folder / "poses.npy", head=130)


def test_vipe_archives(tmp_path):
    file = tmp_path / "pose" / "x.npz"
    file.parent.mkdir()
    np.savez_compressed(file, data=np.tile(np.eye(4), (9, 1, 1)), inds=np.arange(9))
    fuzz(lambda: read_camera(file, "vipe"), file.read_bytes(), file, head=700)


NERF = {
    "fl_x": 500,
    "fl_y": 500,
    "cx": 416,
    "cy": 240,
    "w": 832,
    "h": 480,
    "frames": [{"file_path": f"images/{n:03}.png", "transform_matrix": np.eye(4).tolist()} for n in range(6)],
}
REAL_ESTATE = "https://x\n" + "".join(
    f"{n * 33333} 0.6 1.0 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 {n / 10}\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("name", "format_", "content"),
    [
        ("transforms.json", "transforms", json.dumps(NERF)),
        ("clip.txt", "realestate10k", REAL_ESTATE),
        ("00.txt", "kitti", "1 0 0 0 0 1 0 0 0 0 1 0\n" * 9),
    ],
)
def test_camera_text_files(tmp_path, name, format_, content):
    file = tmp_path / name
    fuzz(lambda: read_camera(file, format_), content.encode(), file)


@pytest.mark.parametrize("name", ["images.bin", "cameras.bin"])
def test_colmap_in_binary(tmp_path, name):
    file = colmap_binary(tmp_path / "colmap") / name
    fuzz(lambda: read_camera(file.parent, "colmap"), file.read_bytes(), file)


def test_a_rust_panic_is_an_error_like_others(toy_package, tmp_path):
    content = json.loads((toy_package / "tokenizer/tokenizer.json").read_text())
    content["model"]["vocab"] = content["model"]["vocab"][:1]
    content["model"]["unk_id"] = 5
    for broken in (content, {**content, "added_tokens": [{"id": 1 << 31}]}, {}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
        with pytest.raises(LingBotError):
            load_tokenizer(tmp_path)
