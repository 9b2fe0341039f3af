"""Small runs of the toy's causal model: what the tests of `generate` with such a model share."""

import io

import numpy as np
import torch
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.loaders import open_checkpoint
from PIL import Image
from safetensors.torch import save_file


def small_options(package, folder, **changes):
    """GenerateOptions of a small run of the toy's causal model, two steps a chunk; keywords replace some."""
    options = {
        "ckpt_dir": package / "lingbot_world_fast",
        "image": package / "example/image.png",
        "prompt": "a castle",
        "action_path": package / "example",
        "width": 48,
        "height": 32,
        "frame_num": 21,
        "schedule": "0,500",
        "seed": 1,
        "device": "cpu",
        "output": folder / "video" / "*.png",
    }
    return GenerateOptions(**options | changes)


def frames_of(folder) -> np.ndarray:
    return np.stack([np.asarray(Image.open(file)) for file in sorted(folder.glob("*.png"))])


def length_of(video) -> int:
    import av

    with av.open(video if isinstance(video, io.BytesIO) else str(video)) as container:
        return sum(1 for _ in container.decode(video=0))


def words_of(options, **changes):
    """Arguments of the command for a small run."""
    given = {
        "ckpt_dir": options.ckpt_dir,
        "image": options.image,
        "prompt": "a castle",
        "width": 48,
        "height": 32,
        "frame_num": 21,
        "device": "cpu",
    } | changes
    given = {name: value for name, value in given.items() if value is not None}
    return ["generate", *(str(word) for name, value in given.items() for word in (f"--{name}", value))]


def pose_folder(folder, poses):
    folder.mkdir(exist_ok=True)
    np.save(folder / "poses.npy", poses)
    np.save(folder / "intrinsics.npy", lens_from_fov()[None])
    return folder


def toy_lora(path, package):
    """A LoRA of rank 2 on the head of the toy's causal model, in a file."""
    shape = open_checkpoint(package / "lingbot_world_fast").shapes["head.head.weight"]
    random = torch.Generator().manual_seed(1)
    halves = torch.randn(2, shape[1], generator=random), torch.randn(shape[0], 2, generator=random)
    save_file({"head.head.lora_A.weight": halves[0] / shape[1] ** 0.5, "head.head.lora_B.weight": halves[1]}, path)
    return path
