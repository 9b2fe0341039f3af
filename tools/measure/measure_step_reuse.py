#!/usr/bin/env python3
"""What steps without the model save on the trained toy, and what they cost in decibels.

    python tools/measure/measure_step_reuse.py TOY --cases 6 --guidance 5

TOY is what `lingbot-world toy` writes. Each case is a room that no training has seen, with a camera move of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.loaders import load_expert
from lingbot_world.pipeline import sample
from lingbot_world.pipeline.geometry import image_conditioning
from lingbot_world.sampling import StepReuse
from lingbot_world.text import NEGATIVE_PROMPT, encode
from lingbot_world.tools.toyworld.paths import FRAMES, STEP
from lingbot_world.tools.toyworld.render import HEIGHT, LENS, WIDTH, render
from lingbot_world.tools.toyworld.rooms import scenes_around
from lingbot_world.vae import decode_latent, encode_first_frame, load_vae

THRESHOLDS = (0.0, 0.01, 0.02, 0.04, 0.08)
MOVES = {
    "pan_left": 25.0,
    "truck_right": 8 * STEP,
    "tilt_up": 15.0,
    "dolly_in": 8 * STEP,
    "roll_clockwise": 20.0,
    "pedestal_down": 8 * STEP,
}
UNSEEN = 2_000_000_011


def decibels(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(20 * torch.log10(255 / (made - wanted).square().mean().sqrt().clamp(min=1e-6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("toy", type=Path)
    parser.add_argument("--cases", type=int, default=len(MOVES), help=f"at most {len(MOVES)}")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--guidance", type=float, default=1.0)
    options = parser.parse_args()
    folders = [options.toy / f"{name}_noise_model_bnb_nf4" for name in ("high", "low")]
    experts = [load_expert(folder, dtype=torch.float32) for folder in folders]
    vae = load_vae(options.toy / "Wan2.1_VAE.pth")
    moves = list(MOVES)[: options.cases]
    paths = [preset_path(move, frames=FRAMES, amount=MOVES[move]).c2w for move in moves]
    scenes = scenes_around(torch.tensor(np.stack(paths)).float(), torch.Generator().manual_seed(UNSEEN))
    texts = [*scenes.rooms.captions(), NEGATIVE_PROMPT]
    *prompts, negative = encode(texts, options.toy / "models_t5_umt5-xxl-enc-bf16.pth", options.toy)
    print("move", "threshold", "model calls", "dB against all steps", "dB against the renderer", sep="\t")
    for case, move in enumerate(moves):
        truth = render(scenes.rooms[case : case + 1], scenes.c2w[case : case + 1])[0]
        latent = encode_first_frame(vae, truth[0], FRAMES)
        camera = camera_embedding(paths[case], LENS, frames=FRAMES, height=HEIGHT, width=WIDTH)
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(case))
        seen, full = (truth.permute(0, 2, 3, 1) + 1) * 127.5, None
        for threshold in THRESHOLDS:
            reuse = StepReuse(threshold)
            made = sample(
                *experts,
                noise,
                image_conditioning(latent),
                prompts[case][None],
                negative[None],
                camera,
                steps=options.steps,
                shift=5.0,
                guide_scale=options.guidance,
                step_reuse=reuse,
            )
            video = decode_latent(vae, made).float()
            full = video if full is None else full
            print(
                move,
                threshold,
                reuse.calls,
                *(f"{decibels(video, other):.1f}" for other in (full, seen)),
                sep="\t",
                flush=True,
            )


if __name__ == "__main__":
    main()
