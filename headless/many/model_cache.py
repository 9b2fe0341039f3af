"""Caches of open files and models for the groups of a batch."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from ...loaders import Checkpoint
from ...model.attention.choose_8bit import choose_attention
from ...model.dit import LingBotWorldModel
from ...model.ops.linear_8bit import choose_arithmetic
from ...options import LoraFile
from ...pipeline.memory import MARGIN, choose_residency, estimate_decoding, estimate_text, free_memory
from ...vae import VAE, load_vae, vae_width
from ..plan import SamplingPlan
from ..process.profile import release
from ..prompt_cache import file_stamps

T = TypeVar("T")


class OpenFiles:
    """A cache of open files by path. A file that has changed on the disk is opened again."""

    def __init__(self) -> None:
        self._opened: dict[Hashable, tuple[list, Any]] = {}

    def __call__(self, opener: Callable[..., T], paths: Any, *loras: Sequence[LoraFile]) -> T:
        """Return `opener(paths, *loras)`, or the cached result of an earlier call if all files are unchanged. `paths`:
        one path or several."""
        files = [paths] if isinstance(paths, Path) else list(paths)
        named = [*files, *(lora.path for each in loras for lora in each)]
        stamp = [each for path in named for each in file_stamps(path)]
        key = opener, str(paths), *map(tuple, loras)
        if key not in self._opened or self._opened[key][0] != stamp:
            self._opened[key] = stamp, opener(paths, *loras)
        return cast(T, self._opened[key][1])


class ModelCache:
    """A cache of both experts, the VAE and open files for a batch. On a GPU, models stay only if memory suffices for
    the next group of jobs."""

    def __init__(self) -> None:
        self.files = OpenFiles()
        self._experts: dict[str, tuple[Checkpoint, LingBotWorldModel]] = {}
        self._vae: tuple[object, VAE] | None = None
        self._keeping = False

    def prepare(self, plan: SamplingPlan) -> None:
        """Remove the cached models that `plan` does not use, or all models if GPU memory is short. If memory is still
        short then, models that are loaded later are not cached."""
        for name, (checkpoint, _) in list(self._experts.items()):
            if checkpoint is not getattr(plan.experts, name):
                del self._experts[name]
        if self._vae is not None and self._vae[0] is not plan.vae:
            self._vae = None
        if not self._has_room(plan):
            self.drop()
        self._keeping = self._has_room(plan)
        release(plan.device)

    def drop(self) -> None:
        self._experts, self._vae = {}, None

    def vae(self, plan: SamplingPlan) -> VAE:
        """Return the plan's VAE, without tiling, from the cache or newly loaded."""
        vae = load_vae(plan.vae, device=plan.device) if self._vae is None else self._vae[1]
        if self._keeping:
            self._vae = plan.vae, vae
        vae.use_tiling = False
        return vae

    def expert(self, plan: SamplingPlan, name: str, load: Callable[[], LingBotWorldModel]) -> LingBotWorldModel:
        """Return the expert `name`, "high" or "low", from the cache or from `load()`. A cached expert is set to the
        plan's `arithmetic` and `attention` options."""
        if name in self._experts:
            model = self._experts[name][1]
            wanted = plan.options.arithmetic
            chosen = choose_arithmetic(wanted, plan.device, model.config)
            model.set_arithmetic(chosen, own_format=wanted == "8bit")
            model.set_attention(choose_attention(plan.options.attention, plan.device, model.config))
            return model
        model = load()
        if self._keeping:
            self._experts[name] = getattr(plan.experts, name), model
        return model

    def free_without_experts(self, device: torch.device) -> int:
        """Return the device's free bytes plus the bytes of the cached experts. Nothing is freed. Compare this sum with
        memory estimates that include the experts."""
        return free_memory(device) + sum(checkpoint.nbytes for checkpoint, _ in self._experts.values())

    def _has_room(self, plan: SamplingPlan) -> bool:
        if plan.device.type != "cuda":
            return True
        free = self.free_without_experts(plan.device)
        weights = sum(checkpoint.nbytes for checkpoint in plan.experts)
        vae = estimate_decoding(vae_width(plan.vae), plan.geometry).total  # more than for encoding
        beside = max(vae, estimate_text(plan.text_encoder.config, plan.dtype).total)
        residency = choose_residency(plan.sampling_work(), plan.memory_options, plan.device, free)
        return residency.both and weights + beside + MARGIN <= free
