"""The camera cache inside ComfyUI: it changes nothing, and whoever asks gets its memory back."""

from embed import embed

embed()

import comfy.model_management  # noqa: E402
import comfy.samplers  # noqa: E402
import torch  # noqa: E402
from common import FRAMES, HEIGHT, INPUTS, NF4, WIDTH, check, experts, gap, guider, prompts, report, sample  # noqa: E402
from lingbot_world.host import camera_cache  # noqa: E402
from lingbot_world.host.sampler import FlowSolver  # noqa: E402
from lingbot_world.model.cache import CameraCache  # noqa: E402
from lingbot_world.nodes.sampling import CAMERA_CACHES, LingBotWorldGuider, LingBotWorldSampler  # noqa: E402
from lingbot_world.sampling import flow_sigmas  # noqa: E402

SIGMAS = flow_sigmas(6, 5.0)
CPU = torch.device("cpu")
LAYERS = 3


def cached(high, low, mode="gpu", **options):
    made = guider(high, low, **options)
    made.set_camera_cache(mode)
    return made


def run(made, sigmas=SIGMAS):
    return sample(made, FlowSolver("unipc"), sigmas)


def held(patcher) -> int:
    """Blocks whose scale and shift are held."""
    cache = patcher.model.camera_cache
    return sum(block in cache._blocks for block in range(LAYERS))


class Watch:
    """Calls of the camera layers, and what each expert's cache held at the begin of each of its steps."""

    def __init__(self, *patchers):
        self.made, self.held = 0, [[] for _ in patchers]
        self._hooks = []
        for patcher, seen in zip(patchers, self.held, strict=True):
            model = patcher.model.diffusion_model
            for block in model.blocks:
                self._hooks.append(block.cam_shift_layer.register_forward_hook(self._count))
            self._hooks.append(
                model.patch_embedding.register_forward_pre_hook(lambda *_, p=patcher, s=seen: s.append(held(p)))
            )

    def _count(self, *_):
        self.made += 1


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
    return {"equal": torch.equal(out, want) and torch.equal(plain, want), "without": without, "with": watch.made,
            "held": watch.held, "after": [held(patcher) for patcher in pair]}  # fmt: skip


@check
def modes():
    """Camera layers that ran, through both nodes: auto keeps nothing on a CPU, off nothing anywhere."""
    found = {}
    latent = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    for mode in CAMERA_CACHES:
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
    """What `plan` says for a cache that is empty."""
    cache = CameraCache()
    return camera_cache.plan(cache, mode, patcher, (FRAMES, HEIGHT, WIDTH), step), cache


@check
def room():
    """The limit for a card with so much free: the step 1.5 times and the weights to come are left alone."""
    high, _ = experts()
    found, memory = {}, comfy.model_management.get_free_memory
    wanted = camera_cache.camera_cache_bytes(high.model.diffusion_model.config, FRAMES, HEIGHT, WIDTH, torch.float32)
    reserve = comfy.model_management.minimum_inference_memory()
    loaded, step = high.load_device, int(2 * reserve)
    try:
        high.load_device = torch.device("meta")  # neither "cpu" nor "mps", and nothing is placed there
        for name, spare in (("ample", 10 * wanted), ("part", wanted // 2), ("none", wanted // (2 * LAYERS))):
            free = 1.5 * step + comfy.model_management.extra_reserved_memory() + high.model_size() + spare
            comfy.model_management.get_free_memory = lambda device, free=free: free
            planned, cache = cache_of(high, "auto", step)
            found[name] = None if planned is None else cache.limit_bytes / wanted
        comfy.model_management.get_free_memory = lambda device: 0
        cache = CameraCache()
        fill(cache)
        found["held when memory is gone"] = camera_cache.plan(cache, "auto", high, (1, 2, 2), step), cache.nbytes
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


@check
def hook_lora_on_one_prompt():
    """A LoRA that hangs on the prompt alone: patches change twice a step, so nothing is kept for long."""
    import comfy.hooks

    high, low = experts(NF4)
    tensors = {"diffusion_model.blocks.1.cam_scale_layer.diff": torch.randn(64, 64) * 0.2}
    hooks = comfy.hooks.create_hook_lora(lora=tensors, strength_model=1.0, strength_clip=0.0)
    outs = []
    for mode in ("off", "gpu"):
        made = cached(high, low, mode)
        positive, negative = prompts(high)
        made.set_conds(comfy.hooks.set_hooks_for_conditioning(positive, hooks), negative)
        outs.append(run(made))
    return {"equal": torch.equal(*outs), "effect": gap(outs[0], run(guider(high, low)))}


@check
def two_cameras():
    """A camera each for prompt and negative prompt: they take turns, and the cache gives up."""
    high, low = experts()
    outs, watch = [], Watch(high)
    for mode in ("off", "gpu"):
        watch.made = 0
        made = cached(high, low, mode)
        positive, negative = prompts(high)
        negative[0][1]["lingbot_camera"] = INPUTS["plucker"].flip(2)
        made.set_conds(positive, negative)
        outs.append(run(made, SIGMAS[:5]))
        made_by = watch.made
    return {"equal": torch.equal(*outs), "layers": made_by, "held": max(watch.held[0])}


@check
def other_nodes():
    """Context windows, EasyCache, a batch of two, replaced blocks, two samplers: the same with and without."""
    return {name: torch.equal(build("off"), build("gpu")) for name, build in (
        ("windows", _windowed), ("easycache", _easy), ("batch", _batch), ("replaced", _replaced),
        ("two samplers", _two_samplers), ("back to the high expert", _back_and_forth),
    )}  # fmt: skip


def _windowed(mode):
    from comfy_extras.nodes_context_windows import WanContextWindowsManualNode

    pair = [
        WanContextWindowsManualNode.execute(
            model, context_length=5, context_overlap=1, context_schedule="standard_static", context_stride=1,
            closed_loop=False, fuse_method="pyramid", freenoise=False,
        ).result[0]
        for model in experts()
    ]  # fmt: skip
    return run(cached(*pair, mode), SIGMAS[:4])


def _easy(mode):
    from comfy_extras.nodes_easycache import EasyCacheNode

    pair = (EasyCacheNode.execute(model, 3.0, 0.0, 1.0, False).result[0] for model in experts())
    return run(cached(*pair, mode), flow_sigmas(12, 5.0)[:8])


def _batch(mode):
    made = cached(*experts(), mode)
    noise = torch.stack([INPUTS["noise"], INPUTS["noise"].flip(1)])
    return made.sample(noise, torch.zeros_like(noise), FlowSolver("unipc"), SIGMAS, disable_pbar=True, seed=0)


def _replaced(mode):
    pair = [model.clone() for model in experts()]
    for model in pair:
        model.set_model_patch_replace(lambda given, extra: extra["original_block"](given), "dit", "double_block", 1)
    return run(cached(*pair, mode))


def _two_samplers(mode):
    import nodes

    high, low = (model.clone() for model in experts())
    for model in (high, low):
        model.model_options.setdefault("transformer_options", {})[camera_cache.MODE] = mode
    sampler = nodes.KSamplerAdvanced().sample
    empty = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    half = sampler(high, "enable", 7, 6, 6.0, "euler", "simple", *prompts(high), empty, 0, 3, "enable")[0]
    watch = Watch(low)
    done = sampler(low, "disable", 7, 6, 4.0, "euler", "simple", *prompts(low), half, 3, 10000, "disable")[0]
    assert watch.made == LAYERS * (1 if mode == "gpu" else 3), watch.made
    assert held(high) + held(low) == 0
    return done["samples"]


def _back_and_forth(mode):
    def solve(model, x, sigmas, extra_args=None, **_):
        for sigma in sigmas[[0, 3, 0, 3]]:
            x = x + 0.1 * model(x, sigma.expand(len(x)), **extra_args)
        return x

    return sample(cached(*experts(), mode), comfy.samplers.KSAMPLER(solve), SIGMAS)


report()
