"""A World between chunks: what it remembers, replays and caches, and what it says after it was cut short."""

import os
import subprocess
import sys

import pytest
import torch
from lingbot_world.errors import CameraError, InputError
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.graphs import forward as forward_graphs
from lingbot_world.model.kv.place import KeyValuePlace
from lingbot_world.model.layers import attention as attention_layers
from lingbot_world.model.layers.block import Block
from lingbot_world.model.layers.rope import rope_table
from lingbot_world.options import FAST_INDICES, Window
from lingbot_world.pipeline import World
from lingbot_world.pipeline import world as pipeline_world
from lingbot_world.pipeline.chunk_loop import Chunk, ChunkLoop
from lingbot_world.pipeline.world import WorldMemory
from lingbot_world.sampling import few_step_schedule
from rollout_cases import (
    ACTIONS,
    CHUNKS_OF_1,
    CHUNKS_OF_4,
    GLOBAL,
    GUIDED,
    PLACES,
    WINDOW,
    arrays,
    by_chunk,
    draws,
    made_part,
    model_of,
    part,
    plain,
    schedule_of,
    world_of,
)


def next_chunk(world, case, given, number, renoise, steps=40):
    return world.chunk(*part(case, given, number), schedule_of(case, steps), renoise)


def test_the_last_block_of_a_clean_forward_computes_keys_and_values_alone():
    given, computed, model = arrays(GLOBAL), [], model_of()
    first, *_, last = model.blocks
    layers = {"q": last.self_attn.q, "k": last.self_attn.k, "down": last.ffn[2], "q of others": first.self_attn.q}
    hooks = [
        layer.register_forward_pre_hook(lambda *_, name=name: computed.append(name)) for name, layer in layers.items()
    ]
    world = world_of(GLOBAL, given)
    for number in range(2):  # the first chunk is remembered when the second begins
        next_chunk(world, GLOBAL, given, number, draws(given["renoise"]))
    for hook in hooks:
        hook.remove()
    assert {name: computed.count(name) for name in layers} == {"q": 8, "k": 9, "down": 8, "q of others": 9}


SOME_PLACES = pytest.mark.parametrize("place", ["device", "host", "host8bit and device"])


@SOME_PLACES
def test_memory_that_runs_out_while_a_chunk_is_remembered(place, request):
    """The forward is repeated without the camera cache, unless it has overwritten frames that it would look back on."""
    clean, want = [], plain(WINDOW)

    def fail_once(_block, arguments):
        history = arguments[-1]["kv_cache"]
        clean.append(history.keep)
        if clean.count(True) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model_of().blocks[1].register_forward_pre_hook(fail_once)
    request.addfinalizer(hook.remove)
    if place != "device":
        with pytest.raises(torch.OutOfMemoryError):
            by_chunk(WINDOW, place=PLACES[place])
        assert clean.count(True) == 4
        return
    assert torch.equal(by_chunk(WINDOW), want)
    assert clean.count(True) == 6


@pytest.mark.parametrize("forward", [0, 1, 4], ids=["remembering", "first step", "last step"])
@SOME_PLACES
def test_a_caller_that_goes_on_after_an_interrupt_gets_the_same_video_or_hears_that_it_cannot(place, forward):
    """It falls into a forward of the fourth chunk, whose window is full; the first one remembers the third chunk."""
    given, made, forwards = arrays(WINDOW), [], iter(range(9))
    world = world_of(WINDOW, given, place=PLACES[place])

    def chunk(renoise):
        made.append(next_chunk(world, WINDOW, given, len(made), renoise))

    def interrupt(*_):
        if next(forwards) == forward:
            raise KeyboardInterrupt

    renoise = draws(given["renoise"])
    for _ in range(3):
        chunk(renoise)
    hook = model_of().blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        chunk(renoise)
    hook.remove()
    if place != "device" and not forward:
        with pytest.raises(InputError, match="may be incomplete"):
            chunk(renoise)
        return
    renoise = draws(given["renoise"][9:])
    for _ in range(3):
        chunk(renoise)
    wanted = by_chunk(WINDOW, place=PLACES[place]) if "8bit" in place else plain(WINDOW)
    assert torch.equal(torch.cat(made, 2), wanted)


@pytest.mark.parametrize("forward", [0, 1, 2, 3], ids=["prompt kept", "negative kept", "prompt", "negative"])
def test_an_interrupt_between_the_two_prompts_of_a_guided_chunk(forward):
    """What is remembered for one prompt is not remembered again when the other one's turn was cut short."""
    given, forwards = arrays(GUIDED), iter(range(99))
    wanted, world = by_chunk(GUIDED, steps=3), world_of(GUIDED, given)
    next_chunk(world, GUIDED, given, 0, None, steps=3)

    def interrupt(*_):
        if next(forwards) == forward:
            raise KeyboardInterrupt

    hook = model_of().blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        next_chunk(world, GUIDED, given, 1, None, steps=3)
    hook.remove()
    assert torch.equal(next_chunk(world, GUIDED, given, 1, None, steps=3), wanted[:, :, 3:])


@pytest.mark.parametrize("case", [WINDOW, CHUNKS_OF_1, CHUNKS_OF_4, ACTIONS, GUIDED], ids=str)
def test_chunks_that_were_made_before_are_remembered_by_a_forward_each(case):
    given, whole, forwards = arrays(case), by_chunk(case, steps=3), []
    world, last = world_of(case, given), given["noise"].shape[2] // case.chunk - 1
    hook = model_of(case).register_forward_pre_hook(lambda *_: forwards.append(1))
    for number in range(last):
        world.replay(*made_part(case, given, number, whole))
    hook.remove()
    assert len(forwards) == last * (2 if case is GUIDED else 1)
    renoise = draws(given["renoise"][3 * last :]) if case is not GUIDED else None
    assert torch.equal(next_chunk(world, case, given, last, renoise, steps=3), whole[:, :, -case.chunk :])


def test_chunks_that_were_made_before_are_remembered_in_fp8(request):
    given, model, place = arrays(WINDOW), model_of(), KeyValuePlace(fp8=True)
    request.addfinalizer(lambda: model.set_attention("auto"))
    model.set_attention("8bit")
    whole, world = by_chunk(WINDOW, place=place), world_of(WINDOW, given, place=place)
    for number in range(5):
        world.replay(*made_part(WINDOW, given, number, whole))
    assert torch.equal(next_chunk(world, WINDOW, given, 5, draws(given["renoise"][15:])), whole[:, :, 15:])


def test_chunks_after_those_that_were_made_before_have_a_camera_cache():
    """Each replayed chunk has a camera of its own and one forward, from which a cache would gain nothing."""
    given, projected = arrays(WINDOW), []
    world = world_of(WINDOW, given)
    hook = model_of().blocks[0].cam_scale_layer.register_forward_pre_hook(lambda *_: projected.append(1))
    for number in range(5):
        world.replay(*made_part(WINDOW, given, number, given["latent"]))
    assert len(projected) == 5
    next_chunk(world, WINDOW, given, 5, draws(given["renoise"][15:]))
    hook.remove()
    assert len(projected) == 6


def test_a_chunk_whose_replay_was_cut_short_may_be_replayed_again():
    given, made = arrays(WINDOW), []
    for cut in (False, True):
        world = world_of(WINDOW, given)
        for number in range(5):
            latent, y, camera = made_part(WINDOW, given, number, given["latent"])
            if cut and number == 2:
                with pytest.raises(CameraError):
                    world.replay(latent, y, camera[:, :, :2])
            world.replay(latent, y, camera)
        made.append(next_chunk(world, WINDOW, given, 5, draws(given["renoise"][15:])))
    assert torch.equal(*made)


@pytest.mark.parametrize(("cameras", "projections"), [("equal", 1), ("written over", 3), ("different", 3)])
def test_a_camera_serves_the_next_chunk_if_it_is_the_same(cameras, projections):
    given, made, projected = arrays(GLOBAL), {}, []
    hook = model_of().blocks[0].cam_scale_layer.register_forward_pre_hook(lambda *_: projected.append(1))
    for cached in (True, False):
        world = world_of(GLOBAL, given, camera_cache_bytes=None if cached else 0)
        made[cached], held, renoise = [], torch.empty_like(given["plucker"][:, :, :3]), draws(given["renoise"])
        for number in range(3):
            noise, y, camera = part(GLOBAL, given, number)
            camera = part(GLOBAL, given, 0)[2] if cameras == "equal" else camera
            camera = held.copy_(camera) if cameras == "written over" else camera.clone()
            made[cached].append(world.chunk(noise, y, camera, schedule_of(GLOBAL), renoise))
        assert len(projected) == (projections if cached else projections + 14)
    hook.remove()
    assert all(map(torch.equal, made[True], made[False]))


def test_a_new_prompt_changes_what_comes_and_not_what_was():
    given, made = arrays(GLOBAL), []
    world, renoise = world_of(GLOBAL, given), draws(given["renoise"])
    for number in range(3):
        if number == 2:
            world.prompt = given["context"] + 1
        made.append(next_chunk(world, GLOBAL, given, number, renoise))
    torch.testing.assert_close(torch.cat(made[:2], 2), given["latent"][:, :, :6], rtol=0, atol=1e-4)
    assert (made[2] - given["latent"][:, :, 6:]).abs().max() > 1e-2


def test_a_prompt_goes_to_the_device_once_however_many_chunks_have_it(monkeypatch):
    """What is cached of a prompt is found again by the tensor, so it has to be the same one."""

    class Prompt:
        def to(self, _device):
            return object()

    class Told:
        prompt = negative = None

        def chunk(self, *_):
            return self.prompt, self.negative

    monkeypatch.setattr(ChunkLoop, "world", lambda *_: Told())
    one, other, negative = Prompt(), Prompt(), Prompt()
    loop = ChunkLoop((6, 8), Window(6), 3, few_step_schedule(FAST_INDICES, 10.0))
    chunks = (Chunk(*3 * [torch.zeros(1)], prompt, negative) for prompt in (one, one, other, other, one))
    prompts, negatives = zip(*loop.run(None, chunks, None, device="cpu"), strict=True)
    same = [prompt is before for before, prompt in zip(prompts, prompts[1:], strict=False)]
    assert same == [True, False, True, False]
    assert len(set(negatives)) == 1


def test_a_cache_that_runs_out_of_memory_leaves_the_same_bits(monkeypatch):
    want, calls = plain(WINDOW), []

    def put(cache, block, pair):
        calls.append(block)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CameraCache, "put", put)
    assert torch.equal(by_chunk(WINDOW, place=PLACES["host"]), want)
    assert calls == [0, 1]


def test_positions_go_on_beyond_the_official_table():
    """The official code's table ends at frame 1,024; here a chunk's positions are a part of a table of any length."""
    device = torch.device("cpu")
    whole = rope_table((1503, 2, 2), 32, device)
    for rows, table in zip(rope_table((3, 2, 2), 32, device, first_frame=1500), whole, strict=True):
        assert torch.equal(rows, table[1500 * 4 :])


@pytest.mark.parametrize(("chunk", "window"), [(3, 5), (4, 6), (1, 3)])
def test_a_world_refuses_a_window_without_room_for_a_chunk(chunk, window):
    with pytest.raises(InputError, match=rf"window is {window} latent frames, expected at least sink \(3\) \+ {chunk}"):
        World(model_of(), (4, 6), Window(window, 3), chunk=chunk, device="cpu")


def plain_parts(q, k, v):
    """In place of cuDNN's kernel: attention to each part of the keys, and the logarithm of its denominator."""
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), scores.logsumexp(-1)


@pytest.mark.parametrize("case", [WINDOW, GLOBAL])
def test_attention_to_frames_of_which_some_are_empty(monkeypatch, case):
    """What a GPU is asked for while the window fills, so that all chunks run the same kernels."""
    want, asked, attend = plain(case), [], attention.attend_to_frames
    monkeypatch.setattr(attention, "_cudnn_attention", plain_parts)

    def told(*given):
        asked.append(given[-1].isinf().sum())
        return attend(*given)

    monkeypatch.setattr(attention_layers, "attend_to_frames", told)
    monkeypatch.setattr(World, "_branch", lane_that_sees_all_frames(World._branch))
    torch.testing.assert_close(by_chunk(case), want, atol=1e-4, rtol=1e-4)
    assert asked[0] > 0


def lane_that_sees_all_frames(make):
    def made(*given):
        lane = make(*given)
        lane.history.mask_empty_slots()
        return lane

    return made


class Recorder:
    """In place of CUDA graphs: the kinds of the forwards that would be recorded, as often as they came."""

    def __init__(self):
        self.kinds = []

    def run(self, compute, given, options):
        if options["kv_cache"].window_state is not None:
            self.kinds.append(forward_graphs._kind(given, options["kv_cache"]))
        return compute(given, options)


@pytest.mark.parametrize("by_frames", [True, False])
def test_all_kinds_of_forwards_are_recorded_behind_the_first_chunk(monkeypatch, by_frames):
    """Each comes twice when that chunk is remembered, and no other comes later; what is made stays the same."""
    monkeypatch.setattr(attention, "_cudnn_attention", plain_parts)
    recorder, make, given = Recorder(), World._branch, arrays(WINDOW)

    def lane(*arguments):
        made = lane_that_sees_all_frames(make)(*arguments) if by_frames else make(*arguments)
        made.options["graphs"], made.cache = recorder, CameraCache(steady=True)
        return made

    monkeypatch.setattr(World, "_branch", lane)
    world, renoise, made = world_of(WINDOW, given), draws(given["renoise"]), []
    rehearsed: list = []
    for number in range(plain(WINDOW).shape[2] // WINDOW.chunk):
        made.append(next_chunk(world, WINDOW, given, number, renoise))
        world.remember()
        rehearsed = recorder.kinds[:] if number == 0 else rehearsed
    torch.testing.assert_close(torch.cat(made, 2), plain(WINDOW), atol=1e-4, rtol=1e-4)
    assert {form for _, form, *_ in rehearsed} == ({"filling", "full"} if by_frames else {"full"})
    assert all(rehearsed.count(kind) > 1 for kind in recorder.kinds[len(rehearsed) :])


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_a_gpu():
    model = model_of()
    there = LingBotWorldModel(model.config, device="meta", dtype=torch.bfloat16)
    state = {name: tensor.to(device="cuda", dtype=torch.bfloat16) for name, tensor in model.state_dict().items()}
    there.load_state_dict(state, assign=True)
    return there


@needs_a_gpu
@pytest.mark.parametrize("chunk", [1, 3, 4])
@pytest.mark.parametrize("limit", [None, 100_000, 0])
def test_on_a_gpu_recorded_kernels_give_the_same_bits(monkeypatch, caplog, limit, chunk):
    """Fourteen chunks, in which the slots come round more than once, and the prompt changes once."""
    monkeypatch.setattr(pipeline_world, "attends_to_frames", lambda *_: False)
    made = {
        graphs: _long_rollout(on_a_gpu(), chunk, WorldMemory(camera_cache_bytes=limit, graphs=graphs))
        for graphs in (False, True)
    }
    (wanted, _), (got, world) = made[False], made[True]
    assert torch.equal(got, wanted)
    assert wanted.isfinite().all()
    assert "plain torch" not in caplog.text
    assert "cannot be recorded" not in caplog.text
    if chunk == 3:
        assert 2 <= world._branches[0].options["graphs"].recorded <= 5


@needs_a_gpu
@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_allocator_backend() != "native", reason="once")
def test_on_a_gpu_where_cuda_allocates_as_in_comfyui():
    """The same bits, of the same kernels: CUDA knows no address that it gives during a recording."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, "-k", "recorded_kernels or dropped or fails"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


@needs_a_gpu
def test_on_a_gpu_kernels_that_are_recorded_while_the_window_fills():
    """All of them behind the first chunk, where a walk has it remembered."""
    (wanted, _), (got, world) = (_long_rollout(on_a_gpu(), 1, WorldMemory(graphs=graphs)) for graphs in (False, True))
    assert (got - wanted).norm() < 0.02 * wanted.norm()
    assert world._branches[0].options["graphs"].recorded > 3
    recorded = []
    for chunks in (1, 8):
        same, world = _long_rollout(on_a_gpu(), 1, WorldMemory(graphs=True), chunks, remember=True)
        recorded.append(world._branches[0].options["graphs"].recorded)
    assert recorded == [6, 6]
    assert torch.equal(same, got[:, :, :8])


@needs_a_gpu
def test_on_a_gpu_recordings_that_a_host_has_dropped_are_made_again(caplog):
    """ComfyUI drops them where it needs their memory: for the text encoder, in the middle of a walk."""
    (wanted, _), (got, world) = (
        _long_rollout(on_a_gpu(), 3, WorldMemory(graphs=True), dropped=dropped) for dropped in ((), (6, 9))
    )
    assert torch.equal(got, wanted)
    assert world._branches[0].options["graphs"].recorded > 1
    assert "cannot be recorded" not in caplog.text


@needs_a_gpu
def test_on_a_gpu_a_recording_that_fails_costs_nothing_else(monkeypatch, caplog):
    """Where memory ends in the middle of it, say. What the forward held then is freed while it still records."""
    monkeypatch.setattr(pipeline_world, "attends_to_frames", lambda *_: False)
    (wanted, _), block = _long_rollout(on_a_gpu(), 3, WorldMemory()), Block.forward

    def without_memory(self, x, *given, **options):
        out = block(self, x, *given, **options)
        if torch.cuda.is_current_stream_capturing():
            held = torch.empty_like(out)
            raise torch.OutOfMemoryError(f"none left beside {held.nbytes}")
        return out

    monkeypatch.setattr(Block, "forward", without_memory)
    got, world = _long_rollout(on_a_gpu(), 3, WorldMemory(graphs=True))
    assert torch.equal(got, wanted)
    assert world._branches[0].options["graphs"].recorded == 0
    assert "cannot be recorded as a CUDA graph, and runs as usual: none left beside" in caplog.text


def _long_rollout(model, chunk, memory, chunks=14, *, remember=False, dropped=()):
    size, config = (8, 12), model.config
    world = World(model, size, Window(9, 3), chunk=chunk, device="cuda", memory=memory)
    random = torch.Generator("cuda").manual_seed(1)

    def draw(shape):
        return torch.randn(shape, device="cuda", generator=random)

    made = []
    for number in range(chunks):
        if number in (0, 9):
            world.prompt = draw((1, 7, config.text_dim))
        given = [draw((1, channels, chunk, *size)) for channels in (16, 20, config.control_channels)]
        made.append(world.chunk(*given, few_step_schedule(FAST_INDICES, 10.0), draw))
        if remember:
            world.remember()
        if number in dropped:
            world._branches[0].options["graphs"].clear()
    return torch.cat(made, dim=2), world
