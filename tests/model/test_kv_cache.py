"""Keys and values of a causal model wherever they lie: the same tokens, the same video, the bytes that were said."""

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv import cache as kv_cache
from lingbot_world.model.kv.cache import KeyValueCache
from lingbot_world.model.kv.place import KeyValuePlace, key_value_bytes
from lingbot_world.options import Window
from rollout_cases import (
    CHUNKS_OF_1,
    CHUNKS_OF_4,
    FEW_STEPS,
    GUIDED,
    PLACES,
    WINDOW,
    arrays,
    by_chunk,
    model_of,
    plain,
    run,
)

FP8 = KeyValuePlace(fp8=True)


@pytest.mark.parametrize("place", ["host", "host and device"])
@pytest.mark.parametrize("case", FEW_STEPS, ids=str)
def test_keys_and_values_in_host_memory_give_the_same_bits(case, place):
    assert torch.equal(by_chunk(case, place=PLACES[place]), plain(case))


@pytest.mark.parametrize(
    ("chunk", "window", "sink"),
    [(3, *each) for each in ((3, 0), (4, 0), (4, 1), (5, 0), (6, 3), (7, 3), (8, 4), (9, 6), (12, 2))]
    + [(1, *each) for each in ((1, 0), (2, 0), (2, 1), (6, 2), (7, 0))]
    + [(2, *each) for each in ((2, 0), (3, 1), (5, 0), (5, 3), (7, 2), (8, 1))]
    + [(4, *each) for each in ((4, 0), (5, 0), (6, 1), (9, 3), (11, 6), (13, 2), (18, 6))],
)
def test_attention_sees_the_same_tokens_wherever_they_are_stored(chunk, window, sink):
    """Those of the window's frames, in the same order everywhere. Chunks until the slots came round more than once,
    each with two forwards, the last of which is the clean one."""
    config, size = model_of().config, 2
    caches = [
        KeyValueCache(
            config, size, Window(window, sink), chunk=chunk, device="cpu", dtype=torch.float32, place=PLACES[place]
        )
        for place in ("device", "host", "host and device")
    ]
    for first in range(0, 2 * window + 12, chunk):
        for cache in caches:
            cache.begin()
        seen = [frame for frame in range(first + chunk) if frame < sink or frame >= first + chunk - (window - sink)]
        for clean in (False, True):
            noise = 0 if clean else 0.5
            rows = torch.arange(first, first + chunk).repeat_interleave(size)[:, None] + noise
            for block in range(config.num_layers):
                given = (rows + 1000 * block).expand(-1, config.dim), (-rows - 1000 * block).expand(-1, config.dim)
                for cache in caches:
                    cache.keep = clean
                wanted, *others = (torch.stack(cache.extend(block, None, *given)[1:]) for cache in caches)
                frames = wanted[0, ::size, 0] - 1000 * block
                assert sorted(frames.tolist()) == [frame + noise * (frame >= first) for frame in seen]
                assert torch.equal(wanted[1], -wanted[0])
                for got in others:
                    assert torch.equal(got, wanted)


@pytest.mark.parametrize("place", ["8bit", "host8bit", "host8bit and device"])
@pytest.mark.parametrize("case", FEW_STEPS, ids=str)
def test_keys_and_values_in_8_bits_cost_less_than_bf16_does(case, place):
    """bf16 is 5e-3 away from fp32 (see the goldens' README); 8 bits may be twice as far, and are a tenth of it."""
    latent = arrays(case)["latent"]
    error = (by_chunk(case, place=PLACES[place]) - latent).norm() / latent.norm()
    assert 1e-6 < error < 5e-4


@pytest.fixture(scope="module")
def guided():
    """A guided video of few steps, with keys and values for two prompts on the device."""
    return by_chunk(GUIDED, steps=5)


@pytest.mark.parametrize("place", ["host", "host and device", "8bit", "host8bit and device"])
def test_keys_and_values_for_two_prompts(guided, place):
    made = by_chunk(GUIDED, steps=5, place=PLACES[place])
    if "8bit" in place:
        assert 1e-6 < (made - guided).norm() / guided.norm() < 5e-3
        return
    assert torch.equal(made, guided)


@pytest.mark.parametrize(("chunk", "window", "sink"), [(3, 3, 0), (3, 5, 1), (1, 4, 1), (2, 5, 1)])
def test_a_guided_rollout_looks_back_no_further_than_its_window(guided, chunk, window, sink):
    """Officially there is none. Where both have looked back on everything, nothing differs; later frames do."""
    made = run(GUIDED, steps=5, chunk=chunk, window=window, sink=sink)
    whole = guided if chunk == 3 else run(GUIDED, steps=5, chunk=chunk)
    same = window // chunk * chunk
    assert torch.equal(made[:, :, :same], whole[:, :, :same])
    assert (made[:, :, same:] - whole[:, :, same:]).abs().amax((0, 1, 3, 4)).min() > 1e-3


@pytest.fixture
def in_8_bits():
    """The model with attention in 8 bits."""
    model = model_of()
    model.set_attention("8bit")
    yield model
    model.set_attention("auto")


@pytest.mark.parametrize("case", [WINDOW, CHUNKS_OF_4], ids=str)
@pytest.mark.usefixtures("in_8_bits")
def test_keys_and_values_as_attention_in_8_bits_takes_them(case):
    """It makes no difference in size whether they are made anew in every forward or kept, and none where they lie."""
    latent = arrays(case)["latent"]
    kept, anew = by_chunk(case, place=FP8), by_chunk(case)
    errors = [(made - latent).norm() / latent.norm() for made in (kept, anew)]
    assert 1e-4 < errors[0] < 1.2 * errors[1] < 2.4e-2
    assert torch.equal(by_chunk(case, place=FP8._replace(on_host=True)), kept)
    assert torch.equal(by_chunk(case, place=FP8._replace(on_host=True, device_blocks=1)), kept)


@pytest.mark.parametrize("case", [WINDOW, CHUNKS_OF_4], ids=str)
@pytest.mark.usefixtures("in_8_bits")
def test_values_may_lie_across(case, monkeypatch):
    """As the Hopper kernel takes them."""
    kept = by_chunk(case, place=FP8)
    monkeypatch.setattr(kv_cache, "reads_transposed_values", lambda device, head_dim: True)
    assert torch.equal(by_chunk(case, place=FP8), kept)


@pytest.mark.parametrize("chunk", [1, 3, 4])
@pytest.mark.parametrize("name", [*PLACES, "fp8", "fp8 across"])
def test_the_estimate_is_what_a_cache_holds(name, chunk, monkeypatch):
    monkeypatch.setattr(kv_cache, "reads_transposed_values", lambda device, head_dim: "across" in name)
    place, model = PLACES.get(name, FP8), model_of()
    cache = KeyValueCache(model.config, 18, Window(6), chunk=chunk, device="cpu", dtype=torch.bfloat16, place=place)
    storages = {id(each): each for each, _ in getattr(cache._storage, "_places", [(cache._storage, 0)])}.values()
    held = {
        name: sum(
            tensor.nbytes
            for each in storages
            for tensors in getattr(each, name, [])
            for tensor in tensors
            if isinstance(tensors, list)
        )
        for name in ("_blocks", "_buffers", "_host")
    }
    wanted = key_value_bytes(model.config, 6, 18, torch.bfloat16, place, chunk)
    assert (wanted.device, wanted.host) == (held["_blocks"] + held["_buffers"], held["_host"])
    cache.begin()
    cache.extend(0, None, *torch.zeros(2, chunk * 18, model.config.dim, dtype=torch.bfloat16))
    assert wanted.working == place.int8 * 2 * 6 * 18 * model.config.dim * 2  # bytes of bf16


@pytest.mark.parametrize(
    ("batch", "grid", "begun", "message"),
    [
        (2, (3, 6, 8), True, r"a batch of 2, 3 latent frames and 12 tokens a frame; .* one video's chunk of 3"),
        (1, (2, 6, 8), True, r"2 latent frames and 12 tokens"),
        (1, (3, 8, 8), True, r"and 16 tokens a frame; .* of 12 tokens"),
        (1, (3, 6, 8), False, r"call its method begin first"),
    ],
)
def test_a_latent_that_is_no_chunk_of_the_cache_is_refused(batch, grid, begun, message):
    """Of two videos the second one's keys would replace the first one's."""
    model = model_of()
    cache = KeyValueCache(model.config, 12, Window(6), device="cpu", dtype=torch.float32)
    if begun:
        cache.begin()
    x, context = torch.zeros(batch, model.config.in_dim, *grid), torch.zeros(1, 4, model.config.text_dim)
    with pytest.raises(InputError, match=message):
        model(x, torch.zeros(1), context, None, {"kv_cache": cache})


def test_in_fp8_keys_of_zeros_fill_the_kernels_tiles():
    config = model_of().config
    wanted = key_value_bytes(config, 18, 1560, torch.bfloat16, FP8)
    assert wanted.device == config.num_layers * 2 * 220 * 128 * config.dim


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", [WINDOW, CHUNKS_OF_1, CHUNKS_OF_4], ids=str)
@pytest.mark.parametrize("name", [name for name in PLACES if name != "device"])
def test_on_a_gpu_it_does_not_matter_where_keys_and_values_lie(name, case):
    """The copies run beside the computing; a wrong order would show in the bits."""
    given = {key: tensor.to(device="cuda") for key, tensor in arrays(case).items()}
    model, on_gpu = model_of(), LingBotWorldModel(model_of().config, device="meta", dtype=torch.float32)
    on_gpu.load_state_dict({key: tensor.to(device="cuda") for key, tensor in model.state_dict().items()}, assign=True)
    there = PLACES["8bit" if "host8bit" in name else "device"]
    if name == "8bit":
        error = by_chunk(case, given, on_gpu, PLACES[name], device="cuda") - given["latent"]
        assert error.norm() / given["latent"].norm() < 2e-3  # float32 products are tf32 here
        return
    wanted = by_chunk(case, given, on_gpu, there, device="cuda")
    for _ in range(3):
        assert torch.equal(by_chunk(case, given, on_gpu, PLACES[name], device="cuda"), wanted)
