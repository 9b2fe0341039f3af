"""Caches of open files and of models, kept from one group of a batch to the next."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from ...loaders import Checkpoint
from ...model.attention.choose_8bit import choose_attention
from ...model.dit import LingBotWorldModel
from ...model.ops.linear_8bit import choose_arithmetic
from ...options import LoraFile
from ...pipeline.memory import MARGIN, choose_residency, estimate_text, estimate_vae, free_memory
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
        """Return `opener(paths, *loras)`. If no file has changed since an equal call, return that call's result.
        `loras`: lists of LoRA files for the opener."""
        files = [paths] if isinstance(paths, Path) else list(paths)
        named = [*files, *(lora.path for each in loras for lora in each)]
        stamp = [each for path in named for each in file_stamps(path)]
        key = opener, str(paths), *map(tuple, loras)
        if key not in self._opened or self._opened[key][0] != stamp:
            self._opened[key] = stamp, opener(paths, *loras)
        return cast(T, self._opened[key][1])


class ModelCache:
    """A cache of both experts, the VAE and open files, which lasts from one group of a batch to the next. On a GPU,
    models stay in the cache only if they fit next to everything else that the next group needs. On a CPU models always
    stay, because they are memory-mapped."""

    def __init__(self) -> None:
        self.files = OpenFiles()
        self._experts: dict[str, tuple[Checkpoint, LingBotWorldModel]] = {}
        self._vae: tuple[object, VAE] | None = None
        self._keeping = False

    def prepare(self, plan: SamplingPlan) -> None:
        """Prepare the cache for a group with this plan:

        1. Remove the models that the plan does not use.
        2. If the GPU's memory is too small for the plan's models and the rest of the group's work, remove all models.
        3. If it is still too small, do not cache the models that the group loads.
        """
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
        """Return the plan's VAE from the cache, or else load it. The returned VAE does not work in tiles."""
        vae = load_vae(plan.vae, device=plan.device) if self._vae is None else self._vae[1]
        if self._keeping:
            self._vae = plan.vae, vae
        vae.use_tiling = False
        return vae

    def expert(self, plan: SamplingPlan, name: str, load: Callable[[], LingBotWorldModel]) -> LingBotWorldModel:
        """Return the plan's expert "high" or "low" (`name`) from the cache, with its arithmetic and attention set to
        those of the plan. Otherwise return the model that `load()` returns, and store it if `prepare` has found room
        for it."""
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

    def free(self, device: torch.device) -> int:
        """Return the free bytes on the device plus the bytes of the cached experts, because estimates for a run include
        the experts' weights."""
        return free_memory(device) + sum(checkpoint.nbytes for checkpoint, _ in self._experts.values())

    def _has_room(self, plan: SamplingPlan) -> bool:
        if plan.device.type != "cuda":
            return True
        free = self.free(plan.device)
        weights = sum(checkpoint.nbytes for checkpoint in plan.experts)
        vae = max(stage.total for stage in estimate_vae(vae_width(plan.vae), plan.geometry))
        beside = max(vae, estimate_text(plan.text_encoder.config, plan.dtype).total)
        residency = choose_residency(plan.sampling_work(), plan.memory_options, plan.device, free)
        return residency.both and weights + beside + MARGIN <= free
