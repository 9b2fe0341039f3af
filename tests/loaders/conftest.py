"""The golden expert, for files that are made of it."""

import shutil

import pytest
import torch
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.model.ops.linear_8bit import DTYPES
from lingbot_world.options import LoraFile
from model_cases import golden_inputs
from safetensors.torch import load_file, save_file

LAYER = "blocks.1.ffn.0"


@pytest.fixture
def plain(golden):
    """Its tensors in float32, free to be broken."""
    return load_file(golden / "model/high_noise_model_fp32.safetensors")


@pytest.fixture
def folder(golden, tmp_path):
    """A folder with its config.json."""
    shutil.copy(golden / "model/config.json", tmp_path)
    return tmp_path


@pytest.fixture
def check_uses(golden, plain, tmp_path):
    """`check_uses(file)`: weights that stream, that are copied and that stay decoded give the same velocity; a LoRA and
    8 bits take them."""
    inputs = golden_inputs(golden)

    def forward(file, **options):
        model = load_expert(file, dtype=torch.float32, **options)
        with torch.inference_mode():
            return model(inputs["latent"], torch.tensor([413]), inputs["context"][None], inputs["plucker"])

    def check(file):
        resident = forward(file)
        for options in ({"resident_blocks": 0}, {"copy": True}, {"decoded_blocks": 2}):
            assert torch.equal(forward(file, **options), resident), options
        rows, columns = plain[f"{LAYER}.weight"].shape
        down, up = torch.randn(4, columns), torch.randn(rows, 4)
        save_file({f"{LAYER}.lora_A.weight": down, f"{LAYER}.lora_B.weight": up}, tmp_path / "lora.safetensors")
        checkpoint = open_checkpoint(file, [LoraFile(tmp_path / "lora.safetensors")])
        layer = load_expert(checkpoint, dtype=torch.float32).get_submodule(LAYER)
        decoded = layer.weight.decode(torch.float32)
        assert torch.allclose(layer.changed_weight(torch.empty(0)), decoded + up @ down, atol=1e-5)
        for dtype in DTYPES.values():
            made = layer.weight.recode(dtype)
            assert (made.values.float() * made.scales - decoded).norm() < 0.03 * decoded.norm()

    return check
