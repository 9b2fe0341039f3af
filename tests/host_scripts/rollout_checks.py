"""Rollouts inside ComfyUI: the golden runs, the command's own latents, LoRAs, memory, interrupts and refusals.

Arguments: the toy package, the state of a video that the command made of it, and of one that goes on from there."""

import gc
import os
import sys

from embed import embed

TOY, FIRST, SECOND = sys.argv[1:]
embed()
sys.path.append("..")  # the cases of the tests without ComfyUI

from dataclasses import replace  # noqa: E402
from functools import partial  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import comfy.model_management as management  # noqa: E402
import comfy.samplers  # noqa: E402
import comfy.sd  # noqa: E402
import comfy.utils  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from comfy.patcher_extension import WrappersMP  # noqa: E402
from comfy_extras.nodes_multigpu import MultiGPUCFGSplitNode  # noqa: E402
from common import FP32, GOLDEN, check, experts, gap, refused, report  # noqa: E402
from lingbot_world.camera.path import CameraPath  # noqa: E402
from lingbot_world.host.loading import load_causal, load_patcher  # noqa: E402
from lingbot_world.host.model.patcher import ExpertPatcher  # noqa: E402
from lingbot_world.host.sampling.guider import ExpertGuider  # noqa: E402
from lingbot_world.host.sampling.live import prepare_live, run_live  # noqa: E402
from lingbot_world.host.sampling.live_view import live_view  # noqa: E402
from lingbot_world.host.sampling.rollout import prepare_rollout, run_rollout  # noqa: E402
from lingbot_world.host.sampling.rollout_display import RolloutDisplay  # noqa: E402
from lingbot_world.host.sampling.rollout_sampler import plan_memory, run_with_model  # noqa: E402
from lingbot_world.loaders import load_expert  # noqa: E402
from lingbot_world.model.cache import CameraCache  # noqa: E402
from lingbot_world.model.kv.cache import KeyValueCache  # noqa: E402
from lingbot_world.model.kv.place import KeyValuePlace  # noqa: E402
from lingbot_world.options import PerExpert, Window  # noqa: E402
from lingbot_world.pipeline.chunk_loop import Chunk, ChunkLoop  # noqa: E402
from lingbot_world.pipeline.delivery import HostCopy  # noqa: E402
from lingbot_world.pipeline.spec import RolloutRequest  # noqa: E402
from lingbot_world.pipeline.state import load_state  # noqa: E402
from lingbot_world.pipeline.world import World, WorldMemory  # noqa: E402
from rollout_cases import ACTIONS, CASES, WINDOW, arrays, by_chunk, draws, part, run, schedule_of  # noqa: E402

torch.set_num_threads(1)  # toys are too small for more

CAUSAL = GOLDEN / "causal"
STATES = load_state(FIRST), load_state(SECOND)
VAE = comfy.sd.VAE(sd=comfy.utils.load_torch_file(f"{TOY}/Wan2.1_VAE.pth"))
PATH = CameraPath(*(np.load(f"{TOY}/example/{name}.npy") for name in ("poses", "intrinsics")))
IMAGE = (STATES[0].frame.permute(1, 2, 0)[None] + 1) / 2
LATENT = {"samples": torch.zeros(1, 16, 3, 6, 8)}
SETTINGS = {"frames": 21, "shift": 10.0}


def golden_model():
    return load_causal(CAUSAL / "model", "fp32")


def toy_model():
    return load_causal(f"{TOY}/lingbot_world_fast", "fp32")


def positive(state=STATES[0]):
    return [[state.prompts[-1].context, {}]]


class Latents:
    """A VAE that encodes each length of IMAGE once and does not decode, for checks of latents alone."""

    encoded: dict[int, torch.Tensor] = {}

    @classmethod
    def encode(cls, pixels):
        if len(pixels) not in cls.encoded:
            cls.encoded[len(pixels)] = VAE.encode(pixels)
        return cls.encoded[len(pixels)].clone()

    @staticmethod
    def decode(latent):
        frames, height, width = latent.shape[2:]
        return torch.empty(1, 4 * frames - 3, 8 * height, 8 * width, 3)


def roll(model, state=None, image=IMAGE, seed=1, prompt=None, vae=Latents, path=PATH, **changes):
    return run_rollout(prepare(model, state, image, prompt, path, **changes), vae, seed)


def prepare(model, state=None, image=IMAGE, prompt=None, path=PATH, negative=None, latent=None, **changes):
    prompts = (positive() if prompt is None else prompt), negative
    asked = RolloutRequest(**SETTINGS | changes)
    return prepare_rollout(model, prompts, asked, image=image, camera=path, state=state, latent=latent)


def golden_run(case, model, place=KeyValuePlace()):  # noqa: B008
    """The latent of a golden case through ComfyUI's sampling."""
    given, schedule, made = arrays(case), schedule_of(case), []
    frames, *size = given["noise"].shape[2:]
    held = Window(case.window or 0, case.sink).in_cache(frames, case.chunk)
    prompts = given["context"], given.get("context_null")
    chunks = (Chunk(*part(case, given, number), *prompts) for number in range(frames // case.chunk))
    loop = ChunkLoop(tuple(size), held, case.chunk, schedule)
    memory, renoise = WorldMemory(place, 0), draws(given.get("renoise", ()))

    def work(prepared, device):
        made.extend(loop.run(prepared, chunks, renoise, device=device, memory=memory))

    run_with_model(model, [[given["context"], {}]], loop, work, seed=0)
    return torch.cat(made, dim=2), given["latent"]


@check
def golden():
    """How far from the official latents, in parts of what a case allows: with keys and values on the device or in host
    memory by turns, with LINGBOT_TESTS=all in both (8 bits are compared elsewhere)."""
    model, found, places = golden_model(), {}, (KeyValuePlace(), KeyValuePlace(on_host=True))
    for number, case in enumerate(case for case in CASES if case is not ACTIONS):  # its first layer is another one
        for place in places if os.environ.get("LINGBOT_TESTS") == "all" else [places[number % 2]]:
            found[f"{case.name} {place.on_host}"] = gap(*golden_run(case, model, place)) / case.atol
    return found


class Recorder:
    """Stands for the CUDA graphs of a World: what the model gives it to record, and how often it is told to forget."""

    def __init__(self):
        self.weights, self.cleared, self.waited = [], 0, []

    def run(self, compute, given, options):
        self.weights.append(options["weights"])
        return compute(given, options)

    def clear(self):
        self.cleared += 1
        return 0


def recorded_run(model):
    """A golden run whose World has a recorder and a camera cache as on a GPU: its gap, and the recorder."""
    lane_of, recorder = World._branch, Recorder()

    def lane(self, *arguments):
        made = lane_of(self, *arguments)
        made.options["graphs"], made.cache = recorder, CameraCache(steady=True)
        return made

    World._branch, read = lane, torch.Tensor.__int__
    torch.Tensor.__int__ = lambda tensor: recorder.waited.append(1) or read(tensor)
    try:
        return gap(*golden_run(WINDOW, model)), recorder
    finally:
        World._branch, torch.Tensor.__int__ = lane_of, read


@check
def recorded_forwards():
    """Forwards that are given to a recorder: of a plain model; not of one with a LoRA, with a patch between its blocks,
    with a wrapper around it, or whose weights are not all on the device."""
    plain, attention, wrapped, away = (golden_model() for _ in range(4))
    attention.set_model_attn1_patch(lambda given: given["x"])
    wrapped.add_wrapper(WrappersMP.DIFFUSION_MODEL, lambda run, *given, **named: run(*given, **named))
    weight = golden_model().model.diffusion_model.blocks[0].self_attn.q.weight
    lora = {"diffusion_model.blocks.0.self_attn.q.diff": torch.zeros_like(weight)}
    models = {
        "plain": plain,
        "patch": attention,
        "wrapper": wrapped,
        "away": away,
        "lora": comfy.sd.load_lora_for_models(golden_model(), None, lora, 1.0, 0)[0],
    }
    found, load = {}, ExpertPatcher.load

    def load_some(patcher, *arguments, **named):
        load(patcher, *arguments, **named)
        patcher.model.model_lowvram = True

    for name, model in models.items():
        ExpertPatcher.load = load_some if name == "away" else load
        try:
            far, recorder = recorded_run(model)
        finally:
            ExpertPatcher.load = load
        found[name] = {
            "gap": far,
            "forwards": len(recorder.weights),
            "weights": sorted(set(recorder.weights)),
            "cleared": recorder.cleared,
            "kept": len(model.model.rollout_caches),
            "waited": len(recorder.waited),
        }
    return found


@check
def left_behind():
    """Caches of keys and values that are there right behind a walk, before Python looks for what holds itself."""
    asked = RolloutRequest(frames=9, chunk=1, window=7, sink=2)
    run = prepare_live(
        toy_model(),
        positive(),
        asked,
        image=IMAGE,
        state=None,
        path=PATH,
        steered=False,
        text="",
        seed=0,
        kv_cache="auto",
    )
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode(), live_view(0) as view:
            frames = len(run_live(run, VAE, view).images)
        return frames, sum(type(each) is KeyValueCache for each in gc.get_objects())
    finally:
        gc.enable()


@check
def attention_in_8_bits():
    """Gaps of a rollout whose keys and values are kept in fp8: to the exact one, to the engine's, with an `attn1_patch`
    that hands on or doubles, and with keys and values in host memory; and where they are planned to lie."""
    model = load_causal(CAUSAL / "model", "fp32", attention="8bit")
    spec = prepare(toy_model(), frames=69, window=18).spec
    place = plan_memory(model, spec, "auto")[0].place
    latent, official = golden_run(WINDOW, model, place)
    engine = load_expert(CAUSAL / "model", dtype=torch.float32, attention_mode="8bit")
    found = {
        "place": list(place),
        "from exact": gap(latent, official),
        "in the engine": gap(latent, by_chunk(WINDOW, model=engine, place=place)),
    }
    for name, factor in {"handed on": 1, "doubled": 2}.items():
        patched = model.clone()
        patched.set_model_attn1_patch(lambda given, factor=factor: given["x"] * factor)
        found[name] = gap(golden_run(WINDOW, patched, place)[0], latent)
    return found | {"on host": gap(golden_run(WINDOW, model, place._replace(on_host=True))[0], latent)}


@check
def the_command():
    """The latents of `lingbot-world generate` with the same seed, begun and continued; and the frames."""
    model = toy_model()
    first = roll(model, vae=VAE)
    second = roll(model, first.state, image=None, seed=2, prompt=positive(STATES[1]), vae=VAE)
    from_file = roll(model, STATES[0], image=None, seed=2, prompt=positive(STATES[1]))
    whole = VAE.decode(second.latent["samples"])[0]
    return {
        "first": gap(first.state.latent, STATES[0].latent),
        "second": gap(second.state.latent, STATES[1].latent),
        "from the command's state": gap(from_file.state.latent, STATES[1].latent),
        "poses": gap(second.state.poses, STATES[1].poses),
        "last pose": gap(second.state.last_pose, STATES[1].last_pose),
        "prompts": [prompt.chunks for prompt in second.state.prompts],
        "frames": [len(first.images), len(second.images)],
        "images": max(gap(first.images, whole[:21]), gap(second.images, whole[21:])),
        "latent": gap(model.model.process_latent_in(second.latent["samples"]), second.state.latent),
        "notes": [
            prepare(model, replace(STATES[0], release=release), image=None).notes
            for release in (second.state.release, "LingBot-World 2.0")
        ],
    }


@check
def paths():
    """What is told of a path that is shorter than a video that goes on, and of one in larger units."""
    model, moved = toy_model(), PATH.c2w.copy()
    moved[:, :3, 3] *= 100
    return {
        name: prepare(model, STATES[0], None, path=path, frames=81).notes
        for name, path in {"short": PATH[:13], "far": CameraPath(moved, PATH.intrinsics)}.items()
    }


@check
def other_chunks_stay():
    """A longer video begins like a shorter one only in its noise; what a state holds never changes."""
    model = toy_model()
    first = roll(model, frames=9)
    kept = first.state.latent.clone()
    second = roll(model, first.state, image=None, frames=9)
    return {"kept": torch.equal(kept, second.state.latent[:, :, :3]), "grown": second.state.latent.shape[2]}


@check
def from_a_latent():
    """A video that begins with the last frame of a latent, and one that begins with that frame as an image: the gap of
    their latents, the number of frames, and the last chunk's gap to a video from another frame. Long latents are
    decoded from their end: the gap of that frame to the whole video's, of a corner of 16x16 pixels."""
    from lingbot_world.host.sampling.rollout import _decode_last

    model = toy_model()
    short = partial(roll, model, frames=9, vae=VAE)
    first = short()
    frames = VAE.decode(first.latent["samples"])[0]
    begun = short(image=None, latent=first.latent, seed=4)
    wanted, other = (short(image=frames[[index]], seed=4) for index in (-1, 0))
    long = first.latent["samples"][..., :2, :2].repeat(1, 1, 16, 1, 1)
    return {
        "latent": gap(begun.latent["samples"], wanted.latent["samples"]),
        "images": gap(begun.images, wanted.images),
        "frames": len(begun.images),
        "other": gap(other.latent["samples"], wanted.latent["samples"]),
        "long": gap(_decode_last(VAE, long, 1)[-1], VAE.decode(long)[0, -1]),
        "of": long.shape[2],
    }


@check
def grey_frames():
    """ComfyUI's VAE, too, gives grey frames that repeat: 36 latent frames at once against 30 and their last."""
    from lingbot_world.host.sampling.rollout import encode_image

    model, image = toy_model(), IMAGE[:, :32, :32]
    run = prepare(model, image=image, path=None, frames=141)
    pixels = torch.full((141, *image.shape[1:]), 0.5)
    pixels[0] = image[0]
    whole = model.model.process_latent_in(VAE.encode(pixels))
    short = encode_image(run, VAE)
    return {
        "frames": short.shape[2],
        "settled": gap(whole[:, :, 30:], short[:, :, -1:].expand_as(whole[:, :, 30:])),
        "before": gap(whole[:, :, :30], short),
    }


@check
def lora():
    """A LoRA through ComfyUI's loader: as in an engine whose weights have it added; and how much it does."""
    tensors, engine = {}, load_expert(CAUSAL / "model", dtype=torch.float32)
    for seed, (name, layer) in enumerate(engine.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            generator = torch.Generator().manual_seed(seed)
            out, into = layer.weight.shape
            up, down = (torch.randn(shape, generator=generator) * 0.05 for shape in ((out, 4), (4, into)))
            tensors |= {f"diffusion_model.{name}.lora_B.weight": up, f"diffusion_model.{name}.lora_A.weight": down}
            layer.weight.data += up @ down
    want = run(WINDOW, model=engine)
    patched = comfy.sd.load_lora_for_models(golden_model(), None, tensors, 1.0, 0)[0]
    latent, official = golden_run(WINDOW, patched)
    patched.patch_model()
    roomy, patched.model.last_memory_required = patched.copy_loras_to(torch.device("cpu")), 1 << 60
    held = [roomy, patched.copy_loras_to(torch.device("cpu"))]
    return {"gap": gap(latent, want), "effect": gap(want, official), "held with and without room": held}


@check
def interrupted():
    """An interrupt in the second chunk's third forward stops there; the next run is as good as any."""
    model = toy_model()
    want, forwards = roll(model).state.latent, []

    def count(module, arguments):
        forwards.append(1)
        if len(forwards) == 8:
            management.interrupt_current_processing(True)

    hook = model.model.diffusion_model.blocks[0].register_forward_pre_hook(count)
    try:
        roll(model)
        stopped = False
    except management.InterruptProcessingException:
        stopped = True
    hook.remove()
    left, after = model.model.key_value_bytes, gap(roll(model).state.latent, want)
    return {"stopped": stopped, "forwards": len(forwards), "bytes": left, "after": after}


@check
def pictures():
    """What is shown of a chunk that a GPU has made: nothing of it can be read but its copy in host memory."""
    spec, device, shown = prepare(toy_model()).spec, torch.device("cpu"), []
    chunks = RolloutDisplay(toy_model(), spec, device)
    preview = chunks._previewer.decode_latent_to_preview_image
    made, of = torch.randn(1, 16, spec.chunk, *spec.size), HostCopy.of
    HostCopy.of = classmethod(lambda cls, latent, *_: cls(made.clone(), lambda: None, True))
    on_gpu = SimpleNamespace(device=device)
    chunks._previewer.decode_latent_to_preview_image = lambda *given: shown.append(given[1]) or preview(*given)
    chunks.add(0, on_gpu)
    waiting = len(shown)
    HostCopy.of = of
    chunks.forward_done(1, 1)
    return {"waiting": waiting, "shown": [gap(latent, made[:, :, -1:]) for latent in shown]}


@check
def on_two_devices():
    """Behind MultiGPU CFG Split, whose second device is the CPU under another name: the gap to a run without it, and
    what is told and asked to be loaded."""
    devices, load, loaded = management.get_all_torch_devices, management.load_models_gpu, []
    management.get_all_torch_devices = lambda exclude_current=False: [torch.device("cpu"), torch.device("cpu:1")]

    def spy(models, **options):
        loaded.append(len(models))
        return load(models, **options)

    management.load_models_gpu = spy
    try:
        model = MultiGPUCFGSplitNode.execute(toy_model(), 2).args[0]
        notes = prepare(model).notes
        with torch.inference_mode():
            found = gap(roll(model).state.latent, roll(toy_model()).state.latent)
    finally:
        management.get_all_torch_devices, management.load_models_gpu = devices, load
    return {"gap": found, "notes": notes, "loaded": loaded}


@check
def memory():
    """What ComfyUI is told that a rollout needs: a chunk's work, and the keys and values of its window."""
    model, asked = toy_model(), []
    load = management.load_models_gpu

    def spy(models, memory_required=0, **options):
        if models[0].model is model.model:
            asked.append(memory_required)
        return load(models, memory_required=memory_required, **options)

    management.load_models_gpu = spy
    try:
        roll(model, frames=9)
        roll(model, frames=21)
        roll(model, frames=69, window=6, sink=3)
    finally:
        management.load_models_gpu = load
    config, tokens = model.model.diffusion_model.config, 3 * 6 * 8 // 4
    return {"asked": asked, "chunk of keys and values": 2 * 4 * tokens * config.dim * config.num_layers}


@check
def free_memory():
    """How often free memory is asked for in rollouts of one chunk and of three."""
    model, asked, ask = toy_model(), [], management.get_free_memory

    def spy(*arguments, **options):
        asked.append(arguments)
        return ask(*arguments, **options)

    counts = []
    for frames in (9, 33, 9, 33):  # the first ones load the model and encode their images
        asked.clear()
        management.get_free_memory = spy
        try:
            roll(model, frames=frames)
        finally:
            management.get_free_memory = ask
        counts.append(len(asked))
    return counts


@check
def places():
    """Where keys and values go on a GPU with so much memory: weights of 9.6 GB, 18 latent frames at 480x832."""
    model = toy_model()
    config = replace(model.model.diffusion_model.config, dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
    spec = prepare(model, frames=69, window=18).spec
    spec = replace(spec, config=config, geometry=replace(spec.geometry, height=480, width=832))
    fake = SimpleNamespace(
        load_device=torch.device("cuda"),
        model_size=lambda: int(9.6e9),
        model=SimpleNamespace(
            diffusion_model=SimpleNamespace(config=config, attention_mode="auto"),
            get_dtype_inference=lambda: torch.bfloat16,
        ),
    )
    found, real = {}, management.get_free_memory
    try:
        for gigabytes, host, mode in (
            (80, 64, "auto"),
            (30, 64, "auto"),
            (20, 64, "auto"),
            (20, 24, "auto"),
            (8, 64, "auto"),
            (30, 64, "host"),
            (20, 64, "gpu"),
        ):
            management.get_free_memory = lambda device=None: int((host if device.type == "cpu" else gigabytes) * 1e9)  # noqa: B023
            try:
                found[f"{gigabytes} {host} {mode}"] = list(plan_memory(fake, spec, mode)[0].place)
            except ValueError as error:
                found[f"{gigabytes} {host} {mode}"] = str(error)
    finally:
        management.get_free_memory = real
    return found


@check
def refusals():
    model, state = toy_model(), STATES[0]
    base = load_patcher(FP32[0], "fp32")
    wide = torch.zeros(1, 64, 96, 3)
    other = replace(state, config=replace(state.config, num_layers=7))
    return {
        "base expert": refused(roll, base),
        "no image": refused(roll, model, image=None),
        "latent and image": refused(roll, model, latent=LATENT),
        "latent and state": refused(roll, model, state, image=None, latent=LATENT),
        "channels of a latent": refused(roll, model, image=None, latent={"samples": torch.zeros(1, 48, 3, 6, 8)}),
        "batch of latents": refused(roll, model, image=None, latent={"samples": torch.zeros(2, 16, 3, 6, 8)}),
        "latent of an image": refused(roll, model, image=None, latent={"samples": torch.zeros(1, 16, 6, 8)}),
        "odd latent": refused(roll, model, image=None, latent={"samples": torch.zeros(1, 16, 3, 7, 8)}),
        "odd image": refused(roll, model, image=wide[:, :50]),
        "state of another size": refused(roll, model, state, image=wide),
        "state of another model": refused(roll, model, other, image=None),
        "window": refused(roll, model, window=5, sink=3),
        "few frames": refused(roll, model, frames=5),
        "short path": refused(roll, model, frames=81, path=PATH[:8]),
        "indices": refused(roll, model, indices=(5, 4)),
        "prompt": refused(roll, model, prompt=[[torch.zeros(1, 4, 7), {}]]),
        "two prompts": refused(roll, model, prompt=positive() * 2),
        "camera in the prompt": refused(roll, model, prompt=[[positive()[0][0], {"lingbot_camera": torch.zeros(1)}]]),
        "guider": refused(ExpertGuider, PerExpert(model, model), 0.9),
        "guider with one": refused(ExpertGuider, PerExpert(experts()[0], model), 0.9),
        "core's sampler": refused(core_sample, model),
    }


def core_sample(model):
    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(positive(), positive())
    latent = torch.zeros(1, 16, 3, 6, 8)
    guider.sample(latent, latent, comfy.samplers.sampler_object("euler"), torch.tensor([1.0, 0.5, 0.0]), seed=0)


report()
