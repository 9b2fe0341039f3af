"""Each of ComfyUI's nodes that makes a CONDITIONING or changes a MODEL, before our nodes and before KSampler.

Argument: the toy package. Reports, for each node and front, what became of it: `used`, `told` (something was said),
`idle` (nothing changed, and nothing was said), `refused` in a sentence, `fails` by itself, `not run` without a model of
its own, or the traceback of an error that no user should see."""

import os
import sys

from embed import embed

os.environ["TOY"] = sys.argv[1]
embed()

import traceback  # noqa: E402
from functools import cache  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

import comfy.clip_vision  # noqa: E402
import comfy.controlnet  # noqa: E402
import folder_paths  # noqa: E402
import rule_cases  # noqa: E402, F401  reported with these
import tiny_models  # noqa: E402
import torch  # noqa: E402
from comfy_api.latest._util import VOXEL  # noqa: E402
from comfy_execution.utils import CurrentNodeContext  # noqa: E402
from common import check, report  # noqa: E402
from lingbot_world.errors import LingBotError  # noqa: E402
from rule_setup import (  # noqa: E402
    CLIP,
    CORE,
    FRAMES,
    FRONTS,
    HEIGHT,
    IMAGE,
    LATENT,
    MASK,
    MODELS,
    PLAIN,
    TEXTS,
    VAE,
    WHOLE,
    WIDTH,
    Latents,
    lora,
    prompts_of,
    run,
    sample,
)
from safetensors.torch import save_file  # noqa: E402


def sockets(kind):
    given = kind.INPUT_TYPES()
    return [
        (name, spec[0], (spec[1:] or ({},))[0], group == "required")
        for group in ("required", "optional")
        for name, spec in given.get(group, {}).items()
    ]


class MissingError(Exception):
    """An input that the toy has nothing for."""


class Control(comfy.controlnet.ControlBase):
    """A ControlNet without weights."""

    def copy(self):
        copied = Control()
        self.copy_to(copied)
        return copied


FOLDERS = TemporaryDirectory()
save_file(lora(), f"{FOLDERS.name}/toy.safetensors")
folder_paths.add_model_folder_path("loras", FOLDERS.name)

HALF = [[0.5 * TEXTS[0][0][0], {}]]
SIZES = {"width": WIDTH, "height": HEIGHT, "length": FRAMES, "batch_size": 1, "lora_name": "toy.safetensors"}
GIVEN = {
    "LATENT": LATENT,
    "IMAGE": IMAGE,
    "MASK": MASK,
    "VAE": VAE,
    "CLIP": CLIP,
    "STRING": "a tower",
    "CONTROL_NET": Control(),
    "GLIGEN": object(),
    "CLIP_VISION_OUTPUT": tiny_models.seen(),
    "AUDIO": tiny_models.SOUND,
    "AUDIO_ENCODER_OUTPUT": tiny_models.SPEECH,
    "COMFY_AUTOGROW_V3": {"image_1": IMAGE},
    "VOXEL": VOXEL(torch.ones(1, 2, 2, 2)),
    "LATENT_OPERATION": lambda latent: 0.9 * latent,
    "LORA_MODEL": lora(),
    "WAN_CAMERA_EMBEDDING": torch.zeros(1),
}
OPTIONAL = {"VAE", "CLIP", "IMAGE", "MASK", "LATENT", "WAN_CAMERA_EMBEDDING"}
CHANGES = {
    "ConditioningAverage": {"conditioning_to_strength": 0.5},
    "ConditioningMultiply": {"multiplier": 0.5},
    "ConditioningSetArea": {"width": 32, "height": 32},
    "ConditioningSetTimestepRange": {"end": 0.5},
    "ConditioningSetAreaPercentageVideo": {"width": 0.5},
    "ModelNoiseScale": {"noise_scale": 0.5},
    "ScaleROPE": {"scale_t": 2.0},
    "ModelMergeSimple": {"ratio": 0.5},
    "ModelMergeBlocks": {"input": 0.5, "middle": 0.5, "out": 0.5},
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
    "TextEncodeBooguEdit": {"vae": Latents},
    "TextEncodeMageFlowEdit": {"vae": Latents},  # of a picture of a megapixel
    "WanInfiniteTalkToVideo": {"previous_frames": None, "mode": {"mode": "single_speaker"}},
}
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
    kind, inputs, taken = CORE[name], {}, [each for each, *_ in sockets(CORE[name])]
    changes = CHANGES.get(name, {}) | tiny_models.given_to(name, taken, FOLDERS.name, HALF)
    optional = set() if name.startswith("TextEncode") else OPTIONAL  # these make pictures of a megapixel first
    for each, socket, options, required in sockets(kind):
        if required or each in changes or socket in optional:
            inputs[each] = value(each, socket, options if isinstance(options, dict) else {}, number, changes)
    with CurrentNodeContext("prompt", "node"):
        made = list(zip(kind.RETURN_TYPES, run(name, **inputs), strict=False))
    if name in LISTS:
        made = [(socket, each[0]) for socket, each in made]
    models = [each for socket, each in made if socket == "MODEL"]
    return models[0] if models else None, [each for socket, each in made if socket == "CONDITIONING"]


LISTS = {"LoadTrainingDataset"}
"""Of nodes that give out lists ComfyUI runs what comes behind for each."""
NOT_RUN = {"TorchCompileModel": "see the guider's checks"}


def before(name, front):
    """Models and prompts of a front with a node before it."""
    models, prompts = list(MODELS), prompts_of(front)
    if name in NOT_RUN:
        raise MissingError(NOT_RUN[name])
    taken = [socket for _, socket, _, _ in sockets(CORE[name])]
    for number in (2,) if front == "rollout" else (0, 1) if "MODEL" in taken else (0,):
        model, conditionings = outputs(name, number)
        models[number] = model or models[number]
    if front != "rollout" and "CONDITIONING" not in taken:
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
    same = made.shape == plain.shape and (made - plain).norm() < 1e-3 * plain.norm()
    return ("idle" if same else "used" if made.isfinite().all() else "raised"), ""


def in_question(kind):
    """Whether a node makes a CONDITIONING or changes a MODEL. ModelMergeBlocks stands for its like for other models."""
    if "ModelMergeBlocks" in [base.__name__ for base in kind.__mro__[1:]]:
        return False
    taken = [socket for _, socket, _, _ in sockets(kind)]
    return "CONDITIONING" in kind.RETURN_TYPES or ("MODEL" in kind.RETURN_TYPES and "MODEL" in taken)


@check
def core_nodes():
    return {name: {front: became(name, front) for front in FRONTS} for name in CORE if in_question(CORE[name])}


report()
