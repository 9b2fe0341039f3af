"""The camera cache under ComfyUI: in memory that nobody needs, and given back as soon as somebody asks."""

import logging

import comfy.model_management as management

from ..model.cache import CameraCache
from ..model.memory import camera_cache_bytes

MODE = "lingbot_camera_cache"
"""In transformer_options: one of MODES, `auto` where nothing is said."""

MODES = ("auto", "off", "gpu")
"""auto takes what is free; gpu has ComfyUI unload other models first; off keeps nothing."""

SLACK = 1.5
"""ComfyUI runs prompt and negative prompt as one batch while this many times their need is free."""


def plan(cache: CameraCache, mode: str, patcher, grid: tuple[int, int, int], step_bytes: int) -> CameraCache | None:
    """The cache with its limit set for the step to come, or None where it is not to be used.

    grid: frames, height and width of the latent. step_bytes: what the step needs over the weights."""
    in_main_memory = patcher.load_device.type in ("cpu", "mps")
    if mode == "off" or (mode == "auto" and in_main_memory) or not cache.useful:
        cache.clear()
        return None
    model = patcher.model.diffusion_model
    wanted = camera_cache_bytes(model.config, *grid, dtype=model.dtype)
    if mode == "gpu" and not cache.nbytes:
        _make_room(patcher, wanted, step_bytes)
    room = _room(patcher, step_bytes)
    if cache.limit_bytes is None:
        logging.info("camera cache: room for %.1f of %.1f GB", max(0.0, min(room, wanted)) / 1e9, wanted / 1e9)
    cache.limit_bytes = cache.nbytes + room
    # What is held stays while the step itself fits; to begin, a block has to fit.
    if room < ((1 - SLACK) * step_bytes if cache.nbytes else wanted / model.config.num_layers):
        cache.clear()
        return None
    return cache


def give_back(cache: CameraCache) -> int:
    """Empty the cache and hand its memory to the driver: a dynamic model's weights do not come out of torch's reserve.
    Returns the bytes."""
    freed = cache.clear()
    if freed:
        management.soft_empty_cache()
    return freed


def _room(patcher, step_bytes: int) -> float:
    """Bytes that are free beyond a step's need and the expert's own weights that are still to come."""
    return management.get_free_memory(patcher.load_device) - _needed(patcher, step_bytes)


def _needed(patcher, step_bytes: int) -> float:
    to_come = max(0, patcher.model_size() - patcher.loaded_size())
    step = SLACK * step_bytes + management.extra_reserved_memory()
    return to_come + max(step, management.minimum_inference_memory())


def _make_room(patcher, wanted: int, step_bytes: int) -> None:
    """Unload models that the running step does not use, as far as it takes."""
    in_use = [loaded for loaded in management.current_loaded_models if loaded.currently_used]
    management.free_memory(wanted + _needed(patcher, step_bytes), patcher.load_device, keep_loaded=in_use)
