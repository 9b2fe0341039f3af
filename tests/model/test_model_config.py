"""What an expert's tensors are called, their shapes, and the configuration read from them."""

import dataclasses

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from model_cases import SMALL


def test_parameter_names_and_shapes():
    for control in (6, 7, None):
        config = dataclasses.replace(SMALL, control=control)
        model = LingBotWorldModel(config, device="meta")
        assert {name: tuple(p.shape) for name, p in model.named_parameters()} == config.parameter_shapes()
        assert not list(model.buffers())
        again = ModelConfig.from_shapes(config.parameter_shapes(), text_len=24, num_heads=2)
        assert again == config


def test_the_published_size():
    config = ModelConfig(5120, 13824, 40, 40, freq_dim=256, text_dim=4096)
    assert sum(torch.Size(shape).numel() for shape in config.parameter_shapes().values()) == 18_544_332_864
    assert ModelConfig.from_shapes(config.parameter_shapes()) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head.head.weight": None}, "head.head.weight missing"),
        ({"patch_embedding.weight": (64, 36, 1, 4, 4)}, "1, 2, 2"),
        ({"patch_embedding_wancamctrl.weight": (64, 1000)}, "1000 values"),
        ({"blocks.5.norm3.bias": (64,)}, r"blocks \[2, 3, 4\] missing"),
        ({"blocks.99999999.norm3.bias": (64,)}, r"10, 11\] and 99999987 others missing: the highest block is 99999999"),
        ({"time_embedding.0.weight": (64,)}, r"time_embedding.0.weight is \[64\], expected a matrix"),
        ({"blocks.0.ffn.0.weight": ()}, r"blocks.0.ffn.0.weight is \[\], expected a matrix"),
        ({"patch_embedding_wancamctrl.weight": ()}, r"wancamctrl.weight is \[\], expected a matrix"),
    ],
)
def test_shapes_of_something_else(change, said):
    shapes = {name: shape for name, shape in (SMALL.parameter_shapes() | change).items() if shape is not None}
    with pytest.raises(CheckpointError, match=said):
        ModelConfig.from_shapes(shapes, num_heads=2)


def test_heads_cannot_be_guessed_for_an_odd_width():
    with pytest.raises(CheckpointError, match=r"64 does not divide into heads of 128.*config\.json"):
        ModelConfig.from_shapes(SMALL.parameter_shapes())
