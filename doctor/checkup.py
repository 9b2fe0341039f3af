"""The machine check of `lingbot-world doctor`: facts, kernel tests and rates, and estimated speeds."""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..model.attention.choose_8bit import KERNELS
from ..model.choice.card import card_of
from ..model.choice.rates import LARGE_SIZES, SIZES, Rate, rate_of_processor, rates
from ..model.choice.table import SAGE, WORKS, Work, candidates, settings
from ..model.choice.trials import KERNEL_TESTS, Size, Trial, seconds_of, trials
from ..model.ops.linear_8bit import suited_arithmetic
from ..model.quantized import own_format  # noqa: F401  registers how products in NVFP4 and MXFP8 are tried
from ..vae import convolutions  # noqa: F401  registers how a convolution is tried
from .estimate import Estimate, Rates, estimate_base, estimate_releases, recommended
from .machine import describe_machine
from .recordings import replays_correctly

NAIVE = 20.0
"""If matrix products reach more than this many times the TFLOP/s of convolutions, the convolutions seem to use MIOpen's
slow naive kernel (AMD)."""
WRONG = 0.1
"""The relative RMS error above which a rejected kernel is reported as wrong; smaller errors come from low precision."""
COPY_SHAPE = 8192, 16384
"""The shape of the bf16 matrix that is copied to measure the bandwidth of GPU memory."""
BUS = 2**28
SLOWEST = 1e-3
"""The assumed TFLOP/s of an operation without a usable kernel."""


@dataclass(frozen=True)
class Checkup:
    """The result of a machine check.

    trials: the results of the kernels' tests, by operation.
    rates: the chosen kernel and its TFLOP/s, by operation.
    rows: estimates for the causal releases; empty without a GPU.
    base: estimates for the base model; empty without a GPU.
    """

    facts: dict[str, Any]
    trials: dict[Work, tuple[Trial, ...]]
    rates: dict[Work, Rate]
    rows: list[Estimate] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    base: list[Estimate] = field(default_factory=list)

    def as_values(self) -> dict[str, Any]:
        return {
            "machine": self.facts,
            "trials": {work: [each._asdict() for each in found] for work, found in self.trials.items()},
            "rates": {work: rate._asdict() for work, rate in self.rates.items()},
            "releases": [estimate_values(row) for row in (*self.rows, *self.base)],
            "presets": {name: estimate_values(row) for name, row in self.presets.items()},
            "advice": self.advice,
        }

    @property
    def presets(self) -> dict[str, Estimate]:
        """The estimate with the recommended setting, by model. Models that do not fit on the GPU are left out."""
        found = {model: recommended(self.rows, model) for model in dict.fromkeys(row.model for row in self.rows)}
        return {model: row for model, row in found.items() if row is not None}


def estimate_values(row: Estimate) -> dict[str, Any]:
    height, width = row.setting.size
    values = {
        "model": row.model,
        "width": width,
        "height": height,
        "chunk": row.setting.frames,
        "window": row.setting.window,
        "sink": row.setting.sink,
        "eight_bit": row.setting.eight_bit,
        "where": None if row.place is None else row.place.where,
    }
    if row.seconds is None:
        return values
    return values | {
        "seconds_a_chunk": round(row.seconds.total, 3),
        "frames_a_second": round(row.frames_a_second, 2),
        "parts": {name: round(each, 4) for name, each in row.seconds._asdict().items()},
    }


def run_checkup(device: torch.device, folder: Path | None = None) -> Checkup:
    """Check a machine. `folder`: a folder on the disk to time, by default the cache. Raise InputError for an invalid
    LINGBOT_WORLD_KERNELS."""
    settings()
    on_gpu, card = device.type == "cuda", card_of(device)
    facts = describe_machine(device, folder)
    found: dict[Work, tuple[Trial, ...]] = {}
    for work in WORKS:
        if work in KERNEL_TESTS and candidates(work, card):
            found[work] = trials(work, device, Size() if work not in SIZES or not on_gpu else SIZES[work])
    measured: dict[Work, Rate] = rates(device) if on_gpu else {"linear": rate_of_processor()}
    rows, base = _estimate(device, measured, facts) if on_gpu else ([], [])
    facts["sageattention in a recording"] = _describe_sage_replay(device)
    return Checkup(facts, found, measured, rows, advice(facts, found, measured, device), base)


def _estimate(
    device: torch.device, found: dict[Work, Rate], facts: dict[str, Any]
) -> tuple[list[Estimate], list[Estimate]]:
    gpu, host = measure_bandwidth(device), measure_bus(device)
    unknown = Rates(SLOWEST, SLOWEST, SLOWEST, SLOWEST, SLOWEST, gpu, host, facts["memory_total"])
    small = large = _with_rates(unknown, device, found)
    with suppress(torch.OutOfMemoryError):  # the matrices of the 14B take 2 GB
        large = _with_rates(small, device, rates(device, LARGE_SIZES))
    return estimate_releases(small, large), estimate_base(large)


def _with_rates(known: Rates, device: torch.device, found: dict[Work, Rate]) -> Rates:
    """Return a copy of `known` with the rates in `found`; 16-bit rates replace missing 8-bit ones."""

    def of(default: float, *works: Work) -> float:
        return next((found[work].tflops or default for work in works if work in found and found[work].tflops), default)

    eight: Work = "fp8" if suited_arithmetic("8bit", device) == "fp8" else "int8"
    return known._replace(
        linear=of(known.linear, "linear"),
        linear_8bit=of(known.linear_8bit, eight, "linear"),
        attention=of(known.attention, "attention"),
        attention_8bit=of(known.attention_8bit, "attention-8bit", "attention"),
        convolution=of(known.convolution, "convolution"),
    )


def measure_bandwidth(device: torch.device) -> float:
    """Return the bandwidth of GPU memory in GB/s, counting reads and writes."""
    x = torch.empty(COPY_SHAPE, dtype=torch.bfloat16, device=device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / (seconds_of(lambda: y.copy_(x), device) or 1.0) / 1e9


def measure_bus(device: torch.device) -> float:
    """Return the GB/s of copies from pinned host memory to a GPU."""
    x = torch.empty(BUS, dtype=torch.uint8, pin_memory=True)
    y = torch.empty(BUS, dtype=torch.uint8, device=device)
    return BUS / (seconds_of(lambda: y.copy_(x, non_blocking=True), device) or 1.0) / 1e9


def _describe_sage_replay(device: torch.device) -> str:
    """Return "yes" if a CUDA graph with SageAttention computes correctly, else why not, as text for the report."""
    if device.type != "cuda" or not any(each.name == SAGE for each in candidates("attention-8bit", card_of(device))):
        return "not used on this card"
    try:
        right = replays_correctly(KERNELS[SAGE].attend, device)
    except Exception as reason:
        logging.debug("%s", reason)
        return f"not tried: {' '.join(str(reason).split())[:100]}"
    return "yes" if right else "no: it launches on another stream, so a replay lacks its work"


def advice(
    facts: dict[str, Any], found: dict[Work, tuple[Trial, ...]], measured: dict[Work, Rate], device: torch.device
) -> list[str]:
    """Return recommendations for a machine. `facts`: the machine's properties by name. `found`: the kernel tests by
    operation. `measured`: the best kernels' rates."""
    said = []
    held, total = facts.get("memory_held_elsewhere", 0), facts.get("memory_total", 1)
    if held > 0.15 * total:
        said.append(
            f"{held / 1e9:.1f} GB of the card are held by other programs, or by none: WSL keeps what dead "
            "processes held until `wsl --shutdown`."
        )
    convolution, linear = measured.get("convolution"), measured.get("linear")
    if convolution and linear and convolution.tflops and linear.tflops and linear.tflops > NAIVE * convolution.tflops:
        said.append(
            "The VAE's convolutions take over 20 times as long as products of as many operations. On AMD this is "
            "MIOpen's naive kernel: install the MIOpen kernel package of your card, and let it search once with "
            "MIOPEN_FIND_MODE=NORMAL."
        )
    if device.type == "mps":
        said.append("Apple's GPUs run the plain path. Nobody has tried it: please send what you see.")
    for work, tried in found.items():
        wrong = [each.name for each in tried if each.reason is not None and (each.error or 0) > WRONG]
        said += [f"{name} computes {work} wrongly on this card and is not used." for name in wrong]
    return said
