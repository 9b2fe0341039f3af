"""Parts of bench_gpu.py that look inside a step: fused kernels against plain torch, and a profile."""

from collections.abc import Callable

import torch
from bench_report import Report, timed
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.ops import pointwise

TOKENS = 32760
"""Of a video of 480x832 and 81 frames."""


def bench_kernels(report: Report, config: ModelConfig) -> None:
    """Milliseconds of each fused kernel on one row of full width, with its plain torch twin's in the note."""
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    dim, half = config.dim, config.head_dim // 2
    x, y, angles = draw(TOKENS, dim), draw(TOKENS, dim).bfloat16(), draw(TOKENS, half)
    cases = {
        "layer_norm": (x, 1 + 0.1 * draw(dim), draw(dim), 1e-6, torch.bfloat16),
        "rms_norm_": (y, draw(dim), 1e-6),
        "rms_rope_": (y, draw(dim), angles.cos(), angles.sin(), 1e-6),
        "gated_add_": (x, y, draw(dim)),
        "affine_": (x, y, draw(TOKENS, dim).bfloat16()),
    }
    for name, arguments in cases.items():
        bench_kernel(report, name, *arguments)


def bench_kernel(report: Report, name: str, first: torch.Tensor, *rest) -> None:
    outs, times = {}, {}
    for mode in ("eager", "triton"):
        kernel, scratch = pointwise.implementation(name, "cuda", mode), first.clone()
        outs[mode] = kernel(first.clone(), *rest).double()
        times[mode] = timed(lambda: kernel(scratch, *rest), 10, "cuda")[0]  # noqa: B023
    error = float((outs["eager"] - outs["triton"]).norm() / outs["eager"].norm())
    note = f"plain torch {times['eager'] * 1e3:.2f} ms, relative difference {error:.1e}"
    report.add(f"kernel {name}", times["triton"] * 1e3, "ms", note)


def print_profile(step: Callable[[], object]) -> None:
    """The kernels of one step, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    averages = profiler.key_averages()
    print(averages.table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70))
    print(f"kernels and copies: {sum(each.count for each in averages if each.device_time_total)}")
