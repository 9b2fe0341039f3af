"""Each of ComfyUI's nodes that makes a CONDITIONING or changes a MODEL, before our nodes and before KSampler.

Argument: the toy package. Reports, for each node and front, what became of it: `used`, `told` (something was said),
`idle` (nothing changed, and nothing was said), `refused` in a sentence, `fails` by itself, `not run` without a model of
its own, or the traceback of an error that no user should see."""

import sys

from embed import embed

TOY = sys.argv[1]
embed()

import asyncio  # noqa: E402
import logging  # noqa: E402
import traceback  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

import comfy.clip_vision  # noqa: E402
import comfy.controlnet  # noqa: E402
import comfy.sd  # noqa: E402
import comfy.utils  # noqa: E402
import folder_paths  # noqa: E402
import torch  # noqa: E402
from comfy_execution.utils import CurrentNodeContext  # noqa: E402
from common import check, report  # noqa: E402
from lingbot_world.camera import read_pose_folder  # noqa: E402
from lingbot_world.camera.path import CameraPath  # noqa: E402
from lingbot_world.errors import LingBotError  # noqa: E402
from lingbot_world.host.clip import load_clip  # noqa: E402
from lingbot_world.host.loading import load_causal, load_experts  # noqa: E402
from lingbot_world.nodes.camera import LingBotWorldApplyCamera  # noqa: E402
from lingbot_world.nodes.rollout import LingBotWorldRollout  # noqa: E402
from lingbot_world.nodes.sampling import LingBotWorldGuider, LingBotWorldSampler  # noqa: E402
from lingbot_world.options import PerExpert  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import nodes  # noqa: E402

torch.set_num_threads(1)
torch.inference_mode().__enter__()  # as ComfyUI runs nodes
asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))
CORE = {name: kind for name, kind in nodes.NODE_CLASS_MAPPINGS.items() if not name.startswith("LingBot")}

WIDTH, HEIGHT, FRAMES = 64, 32, 9
PACKAGE = Path(TOY)
VAE = comfy.sd.VAE(sd=comfy.utils.load_torch_file(f"{TOY}/Wan2.1_VAE.pth"))
CLIP = load_clip(PACKAGE / "models_t5_umt5-xxl-enc-bf16.pth", PACKAGE / "tokenizer/tokenizer.json")
FOLDER = read_pose_folder(PACKAGE / "example/poses.npy", lens=PACKAGE / "example/intrinsics.npy")
PATH = CameraPath(FOLDER.c2w, FOLDER.intrinsics)[:FRAMES]
IMAGE = torch.rand(1, HEIGHT, WIDTH, 3, generator=torch.Generator().manual_seed(1))
MASK = torch.zeros(1, HEIGHT, WIDTH)
MASK[..., : WIDTH // 2] = 1
EXPERTS = load_experts(PerExpert(*(PACKAGE / f"{role}_noise_model_bnb_nf4" for role in ("high", "low"))), "fp32")
CAUSAL = load_causal(PACKAGE / "lingbot_world_fast", "fp32")


def run(name, **inputs):
    """A node's outputs."""
    kind = CORE[name]
    made = getattr(kind if hasattr(kind, "GET_SCHEMA") else kind(), kind.FUNCTION)(**inputs)
    return getattr(made, "args", made)


TEXTS = [run("CLIPTextEncode", clip=CLIP, text=text)[0] for text in ("a castle", "blurred")]
positive, negative, LATENT = run("WanImageToVideo", positive=TEXTS[0], negative=TEXTS[1], vae=VAE, width=WIDTH,
                                 height=HEIGHT, length=FRAMES, batch_size=1, start_image=IMAGE)  # fmt: skip
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
    return run("SamplerCustomAdvanced", noise=noise, guider=made, sampler=euler, sigmas=sigmas, latent_image=LATENT)[0][
        "samples"
    ]


def ksampler(models, prompts):
    return run("KSampler", model=models[1], seed=1, steps=1, cfg=3.0, sampler_name="euler", scheduler="simple",
               positive=prompts[0], negative=prompts[1], latent_image=LATENT, denoise=0.5)[0]["samples"]  # fmt: skip


def rollout(models, prompts):
    return LingBotWorldRollout.execute(models[2], prompts[0], Latents, FRAMES, 1, "Fast", 10.0, "", -1, -1, "auto",
                                       start_image=IMAGE, camera=PATH).args[0]["samples"]  # fmt: skip


FRONTS = {"sampler": sampler, "guider": guider, "ksampler": ksampler, "rollout": rollout}
MODELS = (*EXPERTS, CAUSAL)


def prompts_of(front):
    return [TEXTS[0]] if front == "rollout" else list(WHOLE)


def sample(front, models=MODELS, prompts=None):
    """The latent, and what was said."""
    SAID.texts.clear()
    made = FRONTS[front](models, prompts or prompts_of(front))
    return made, list(dict.fromkeys(SAID.texts))


PLAIN = {front: sample(front) for front in FRONTS}


def sockets(kind):
    given = kind.INPUT_TYPES()
    return [(name, spec[0], (spec[1:] or ({},))[0], group == "required")
            for group in ("required", "optional") for name, spec in given.get(group, {}).items()]  # fmt: skip


class MissingError(Exception):
    """An input that the toy has nothing for."""


class Control(comfy.controlnet.ControlBase):
    """A ControlNet without weights."""

    def copy(self):
        copied = Control()
        self.copy_to(copied)
        return copied


def lora():
    """A LoRA that changes one layer of the toy's models."""
    random, layer = torch.Generator().manual_seed(1), "diffusion_model.blocks.1.ffn.0"
    return {f"{layer}.lora_{side}.weight": torch.randn(shape, generator=random)
            for side, shape in (("B", (512, 4)), ("A", (4, 256)))}  # fmt: skip


FOLDERS = TemporaryDirectory()
save_file(lora(), f"{FOLDERS.name}/toy.safetensors")
folder_paths.add_model_folder_path("loras", FOLDERS.name)

SIZES = {"width": WIDTH, "height": HEIGHT, "length": FRAMES, "batch_size": 1, "lora_name": "toy.safetensors"}
GIVEN = {
    "LATENT": LATENT, "IMAGE": IMAGE, "MASK": MASK, "VAE": VAE, "CLIP": CLIP, "STRING": "a tower",
    "CONTROL_NET": Control(), "GLIGEN": object(), "CLIP_VISION_OUTPUT": comfy.clip_vision.Output(),
    "LATENT_OPERATION": lambda latent: 0.9 * latent, "LORA_MODEL": lora(), "WAN_CAMERA_EMBEDDING": torch.zeros(1),
}  # fmt: skip
OPTIONAL = {"VAE", "CLIP", "IMAGE", "MASK", "LATENT", "WAN_CAMERA_EMBEDDING"}
CHANGES = {
    "ConditioningAverage": {"conditioning_to_strength": 0.5},
    "ConditioningMultiply": {"multiplier": 0.5},
    "ConditioningSetArea": {"width": 32, "height": 32},
    "ConditioningSetTimestepRange": {"end": 0.5},
    "ConditioningSetAreaPercentageVideo": {"width": 0.5},
    "ModelNoiseScale": {"noise_scale": 0.5},
    "ScaleROPE": {"scale_t": 2.0},
    "ModelMergeSimple": {"ratio": 0.5}, "ModelMergeBlocks": {"input": 0.5, "middle": 0.5, "out": 0.5},
    "SkipLayerGuidanceDiT": {"double_layers": "1", "single_layers": "", "start_percent": 0.0, "end_percent": 1.0},
    "SkipLayerGuidanceDiTSimple": {"double_layers": "1", "single_layers": "", "end_percent": 1.0},
    "SkipLayerGuidanceSD3": {"layers": "1", "start_percent": 0.0, "end_percent": 1.0},
    "FreSca": {"scale_low": 2.0},
    "EasyCache": {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0},
    "LazyCache": {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0},
    "ChromaRadianceOptions": {"nerf_tile_size": 8},
    "ContextWindowsManual": {"context_length": 2, "context_overlap": 1, "dim": 2},
    "WanContextWindowsManual": {"context_length": 5, "context_overlap": 1},
    "TorchCompileModel": {"backend": "cudagraphs"},
    "ModelComputeDtype": {"dtype": "bf16"},
    "HiDreamO1PatchSeamSmoothing": {"start_percent": 0.0},
}  # fmt: skip
"""What is asked of a node, where its defaults ask for nothing that could be seen."""


def value(name, socket, options, number, changes):
    """What a node is given on an input."""
    if name in changes:
        return changes[name]
    if socket == "MODEL":
        return MODELS[1 - number if name.endswith("2") and number < 2 else number]
    if socket == "CONDITIONING":
        texts = TEXTS if number == 2 else WHOLE
        return texts["negative" in name or name.endswith(("2", "from", "second"))]
    if name in SIZES or "default" in options:
        return SIZES.get(name, options.get("default"))
    choices = socket if isinstance(socket, list) else options.get("options", [])
    if not choices and socket not in GIVEN:
        raise MissingError(socket)
    return choices[0] if choices else GIVEN[socket]


@cache
def outputs(name, number):
    """A node's MODEL or None, and its CONDITIONINGs, made of the model of this number."""
    kind, inputs, changes = CORE[name], {}, CHANGES.get(name, {})
    for each, socket, options, required in sockets(kind):
        if required or each in changes or socket in OPTIONAL:
            inputs[each] = value(each, socket, options if isinstance(options, dict) else {}, number, changes)
    with CurrentNodeContext("prompt", "node"):
        made = list(zip(kind.RETURN_TYPES, run(name, **inputs), strict=False))
    models = [each for socket, each in made if socket == "MODEL"]
    return models[0] if models else None, [each for socket, each in made if socket == "CONDITIONING"]


NOT_RUN = {"TorchCompileModel": "see the guider's checks", "ModelSamplingStableCascade": "it takes 4 s for a model"}


def before(name, front):
    """Models and prompts of a front with a node before it."""
    models, prompts = list(MODELS), prompts_of(front)
    if name in NOT_RUN:
        raise MissingError(NOT_RUN[name])
    for number in (2,) if front == "rollout" else (0, 1):
        model, conditionings = outputs(name, number)
        models[number] = model or models[number]
    if front != "rollout" and "CONDITIONING" not in [socket for _, socket, _, _ in sockets(CORE[name])]:
        conditionings = [[[text, {**WHOLE[0][0][1], **extras}] for text, extras in made] for made in conditionings]
    prompts[: len(conditionings)] = conditionings[: len(prompts)]
    return models, prompts


def became(name, front):
    """What became of a node before a front, and the words for it."""
    try:
        models, prompts = before(name, front)
    except MissingError as missing:
        return "not run", f"needs {missing}"
    except LingBotError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001  a node of ComfyUI's own
        return "fails", f"{type(error).__name__}: {error}"
    try:
        made, said = sample(front, models, prompts)
    except LingBotError as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001
        return "raised", traceback.format_exc()[-1500:]
    if said:
        return "told", " ".join(said)
    plain = PLAIN[front][0]
    same = made.shape == plain.shape and (made - plain).norm() < 1e-4 * plain.norm()
    return ("idle" if same else "used" if made.isfinite().all() else "raised"), ""


def in_question(kind):
    """Whether a node makes a CONDITIONING, or changes a MODEL. ModelMergeBlocks stands for its like for other models."""
    if "ModelMergeBlocks" in [base.__name__ for base in kind.__mro__[1:]]:
        return False
    taken = [socket for _, socket, _, _ in sockets(kind)]
    return "CONDITIONING" in kind.RETURN_TYPES or ("MODEL" in kind.RETURN_TYPES and "MODEL" in taken)


@check
def core_nodes():
    return {name: {front: became(name, front) for front in FRONTS} for name in CORE if in_question(CORE[name])}


report()
