"""The causal models' rollout against the official implementation's, wherever keys and values lie."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.errors import CameraError, InputError
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv_cache import KeyValueCache, KeyValuePlace, key_value_bytes
from lingbot_world.model.rope import rope_table
from lingbot_world.options import FAST_INDICES, V2_INDICES
from lingbot_world.pipeline import World, rollout, sample
from lingbot_world.sampling import few_step_schedule
from safetensors.torch import load_file

CASES = json.loads((Path(__file__).parent / "golden/causal/manifest.json").read_text())
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
STORAGES = {
    "host": KeyValuePlace(on_host=True),
    "host and device": KeyValuePlace(on_host=True, device_blocks=1),
    "8bit": KeyValuePlace(eight_bit=True),
    "host8bit": KeyValuePlace(eight_bit=True, on_host=True),
    "host8bit and device": KeyValuePlace(eight_bit=True, on_host=True, device_blocks=2),
    "host8bit but on the device": KeyValuePlace(eight_bit=True, on_host=True, device_blocks=3),
}


@pytest.fixture(scope="module")
def model(golden):
    weights = load_file(golden / "causal/model/diffusion_pytorch_model.safetensors")
    shapes = {name: weight.shape for name, weight in weights.items()}
    model = LingBotWorldModel(ModelConfig.from_shapes(shapes, 32, 2, causal=True), device="meta", dtype=torch.float32)
    model.load_state_dict(weights, assign=True)
    return model


def arrays(golden, case) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in np.load(golden / "causal" / case["file"]).items()}


def settings(case) -> dict:
    window = None if case["local_attn_size"] < 0 else case["local_attn_size"]
    schedule = few_step_schedule(case["timesteps_index"], case["shift"])
    return {"schedule": schedule, "window": window, "sink": case["sink_size"]}


def draws(values):
    """The official run's re-noising draws, in order."""
    left = iter(values)
    return lambda shape: next(left)[None]


def run(model, case, given, **changes):
    chunks = rollout(model, given["noise"][None], given["y"][None], given["context"][None], given["plucker"],
                     renoise=draws(given["renoise"]), **settings(case) | changes)  # fmt: skip
    return torch.cat(list(chunks), dim=2)[0]


@pytest.fixture(scope="module")
def plain(golden, model):
    """`plain(case)`: what a rollout makes of a case with nothing special; each is made once."""
    made = {}

    def make(case):
        if case["name"] not in made:
            made[case["name"]] = run(model, case, arrays(golden, case))
        return made[case["name"]]

    return make


def by_chunk(model, case, given, device="cpu", **storage):
    """The same through a World, whose keys and values may lie elsewhere."""
    noise, window = given["noise"][None], settings(case)["window"] or given["noise"].shape[1]
    world = World(model, noise.shape[-2:], window, case["sink_size"], device=device, **storage)
    world.prompt = given["context"][None]
    schedule, renoise = settings(case)["schedule"], draws(given["renoise"])
    parts = [slice(start, start + 3) for start in range(0, noise.shape[2], 3)]
    inputs = ([tensor[:, :, part] for tensor in (noise, given["y"][None], given["plucker"])] for part in parts)
    return torch.cat([world.chunk(*each, schedule, renoise) for each in inputs], dim=2)[0]


@EVERY_CASE
def test_the_schedule_is_the_official_one(case, golden):
    expected, schedule = arrays(golden, case), settings(case)["schedule"]
    assert [*schedule.timesteps, 0] == expected["timesteps"].tolist()
    assert list(schedule.sigmas) == expected["sigmas_x0"].tolist()
    assert list(schedule.renoise_sigmas) == expected["sigmas_renoise"].tolist()


@EVERY_CASE
def test_the_latents_are_the_official_ones(case, golden, plain):
    error = (plain(case) - arrays(golden, case)["latent"]).abs().max()
    assert error <= case["recommended_atol_latent_fp32"]


def test_every_forward_is_the_official_one(golden, model):
    given = arrays(golden, CASES[0])
    seen = []
    hook = model.register_forward_hook(lambda module, arguments, output: seen.append((arguments[0], output)))
    run(model, CASES[0], given)
    hook.remove()
    expected = given["x"].flatten(0, 1)[:-1]  # nobody looks back on the last chunk
    torch.testing.assert_close(torch.stack([x[0, :16] for x, _ in seen]), expected, rtol=0, atol=1e-4)
    velocity = torch.stack([output[0] for index, (_, output) in enumerate(seen) if index % 5 < 4]).unflatten(0, (-1, 4))
    torch.testing.assert_close(velocity, given["velocity"], rtol=0, atol=CASES[0]["recommended_atol_velocity_fp32"])


def test_the_last_block_of_a_clean_forward_computes_keys_and_values_alone(golden, model):
    given, computed = arrays(golden, CASES[0]), []
    first, *_, last = model.blocks
    layers = {"q": last.self_attn.q, "k": last.self_attn.k, "down": last.ffn[2], "q of others": first.self_attn.q}
    hooks = [layer.register_forward_pre_hook(lambda *_, name=name: computed.append(name))
             for name, layer in layers.items()]  # fmt: skip
    world = World(model, given["latent"].shape[-2:], 9, device="cpu")
    world.prompt = given["context"][None]
    for start in (0, 3):  # the first chunk is remembered when the second begins
        inputs = (each[:, :, start : start + 3] for each in (given["noise"][None], given["y"][None], given["plucker"]))
        world.chunk(*inputs, settings(CASES[0])["schedule"], draws(given["renoise"]))
    for hook in hooks:
        hook.remove()
    assert {name: computed.count(name) for name in layers} == {"q": 8, "k": 9, "down": 8, "q of others": 9}


@pytest.mark.parametrize("storage", ["host", "host and device"])
@EVERY_CASE
def test_keys_and_values_in_host_memory_give_the_same_bits(case, storage, golden, model, plain):
    assert torch.equal(by_chunk(model, case, arrays(golden, case), STORAGES[storage]), plain(case))


@pytest.mark.parametrize(("window", "sink"), [(3, 0), (4, 0), (4, 1), (5, 0), (6, 3), (7, 3), (8, 4), (9, 6), (12, 2)])
def test_attention_sees_the_same_tokens_in_the_same_order_wherever_they_are_stored(window, sink, model):
    """Twelve chunks, each with three forwards, the last of which is the clean one."""
    places = ({}, STORAGES["host"], STORAGES["host and device"])
    caches = [KeyValueCache(model.config, 2, window, sink, device="cpu", dtype=torch.float32, **place)
              for place in places]  # fmt: skip
    for chunk in range(12):
        for cache in caches:
            cache.begin()
        for forward in range(3):
            given = [torch.randn(2, 6, model.config.dim) for _ in model.blocks]
            for cache in caches:
                cache.keep = forward == 2
            for block, pair in enumerate(given):
                wanted, *others = (torch.stack(cache.extend(block, *pair)) for cache in caches)
                assert wanted.shape[1] == 2 * min(3 * chunk + 3, window)
                for got in others:
                    assert torch.equal(got, wanted)


@pytest.mark.parametrize("storage", [{}, *STORAGES.values()], ids=["device", *STORAGES])
def test_memory_that_runs_out_while_a_chunk_is_remembered(storage, golden, model, request):
    """The forward is repeated without the camera cache, unless it has overwritten frames that it would look back on."""
    case, clean = CASES[1], []
    given = arrays(golden, case)
    wanted = by_chunk(model, case, given, **storage)

    def fail_once(_block, arguments):
        history = arguments[-1]["kv_cache"]
        clean.append(history.keep)
        if clean.count(True) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model.blocks[1].register_forward_pre_hook(fail_once)
    request.addfinalizer(hook.remove)
    if storage:
        with pytest.raises(torch.OutOfMemoryError):
            by_chunk(model, case, given, **storage)
        assert clean.count(True) == 4
        return
    assert torch.equal(by_chunk(model, case, given), wanted)
    assert clean.count(True) == given["latent"].shape[1] // 3


@pytest.mark.parametrize("forward", [0, 1, 4], ids=["remembering", "first step", "last step"])
@pytest.mark.parametrize("storage", [{}, *STORAGES.values()], ids=["device", *STORAGES])
def test_a_caller_that_goes_on_after_an_interrupt_gets_the_same_video_or_hears_that_it_cannot(
    storage, forward, golden, model
):
    """It falls into a forward of the fourth chunk, whose window is full; the first one remembers the third chunk."""
    case = CASES[1]
    given, made = arrays(golden, case), []
    wanted = by_chunk(model, case, given, **storage)
    world = World(model, wanted.shape[-2:], 6, 3, device="cpu", **storage)
    world.prompt, schedule, renoise = given["context"][None], settings(case)["schedule"], draws(given["renoise"])

    def chunk():
        part = slice(3 * len(made), 3 * len(made) + 3)
        inputs = (given[name][None, :, part] for name in ("noise", "y"))
        made.append(world.chunk(*inputs, given["plucker"][:, :, part], schedule, renoise)[0])

    for _ in range(3):
        chunk()

    forwards = iter(range(9))

    def interrupt(*_):
        if next(forwards) == forward:
            raise KeyboardInterrupt

    hook = model.blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        chunk()
    hook.remove()
    if storage and not forward:
        with pytest.raises(InputError, match="no longer be whole"):
            chunk()
        return
    renoise = draws(given["renoise"][9:])
    for _ in range(3):
        chunk()
    assert torch.equal(torch.cat(made, 1), wanted)


@pytest.mark.parametrize("storage", ["8bit", "host8bit", "host8bit and device"])
@EVERY_CASE
def test_keys_and_values_in_8_bits_cost_less_than_bf16_does(case, storage, golden, model):
    """bf16 is 5e-3 away from fp32 (see the goldens' README); 8 bits may be twice as far, and are a tenth of it."""
    given = arrays(golden, case)
    error = (by_chunk(model, case, given, STORAGES[storage]) - given["latent"]).norm() / given["latent"].norm()
    assert 1e-6 < error < 5e-4


@pytest.fixture
def in_8_bits(model):
    """The model with attention in 8 bits."""
    model.set_attention("8bit")
    yield model
    model.set_attention("auto")


@EVERY_CASE
def test_keys_and_values_as_attention_in_8_bits_takes_them(case, golden, in_8_bits):
    """It makes no difference in size whether they are made anew in every forward or kept, and none where they lie."""
    given, kept = arrays(golden, case), by_chunk(in_8_bits, case, arrays(golden, case), fp8=True)
    anew = by_chunk(in_8_bits, case, given)
    size, errors = given["latent"].norm(), [(made - given["latent"]).norm() for made in (kept, anew)]
    assert 1e-4 * size < errors[0] < 1.1 * errors[1] < 2e-2 * size
    assert torch.equal(by_chunk(in_8_bits, case, given, fp8=True, on_host=True), kept)


@pytest.mark.parametrize("fp8", [False, True], ids=["exact", "fp8"])
def test_a_chunk_that_was_made_before_is_remembered_by_one_forward(golden, model, request, fp8):
    case = CASES[1]
    given = arrays(golden, case)
    model = request.getfixturevalue("in_8_bits") if fp8 else model
    whole, schedule = by_chunk(model, case, given, fp8=fp8)[None], settings(case)["schedule"]
    world = World(model, whole.shape[-2:], 6, 3, device="cpu", fp8=fp8)
    world.prompt = given["context"][None]
    for start in range(0, 15, 3):
        part = slice(start, start + 3)
        world.replay(whole[:, :, part], given["y"][None][:, :, part], given["plucker"][:, :, part])
    last = [tensor[:, :, 15:] for tensor in (given["noise"][None], given["y"][None], given["plucker"])]
    assert torch.equal(world.chunk(*last, schedule, draws(given["renoise"][15:])), whole[:, :, 15:])


def test_chunks_after_those_that_were_made_before_have_a_camera_cache(golden, model):
    """Each replayed chunk has a camera of its own and one forward, from which a cache would gain nothing."""
    case, projected = CASES[1], []
    given = arrays(golden, case)
    world = World(model, given["latent"].shape[-2:], 6, 3, device="cpu")
    world.prompt = given["context"][None]
    hook = model.blocks[0].cam_scale_layer.register_forward_pre_hook(lambda *_: projected.append(1))
    for start in range(0, 15, 3):
        part = slice(start, start + 3)
        world.replay(given["latent"][None, :, part], given["y"][None][:, :, part], given["plucker"][:, :, part])
    assert len(projected) == 5
    last = [tensor[:, :, 15:] for tensor in (given["noise"][None], given["y"][None], given["plucker"])]
    world.chunk(*last, settings(case)["schedule"], draws(given["renoise"][15:]))
    hook.remove()
    assert len(projected) == 6


@pytest.mark.parametrize(("cameras", "projections"), [("equal", 1), ("written over", 3), ("different", 3)])
def test_a_camera_serves_the_next_chunk_if_it_is_the_same(golden, model, cameras, projections):
    case, given, made, projected = CASES[0], arrays(golden, CASES[0]), {}, []
    plucker = torch.cat([given["plucker"][:, :, :3]] * 3, 2) if cameras == "equal" else given["plucker"]
    hook = model.blocks[0].cam_scale_layer.register_forward_pre_hook(lambda *_: projected.append(1))
    for cached in (True, False):
        world = World(model, given["latent"].shape[-2:], 9, device="cpu", camera_cache_bytes=None if cached else 0)
        world.prompt, made[cached], held = given["context"][None], [], torch.empty_like(plucker[:, :, :3])
        renoise = draws(given["renoise"])
        for start in range(0, 9, 3):
            noise, y, camera = (each[:, :, start : start + 3]
                                for each in (given["noise"][None], given["y"][None], plucker))  # fmt: skip
            camera = held.copy_(camera) if cameras == "written over" else camera.clone()
            made[cached].append(world.chunk(noise, y, camera, settings(case)["schedule"], renoise))
        assert len(projected) == (projections if cached else projections + 14)
    hook.remove()
    assert all(map(torch.equal, made[True], made[False]))


def test_a_new_prompt_changes_what_comes_and_not_what_was(golden, model):
    case = CASES[0]
    given = arrays(golden, case)
    expected, schedule, renoise = given["latent"], settings(case)["schedule"], draws(given["renoise"])
    world = World(model, expected.shape[-2:], 9, device="cpu")
    world.prompt, made = given["context"][None], []
    for start in range(0, 9, 3):
        if start == 6:
            world.prompt = given["context"][None] + 1
        inputs = (each[:, :, start : start + 3] for each in (given["noise"][None], given["y"][None], given["plucker"]))
        made.append(world.chunk(*inputs, schedule, renoise)[0])
    torch.testing.assert_close(torch.cat(made[:2], 1), expected[:, :6], rtol=0, atol=1e-4)
    assert (made[2] - expected[:, 6:]).abs().max() > 1e-2


def test_a_cache_that_runs_out_of_memory_leaves_the_same_bits(golden, model, plain, monkeypatch):
    from lingbot_world.model.cache import CameraCache

    case = CASES[1]
    given = arrays(golden, case)
    want, calls = plain(case), []

    def put(cache, block, pair):
        calls.append(block)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CameraCache, "put", put)
    assert torch.equal(by_chunk(model, case, given, **STORAGES["host"]), want)
    assert calls == [0, 1]


def test_positions_go_on_beyond_the_official_table():
    """The official code's table ends at frame 1,024; here a chunk's positions are a part of a table of any length."""
    device = torch.device("cpu")
    whole = rope_table((1503, 2, 2), 32, device)
    for part, table in zip(rope_table((3, 2, 2), 32, device, first_frame=1500), whole, strict=True):
        assert torch.equal(part, table[1500 * 4 :])


def test_progress_counts_the_forwards_of_each_chunk(golden, model):
    given, seen = arrays(golden, CASES[0]), []
    run(model, CASES[0], given, callback=lambda chunk, forward: seen.append((chunk, forward)))
    assert seen == [(chunk, forward) for chunk in range(3) for forward in range(5 if chunk else 4)]


def test_an_interrupt_ends_the_rollout_within_a_forward(golden, model):
    given, seen = arrays(golden, CASES[0]), []

    def interrupt(chunk, forward):
        seen.append((chunk, forward))
        if (chunk, forward) == (1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, CASES[0], given, callback=interrupt)
    assert seen[-1] == (1, 2)


def test_the_arguments_are_left_as_they_are(golden, model):
    given = arrays(golden, CASES[0])
    kept = {name: tensor.clone() for name, tensor in given.items()}
    run(model, CASES[0], given)
    assert all(torch.equal(given[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": 5, "sink": 3}, "`window` 5 and `sink` 3: .* at least 6"),
        ({"noise": slice(0, 8)}, "8 latent frames, expected a multiple of 3"),
        ({"noise": slice(0, 0)}, "0 latent frames, expected a multiple of 3"),
        ({"y": slice(0, 15)}, r"`y` are \[15, .*, of the noise \[18, "),
        ({"plucker": slice(0, 15)}, r"`camera` are \[15, .*, of the noise \[18, "),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_the_first_chunk(change, said, golden, model):
    given, forwards = arrays(golden, CASES[1]), []
    for name in given.keys() & change.keys():
        given[name] = given[name][..., change.pop(name), :, :]
    with pytest.raises(InputError, match=said):
        run(model, CASES[1], given, **change, callback=lambda *_: forwards.append(1))
    assert not forwards


def test_a_world_refuses_a_window_without_room_for_a_chunk(model):
    with pytest.raises(InputError, match="window is 5 latent frames, expected at least sink"):
        World(model, (4, 6), 5, 3, device="cpu")


def test_a_chunk_whose_replay_was_cut_short_may_be_replayed_again(golden, model):
    case = CASES[1]
    given = arrays(golden, case)
    latent, y, camera = given["latent"][None], given["y"][None], given["plucker"]
    made = []
    for cut in (False, True):
        world = World(model, latent.shape[-2:], 6, 3, device="cpu")
        world.prompt = given["context"][None]
        for start in range(0, 15, 3):
            part = slice(start, start + 3)
            if cut and start == 6:
                with pytest.raises(CameraError):
                    world.replay(latent[:, :, part], y[:, :, part], camera[..., :2])
            world.replay(latent[:, :, part], y[:, :, part], camera[:, :, part])
        last = [tensor[:, :, 15:] for tensor in (given["noise"][None], y, camera)]
        made.append(world.chunk(*last, settings(case)["schedule"], draws(given["renoise"][15:])))
    assert torch.equal(*made)


def test_a_video_shorter_than_the_window_holds_no_more_than_itself(golden, model, monkeypatch):
    """A release's sink may be as long as the whole video: less of it stays then."""
    given, windows = arrays(golden, CASES[0]), []
    begin = KeyValueCache.begin
    monkeypatch.setattr(KeyValueCache, "begin", lambda cache, **kw: (windows.append((cache.window, cache.sink)),
                                                                     begin(cache, **kw)))  # fmt: skip
    want = run(model, CASES[0], given)
    for window in (None, 18):
        assert torch.equal(run(model, CASES[0], given, window=window, sink=9), want)
    assert {*windows} == {(9, 6), (9, 0)}


def test_models_of_the_other_kind_are_refused(golden, model):
    given = arrays(golden, CASES[0])
    base = LingBotWorldModel(replace(model.config, causal=False), device="meta", dtype=torch.float32)
    with pytest.raises(InputError, match="an expert of the base model"):
        run(base, CASES[0], given)
    noise, y, context = (given[name][None] for name in ("noise", "y", "context"))
    with pytest.raises(InputError, match="a causal model"):
        sample(model, model, noise, y, context, context, steps=2, shift=5.0)


@pytest.mark.parametrize("indices", [(), (5, 5), (500, 250), (-1, 3), (0, 1000)])
def test_indices_out_of_order_are_refused(indices):
    with pytest.raises(InputError, match="rising numbers from 0 to 999"):
        few_step_schedule(indices, 5.0)


def test_the_official_indices_are_offered():
    assert few_step_schedule(FAST_INDICES, 5.0).timesteps == (999, 957, 899, 702)
    assert few_step_schedule(V2_INDICES, 5.0).timesteps == (999, 937, 833, 624)


@pytest.mark.parametrize("storage", [{}, *STORAGES.values(), {"fp8": True}], ids=["device", *STORAGES, "fp8"])
def test_the_estimate_is_what_a_cache_holds(storage, model):
    cache = KeyValueCache(model.config, 18, 6, device="cpu", dtype=torch.bfloat16, **storage)
    storages = {id(each): each for each, _ in getattr(cache._storage, "_places", [(cache._storage, 0)])}.values()
    held = {name: sum(tensor.nbytes for each in storages for tensors in getattr(each, name, []) for tensor in tensors
                      if isinstance(tensors, list)) for name in ("_blocks", "_buffers", "_host")}  # fmt: skip
    wanted = key_value_bytes(model.config, 6, 18, torch.bfloat16, KeyValuePlace(**storage))
    assert (wanted.device, wanted.host) == (held["_blocks"] + held["_buffers"], held["_host"])
    cache.begin()
    cache.extend(0, *torch.zeros(2, 3 * 18, model.config.dim, dtype=torch.bfloat16))
    assert wanted.working == ("eight_bit" in storage) * 2 * 6 * 18 * model.config.dim * 2  # bytes of bf16


def test_in_fp8_keys_of_zeros_fill_the_kernels_tiles(model):
    config = model.config
    wanted = key_value_bytes(config, 18, 1560, torch.bfloat16, KeyValuePlace(fp8=True))
    assert wanted.device == config.num_layers * 2 * 220 * 128 * config.dim


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", STORAGES)
def test_on_a_gpu_it_does_not_matter_where_keys_and_values_lie(storage, golden, model):
    """The copies run beside the computing; a wrong order would show in the bits."""
    case = CASES[1]
    given = {name: tensor.to(device="cuda") for name, tensor in arrays(golden, case).items()}
    on_gpu = LingBotWorldModel(model.config, device="meta", dtype=torch.float32)
    on_gpu.load_state_dict({name: tensor.to(device="cuda") for name, tensor in model.state_dict().items()}, assign=True)
    there = {"eight_bit": True} if "host8bit" in storage else {}
    if storage == "8bit":
        error = by_chunk(on_gpu, case, given, place=STORAGES[storage], device="cuda") - given["latent"]
        assert error.norm() / given["latent"].norm() < 2e-3  # float32 products are tf32 here
        return
    wanted = by_chunk(on_gpu, case, given, device="cuda", **there)
    for _ in range(3):
        assert torch.equal(by_chunk(on_gpu, case, given, place=STORAGES[storage], device="cuda"), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("limit", [None, 100_000, 0])
def test_on_a_gpu_recorded_kernels_give_the_same_bits(limit, model):
    """Fourteen chunks: three fill the window, the slots come round every other chunk, and the prompt changes once."""
    on_gpu = LingBotWorldModel(model.config, device="meta", dtype=torch.bfloat16)
    there = {name: tensor.to(device="cuda", dtype=torch.bfloat16) for name, tensor in model.state_dict().items()}
    on_gpu.load_state_dict(there, assign=True)
    made = {graphs: _long_rollout(on_gpu, camera_cache_bytes=limit, graphs=graphs) for graphs in (False, True)}
    (wanted, _), (got, world) = made[False], made[True]
    assert torch.equal(got, wanted)
    assert wanted.isfinite().all()
    assert 4 <= world._options["block_graphs"].recorded <= 8


def _long_rollout(model, **options):
    size, config = (8, 12), model.config
    world = World(model, size, 9, 3, device="cuda", **options)
    random = torch.Generator("cuda").manual_seed(1)

    def draw(shape):
        return torch.randn(shape, device="cuda", generator=random)

    made = []
    for chunk in range(14):
        if chunk in (0, 9):
            world.prompt = draw((1, 7, config.text_dim))
        given = [draw((1, channels, 3, *size)) for channels in (16, 20, config.control_channels)]
        made.append(world.chunk(*given, few_step_schedule(FAST_INDICES, 10.0), draw))
    return torch.cat(made, dim=2), world
