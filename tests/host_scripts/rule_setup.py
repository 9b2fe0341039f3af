"""The toy's models and prompts, and the nodes that sample them (fronts), for checks of what is used, said or refused.
Import after `embed`; the environment names the package of the TOY."""

import asyncio
import logging
import os
from pathlib import Path

import comfy.sd
import comfy.utils
import torch
from lingbot_world.camera import read_pose_folder
from lingbot_world.camera.path import CameraPath
from lingbot_world.host.loading import load_causal, load_experts
from lingbot_world.host.model.clip import load_clip
from lingbot_world.nodes.camera.poses import LingBotWorldApplyCamera
from lingbot_world.nodes.sampling.experts import LingBotWorldGuider, LingBotWorldSampler
from lingbot_world.nodes.sampling.rollout import LingBotWorldRollout
from lingbot_world.options import PerExpert

import nodes

torch.set_num_threads(1)
torch.inference_mode().__enter__()  # as ComfyUI runs nodes
asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))
CORE = {name: kind for name, kind in nodes.NODE_CLASS_MAPPINGS.items() if not name.startswith("LingBot")}

WIDTH, HEIGHT, FRAMES = 64, 32, 9
PACKAGE = Path(os.environ["TOY"])
VAE = comfy.sd.VAE(sd=comfy.utils.load_torch_file(f"{PACKAGE}/Wan2.1_VAE.pth"))
TEXT_FILES = PACKAGE / "models_t5_umt5-xxl-enc-bf16.pth", PACKAGE / "tokenizer/tokenizer.json"
CLIP = load_clip(*TEXT_FILES)
FOLDER = read_pose_folder(PACKAGE / "example/poses.npy", lens=PACKAGE / "example/intrinsics.npy")
PATH = CameraPath(FOLDER.c2w, FOLDER.intrinsics)[:FRAMES]
IMAGE = torch.rand(1, HEIGHT, WIDTH, 3, generator=torch.Generator().manual_seed(1))
MASK = torch.zeros(1, HEIGHT, WIDTH)
MASK[..., : WIDTH // 2] = 1
FILES = PerExpert(*(PACKAGE / f"{role}_noise_model_bnb_nf4" for role in ("high", "low")))
EXPERTS = tuple(load_experts(FILES, "fp32"))
EXPERT = EXPERTS[0].model.diffusion_model.config
CAUSAL = load_causal(PACKAGE / "lingbot_world_fast", "fp32")


def run(name, **inputs):
    """A node's outputs."""
    kind = CORE[name]
    made = getattr(kind if hasattr(kind, "GET_SCHEMA") else kind(), kind.FUNCTION)(**inputs)
    return getattr(made, "args", made)


TEXTS = [run("CLIPTextEncode", clip=CLIP, text=text)[0] for text in ("a castle", "blurred")]
positive, negative, LATENT = run(
    "WanImageToVideo",
    positive=TEXTS[0],
    negative=TEXTS[1],
    vae=VAE,
    width=WIDTH,
    height=HEIGHT,
    length=FRAMES,
    batch_size=1,
    start_image=IMAGE,
)
VIDEO = {"samples": VAE.encode(torch.rand(FRAMES, HEIGHT, WIDTH, 3, generator=torch.Generator().manual_seed(5)))}
WHOLE = LingBotWorldApplyCamera.execute(positive, negative, PATH, LATENT, "camera").args


class Said(logging.Handler):
    """What our nodes say."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        if record.pathname.endswith("notice.py"):
            self.texts.append(record.getMessage())


SAID = Said()
logging.getLogger().addHandler(SAID)
logging.getLogger().setLevel(logging.INFO)


class Latents:
    """A VAE for rollouts, whose frames are not looked at."""

    encoded = VAE.encode(torch.cat([IMAGE, torch.full((FRAMES - 1, HEIGHT, WIDTH, 3), 0.5)]))

    @classmethod
    def encode(cls, pixels):
        return cls.encoded.clone()

    @staticmethod
    def decode(latent):
        return torch.empty(1, 4 * latent.shape[2] - 3, HEIGHT, WIDTH, 3)


def sampler(models, prompts):
    made = LingBotWorldSampler.execute(*models[:2], *prompts, LATENT, 1, 2, 5.0, 3.0, 3.0, 0.947, "unipc")
    return made.args[0]["samples"]


def guider(models, prompts):
    made = LingBotWorldGuider.execute(*models[:2], *prompts, 3.0, 3.0, 0.947).args[0]
    noise = run("RandomNoise", noise_seed=1)[0]
    sigmas = torch.tensor([0.99, 0.8, 0.0])
    euler = run("KSamplerSelect", sampler_name="euler")[0]
    inputs = {"noise": noise, "sampler": euler, "sigmas": sigmas, "latent_image": LATENT}
    return run("SamplerCustomAdvanced", guider=made, **inputs)[0]["samples"]


def ksampler(models, prompts):
    return run(
        "KSampler",
        model=models[1],
        seed=1,
        steps=1,
        cfg=3.0,
        sampler_name="euler",
        scheduler="simple",
        positive=prompts[0],
        negative=prompts[1],
        latent_image=VIDEO,
        denoise=0.5,
    )[0]["samples"]


def rollout(models, prompts):
    settings = (FRAMES, 1, "custom", 10.0, "0, 500", -1, -1, "auto")
    made = LingBotWorldRollout.execute(models[2], prompts[0], Latents, *settings, start_image=IMAGE, camera=PATH)
    return made.args[0]["samples"]


FRONTS = {"sampler": sampler, "guider": guider, "ksampler": ksampler, "rollout": rollout}
MODELS = (*EXPERTS, CAUSAL)


def prompts_of(front):
    return [TEXTS[0]] if front == "rollout" else list(WHOLE)


def sample(front, models=MODELS, prompts=None):
    """The latent, and what was said."""
    SAID.texts.clear()
    made = FRONTS[front](models, prompts or prompts_of(front))
    return made, list(dict.fromkeys(SAID.texts))


class Plain(dict):
    """What each front makes without any node before it; made when it is first asked for."""

    def __missing__(self, front):
        self[front] = sample(front)
        return self[front]


PLAIN = Plain()


def lora():
    """A LoRA that changes one layer of the toy's models."""
    random, layer = torch.Generator().manual_seed(1), "diffusion_model.blocks.1.ffn.0"
    return {
        f"{layer}.lora_{side}.weight": torch.randn(shape, generator=random)
        for side, shape in (("B", (EXPERT.ffn_dim, 4)), ("A", (4, EXPERT.dim)))
    }
