"""The translation of tensor names of diffusers' AutoencoderKLWan to the official VAE names."""

import re

MARK = "decoder.conv_in.weight"
"""The name of a tensor by which diffusers' files are recognized."""

_RESIDUAL = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
_LAYER = re.compile(rf"(?<=\.)({'|'.join(_RESIDUAL)})(?=\.)")
_PLACES = {
    "post_quant_conv": "conv2",
    "quant_conv": "conv1",
    "conv_in": "conv1",
    "norm_out": "head.0",
    "conv_out": "head.2",
    "mid_block.resnets.0": "middle.0",
    "mid_block.attentions.0": "middle.1",
    "mid_block.resnets.1": "middle.2",
    "down_blocks": "downsamples",
}
_STAGE = re.compile(r"up_blocks\.(\d+)\.(?:resnets\.(\d+)|upsamplers\.0)")


def official_name(name: str) -> str:
    """Return the official name of the VAE tensor that diffusers calls `name`."""
    name = _LAYER.sub(lambda layer: _RESIDUAL[layer[1]], name)
    # A stage of the decoder is four layers of the official list: three residual blocks and the upsampling.
    name = _STAGE.sub(lambda stage: f"upsamples.{4 * int(stage[1]) + int(stage[2] or 3)}", name)
    for theirs, ours in _PLACES.items():
        if f"{theirs}." in name:
            return name.replace(theirs, ours, 1)
    return name
