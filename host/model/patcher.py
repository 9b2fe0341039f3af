"""Subclasses of ComfyUI's ModelPatcher that apply LoRAs exactly, also to 4-bit weights."""

import logging
import math
from collections import namedtuple
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.utils
import torch
from comfy.lora import calculate_weight
from comfy.model_patcher import LowVramPatch
from comfy_aimdo import model_vbar

from ...errors import InputError
from ...model.cache import CameraCache
from ...model.ops.linear_8bit import DTYPES
from ...pipeline.threads import use_idle_cores
from ..prompt.notice import running_node, show_warning
from .lora_files import (
    AS_LORA,
    MIXTURE,
    add_ignored_tensors,
    fitting_patches,
    is_kind,
    is_mixture,
    weights_to_merge,
)
from .operations import can_upload, is_quantized, uploading

_Backup = namedtuple("_Backup", ["weight", "inplace_update"])
_AnyPatcher: Any = object  # for type checkers: one of ComfyUI's patchers follows the mixin
_ENOUGH = 2**62
"""The free bytes that a causal model's patcher reports to ComfyUI, enough for any batch."""


class ExactPatches(_AnyPatcher):
    """A mixin for ModelPatchers whose layers apply LoRA patches to a weight at each use, without a change to the stored
    weight. A quantized weight is decoded first."""

    made_by: str | None = None
    """The id of the node that made this clone of the MODEL, or None."""
    _last_sigma = math.inf
    """The sigma of the latest step with hook keyframes. A higher sigma means that a new chunk begins."""
    _threads = 0
    """The number of torch's threads before the latest sampling run, or 0 before the first run."""

    def get_key_patches(self, filter_prefix=None):
        return weights_to_merge(super().get_key_patches(filter_prefix), self.model.diffusion_model.config.causal)

    def add_patches(self, patches, strength_patch=1.0, strength_model=1.0):
        if is_mixture(patches, self.model.diffusion_model.config.causal):
            show_warning(MIXTURE)
        patches = add_ignored_tensors(patches, self._shapes()) if strength_patch else patches
        return super().add_patches(fitting_patches(patches, self.model, strength_patch), strength_patch, strength_model)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(parameter.shape) for name, parameter in self.model.diffusion_model.named_parameters()}

    def add_hook_patches(self, hook, patches, strength_patch=1.0, strength_model=1.0):
        return super().add_hook_patches(
            hook, fitting_patches(patches, self.model, strength_patch), strength_patch, strength_model
        )

    def patch_weight_to_device(self, key, device_to=None, inplace_update=False, return_weight=False, force_cast=False):
        if return_weight or not self._applied_by_layer(key):
            return super().patch_weight_to_device(key, device_to, inplace_update, return_weight, force_cast)
        if force_cast:  # moved without a change
            weight = comfy.utils.get_attr(self.model, key)
            self.backup.setdefault(key, _Backup(weight, False))
            comfy.utils.set_attr_param(self.model, key, weight.to(device_to))
        return None

    def get_free_memory(self, device):
        """Return the device's free bytes. For a causal model, return a constant that permits any batch, without a slow
        query of CUDA."""
        if self.model.diffusion_model.config.causal:
            return _ENOUGH
        return super().get_free_memory(device)

    def pre_run(self):
        """Prepare a sampling run. On a CPU, limit torch's threads to the idle cores until `cleanup`."""
        self._threads = torch.get_num_threads()
        if fewer := use_idle_cores(self.load_device, self.model.layer_elements):
            logging.info(fewer)
        super().pre_run()

    def load(self, device_to=None, *args, **kwargs):
        self.model.free_caches()
        checkpoint, network = self.model.checkpoint, self.model.diffusion_model
        together = not self.is_dynamic() and can_upload(checkpoint, device_to)
        with uploading(checkpoint, network, network.dtype, device_to) if together else nullcontext():
            super().load(device_to, *args, **kwargs)
        self._patch_bare_parameters(device_to)
        self._attach_patches()
        layers = [layer for layer in network.modules() if getattr(layer, "arithmetic", None) in DTYPES]
        patched = sum(not layer.computes_in_8_bits for layer in layers)
        if patched:
            logging.info(
                "%d of %d layers have a LoRA and compute in the weight dtype, not in %s",
                patched,
                len(layers),
                layers[0].arithmetic,
            )
        if not comfy.model_management.is_device_cpu(device_to):
            self.copy_loras_to(device_to)

    def partially_unload(self, device_to, memory_to_free=0, *args, **kwargs):
        freed = self.model.free_caches()
        if 0 < memory_to_free <= freed:
            return freed
        freed += super().partially_unload(device_to, max(0, memory_to_free - freed), *args, **kwargs)
        if not self.is_dynamic():
            self._attach_patches()
        return freed

    def detach(self, *args, **kwargs):
        self.model.free_caches()
        return super().detach(*args, **kwargs)

    def cleanup(self):
        """Free all caches and CUDA graphs, and restore the number of threads. It runs after every sampling run."""
        if self._threads not in (0, torch.get_num_threads()):
            torch.set_num_threads(self._threads)
        self.model.layer_elements = None
        self.model.free_caches()
        self.model.camera_cache = CameraCache()
        self.model.rollout_caches.clear()
        self._last_sigma = math.inf
        super().cleanup()

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        super().unpatch_model(device_to, unpatch_weights)
        if unpatch_weights:
            self._set_patches(LowVramPatch, {})

    def patch_hook_weight_to_device(self, hooks, combined_patches, key, original_weights, memory_counter):
        if self._applied_by_layer(key):  # `patch_hooks` attaches these
            original_weights.pop(key, None)
            return
        super().patch_hook_weight_to_device(hooks, combined_patches, key, original_weights, memory_counter)

    def patch_hooks(self, hooks):
        super().patch_hooks(hooks)
        if hooks is not None:
            self.model.camera_cache.clear()  # computed with the patches that are now replaced
            self._attach_patches()

    def unpatch_hooks(self, whitelist_keys_set=None):
        """Remove all hook patches from the layers. `whitelist_keys_set` affects only ComfyUI's own patches."""
        super().unpatch_hooks(whitelist_keys_set)
        if any(isinstance(patch, _HookPatch) for patch in self._attached_patches()):
            self.model.camera_cache.clear()
            self._set_patches(_HookPatch, {})

    def prepare_hook_patches_current_keyframe(self, t, hook_group, model_options):
        """Prepare hook patches for sigma `t`. A causal model's keyframes restart at each chunk, when sigma rises."""
        frames = [hook.hook_keyframe for hook in hook_group.hooks if not hook.hook_keyframe.is_empty()]
        if frames and self.model.diffusion_model.config.causal:
            before, self._last_sigma = self._last_sigma, float(t[0])
            if self._last_sigma > before:
                for each in frames:
                    each.reset()
                self.patch_hooks(None)
        super().prepare_hook_patches_current_keyframe(t, hook_group, model_options)

    @contextmanager
    def hold_weights(self) -> Iterator[Hashable]:
        """Keep all weights at their memory addresses inside this context, and yield a key for the addresses. If a
        weight is offloaded or patched, yield None: the addresses may change."""
        yield None if self._is_patched or self.model.model_lowvram else "static"

    @property
    def _is_patched(self) -> bool:
        return bool(self.patches or self.weight_wrapper_patches or self.current_hooks or self.forced_hooks)

    def clone(self, *args, **kwargs):
        copy = super().clone(*args, **kwargs)
        if not isinstance(copy, ExactPatches):  # core's own class, if the clone runs without dynamic VRAM
            copy.__class__ = ExpertPatcher
        copy.made_by = running_node()
        return copy

    def state_dict_for_saving(self, *args, **kwargs):
        if any(is_quantized(getattr(module, "weight", None)) for module in self.model.modules()):
            raise InputError(
                "a quantized LingBot-World expert cannot be saved from ComfyUI: its LoRAs are applied while it runs "
                "and never become part of the weights. Keep the original file and load the LoRA with it."
            )
        return super().state_dict_for_saving(*args, **kwargs)

    def _applied_by_layer(self, key: str) -> bool:
        """Whether the layer itself applies the patches of the parameter `key` at each use."""
        owner, _, name = key.rpartition(".")
        layer = comfy.utils.get_attr(self.model, owner) if owner else self.model
        if name not in ("weight", "bias") or not hasattr(layer, "weight_function"):
            return False
        return not self.is_dynamic() or is_quantized(getattr(layer, name))

    def _attach_patches(self) -> None:
        self._set_patches(LowVramPatch, self.patches)
        # Hook patches run first, because Create Hook Model as LoRA subtracts the unpatched weight.
        self._set_patches(_HookPatch, self.get_combined_hook_patches(self.current_hooks))

    def _set_patches(self, kind: type[LowVramPatch], patches: dict) -> None:
        """Replace each layer's patch functions of class `kind` by new ones for `patches`, a dict by parameter name. A
        new one runs before the layer's other patch functions."""
        for owner, layer in self.model.named_modules():
            for name in ("weight", "bias"):
                key = f"{owner}.{name}"
                if getattr(layer, name, None) is None or not self._applied_by_layer(key):
                    continue
                others = [each for each in getattr(layer, f"{name}_function") if not isinstance(each, kind)]
                ours = [kind(key, patches)] if key in patches else []
                setattr(layer, f"{name}_function", ours + others)
                # With a lowvram_function dynamic VRAM would quantize the patched weight again.
                if hasattr(layer, f"{name}_lowvram_function"):
                    setattr(layer, f"{name}_lowvram_function", None)

    def copy_loras_to(self, device: torch.device) -> bool:
        """Copy all LoRA tensors to the device. Return False, without a copy, if a sampling step would lack memory."""
        patches = [patch for patch in self._attached_patches() if patch.prepared_patches is None]
        wanted = sum(patch.memory_required() for patch in patches)
        # ComfyUI requests a step's memory only from the first device's model: the parent of a copy on another device.
        step = max(each.model.last_memory_required for each in (self, self.parent) if isinstance(each, ExactPatches))
        if wanted + step > super().get_free_memory(device):  # this class returns a constant for a causal model
            return False
        for patch in patches:
            patch.prepare(torch.empty(patch.memory_required(), dtype=torch.uint8, device=device), None)
        return True

    def _attached_patches(self) -> Iterator[LowVramPatch]:
        for layer in self.model.modules():
            for function in (*getattr(layer, "weight_function", ()), *getattr(layer, "bias_function", ())):
                if isinstance(function, LowVramPatch):
                    yield function

    def _patch_bare_parameters(self, device_to) -> None:
        """Patch the parameters outside of layers (the modulations), which ComfyUI's loading omits."""
        parameters = dict(self.model.named_parameters())
        for key in self.patches:
            owner = comfy.utils.get_attr(self.model, key.rpartition(".")[0]) if key in parameters else None
            if owner is not None and key not in self.backup and not hasattr(owner, "weight_function"):
                super().patch_weight_to_device(key, device_to)


class _HookPatch(LowVramPatch):
    """A patch of a conditioning hook. The class distinguishes hook patches from the MODEL's patches."""

    def __call__(self, weight):
        patches = self.prepared_patches if self.prepared_patches is not None else self.patches[self.key]
        subtracted = any(is_kind(patch[1], AS_LORA) for patch in patches)
        original = {self.key: [(weight.clone(),)]} if subtracted else None
        return calculate_weight(patches, weight, self.key, weight.dtype, original)


class ExpertPatcher(ExactPatches, comfy.model_patcher.ModelPatcher):
    """A ModelPatcher of an expert or a causal model that loads weights without ComfyUI's dynamic VRAM."""


class DynamicExpertPatcher(ExactPatches, comfy.model_patcher.ModelPatcherDynamic):
    """The ModelPatcher of an expert or a causal model with ComfyUI's dynamic VRAM."""

    @contextmanager
    def hold_weights(self) -> Iterator[Hashable]:
        vbar = None if self._is_patched else self._vbar_get()
        pages = None if vbar is None else (vbar, vbar.base_addr, vbar.offset)
        signature = None if pages is None else model_vbar.vbar_fault(pages)
        try:
            yield None if signature is None else bytes(signature)
        finally:
            if signature is not None:
                model_vbar.vbar_unpin(pages)


def patcher_class(load_device: torch.device, disable_dynamic: bool = False) -> type[ExactPatches]:
    """Return DynamicExpertPatcher if ComfyUI's dynamic VRAM is enabled for the device and `disable_dynamic` is False,
    else ExpertPatcher."""
    dynamic = issubclass(comfy.model_patcher.CoreModelPatcher, comfy.model_patcher.ModelPatcherDynamic)
    usable = dynamic and not disable_dynamic and not comfy.model_management.is_device_cpu(load_device)
    return DynamicExpertPatcher if usable else ExpertPatcher


def copies_on_other_devices(patcher) -> list:
    """Return the copies of a MODEL that the node MultiGPU CFG Split has made, one for each additional device."""
    return patcher.get_additional_models_with_key("multigpu")
