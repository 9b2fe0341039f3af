"""Random weights in the block formats of GGML."""

import numpy as np
from lingbot_world.model.quantized.ggml import BLOCKS


def blocks(kind, count, seed=0):
    """Random blocks of `count` values: uint8 [bytes]. The scales are finite, and values are a few hundredths."""
    number, random = count // BLOCKS[kind].values, np.random.default_rng(seed)
    made = random.integers(0, 256, (number, BLOCKS[kind].nbytes), dtype=np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    halves = scales.get(kind, (0, 2) if kind.endswith("_1") else (0,))
    for at in halves:
        made[:, at : at + 2] = (random.random((number, 1)) * 2e-5 + 1e-5).astype(np.float16).view(np.uint8)
    return made.reshape(-1)
