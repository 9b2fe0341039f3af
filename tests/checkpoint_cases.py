"""What the tests of expert files share."""

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import open_checkpoint, state_tensors

NF4 = "nf4/high_noise_model_bnb_nf4"


def refused(path, *words):
    """The message with which opening an expert and reading its tensors fails; it has these words in it."""
    with pytest.raises(CheckpointError) as caught:
        state_tensors(open_checkpoint(path), torch.float32)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)
