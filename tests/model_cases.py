"""Models and inputs for the tests of model/: the golden experts, and random ones whose weights are scaled alike."""

import numpy as np
import torch
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from safetensors.torch import load_file


def golden_model(golden, expert, dtype=torch.float32, **arguments):
    state = load_file(golden / "model" / f"{expert}_noise_model_fp32.safetensors")
    config = ModelConfig.from_shapes({name: t.shape for name, t in state.items()}, text_len=32, num_heads=2)
    return with_state(config, state, dtype, **arguments)


def with_state(config, state, dtype=torch.float32, **arguments):
    model = LingBotWorldModel(config, device="meta", dtype=dtype, **arguments)
    model.load_state_dict({name: t.to(dtype) for name, t in state.items()}, assign=True)
    return model.requires_grad_(False)


def golden_inputs(golden, dtype=torch.float32):
    arrays = np.load(golden / "model" / "inputs.npz")
    inputs = {name: torch.from_numpy(arrays[name]).to(dtype) for name in arrays}
    inputs["latent"] = torch.cat([inputs["x"], inputs["y"]])[None]
    return inputs


_GAINS = {
    "cam_scale_layer": 0.25,
    "cam_shift_layer": 0.35,
    "self_attn.q": 1.0,
    "self_attn.k": 1.0,
    "cross_attn.q": 1.0,
    "cross_attn.k": 1.0,
    "wancamctrl": 1.6,
    "head.head": 0.8,
}


def random_state(config, seed=0):
    """Weights as large as the goldens': normalised by fan-in, biases 0.2, norms 1 +- 0.25, modulation 0.3."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name, shape):
        values = torch.randn(shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            return 1 + 0.25 * values
        if len(shape) == 1 or "modulation" in name:
            return (0.3 if "modulation" in name else 0.2) * values
        gain = next((gain for part, gain in _GAINS.items() if part in name), 0.9)
        return gain * values / (torch.Size(shape[1:]).numel() ** 0.5)

    return {name: draw(name, shape) for name, shape in config.parameter_shapes().items()}


def random_inputs(config, rows, grid, seed=1, text=20):
    generator = torch.Generator().manual_seed(seed)
    camera = None
    if config.control is not None:
        camera = 0.47 * torch.randn(1, config.control_channels, *grid, generator=generator)  # as Pluecker maps
    return {
        "x": torch.randn(rows, config.in_dim, *grid, generator=generator),
        "timestep": torch.linspace(950, 400, rows).round(),
        "context": torch.randn(rows, text, config.text_dim, generator=generator),
        "camera": camera,
    }


SMALL = ModelConfig(
    dim=64, ffn_dim=128, num_heads=2, num_layers=2, freq_dim=64, text_dim=32, text_len=24, in_dim=36, out_dim=16
)
