"""A causal model's package in diffusers' layout, written from one in the official layout."""

import json
import shutil
from dataclasses import replace

from lingbot_world.loaders import find_package
from lingbot_world.quantize.writer import config_json, write_json
from lingbot_world.text.weights import huggingface_key
from lingbot_world.toy.experts import write_expert
from lingbot_world.toy.weights import EXPERT, expert_tensors
from lingbot_world.weights.files import read_tensors
from safetensors.torch import save_file

RENAMED = {
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.modulation": "scale_shift_table",
    "head.head": "proj_out",
    "modulation": "scale_shift_table",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "norm3": "norm2",
} | {
    f"{ours}_attn.{part}": f"attn{number}.{theirs}"
    for ours, number in (("self", 1), ("cross", 2))
    for part, theirs in (
        ("q.", "to_q."),
        ("k.", "to_k."),
        ("v.", "to_v."),
        ("o.", "to_out.0."),
        ("norm_q", "norm_q"),
        ("norm_k", "norm_k"),
    )
}
"""Parts of official names, as diffusers' script renames them in turn."""


def transformer_name(name):
    for ours, theirs in RENAMED.items():
        name = name.replace(ours, theirs)
    return name


RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}


def vae_name(name):
    side, _, rest = name.partition(".")
    if side in ("conv1", "conv2"):
        return {"conv1": "quant_conv.", "conv2": "post_quant_conv."}[side] + rest
    place, _, leaf = rest.partition(".")
    if place in ("conv1", "head"):
        place, leaf = {"conv1": ("conv_in", leaf)}.get(place) or ({"0": "norm_out", "2": "conv_out"}[leaf[0]], leaf[2:])
        return f"{side}.{place}.{leaf}"
    number, _, leaf = leaf.partition(".")
    for ours, theirs in RESIDUAL.items():
        leaf = leaf.replace(ours, theirs)
    if place == "middle":
        return f"{side}.mid_block.{('resnets.0', 'attentions.0', 'resnets.1')[int(number)]}.{leaf}"
    if place == "downsamples":
        return f"{side}.down_blocks.{number}.{leaf}"
    stage, layer = divmod(int(number), 4)
    return f"{side}.up_blocks.{stage}.{'upsamplers.0' if layer == 3 else f'resnets.{layer}'}.{leaf}"


def write_shards(folder, stem, tensors, count=3):
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(count):
        file = f"{stem}-{number + 1:05d}-of-{count:05d}.safetensors"
        part = dict(list(tensors.items())[number::count])
        save_file({name: tensor.contiguous() for name, tensor in part.items()}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def tensors_of(path):
    return {name: entry.view() for name, entry in read_tensors(path).items()}


def write_official(folder, toy_package):
    """The toy's causal model in bf16 as an official folder, with the toy's other parts: a Package."""
    config = replace(EXPERT, causal=True)
    folder.mkdir(parents=True)
    write_expert(folder / "model.safetensors", config, expert_tensors(4), quant_type=None)
    write_json(folder / "config.json", config_json(config))
    return replace(find_package(toy_package), experts=None, causal=folder)


def write_diffusers(root, package, *, renamed=True):
    """A Package at `root`; its transformer has diffusers' names, or if not `renamed` the official ones."""
    config = json.loads((package.causal / "config.json").read_text())
    weights = tensors_of(package.causal)
    write_shards(
        root / "transformer",
        "diffusion_pytorch_model",
        {transformer_name(name) if renamed else name: tensor for name, tensor in weights.items()},
    )
    (root / "transformer/config.json").write_text(
        json.dumps(
            {
                "_class_name": "CausalLingBotWorldTransformer3DModel",
                "_diffusers_version": "0.35.0.dev0",
                "attention_head_dim": config["dim"] // config["num_heads"],
                "num_attention_heads": config["num_heads"],
                "in_channels": config["in_dim"],
                "out_channels": config["out_dim"],
                "num_layers": config["num_layers"],
                "ffn_dim": config["ffn_dim"],
                "freq_dim": config["freq_dim"],
                "patch_size": [1, 2, 2],
                "eps": config["eps"],
                "text_dim": weights["text_embedding.0.weight"].shape[1],
                "rope_max_seq_len": 1024,
                "sink_size": 9,
                "num_frames_per_block": 3,
                "sliding_window_num_frames": 18,
                "local_attn_size": -1,
            }
        )
    )
    text = {huggingface_key(name): tensor for name, tensor in tensors_of(package.text_encoder).items()}
    write_shards(root / "text_encoder", "model", text, count=2)
    (root / "text_encoder/config.json").write_text('{"architectures": ["UMT5EncoderModel"], "model_type": "umt5"}')
    (root / "vae").mkdir()
    save_file(
        {vae_name(name): tensor.contiguous() for name, tensor in tensors_of(package.vae).items()},
        root / "vae/diffusion_pytorch_model.safetensors",
    )
    (root / "vae/config.json").write_text('{"_class_name": "AutoencoderKLWan", "z_dim": 16}')
    shutil.copytree(package.tokenizer, root / "tokenizer")
    (root / "scheduler").mkdir()
    (root / "scheduler/scheduler_config.json").write_text('{"_class_name": "FlowUniPCMultistepScheduler"}')
    (root / "model_index.json").write_text('{"_class_name": "LingBotWorldCausalDMDPipeline"}')
    return root
