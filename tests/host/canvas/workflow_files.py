"""The files that the shipped workflows name, as toys: LoRAs, models that enlarge, camera files, a video."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import torch
from comfy_server import ComfyServer
from lingbot_world.camera.moves import preset_path
from lingbot_world.camera.plucker import scaled_lens
from lingbot_world.toy.weights import EXPERT
from rendered_room import render_room
from safetensors.torch import save_file
from toy_prompt import TOY_HEIGHT, TOY_WIDTH

FAST_LORA = "Wan2.2-Fun-A14B-InP-high-noise-HPS2.1"
LORA = "wan2.2_i2v_lightx2v_4steps_lora_v1_{}_noise"
ENLARGE = """
import sys
root, *paths = sys.argv[1:]
sys.argv[1:] = ["--cpu"]
sys.path.insert(0, root)
import comfy.options
comfy.options.enable_args_parsing()
from comfy_extras.frame_interpolation_models.ifnet import IFNet
from safetensors.torch import save_file
from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet
save_file(IFNet(channels=(8, 8, 8, 8, 8)).state_dict(), paths[0])
save_file(RRDBNet(num_filters=4, num_blocks=1, scale=4).state_dict(), paths[1])
"""


def write_loras(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    layer = "diffusion_model.blocks.0.self_attn.q"
    lora = {f"{layer}.lora_A.weight": torch.randn(4, EXPERT.dim), f"{layer}.lora_B.weight": torch.randn(EXPERT.dim, 4)}
    for level in ("high", "low"):
        save_file(lora, folder / f"{LORA.format(level)}.safetensors")
    of_fun = {"lora_down": torch.randn(4, EXPERT.dim), "lora_up": torch.randn(EXPERT.dim, 4)}
    named = {f"lora_unet__blocks_0_cross_attn_k.{part}.weight": tensor for part, tensor in of_fun.items()}
    save_file(named, folder / f"{FAST_LORA}.safetensors")


def write_enlargers(server: ComfyServer) -> None:
    """Write tiny random models in ComfyUI's own classes: a frame interpolator and a 4x upscaler."""
    paths = [
        server.base / "models" / path
        for path in ("frame_interpolation/film_net_fp16.safetensors", "upscale_models/RealESRGAN_x4plus.safetensors")
    ]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    subprocess.run([server.host.python, "-c", ENLARGE, server.host.root, *paths], check=True, cwd=server.base)


def write_paths(folder: Path, example: Path) -> None:
    shutil.copytree(example, folder / "my_camera_path")
    poses = np.load(example / "poses.npy")
    for kind, data in (("pose", poses), ("intrinsics", np.tile([700.0, 700.0, 640.0, 360.0], (len(poses), 1)))):
        (folder / "vipe" / kind).mkdir(parents=True)
        np.savez(folder / "vipe" / kind / "my_video.npz", data=data, inds=np.arange(len(poses)))


def write_videos(folder: Path) -> None:
    """Five frames at toy size, each of another grey; and a camera that goes to the left in a room."""
    size = TOY_HEIGHT, TOY_WIDTH
    write_video(folder / "my_video.mp4", [np.full(size, grey, np.uint8) for grey in range(0, 200, 40)])
    path = preset_path("truck_left", frames=9, amount=0.4)
    seen = render_room(path.c2w, scaled_lens(path.intrinsics[0], 96, 160), 96, 160, 3.0)
    write_video(folder / "my_camera_move.mp4", list(seen))


def write_video(path: Path, frames: list[np.ndarray]) -> None:
    """Grey frames uint8 [H, W] as an mp4."""
    with av.open(str(path), "w") as video:
        stream = video.add_stream("libx264", rate=16)
        stream.height, stream.width = frames[0].shape
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="gray")))
        video.mux(stream.encode())
