"""The official model's step, from a checkout of github.com/Robbyant/lingbot-world that the user names."""

import importlib
import sys
import types
from functools import partial
from pathlib import Path

import torch
from bench_report import GB, Report, timed
from lingbot_world.model.config import ModelConfig
from lingbot_world.pipeline.geometry import Geometry
from torch.amp import autocast
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def official_model(checkout: Path, config: ModelConfig) -> torch.nn.Module:
    """The official class with random bf16 weights, without what its package would import besides. Where flash_attn is
    not installed its own fallback, torch's attention, takes its place."""
    if not (checkout / "wan/modules/model.py").is_file():
        raise SystemExit(f"--official {checkout}: no wan/modules/model.py in it; give a checkout of lingbot-world")
    for name in ("wan", "wan.modules"):
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = [str(checkout / name.replace(".", "/"))]
    source, attention = map(importlib.import_module, ("wan.modules.model", "wan.modules.attention"))
    if not (attention.FLASH_ATTN_2_AVAILABLE or attention.FLASH_ATTN_3_AVAILABLE):
        source.flash_attention = attention.attention
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = source.WanModel(
                "i2v", in_dim=config.in_dim, dim=config.dim, ffn_dim=config.ffn_dim, freq_dim=config.freq_dim,
                text_dim=config.text_dim, num_heads=config.num_heads, num_layers=config.num_layers,
                text_len=config.text_len, eps=config.eps,
            )  # fmt: skip
    finally:
        torch.set_default_dtype(usual)
    return model.eval().requires_grad_(False)


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
