"""ComfyUI nodes of bench_comfyui.py: random inputs of a video, and an end that saves nothing."""

import hashlib

import latent_preview
import torch

prepare_callback = latent_preview.prepare_callback
WHOLE = "INT", {"default": 1, "max": 1 << 16}


def prepare_synchronized(*args, **kwargs):
    callback = prepare_callback(*args, **kwargs)

    def synchronized(*step):  # a step's message is sent when the GPU has done it
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        callback(*step)

    return synchronized


latent_preview.prepare_callback = prepare_synchronized


class BenchNode:
    FUNCTION, CATEGORY, INPUTS = "make", "bench", {}

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": cls.INPUTS}


class BenchInputs(BenchNode):
    RETURN_TYPES = "CONDITIONING", "CONDITIONING", "LATENT"
    INPUTS = dict.fromkeys(("frames", "height", "width", "text_dim", "camera_channels"), WHOLE)

    def make(self, frames, height, width, text_dim, camera_channels):
        generator = torch.Generator().manual_seed(0)

        def draw(*shape):
            return torch.randn(shape, generator=generator)

        grid = (frames - 1) // 4 + 1, height // 8, width // 8
        mask = torch.ones(1, 1, *grid)
        mask[:, :, :1] = 0
        shared = {"concat_latent_image": draw(1, 16, *grid), "concat_mask": mask}
        if camera_channels:
            shared["lingbot_camera"] = draw(1, camera_channels, *grid)
        positive, negative = ([[draw(1, 77, text_dim), dict(shared)]] for _ in range(2))
        return positive, negative, {"samples": torch.zeros(1, 16, *grid)}


class BenchPrompt(BenchNode):
    RETURN_TYPES, INPUTS = ("CONDITIONING",), {"text_dim": WHOLE}

    def make(self, text_dim):
        return ([[torch.randn(1, 77, text_dim, generator=torch.Generator().manual_seed(0)), {}]],)


KEPT: dict[str, torch.Tensor] = {}  # the first latent of each name


class BenchEnd(BenchNode):
    """Shows a latent's hash, the memory held, and the relative distance from the first latent of that name."""

    RETURN_TYPES, OUTPUT_NODE = (), True
    INPUTS = {"samples": ("LATENT",), "name": ("STRING", {"default": ""})}

    def make(self, samples, name):
        latent = samples["samples"].float().cpu().contiguous()
        digest = hashlib.sha256(latent.numpy().tobytes()).hexdigest()[:8]
        held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        first = KEPT.setdefault(name, latent)
        gap = [] if first is latent else [f"{(latent - first).norm() / first.norm():.1e}"]
        shown = digest if latent.isfinite().all() else "not finite"
        return {"ui": {"latent": [shown], "held_GB": [held / 1e9], "gap": gap}}


NODE_CLASS_MAPPINGS = {each.__name__: each for each in (BenchInputs, BenchPrompt, BenchEnd)}
