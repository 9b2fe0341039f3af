"""The camera cache inside ComfyUI: it changes nothing, and whoever asks gets its memory back."""

import os

from embed import embed

embed()

import cache_node_checks  # noqa: E402, F401  checks that are reported with those below
import comfy.model_management  # noqa: E402
import torch  # noqa: E402
from cache_cases import LAYERS, Watch, cached, held, run  # noqa: E402
from common import FRAMES, HEIGHT, NF4, WIDTH, check, experts, gap, guider, prompts, report  # noqa: E402
from lingbot_world.model.cache import CameraCache  # noqa: E402
from lingbot_world.model.memory import camera_cache_bytes  # noqa: E402
from lingbot_world.nodes.sampling.experts import LingBotWorldGuider, LingBotWorldSampler  # noqa: E402
from lingbot_world.options import CAMERA_CACHE_MODES  # noqa: E402
from lingbot_world.pipeline import threads  # noqa: E402

CPU = torch.device("cpu")


@check
def a_run():
    """With and without: the same bits, the camera layers at each expert's first step only, nothing held afterwards."""
    pair = experts(NF4)
    want, watch = run(guider(*pair)), Watch(*pair)
    plain = run(guider(*pair))
    without, watch.made = watch.made, 0
    for seen in watch.held:
        seen.clear()
    out = run(cached(*pair))
    return {
        "equal": torch.equal(out, want) and torch.equal(plain, want),
        "without": without,
        "with": watch.made,
        "held": watch.held,
        "after": [held(patcher) for patcher in pair],
    }


@check
def modes():
    """Camera layers that ran, through both nodes: auto keeps nothing on a CPU, off nothing anywhere."""
    found = {}
    latent = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    for mode in CAMERA_CACHE_MODES:
        high, low = experts()
        watch = Watch(high, low)
        conditioning = prompts(high)
        LingBotWorldSampler.execute(high, low, *conditioning, latent, 3, 6, 5.0, 6.0, 4.0, 0.947, "unipc", mode)
        by_sampler, watch.made = watch.made, 0
        run(LingBotWorldGuider.execute(high, low, *conditioning, 6.0, 4.0, 0.947, mode).result[0])
        found[mode] = by_sampler, watch.made
    try:
        cached(high, low, "vram")
    except ValueError as error:
        return found | {"refused": str(error)}


def cache_of(patcher, mode="gpu", step=1000):
    """The cache that a run's first step gets, or None."""
    patcher.pre_run()  # ComfyUI's begin of a run
    patcher.model.camera_cache = CameraCache()
    return patcher.model.camera_cache_for_step(mode, (FRAMES, HEIGHT, WIDTH), step)


@check
def room():
    """The limit for a card with so much free: the step 1.5 times and the weights to come are left alone."""
    high, _ = experts()
    found, memory = {}, comfy.model_management.get_free_memory
    config, size = high.model.diffusion_model.config, (FRAMES, HEIGHT, WIDTH)
    wanted = camera_cache_bytes(config, *size, dtype=torch.float32)
    reserve = comfy.model_management.minimum_inference_memory()
    loaded, step = high.load_device, int(2 * reserve)
    try:
        high.load_device = torch.device("meta")  # neither "cpu" nor "mps", and nothing is placed there
        for name, spare in (("ample", 10 * wanted), ("part", wanted // 2), ("none", wanted // (2 * LAYERS))):
            free = 1.5 * step + comfy.model_management.extra_reserved_memory() + high.model_size() + spare
            comfy.model_management.get_free_memory = lambda device, free=free: free
            cache = cache_of(high, "auto", step)
            found[name] = None if cache is None else cache.limit_bytes / wanted
        comfy.model_management.get_free_memory = lambda device: 0
        fill(high.model.camera_cache)
        cache = high.model.camera_cache_for_step("auto", (1, 2, 2), step)
        found["held when memory is gone"] = cache, high.model.camera_cache.nbytes
    finally:
        comfy.model_management.get_free_memory, high.load_device = memory, loaded
    return found


def fill(cache, nbytes=1024):
    cache.attach(torch.zeros(1))
    cache.put(0, (torch.zeros(nbytes // 2, dtype=torch.uint8), torch.zeros(nbytes // 2, dtype=torch.uint8)))


@check
def making_room():
    """`gpu` has models unloaded that the run does not use, and keeps those that it does."""
    high, low = experts()
    comfy.model_management.load_models_gpu([low])
    comfy.model_management.load_models_gpu([high])
    asked, original = [], comfy.model_management.free_memory
    for loaded in comfy.model_management.current_loaded_models:
        loaded.currently_used = loaded.model is high

    def spy(wanted, device, keep_loaded=(), **options):
        asked.append((wanted, [loaded.model is high for loaded in keep_loaded]))
        return []

    comfy.model_management.free_memory = spy
    try:
        cache_of(high)
        cache_of(high, "auto")
    finally:
        comfy.model_management.free_memory = original
    return {"calls": len(asked), "enough": asked[0][0] > 0, "kept": asked[0][1]}


@check
def given_back():
    """Who empties a cache: a partial unload (which then has nothing more to free), a load, an unload, other hooks."""
    high, _ = experts(NF4)
    comfy.model_management.load_models_gpu([high], force_full_load=True)
    size, found = high.model.model_loaded_weight_memory, {}
    fill(high.model.camera_cache, 4096)
    found["partly"] = high.partially_unload(CPU, 4000), high.model.model_loaded_weight_memory == size
    fill(high.model.camera_cache, 4096)
    found["more"] = high.partially_unload(CPU, size // 2) >= size // 2, high.model.model_loaded_weight_memory < size
    for name, act in (
        ("load", lambda: high.load(CPU, full_load=True)),
        ("hooks", lambda: high.patch_hooks(_hooks())),
        ("cleanup", high.cleanup),
        ("everything", comfy.model_management.unload_all_models),
    ):
        fill(high.model.camera_cache)
        act()
        found[name] = high.model.camera_cache.nbytes
    return found


def _hooks():
    import comfy.hooks

    return comfy.hooks.HookGroup()


@check
def threads_of_a_run():
    """On a CPU a run takes as many threads as its size has use for, and ComfyUI has its own number afterwards."""
    (high, low), own, before = experts(NF4), torch.get_num_threads(), vars(threads).copy()
    named = os.environ.pop("OMP_NUM_THREADS", "1")
    threads._quota = threads.idle_cores = lambda: 6
    threads.ELEMENTS_PER_THREAD = 6 * high.model.diffusion_model.config.dim  # a thread for 6 tokens, of 4 cells each
    torch.set_num_threads(8)
    found = []
    for shape in ((2, 16, 3, 8, 4), (1, 16, 1, 4, 4), (1, 16, 21, 60, 104)):
        high.model.memory_required(shape)
        high.pre_run()
        low.pre_run()  # within the run of the other expert
        during = torch.get_num_threads()
        low.cleanup()
        high.cleanup()
        found.append([during, torch.get_num_threads()])
    vars(threads).update(before)
    os.environ["OMP_NUM_THREADS"] = named
    torch.set_num_threads(own)
    return found


@check
def early_ends():
    """An error, an interrupt, and memory that runs out: nothing stays; the last one is not even an error."""
    high, low = experts(NF4)
    want, found = run(guider(high, low)), {}
    block = low.model.diffusion_model.blocks[1]

    def ends(name, raising):
        seen = []

        def hook(*_):
            seen.append(held(low))
            if len(seen) == 2:  # in the second step, when the cache is full
                raising()

        handle, made = block.register_forward_pre_hook(hook), cached(high, low)
        try:
            found[name] = gap(run(made), want)
        except BaseException as error:
            found[name] = type(error).__name__
        handle.remove()
        found[f"{name}, held"] = [*seen[:3], held(high), held(low)]

    ends("error", lambda: 1 / 0)
    ends("interrupt", lambda: comfy.model_management.interrupt_current_processing(True))
    ends("out of memory", lambda: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("played")))
    found["afterwards"] = gap(run(cached(high, low)), want)
    return found


@check
def out_of_memory_while_filling():
    """The second block's scale and shift do not fit: that step and the run go on without."""
    high, low = experts(NF4)
    want = run(guider(high, low))
    layer, tries = high.model.diffusion_model.blocks[1].cam_shift_layer, []

    def full(*_):
        tries.append(held(high))
        if len(tries) == 1:
            raise torch.cuda.OutOfMemoryError("played")

    handle = layer.register_forward_pre_hook(full)
    out = run(cached(high, low))
    handle.remove()
    return {"equal": torch.equal(out, want), "held at the try": tries}


@check
def lora_between_runs():
    """Another strength on the camera layers: the values kept are never those of the run before."""
    import comfy.sd

    high, low = experts(NF4)
    tensors = {}
    for name, layer in high.model.diffusion_model.named_modules():
        if "cam_" in name:
            tensors[f"diffusion_model.{name}.diff"] = torch.randn(layer.weight.shape) * 0.05
    found, outs = {}, []
    for strength in (1.0, 0.0, -1.0, 1.0):
        patched = comfy.sd.load_lora_for_models(high, None, tensors, strength, 0)[0]
        outs.append(run(cached(patched, low)))
        found[str(strength)] = torch.equal(outs[-1], run(guider(patched, low)))
    return found | {"effect": min(gap(outs[0], outs[1]), gap(outs[1], outs[2])), "again": gap(outs[0], outs[3])}


report()
