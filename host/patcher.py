"""ModelPatchers whose LoRAs are exact on 4-bit weights.

ComfyUI merges a LoRA into the weight and quantizes the sum again, which at four bits keeps next to nothing of it. Here
no layer's weight is ever changed: its patches are applied to the decoded weight each time it is used."""

from collections import namedtuple
from contextlib import nullcontext

import comfy.model_management
import comfy.model_patcher
import comfy.utils
import torch
from comfy.model_patcher import LowVramPatch

from ..errors import InputError
from ..model.cache import CameraCache
from . import uploads
from .camera_cache import give_back
from .operations import is_quantized

_Backup = namedtuple("_Backup", ["weight", "inplace_update"])


class ExactPatches:
    """Mixin for ModelPatcher and ModelPatcherDynamic: weight patches as functions of the layers, kept in step."""

    def patch_weight_to_device(self, key, device_to=None, inplace_update=False, return_weight=False, force_cast=False):
        if return_weight or not self._in_forward(key):
            return super().patch_weight_to_device(key, device_to, inplace_update, return_weight, force_cast)
        if force_cast:
            self._move_only(key, device_to)
        return None

    def load(self, device_to=None, *args, **kwargs):
        give_back(self.model.camera_cache)
        together = not self.is_dynamic() and uploads.usable(self.model, device_to)
        with uploads.uploading(self.model, device_to) if together else nullcontext():
            super().load(device_to, *args, **kwargs)
        self._patch_bare_parameters(device_to)
        self._place_functions()
        if not comfy.model_management.is_device_cpu(device_to):
            self.hold_patches(device_to)

    def partially_unload(self, device_to, memory_to_free=0, *args, **kwargs):
        freed = give_back(self.model.camera_cache)
        if 0 < memory_to_free <= freed:
            return freed
        freed += super().partially_unload(device_to, max(0, memory_to_free - freed), *args, **kwargs)
        if not self.is_dynamic():
            self._place_functions()
        return freed

    def detach(self, *args, **kwargs):
        give_back(self.model.camera_cache)
        return super().detach(*args, **kwargs)

    def cleanup(self):
        """The end of a sampling run, however it came."""
        give_back(self.model.camera_cache)
        self.model.camera_cache = CameraCache()
        super().cleanup()

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        super().unpatch_model(device_to, unpatch_weights)
        if unpatch_weights:
            self._place_functions(remove=True)

    def patch_hook_weight_to_device(self, hooks, combined_patches, key, original_weights, memory_counter):
        if self._in_forward(key):  # `patch_hooks` places these
            original_weights.pop(key, None)
            return
        super().patch_hook_weight_to_device(hooks, combined_patches, key, original_weights, memory_counter)

    def patch_hooks(self, hooks):
        changed = hooks is not None or self.current_hooks is not None
        if changed:
            self.model.camera_cache.clear()  # it was made with the patches that go now
        super().patch_hooks(hooks)
        if changed and self.model.current_weight_patches_uuid == self.patches_uuid:
            self._place_functions()

    def clone(self, *args, **kwargs):
        copy = super().clone(*args, **kwargs)
        if not isinstance(copy, ExactPatches):  # core's own class where dynamic VRAM is switched off for a clone
            copy.__class__ = ExpertPatcher
        return copy

    def state_dict_for_saving(self, *args, **kwargs):
        if any(is_quantized(getattr(module, "weight", None)) for module in self.model.modules()):
            raise InputError(
                "a 4-bit LingBot-World expert cannot be saved from ComfyUI: its LoRAs are applied while it runs and "
                "never become part of the weights. Keep the original file and load the LoRA beside it."
            )
        return super().state_dict_for_saving(*args, **kwargs)

    def _in_forward(self, key: str) -> bool:
        """Whether patches of this weight are applied where the layer uses it."""
        owner, _, name = key.rpartition(".")
        layer = comfy.utils.get_attr(self.model, owner) if owner else self.model
        if name not in ("weight", "bias") or not hasattr(layer, "weight_function"):
            return False
        return not self.is_dynamic() or is_quantized(getattr(layer, name))

    def _place_functions(self, remove: bool = False) -> None:
        """Give every layer the functions for its patches, those of conditioning hooks after the model's own."""
        sources = [] if remove else [self.patches, self.get_combined_hook_patches(self.current_hooks)]
        for owner, layer in self.model.named_modules():
            for name in ("weight", "bias"):
                key = f"{owner}.{name}"
                if getattr(layer, name, None) is not None and self._in_forward(key):
                    _set_functions(layer, name, [LowVramPatch(key, source) for source in sources if key in source])

    def hold_patches(self, device: torch.device) -> bool:
        """Keep what the LoRAs are made of on the device, if that leaves room for sampling; else they are sent there
        each time they are used."""
        functions = [f for f in self._patch_functions() if f.prepared_patches is None]
        wanted = sum(function.memory_required() for function in functions)
        if wanted + self.model.last_memory_required > self.get_free_memory(device):
            return False
        for function in functions:
            room = torch.empty(function.memory_required(), dtype=torch.uint8, device=device)
            function.prepare(room, None)
        return True

    def _patch_functions(self):
        for layer in self.model.modules():
            for function in (*getattr(layer, "weight_function", ()), *getattr(layer, "bias_function", ())):
                if isinstance(function, LowVramPatch):
                    yield function

    def _patch_bare_parameters(self, device_to) -> None:
        """Parameters outside any layer (the modulations), which ComfyUI passes over."""
        parameters = dict(self.model.named_parameters())
        for key in self.patches:
            if key in parameters and key not in self.backup and not self._in_layer(key):
                super().patch_weight_to_device(key, device_to)

    def _in_layer(self, key: str) -> bool:
        return hasattr(comfy.utils.get_attr(self.model, key.rpartition(".")[0]), "weight_function")

    def _move_only(self, key: str, device: torch.device) -> None:
        weight = comfy.utils.get_attr(self.model, key)
        self.backup.setdefault(key, _Backup(weight, False))
        comfy.utils.set_attr_param(self.model, key, weight.to(device))


def _set_functions(layer: torch.nn.Module, name: str, patches: list[LowVramPatch]) -> None:
    others = [f for f in getattr(layer, f"{name}_function") if not isinstance(f, LowVramPatch)]
    setattr(layer, f"{name}_function", patches + others)
    if hasattr(layer, f"{name}_lowvram_function"):  # dynamic VRAM would quantize the sum again through it
        setattr(layer, f"{name}_lowvram_function", None)


class ExpertPatcher(ExactPatches, comfy.model_patcher.ModelPatcher):
    """An expert as a MODEL."""


class DynamicExpertPatcher(ExactPatches, comfy.model_patcher.ModelPatcherDynamic):
    """An expert as a MODEL under ComfyUI's dynamic VRAM."""


def patcher_class(load_device: torch.device, disable_dynamic: bool = False) -> type[ExactPatches]:
    """The patcher that ComfyUI itself would use on this device and with this command line."""
    dynamic = issubclass(comfy.model_patcher.CoreModelPatcher, comfy.model_patcher.ModelPatcherDynamic)
    usable = dynamic and not disable_dynamic and not comfy.model_management.is_device_cpu(load_device)
    return DynamicExpertPatcher if usable else ExpertPatcher
