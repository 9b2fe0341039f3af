"""The engine's rollouts against the official implementation's: chunks of any size, guided ones, and with keys."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv.cache import KeyValueCache
from lingbot_world.options import FAST_INDICES, V2_INDICES
from lingbot_world.pipeline import sample
from lingbot_world.sampling import GuidedSchedule, few_step_schedule
from rollout_cases import ACTIONS, CASES, FEW_STEPS, GLOBAL, GUIDED, WINDOW, arrays, model_of, plain, run, schedule_of


@pytest.mark.parametrize("case", FEW_STEPS, ids=str)
def test_the_schedule_is_the_official_one(case):
    expected, schedule = arrays(case), schedule_of(case)
    assert [*schedule.timesteps, 0] == expected["timesteps"].tolist()
    assert list(schedule.sigmas) == expected["sigmas_x0"].tolist()
    if "sigmas_renoise" in expected:
        assert list(schedule.renoise_sigmas) == expected["sigmas_renoise"].tolist()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_latents_are_the_official_ones(case):
    assert (plain(case) - arrays(case)["latent"]).abs().max() <= case.atol


def test_every_forward_is_the_official_one():
    """Progress counts them, and the arguments are left as they are."""
    given, model, seen, told = arrays(GLOBAL), model_of(), [], []
    kept = {name: tensor.clone() for name, tensor in given.items()}
    hook = model.register_forward_hook(lambda module, arguments, output: seen.append((arguments[0], output)))
    run(GLOBAL, given, callback=lambda chunk, forward: told.append((chunk, forward)))
    hook.remove()
    expected = given["x"].flatten(0, 1)[:-1]  # nobody looks back on the last chunk
    torch.testing.assert_close(torch.stack([x[0, :16] for x, _ in seen]), expected, rtol=0, atol=1e-4)
    velocity = torch.stack([output[0] for index, (_, output) in enumerate(seen) if index % 5 < 4]).unflatten(0, (-1, 4))
    torch.testing.assert_close(velocity, given["velocity"], rtol=0, atol=5e-5)
    assert told == [(chunk, forward) for chunk in range(3) for forward in range(5 if chunk else 4)]
    assert all(torch.equal(given[name], kept[name]) for name in kept)


def test_both_forwards_of_a_guided_step_are_at_the_official_timesteps():
    """The first chunk's: each step's with the prompt and with the negative prompt, then what remembers it."""
    seen, given = [], arrays(GUIDED)

    def end_after_it_was_remembered(chunk, _forward):
        if chunk == 1:
            raise KeyboardInterrupt

    hook = model_of().register_forward_pre_hook(lambda _, arguments: seen.append((arguments[1].item(), arguments[2])))
    with pytest.raises(KeyboardInterrupt):
        run(GUIDED, given, callback=end_after_it_was_remembered)
    hook.remove()
    assert [timestep for timestep, _ in seen] == given["timesteps"].tolist()
    for index, (_, context) in enumerate(seen):
        assert torch.equal(context, given["context_null" if index % 2 else "context"])


def test_a_guidance_scale_of_one_leaves_the_negative_prompt_out():
    seen, model = [], model_of()
    hook = model.register_forward_pre_hook(lambda *_: seen.append(1))
    one = run(GUIDED, steps=3, guide_scale=1.0)
    hook.remove()
    assert len(seen) == 7
    almost = run(GUIDED, steps=3, guide_scale=1.000001)
    torch.testing.assert_close(one, almost, rtol=0, atol=1e-4)


def test_the_solver_of_a_guided_rollout_can_be_chosen():
    """Both solvers come near the same video; steps in a wrong order would not."""
    gap = (run(GUIDED, solver="dpmpp", steps=20) - plain(GUIDED)).norm() / plain(GUIDED).norm()
    assert 1e-3 < gap < 0.1


def test_progress_counts_the_forwards_of_each_guided_chunk():
    seen = []
    run(GUIDED, steps=2, callback=lambda chunk, forward: seen.append((chunk, forward)))
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": 5, "sink": 3}, "`window` 5 and `sink` 3: .* at least 6"),
        ({"window": 6, "sink": 3, "chunk": 4}, "18 latent frames, expected a multiple of 4"),
        ({"window": 4, "sink": 3, "chunk": 2}, "`window` 4 and `sink` 3: .* at least 5"),
        ({"chunk": 0}, "expected a multiple of 0"),
        ({"noise": slice(0, 8)}, "8 latent frames, expected a multiple of 3"),
        ({"noise": slice(0, 0)}, "0 latent frames, expected a multiple of 3"),
        ({"y": slice(0, 15)}, r"`y` are \[15, .*, of the noise \[18, "),
        ({"plucker": slice(0, 15)}, r"`camera` are \[15, .*, of the noise \[18, "),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_the_first_chunk(change, said):
    given, forwards, change = arrays(WINDOW), [], dict(change)
    for name in given.keys() & change.keys():
        given[name] = given[name][..., change.pop(name), :, :]
    with pytest.raises(InputError, match=said):
        run(WINDOW, given, **change, callback=lambda *_: forwards.append(1))
    assert not forwards


def test_a_video_shorter_than_the_window_holds_no_more_than_itself(monkeypatch):
    """A release's sink may be as long as the whole video: less of it stays then."""
    windows, begin = [], KeyValueCache.begin
    monkeypatch.setattr(
        KeyValueCache, "begin", lambda cache, **kw: (windows.append((cache.window, cache.sink)), begin(cache, **kw))
    )
    for window in (None, 18):
        assert torch.equal(run(GLOBAL, window=window, sink=9), plain(GLOBAL))
    assert {*windows} == {(9, 6)}


def test_models_of_the_other_kind_are_refused():
    given, model = arrays(GLOBAL), model_of()
    base = LingBotWorldModel(replace(model.config, causal=False), device="meta", dtype=torch.float32)
    with pytest.raises(InputError, match="an expert of the base model"):
        run(GLOBAL, given, base)
    noise, y, context = (given[name] for name in ("noise", "y", "context"))
    with pytest.raises(InputError, match="a causal model"):
        sample(model, model, noise, y, context, context, steps=2, shift=5.0)


def test_a_camera_without_the_keys_that_an_action_model_takes_is_refused():
    from lingbot_world.errors import CameraError

    given = arrays(ACTIONS)
    with pytest.raises(CameraError, match="384"):
        run(ACTIONS, given | {"plucker": given["plucker"][:, :384]})


@pytest.mark.parametrize("indices", [(), (5, 5), (500, 250), (-1, 3), (0, 1000)])
def test_indices_out_of_order_are_refused(indices):
    with pytest.raises(InputError, match="rising numbers from 0 to 999"):
        few_step_schedule(indices, 5.0)


def test_the_official_indices_are_offered():
    assert few_step_schedule(FAST_INDICES, 5.0).timesteps == (999, 957, 899, 702)
    assert few_step_schedule(V2_INDICES, 5.0).timesteps == (999, 937, 833, 624)


@pytest.mark.parametrize(("changes", "said"), [({"steps": 0}, "steps"), ({"shift": 0.0}, "shift")])
def test_guided_steps_that_are_not_possible_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        GuidedSchedule(**changes).timesteps  # noqa: B018
