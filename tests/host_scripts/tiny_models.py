"""The smallest models of ComfyUI's own classes, with random weights, for nodes that take one: vision encoders, patches,
a style model, a hypernetwork, a training set. Import after `embed`, as `rule_setup`."""

from pathlib import Path

import comfy.clip_vision
import comfy.ldm.anima.lllite
import comfy.ldm.lumina.controlnet
import comfy.ldm.wan.uni3c
import comfy.model_sampling
import comfy.ops
import comfy.sd
import comfy_extras.nodes_model_patch as model_patches
import comfy_extras.nodes_photomaker as photomaker
import folder_paths
import torch
from comfy.ldm.flux.redux import ReduxImageEncoder
from comfy.model_patcher import CoreModelPatcher
from rule_setup import EXPERT

CPU = torch.device("cpu")
LAYERS = {"device": CPU, "dtype": torch.float32, "operations": comfy.ops.manual_cast}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_channels": 3,
    "image_size": 32,
    "patch_size": 16,
    "projection_dim": 16,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "num_register_tokens": 4,
    "rope_theta": 100.0,
}
SPEECH_LAYERS, SPEECH_DIM = 12, 768


def filled(module):
    random = torch.Generator().manual_seed(1)
    for weight in module.parameters():
        weight.data = 0.1 * torch.randn(weight.shape, generator=random)
    return module


def patcher(module):
    return CoreModelPatcher(filled(module), load_device=CPU, offload_device=CPU)


def clip_vision(model_type, **changes):
    made = comfy.clip_vision.ClipVisionModel({**VISION, "model_type": model_type, **changes})
    filled(made.model)
    return made


def seen():
    """What a vision encoder gives, with every layer that a node may ask for."""
    made = comfy.clip_vision.Output()
    random = torch.Generator().manual_seed(2)
    layers = torch.randn(1, 27, 4, 32, generator=random)
    last = layers[:, -1]
    values = {
        "all_hidden_states": layers,
        "penultimate_hidden_states": layers[:, -2],
        "last_hidden_state": last,
        "image_embeds": last[:, 0],
        "mm_projected": None,
    }
    for name, value in values.items():
        made[name] = value
    return made


def anima():
    encoder, layer = "lllite_conditioning1", "lllite_dit_blocks_0_self_attn_q_proj"
    shapes = {
        f"{encoder}.conv1.weight": (4, 3),
        f"{encoder}.conv3.weight": (8, 4),
        f"{encoder}.proj.weight": (8, 8),
        f"{layer}.down.weight": (4, EXPERT.dim),
        f"{layer}.cond_to_film.weight": (8, 8),
    }
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    return comfy.ldm.anima.lllite.AnimaLLLite(tensors, {}, **LAYERS)


def infinite_talk():
    module = model_patches.MultiTalkModelPatch(
        in_dim=EXPERT.dim, intermediate_dim=8, out_dim=16, context_tokens=4, num_layers=EXPERT.num_layers, **LAYERS
    )
    for block in module.blocks:  # made for 40 heads
        block.audio_cross_attn.num_heads, block.audio_cross_attn.head_dim = EXPERT.num_heads, EXPERT.head_dim
    return module


def supir():
    """Without its U-Net: no node and no other model than SDXL runs it."""
    module = torch.nn.Module()
    module.project_modules = torch.nn.ModuleList()
    return module


PATCHES = {
    "AnimaLLLiteApply": anima,
    "QwenImageDiffsynthControlnet": lambda: model_patches.QwenImageBlockWiseControlNet(2, dim=EXPERT.dim, **LAYERS),
    "SUPIRApply": supir,
    "USOStyleReference": lambda: model_patches.SigLIPMultiFeatProjModel(4, 2, 32, EXPERT.dim, **LAYERS),
    "WanInfiniteTalkToVideo": infinite_talk,
    "WanUni3CControlnetApply": lambda: comfy.ldm.wan.uni3c.WanUni3CControlnet(
        conv_out_dim=32,
        dim=32,
        ffn_dim=32,
        num_heads=2,
        num_layers=2,
        time_embed_dim=EXPERT.dim,
        out_proj_dim=EXPERT.dim,
        mid_channels=8,
        **LAYERS,
    ),
    "ZImageFunControlnet": lambda: comfy.ldm.lumina.controlnet.ZImage_Control(
        dim=32, n_heads=2, n_kv_heads=2, multiple_of=8, n_control_layers=2, **LAYERS
    ),
}


def photo_maker():
    photomaker.VISION_CONFIG_DICT |= {"num_hidden_layers": 1, "intermediate_size": 8}
    return photomaker.PhotoMakerIDEncoder()


def style_model():
    return comfy.sd.StyleModel(filled(ReduxImageEncoder(32, EXPERT.text_dim, dtype=torch.float32)))


def hypernetwork(folder: Path, _conditioning):
    """The name of a file in a folder of hypernetworks."""
    layer = {"linear.0.weight": torch.eye(EXPERT.dim), "linear.0.bias": torch.zeros(EXPERT.dim)}
    torch.save({EXPERT.dim: [layer, layer]}, folder / "tiny.pt")
    folder_paths.add_model_folder_path("hypernetworks", str(folder))
    return "tiny.pt"


def training_set(folder: Path, conditioning):
    """The name of a folder with a training set."""
    (folder / "tiny").mkdir(exist_ok=True)
    torch.save(
        {"latents": [{"samples": torch.zeros(1, 16, 3, 4, 8)}], "conditioning": [conditioning]},
        folder / "tiny/shard_0000.pkl",
    )
    folder_paths.add_model_folder_path("datasets", str(folder))
    return "tiny"


class SoundVAE:
    """LTXV's of sound, as far as a node asks for it."""

    @staticmethod
    def encode(_wave):
        return torch.zeros(1, 8, 4, 16)


SOUND = {"waveform": torch.zeros(1, 1, 4410), "sample_rate": 44100}
SPEECH = {"encoded_audio_all_layers": [torch.zeros(1, 30, SPEECH_DIM)] * (SPEECH_LAYERS + 1)}


def quick_cascade(sampling, shift=1.0, cosine_s=8e-3):
    """ModelSamplingStableCascade's 10,000 sigmas at once, which ComfyUI computes one by one for seconds."""
    sampling.shift, sampling.cosine_s = shift, torch.tensor(cosine_s)
    sampling._init_alpha_cumprod = torch.cos(sampling.cosine_s / (1 + sampling.cosine_s) * torch.pi * 0.5) ** 2
    sampling.num_timesteps = 10_000
    sampling.set_sigmas(sampling.sigma(torch.arange(1, 10_001) / 10_000))


comfy.model_sampling.StableCascadeSampling.set_parameters = quick_cascade
FILES = {
    "HypernetworkLoader": ("hypernetwork_name", hypernetwork),
    "LoadTrainingDataset": ("folder_name", training_set),
}
MODELS = {
    "clip_vision": lambda name: clip_vision("dinov3" if name == "TripoSplatConditioning" else "clip_vision_model"),
    # A picture of 1024 pixels has 4,096 patches; of these nodes one takes any number.
    "clip_vision_model": lambda name: clip_vision("dinov3", patch_size=128 if name == "Trellis2Conditioning" else 16),
    "model_patch": lambda name: patcher(PATCHES[name]()),
    "photomaker": lambda _: photo_maker(),
    "style_model": lambda _: style_model(),
    "audio_vae": lambda _: SoundVAE,
}


def given_to(name, taken, folder, conditioning):
    """What a node is given of these on its inputs."""
    given = {each: MODELS[each](name) for each in taken if each in MODELS}
    if name in FILES:
        socket, write = FILES[name]
        given[socket] = write(Path(folder), conditioning)
    return given
