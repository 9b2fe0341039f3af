"""The official models' step and chunk, from a checkout of github.com/Robbyant/lingbot-world, or -v2, that the user
names."""

import importlib.util
import sys
import types
from functools import partial
from itertools import count
from pathlib import Path

import torch
from bench_report import GB, Report, timed
from lingbot_world.model.config import ModelConfig
from lingbot_world.options import Window
from lingbot_world.pipeline.geometry import Geometry
from torch.amp import autocast
from torch.nn.attention import SDPBackend, sdpa_kernel

FILES = {"WanModel": "model", "WanModelFast": "model_fast"}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def official_model(
    checkout: Path, config: ModelConfig, name: str = "WanModel", device: str = "cuda", **more: int
) -> torch.nn.Module:
    """An official class with random bf16 weights, without what its package would import besides. Where flash_attn is
    not installed its own fallback, torch's attention, takes its place."""
    file = FILES[name]
    if not (checkout / f"wan/modules/{file}.py").is_file():
        raise SystemExit(f"--official {checkout}: no wan/modules/{file}.py in it; give a checkout of lingbot-world")
    for package in ("wan", "wan.modules"):
        module = sys.modules.setdefault(package, types.ModuleType(package))
        module.__path__ = [str(checkout / package.replace(".", "/"))]
    _stand_in_for_diffusers()
    source, attention = (importlib.import_module(f"wan.modules.{each}") for each in (file, "attention"))
    if not (attention.FLASH_ATTN_2_AVAILABLE or attention.FLASH_ATTN_3_AVAILABLE):
        source.flash_attention = attention.attention
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = getattr(source, name)(
                "i2v",
                in_dim=config.in_dim,
                dim=config.dim,
                ffn_dim=config.ffn_dim,
                freq_dim=config.freq_dim,
                text_dim=config.text_dim,
                num_heads=config.num_heads,
                num_layers=config.num_layers,
                text_len=config.text_len,
                eps=config.eps,
                **more,
            )
    finally:
        torch.set_default_dtype(usual)
    return model.eval().requires_grad_(False)


def _stand_in_for_diffusers() -> None:
    """Of diffusers the official classes take two bases and the decorator of their constructors."""
    if importlib.util.find_spec("diffusers") is not None:
        return
    base = type("Mixin", (torch.nn.Module,), {})
    names = {
        "diffusers": {},
        "diffusers.models": {},
        "diffusers.configuration_utils": {
            "ConfigMixin": type("ConfigMixin", (), {}),
            "register_to_config": lambda function: function,
        },
        "diffusers.models.modeling_utils": {"ModelMixin": base},
    }
    for name, members in names.items():
        module = sys.modules.setdefault(name, types.ModuleType(name))
        vars(module).update(members)


def bench_official_causal(
    report: Report,
    checkout: Path,
    config: ModelConfig,
    geometry: Geometry,
    window: Window,
    chunk: int,
    repeats: int,
    device: str = "cuda",
) -> None:
    """A chunk as the official rollout makes it behind a full window: four forwards and the clean one, all of them with
    the same noise, in place of what the scheduler makes of each."""
    model = official_model(
        checkout, config, "WanModelFast", device, local_attn_size=window.frames, sink_size=window.sink
    )
    grid, frame = (chunk, geometry.lat_h, geometry.lat_w), geometry.lat_h * geometry.lat_w // 4
    full, heads = window.frames * frame, (config.num_heads, config.head_dim)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    def room(tokens: int) -> dict:
        return {name: draw(1, tokens, *heads).bfloat16() for name in "kv"}

    def number(value: int) -> torch.Tensor:
        return torch.tensor([value], device=device)

    stored = [
        {
            **room(full),
            "global_end_index": number(full),
            "local_end_index": number(full),
            "global_end_int": full,
            "local_end_int": full,
        }
        for _ in model.blocks
    ]
    prompts = [{**room(config.text_len), "is_init": number(1)} for _ in model.blocks]
    noise, y, prompt = draw(16, *grid), draw(config.in_dim - 16, *grid), draw(77, config.text_dim).bfloat16()
    camera, starts = draw(1, config.control_channels, *grid).bfloat16(), count(full, chunk * frame)

    def make() -> None:
        start = next(starts)
        with torch.no_grad(), autocast(device, dtype=torch.bfloat16):
            for timestep in (999.0, 957.0, 899.0, 702.0, 0.0):
                model(
                    [noise],
                    torch.full((1,), timestep, device=device),
                    [prompt],
                    chunk * frame,
                    [y],
                    {"c2ws_plucker_emb": (camera,)},
                    stored,
                    prompts,
                    current_start=start,
                    max_attention_size=full,
                    frame_seqlen=frame,
                    cross_attn_first_call=False,
                )

    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            seconds, peak = timed(make, repeats, device)
            note = "" if peak is None else f"{peak / GB:.2f} GB over weights, keys and values"
            report.add(f"official Fast class, {name} attention, window full", seconds, "s", note)


def bench_official(report: Report, checkout: Path, config: ModelConfig, geometry: Geometry, repeats: int) -> None:
    """A guided step as its generate() takes it: two forwards of one row under bf16 autocast."""
    model = official_model(checkout, config)
    grid = geometry.lat_f, geometry.lat_h, geometry.lat_w

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    noise, y, timestep = draw(16, *grid), draw(config.in_dim - 16, *grid), torch.full((1,), 900.0, device="cuda")
    prompts = [draw(77, config.text_dim).bfloat16() for _ in range(2)]
    camera = {"c2ws_plucker_emb": (draw(1, config.control_channels, *grid).bfloat16(),)}

    def step(camera: dict | None) -> None:
        with torch.no_grad(), autocast("cuda", dtype=torch.bfloat16):
            for prompt in prompts:
                model([noise], timestep, [prompt], geometry.tokens, [y], camera)

    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            for variant, given in (("camera", camera), ("no camera", None)):
                seconds, peak = timed(partial(step, given), repeats, "cuda")
                note = f"{peak / GB:.2f} GB over the weights"
                report.add(f"official CFG step, {name} attention, {variant}", seconds, "s", note)
