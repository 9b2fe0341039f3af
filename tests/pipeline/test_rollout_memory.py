"""What a causal run keeps where, by how much is free: of the command, and of ComfyUI."""

import math
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless import preparation
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.process.processes import ALONE
from lingbot_world.headless.process.profile import StageRecorder, silent
from lingbot_world.headless.stages import RunContext
from lingbot_world.loaders.checkpoint import Checkpoint
from lingbot_world.loaders.offload import weight_bytes
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.kv.place import ON_DEVICE, KeyValuePlace
from lingbot_world.model.memory import decoded_bytes
from lingbot_world.options import Precision
from lingbot_world.pipeline import rollout_memory, rollout_planner
from lingbot_world.pipeline.geometry import Geometry
from lingbot_world.pipeline.memory import MARGIN, MemoryWishes
from lingbot_world.pipeline.rollout_memory import (
    DecoderSettings,
    Free,
    RolloutMemory,
    RolloutWork,
    choose_world,
    estimate_rollout,
)
from lingbot_world.pipeline.rollout_planner import RolloutPlanner
from lingbot_world.pipeline.two_experts import ONE_PROCESS, ParallelGroups
from lingbot_world.text.weights import UMT5Config
from lingbot_world.weights.tensors import TensorEntry
from rollout_run_cases import small_options

CONFIG = ModelConfig(5120, 13824, 40, 40, 256, 4096, causal=True)
CUDA = torch.device("cuda")


class FullSize(Checkpoint):
    """NF4 weights told by their shapes: half a byte and a hundred-and-twentieth a value."""

    @property
    def nbytes(self) -> int:
        return int(sum(math.prod(shape) for shape in self.shapes.values()) * 0.5164)

    @cached_property
    def _by_name(self):
        lengths = {name: (int(math.prod(shape) * 0.5164),) for name, shape in self.shapes.items()}
        return {
            name: TensorEntry(name, self.path, torch.uint8, length, torch.empty(0)) for name, length in lengths.items()
        }

    def entries(self, names):
        return [self._by_name[name] for name in names]


FULL_SIZE = FullSize(Path("full.safetensors"), CONFIG, {}, {"all": None}, CONFIG.parameter_shapes())


def work_of(*, size=(60, 104), chunk=3, held=18, guided=False, arithmetic="auto", attention="auto", processes=1):
    """The chunks of a full-size model, at 480x832 with a window of 18 unless told otherwise."""
    precision = Precision(torch.bfloat16, arithmetic, attention, processes)
    return RolloutWork(CONFIG, size, chunk, held, precision, guided)


def choose(free, host=64.0, *, half=False, whole_video=False, device=CUDA, checkpoint=FULL_SIZE, work=None, **wishes):
    """What the command keeps where with so many gigabytes free, of a full-size model."""
    planner = RolloutPlanner(work or work_of(), checkpoint, DecoderSettings(96, half), MemoryWishes(**wishes), device)
    return planner.choose(Free(int(free * 1e9), int(host * 1e9)), whole_video)


SMALL, PARKED = {"on_host": True, "streamed": True}, {"half": True, "on_host": True, "parked": True}


@pytest.mark.parametrize(
    ("gigabytes", "host", "mode", "chosen"),
    [
        (80, 64, "auto", {}),
        (31, 64, "auto", {"int8": True}),
        (23.5, 64, "auto", {"on_host": True, "device_blocks": 2}),
        (23.5, 24, "auto", {"int8": True, "on_host": True, "device_blocks": 7}),
        (23.5, 64, "8bit", {"int8": True, "on_host": True, "device_blocks": 7}),
        (15.5, 64, "host", {"on_host": True, "vae_tiling": True}),
        (7.5, 64, "auto", SMALL | {"device_blocks": 5, "vae_tiling": True}),
        (7.5, 20, "auto", SMALL | {"int8": True, "device_blocks": 13, "vae_tiling": True}),
        (80, 64, "auto", {"half": True}),
        (18.5, 64, "auto", {"half": True, "on_host": True}),
        (18, 8, "auto", {"half": True, "int8": True, "parked": True, "streamed": 14}),
        (20, 8, "auto", {"half": True, "int8": True, "parked": True, "streamed": 23}),
        (15, 64, "auto", PARKED),
        (14.9, 64, "host", PARKED),
        (7.5, 64, "host", PARKED | {"streamed": 7}),
        (7.5, 64, "auto", PARKED | SMALL | {"device_blocks": 2}),
        (7.5, 30, "auto", PARKED | SMALL | {"int8": True, "device_blocks": 9}),
        (7.5, 64, "8bit", PARKED | SMALL | {"int8": True, "device_blocks": 9}),
        (12, 64, "8bit", PARKED | SMALL | {"int8": True, "device_blocks": 27}),
        (11.5, 64, "auto", PARKED | SMALL | {"device_blocks": 9}),
        (4.5, 64, "host", PARKED | {"vae_tiling": True, "streamed": 2}),
    ],
)
def test_memory_is_chosen_by_what_is_free(gigabytes, host, mode, chosen):
    half = "half" in chosen
    memory = choose(gigabytes, host, half=half, kv_cache=mode)
    found = {
        **memory.place._asdict(),
        "vae_tiling": memory.vae_tiling,
        "half": half,
        "streamed": memory.resident_blocks or memory.resident_blocks is not None,
        "parked": half and memory.park_decoder,
    }
    assert {name: value for name, value in found.items() if value} == chosen
    weights = weight_bytes(FULL_SIZE, memory.resident_blocks)
    stage = estimate_rollout(work_of(), memory, weights, DecoderSettings(96, half))
    decoded = memory.decoded_blocks * decoded_bytes(CONFIG, torch.bfloat16)
    assert stage.total + memory.world.camera_cache_bytes + decoded <= gigabytes * 1e9
    assert work_of().key_values(memory.place).host <= host * 1e9


def test_a_decoder_on_another_gpu_leaves_its_room():
    """On a card where the VAE's state would have to wait in host memory."""
    here, elsewhere = DecoderSettings(96, half=True), DecoderSettings(96, half=True, elsewhere=True)
    stages = [estimate_rollout(work_of(), RolloutMemory(), 0, decoder) for decoder in (here, elsewhere)]
    assert stages[0].weights > stages[1].weights == 0
    assert stages[0].work - stages[1].work > 1e9
    planners = [RolloutPlanner(work_of(), FULL_SIZE, each, MemoryWishes(), CUDA) for each in (here, elsewhere)]
    parked = [planner.choose(Free(int(15e9), int(64e9))).park_decoder for planner in planners]
    assert parked == [True, False]


@pytest.mark.parametrize("tiles", [False, True])
def test_several_processes_decode_in_fp32_whatever_was_chosen(tiles):
    memory = RolloutMemory(vae_tiling=tiles)
    estimates = [estimate_rollout(work_of(processes=2), memory, 0, DecoderSettings(96, half)) for half in (False, True)]
    assert estimates[0] == estimates[1]


def test_a_recorded_decoder_keeps_its_memory_beside_the_forwards():
    """Where its state is parked it is not recorded."""
    decoders = DecoderSettings(96, half=True), DecoderSettings(96, half=True, recorded=True)
    for park, more in ((False, 0.65e9), (True, 0)):
        memory = RolloutMemory(park_decoder=park)
        launched, recorded = (estimate_rollout(work_of(), memory, 0, decoder).total for decoder in decoders)
        assert recorded - launched == pytest.approx(more, rel=0.02)


@pytest.mark.parametrize(
    ("free", "host", "mode", "place", "blocks"),
    [
        (6, 64, "auto", {"on_host": True, "device_blocks": 20}, 0),
        (6, 10, "auto", {"on_host": True, "device_blocks": 20}, 0),
        (8, 64, "auto", {"on_host": True, "device_blocks": 33}, 0),
        (12, 64, "auto", {}, 14),
        (8, 64, "8bit", {"int8": True}, 10),
        (11.5, 64, "host", {"on_host": True}, 35),
        (80, 64, "host", {"on_host": True}, None),
    ],
)
def test_a_small_video_keeps_exact_keys_and_values_where_blocks_stream(free, host, mode, place, blocks):
    memory = choose(free, host, half=True, work=work_of(size=(30, 52)), kv_cache=mode)
    assert (memory.place, memory.resident_blocks) == (KeyValuePlace(**place), blocks)


def test_a_camera_cache_that_is_asked_for_comes_before_keys_and_values():
    by_itself, asked = (choose(12, half=True, kv_cache="8bit", camera_cache=cache) for cache in ("auto", "gpu"))
    assert by_itself.world.camera_cache_bytes < 2.5e8 < 4.2e9 < asked.world.camera_cache_bytes
    assert by_itself.place.device_blocks == 27 > asked.place.device_blocks == 10


@pytest.mark.parametrize(
    ("processes", "free", "mode", "recorded"),
    [
        (4, 80, "auto", True),
        (1, 80, "auto", True),
        (4, 20, "auto", False),
        (1, 30, "auto", False),
        (4, 80, "8bit", False),
        (1, 80, "host", False),
    ],
)
def test_kernels_are_recorded_where_everything_is_on_the_gpu(processes, free, mode, recorded):
    assert choose(free, 640, work=work_of(processes=processes), kv_cache=mode).world.graphs is recorded


@pytest.mark.parametrize(
    ("free", "arithmetic", "blocks"),
    [(80, "auto", 40), (60, "auto", 23), (60, "fp8", 40), (45, "auto", 0), (25, "auto", 0)],
)
def test_decoded_weights_stay_where_there_is_room(free, arithmetic, blocks):
    work = work_of(arithmetic=arithmetic)
    assert choose(free, 640, work=work).decoded_blocks == blocks
    plain = choose(free, 640, work=work, checkpoint=replace(FULL_SIZE, quantized={})).decoded_blocks
    assert plain == (blocks if arithmetic == "fp8" else 0), "8 bits are made of any weights"


@pytest.fixture(scope="module")
def full_size(toy_package, tmp_path_factory):
    """A plan of a full-size model at 480x832 with a full window, whose weights are not there."""
    plan = make_plan(small_options(toy_package, tmp_path_factory.mktemp("full size")))
    xxl = UMT5Config(256_384, 4096, 4096, 10_240, 64, 24, 32)
    return replace(
        plan,
        checkpoint=FULL_SIZE,
        device=CUDA,
        dtype=torch.bfloat16,
        geometry=Geometry(480, 832, 321),
        vae={"decoder.head.0.gamma": torch.empty(96)},
        text_encoder=replace(plan.text_encoder, config=xxl),
    )


def alone(together=ONE_PROCESS):
    return RunContext(StageRecorder(torch.device("cpu"), silent), ALONE, together)


@pytest.mark.parametrize(
    ("free", "kept", "both_fit"),
    [(80, True, True), (23.5, True, True), (16, True, False), (14, False, False), (7.5, False, False)],
)
def test_a_model_that_fits_beside_the_text_encoder_is_loaded_meanwhile(free, kept, both_fit, full_size):
    planner = RolloutPlanner(work_of(), FULL_SIZE, DecoderSettings(96), MemoryWishes(), CUDA)
    room = Free(int(free * 1e9), int(64e9))
    memory, both = preparation._plan_parallel(full_size, planner, room, alone())
    assert ((memory is not None), both) == (kept, both_fit)
    shared = alone(ParallelGroups(weights=object()))
    assert preparation._plan_parallel(full_size, planner, room, shared) == (None, False)


def test_too_little_memory_is_said_before_anything_is_loaded():
    for mode, last in (("auto", "a smaller video$"), ("8bit", "or `kv_cache` auto$")):
        with pytest.raises(InputError, match=f"too little for keys and values of 18 latent frames .*{last}"):
            choose(2, kv_cache=mode)
    assert choose(0, 0, device=torch.device("cpu")) == RolloutMemory()


def test_a_video_without_a_window_is_refused_with_one_that_fits():
    with pytest.raises(InputError, match="keys and values of 483 latent frames .* use `window` 18 and `sink` 6, since"):
        choose(24, work=work_of(held=483), whole_video=True)


def test_too_little_memory_is_said_before_the_text_encoder_works(full_size, monkeypatch):
    monkeypatch.setattr(preparation, "free_memory", lambda _device: int(2e9))
    monkeypatch.setattr(preparation, "available_host_memory", lambda: int(64e9))
    with pytest.raises(InputError, match="too little for keys and values"):
        preparation.prepare(full_size, pytest.fail, alone())


EVERY_PLACE = [KeyValuePlace(*ways) for ways in product((False, True), repeat=3) if not (ways[0] and ways[2])]


@pytest.mark.parametrize("place", EVERY_PLACE)
def test_a_guided_video_needs_twice_the_keys_and_values_and_the_work_of_one_forward(place):
    one, two = (work_of(guided=guided) for guided in (False, True))
    held, both = one.key_values(place), two.key_values(place)
    assert (both.device, both.working, both.host) == (2 * held.device, held.working, 2 * held.host)
    assert one.forward(place) == two.forward(place)
    assert two.camera_cache("gpu", 0) == 2 * one.camera_cache("gpu", 0)


def test_a_larger_chunk_needs_more_work_and_less_host_memory():
    host = KeyValuePlace(on_host=True)
    for small, large in ((1, 3), (2, 4), (3, 4)):
        one, other = (work_of(size=(90, 160), chunk=chunk) for chunk in (small, large))
        assert one.forward(ON_DEVICE) < other.forward(ON_DEVICE)
        assert one.key_values(ON_DEVICE) == other.key_values(ON_DEVICE)
        assert one.key_values(host).host > other.key_values(host).host


@pytest.mark.parametrize("fp8", [False, True], ids=["made anew", "as attention takes them"])
def test_both_fronts_count_what_attention_in_8_bits_without_cudnn_needs(fp8, monkeypatch):
    """A block's keys and values in 8 bits, made in every forward unless they are kept so. Where exactly that much is
    missing, neither front takes the whole place; their two planners once disagreed."""
    place, copies = KeyValuePlace(fp8=fp8), 2 * 18 * 1560 * 5120 * (not fp8)
    exact, work = work_of(), work_of(attention="8bit")
    difference = work.activations - exact.activations
    assert work.forward(place) - exact.forward(place) == difference + copies
    if fp8:
        return
    for module in (rollout_memory, rollout_planner):
        monkeypatch.setattr(module, "supports_fp8_cache", lambda *_: False)  # as where cuDNN's kernel is missing
    room, weights = work.key_values(place).device + work.forward(place), int(10e9)
    for missing in (0, copies):
        chosen = choose_world(work, "auto", CUDA, Free(room + weights - missing, 10**12), weights)
        assert (chosen.place == ON_DEVICE) == (not missing)
    need = estimate_rollout(work, RolloutMemory(), weight_bytes(FULL_SIZE, None), DecoderSettings(96)).total + MARGIN
    for missing in (0, copies):
        chosen = choose((need - missing) / 1e9, 10**4, work=work, camera_cache="off")
        assert (chosen.place == ON_DEVICE and not chosen.park_decoder) == (not missing)
