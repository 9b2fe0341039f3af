"""Experts that are written: read back as they were, as the community's files."""

import pytest
import torch
from checkpoint_cases import NF4
from lingbot_world.loaders import load_expert, open_checkpoint, state_tensors
from lingbot_world.toy.experts import expert_weights, write_expert, write_expert_folder
from safetensors.torch import load_file


@pytest.mark.parametrize("quant_type", ["nf4", "fp4", "fp8", None])
def test_what_is_written_is_read_back(golden, beside_config, quant_type):
    source = load_expert(golden / "model/high_noise_model_fp32.safetensors", dtype=torch.bfloat16)
    file = beside_config / "model.safetensors"
    state = source.state_dict()
    write_expert(file, source.config, state.items(), quant_type=quant_type)
    checkpoint = open_checkpoint(file)
    assert checkpoint.quantization == quant_type
    for name, tensor in state_tensors(checkpoint, torch.float32).items():
        error = (tensor.dequantize() - state[name].float()).abs().max() if hasattr(tensor, "_qdata") else 0
        assert error <= 0.2 * state[name].float().abs().max()
        if not hasattr(tensor, "_qdata"):
            assert torch.equal(tensor, state[name].float())
    assert load_file(file).keys() == checkpoint.tensors.keys()
    for name, weight in expert_weights(checkpoint).items():
        assert (weight - state[name].float()).abs().max() <= 0.2 * state[name].float().abs().max()


def test_the_written_file_holds_the_community_packages_tensors(golden, tmp_path):
    source = load_expert(golden / "model/high_noise_model_fp32.safetensors", dtype=torch.float32)
    write_expert_folder(tmp_path / "high", source.config, source.state_dict().items())
    ours, theirs = load_file(tmp_path / "high/model.safetensors"), load_file(golden / NF4 / "model.safetensors")
    assert ours.keys() == theirs.keys()
    differing = [key for key in theirs if not torch.equal(ours[key], theirs[key])]
    assert len(differing) <= 1  # a nested scale that lies between two table values
    assert open_checkpoint(tmp_path / "high").config.num_heads == 2
