"""What the model keeps between steps: the camera's scales and shifts, the prompt's keys and values."""

import pytest
import torch
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.memory import camera_cache_bytes
from model_cases import SMALL, random_inputs, random_state, with_state

GRID = (3, 6, 8)


@pytest.fixture(scope="module")
def model():
    return with_state(SMALL, random_state(SMALL))


def test_a_cache_changes_nothing_and_follows_the_camera(model):
    inputs = random_inputs(SMALL, 2, GRID, text=SMALL.text_len)
    other = inputs | {"camera": inputs["camera"] + 1}
    cache = CameraCache()
    for given in (inputs, inputs, other, other, inputs):
        assert torch.equal(model(**given, options={"camera_cache": cache}), model(**given))
    assert all(cache.get(block) for block in range(SMALL.num_layers))
    held = cache.nbytes + inputs["camera"].nbytes
    assert held == camera_cache_bytes(SMALL, *GRID, dtype=torch.float32)


def test_cameras_that_take_turns_make_the_cache_give_up(model):
    inputs = random_inputs(SMALL, 1, GRID)
    other = inputs | {"camera": inputs["camera"] + 1}
    cache = CameraCache()
    for given in (inputs, other, inputs, other):
        assert torch.equal(model(**given, options={"camera_cache": cache}), model(**given))
    assert (cache.given_up, cache.nbytes, cache.tokens) == (True, 0, None)


def test_a_cache_that_was_read_may_be_filled_again_and_again(model):
    inputs = random_inputs(SMALL, 1, GRID, text=SMALL.text_len)
    cache = CameraCache()
    for _ in range(4):
        for _ in range(2):
            model(**inputs, options={"camera_cache": cache})
        assert cache.clear() == 2 * (3 * 3 * 4 + SMALL.text_len) * SMALL.dim * 4 * SMALL.num_layers
    assert not cache.given_up


def test_a_cache_emptied_in_the_middle_of_a_step_changes_nothing(model):
    inputs = random_inputs(SMALL, 1, GRID)
    cache = CameraCache()
    for _ in range(2):
        want = model(**inputs, options={"camera_cache": cache})
    hook = model.blocks[1].register_forward_pre_hook(lambda *_: cache.clear() and None)
    assert torch.equal(model(**inputs, options={"camera_cache": cache}), want)
    hook.remove()
    assert cache.nbytes == 0


def test_a_camera_changed_in_place_empties_the_cache(model):
    inputs = random_inputs(SMALL, 1, GRID)
    cache = CameraCache()
    model(**inputs, options={"camera_cache": cache})
    inputs["camera"].mul_(0.5)
    assert torch.equal(model(**inputs, options={"camera_cache": cache}), model(**inputs))


def test_the_prompt_is_projected_once_and_followed(model):
    inputs = random_inputs(SMALL, 2, GRID)
    other, moved = inputs | {"context": inputs["context"] + 1}, inputs | {"camera": inputs["camera"] + 1}
    cache, calls = CameraCache(), []
    hooks = [block.cross_attn.v.register_forward_pre_hook(lambda *_: calls.append(1)) for block in model.blocks]
    counts = []
    for given in (inputs, inputs, moved, moved, other, other):
        calls.clear()
        got = model(**given, options={"camera_cache": cache})
        counts.append(len(calls))
        assert torch.equal(got, model(**given))
    for hook in hooks:
        hook.remove()
    assert counts == [2 * SMALL.num_layers, 0, 0, 0, 2 * SMALL.num_layers, 0]


def test_prompts_that_take_turns_leave_the_camera_its_cache(model):
    inputs = random_inputs(SMALL, 1, GRID)
    cache = CameraCache()
    for step in range(4):
        given = inputs | {"context": inputs["context"] + step % 2}
        assert torch.equal(model(**given, options={"camera_cache": cache}), model(**given))
    assert (cache.given_up, cache.prompt.given_up, cache.prompt.nbytes) == (False, True, 0)
    assert cache.nbytes > 0


def test_a_block_that_is_given_another_prompt_does_not_use_the_cached_one(model):
    inputs, cache = random_inputs(SMALL, 1, GRID), CameraCache()
    swap = lambda block, given: (*given[:2], given[2] * 2, *given[3:])  # noqa: E731
    hook = model.blocks[1].register_forward_pre_hook(swap)
    for _ in range(2):
        got = model(**inputs, options={"camera_cache": cache})
        assert torch.equal(got, model(**inputs))
    hook.remove()
    assert not torch.equal(got, model(**inputs))


def test_a_full_cache_serves_without_the_camera_layers(model):
    inputs = random_inputs(SMALL, 1, GRID)
    cache = CameraCache()
    want = model(**inputs, options={"camera_cache": cache})
    calls = []
    hook = model.patch_embedding_wancamctrl.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(model(**inputs, options={"camera_cache": cache}), want)
    assert not calls
    model(**inputs)
    assert calls
    hook.remove()


def test_a_cache_stops_at_its_limit(model):
    inputs = random_inputs(SMALL, 1, GRID)
    block = 2 * 3 * 3 * 4 * SMALL.dim * 4
    cache = CameraCache(limit_bytes=block)
    for _ in range(2):
        assert torch.equal(model(**inputs, options={"camera_cache": cache}), model(**inputs))
    assert cache.nbytes == block
    assert cache.get(0) is not None
    assert cache.get(1) is None


def test_a_steady_cache_stays_where_it_is_while_camera_and_prompt_change(model):
    inputs = random_inputs(SMALL, 1, GRID)
    other = inputs | {"camera": inputs["camera"] + 1, "context": inputs["context"] + 1}
    cache, places = CameraCache(steady=True), set()
    for given in (inputs, inputs, other, other, inputs):
        assert torch.equal(model(**given, options={"camera_cache": cache}), model(**given))
        places.add((cache.addresses, cache.prompt.addresses))
    assert len(places) == 1
    assert [*map(len, cache.addresses)] == [*map(len, cache.prompt.addresses)] == [2 * SMALL.num_layers, 0]
    cache.give_up()
    assert (cache.addresses, cache._spare, cache.prompt._spare) == (((), ()), {}, {})


def test_a_failed_step_leaves_no_half_made_block_in_the_cache(model):
    inputs = random_inputs(SMALL, 1, GRID)
    cache = CameraCache()
    hook = model.blocks[1].cam_shift_layer.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**inputs, options={"camera_cache": cache})
    hook.remove()
    assert torch.equal(model(**inputs, options={"camera_cache": cache}), model(**inputs))
