"""Weights of the tiny decoder, drawn by the rule of the goldens' manifest."""

import json

import numpy as np
import torch


def tiny_weights(golden, case):
    manifest = json.loads((golden / "taehv/manifest.json").read_text())
    draw, drawn = np.random.default_rng(manifest["seeds"][case]), {}
    for name, shape in manifest["shapes"].items():
        scale = 0.05 if name.endswith("bias") else manifest["gain"] / np.sqrt(np.prod(shape[1:]))
        drawn[name] = torch.from_numpy((draw.standard_normal(shape) * scale).astype(np.float32))
    return drawn
