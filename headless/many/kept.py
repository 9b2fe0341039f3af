"""What a process keeps from one group of videos to the next: open files, and where memory has room, models."""

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

T = TypeVar("T")


class OpenFiles:
    """Opened files by path, for as long as they stay as they are on the disk."""

    def __init__(self) -> None:
        self._opened: dict[Hashable, tuple[list, Any]] = {}

    def __call__(self, opener: Callable[..., T], paths: Any, *loras: Sequence[LoraFile]) -> T:
        """`opener(paths)`, of models with their LoRAs behind it; or what it gave for these before."""
        files = [paths] if isinstance(paths, Path) else list(paths)
        named = [*files, *(lora.path for each in loras for lora in each)]
        every = [file for path in named for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        stamp = [(str(file), (stat := file.stat()).st_mtime_ns, stat.st_size) for file in every]
        key = opener, str(paths), *map(tuple, loras)
        if key not in self._opened or self._opened[key][0] != stamp:
            self._opened[key] = stamp, opener(paths, *loras)
        return cast(T, self._opened[key][1])


class Kept:
    """Both experts and the VAE, where they and all that a run does beside them fit into the GPU's memory at once. On
    the CPU, where weights are mapped, they always do."""

    def __init__(self) -> None:
        self.files = OpenFiles()
        self._experts: dict[str, tuple[Checkpoint, LingBotWorldModel]] = {}
        self._vae: tuple[object, VAE] | None = None
        self._keeping = False

    def prepare(self, plan: SamplingPlan) -> None:
        """Before the runs of a group like `plan`: gives up what is another plan's, and all where memory is short."""
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
        """Gives the models up."""
        self._experts, self._vae = {}, None

    def vae(self, plan: SamplingPlan) -> VAE:
        """The plan's VAE, loaded unless it was kept; not in tiles."""
        vae = load_vae(plan.vae, device=plan.device) if self._vae is None else self._vae[1]
        if self._keeping:
            self._vae = plan.vae, vae
        vae.use_tiling = False
        return vae

    def expert(self, plan: SamplingPlan, name: str, load: Callable[[], LingBotWorldModel]) -> LingBotWorldModel:
        """The plan's expert called `name`, `load`ed unless it was kept."""
        if name in self._experts:
            model = self._experts[name][1]
            model.set_arithmetic(choose_arithmetic(plan.options.arithmetic, plan.device, model.config))
            model.set_attention(choose_attention(plan.options.attention, plan.device, model.config))
            return model
        model = load()
        if self._keeping:
            self._experts[name] = getattr(plan.experts, name), model
        return model

    def free(self, device: torch.device) -> int:
        """Bytes that are free on the device for a run which counts its experts itself."""
        return free_memory(device) + sum(checkpoint.nbytes for checkpoint, _ in self._experts.values())

    def _has_room(self, plan: SamplingPlan) -> bool:
        if plan.device.type != "cuda":
            return True
        free = self.free(plan.device)
        weights = sum(checkpoint.nbytes for checkpoint in plan.experts)
        vae = max(stage.total for stage in estimate_vae(vae_width(plan.vae), plan.geometry))
        beside = max(vae, estimate_text(plan.text_encoder.config, plan.dtype).total)
        residency = choose_residency(plan.sampling_work(), plan.wishes, plan.device, free)
        return residency.both and weights + beside + MARGIN <= free
