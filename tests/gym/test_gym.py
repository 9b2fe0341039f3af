# ruff: noqa: E402, without gymnasium nothing below can be imported
"""The environment of gymnasium: spaces, equal frames for equal seeds and actions, options of a reset, bad input."""

import re
import time
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", exc_type=ImportError)

from gymnasium.utils.env_checker import check_env
from lingbot_world.errors import InputError, LingBotError
from lingbot_world.gym import ID
from lingbot_world.live import Session
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")


def made(package, name=ID, **changes):
    options = {
        "ckpt": package / "lingbot_world_fast",
        "image": package / "example/image.png",
        "prompt": "a castle",
        **{"width": 48, "height": 32, "schedule": "0,500", "device": "cpu", "window": 6, "sink": 2, "chunk": 1},
    }
    return gymnasium.make(name, **{**options, **changes})


@pytest.mark.parametrize("actions", ["discrete", "keys", "box"])
def test_the_environment_passes_gymnasiums_checker(toy_package, actions):
    env = made(toy_package, actions=actions, render_mode="rgb_array", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(not within the recommended|spec|render).*")
        check_env(env.unwrapped)
    env.close()


def walk(env, actions, seed):
    return [env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)]


def test_equal_seeds_and_actions_give_equal_frames(toy_package):
    first, second = made(toy_package), made(toy_package)
    assert first.unwrapped._engine is second.unwrapped._engine, "one model"
    a, b, c = walk(first, [1, 0, 6], 3), walk(second, [1, 0, 6], 3), walk(second, [1, 0, 6], 4)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(a, walk(first, [1, 1, 6], 3))
    first.close()
    second.close()


def test_what_an_action_does_is_in_info(toy_package):
    env = made(
        toy_package,
        name=f"lingbot_world.gym:{ID}",
        actions="box",
        session={"speed": 1.0, "events": {"rain": "It rains."}},
    )
    seen, info = env.reset(seed=0)
    assert seen.shape == (32, 48, 3)
    assert np.array_equal(info["pose"], np.eye(4))
    assert (info["chunk"], info["latent_frame"], info["seconds"]) == (0, 0, 1 / 16)
    _, reward, ended, cut, info = env.step(np.array([1, 0, 0], np.float32))
    assert (reward, ended, cut) == (0.0, False, False)
    assert (info["chunk"], info["latent_frame"], info["seconds"]) == (1, 1, 5 / 16)
    assert info["action"].tolist() == [1, 0, 0]
    assert info["pose"][2, 3] > 0
    env.unwrapped.session.event("rain")
    _, _, _, _, turned = env.step(np.array([0, 1, 0], np.float32))
    assert turned["pose"][0, 2] > 0
    assert env.unwrapped.session.walk.store.last_prompt[0] == "a castle. It rains."
    env.close()


def test_a_reset_takes_an_image_a_prompt_and_a_state(toy_package, tmp_path):
    env = made(toy_package, reward=lambda seen, info: (float(seen.mean()), info["chunk"] == 2))
    plain, _ = env.reset(seed=1)
    env.step(1)
    state = env.unwrapped.session.state()
    state.save(tmp_path / "a.state")
    *_, ended, _, _ = env.step(1)
    assert ended
    other, _ = env.reset(seed=1, options={"image": Image.new("RGB", (60, 40), "red"), "prompt": "a sea"})
    assert other.mean() != plain.mean()
    assert env.unwrapped.session.walk.store.last_prompt[0] == "a sea"
    seen = [env.reset(seed=1, options={"state": given})[0] for given in (state, tmp_path / "a.state")]
    assert np.array_equal(*seen)
    env.close()


BAD_RESETS = (
    ({"image": "x.png", "state": "x.state"}, "an image and a state"),
    ({"picture": "x.png"}, "`options` has 'picture'; expected image, prompt, state"),
    ({5: 1}, "`options` has 5"),
    ("castle", "`options` is 'castle'; expected a dict with image, prompt, state"),
    ({"image": 5}, "`image` 5: expected a path, a Pillow image or an array"),
    ({"prompt": 5}, "`prompt` 5: expected text"),
    ({"prompt": "\ud800"}, "`prompt` is not UTF-8 text"),
    ({"state": 5}, "`state` 5: expected text or a path or WorldState"),
    ({"state": "none.state"}, "the state none.state does not exist"),
)
BAD_REWARDS = "much", None, (1, 2, 3), (0.0, 1.0, "x")


def test_a_bad_reset_or_reward_is_refused_in_a_sentence_and_the_walk_goes_on(toy_package):
    rewards = iter((*BAD_REWARDS, np.float32(2), (3, np.bool_(True))))
    env = made(toy_package, reward=lambda _seen, _info: next(rewards)).unwrapped
    env.reset(seed=0)
    for options, told in BAD_RESETS:
        with pytest.raises(InputError, match=re.escape(told)):
            env.reset(seed=0, options=options)
    for reward in BAD_REWARDS:
        with pytest.raises(InputError, match=re.escape(f"`reward` returned {reward!r}; expected a number")):
            env.step(1)
    assert env.step(1)[1:3] == (2.0, False)
    assert env.step(1)[1:3] == (3.0, True)
    env.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"actions": "mouse"}, "`actions` is 'mouse'; expected discrete, keys or box"),
        ({"actions": None}, "`actions` is None; expected discrete, keys or box"),
        ({"render_mode": "ansi"}, "`render_mode` is 'ansi'"),
        ({"reward": 5}, "`reward` is 5; expected a function of (observation, info)"),
        ({"session": [1]}, "`session` is [1]; expected a dict with fps"),
        ({"session": {"spede": 1}}, "`session` has 'spede'; expected fps"),
        ({"session": {"speed": "fast"}}, "`speed` 'fast': expected a number"),
        ({"session": {"speed": 0}}, "`speed` 0: expected more than 0"),
        ({"session": {"controls": 5}}, "`controls` 5: expected Controls"),
        ({"session": {"events": [{"text": "a", "key": 1}, {"text": "b", "key": 1}]}}, "two events have the key '1'"),
        ({"imgae": "x.png"}, "no option 'imgae'; expected fields of GenerateOptions"),
        ({"ckpt": "high_noise_model_bnb_nf4"}, "missing the high-noise expert"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(toy_package, changes, told):
    changes = {**changes, "ckpt": toy_package / changes["ckpt"]} if "ckpt" in changes else changes
    with pytest.raises(LingBotError, match=re.escape(told)):
        made(toy_package, **changes).reset(seed=0)


@pytest.mark.parametrize(
    ("actions", "bad", "good"),
    [
        ("discrete", (9, -1, 1.0, "w", None, [1]), (1, np.int64(1))),
        ("keys", (1, np.zeros(8, np.int8), np.full(9, 2), "wasd", None), (np.zeros(9, np.int8), [0] * 9)),
        ("box", (1, [2, 0, 0], np.zeros(4), np.full(3, np.nan), "wasd"), (np.zeros(3), [0, 0, 1])),
    ],
)
def test_bad_actions_are_refused_in_a_sentence_and_the_walk_goes_on(toy_package, actions, bad, good):
    env = made(toy_package, actions=actions).unwrapped
    with pytest.raises(InputError, match="call `reset` first"):
        env.step(good[0])
    env.reset(seed=0)
    for action in bad:
        with pytest.raises(InputError, match="the action is .*; expected one of"):
            env.step(action)
    assert [env.step(action)[4]["chunk"] for action in good] == [1, 2]
    env.close()


def test_a_step_costs_the_sessions_chunk_and_little_more(toy_package, monkeypatch):
    env, inside, shares = made(toy_package), [0.0], []
    make_frames = Session.__next__

    def timed(session):
        began = time.thread_time()
        try:
            return make_frames(session)
        finally:
            inside[0] += time.thread_time() - began

    monkeypatch.setattr(Session, "__next__", timed)
    env.reset(seed=0)
    for _ in range(9):
        began, inside[0] = time.thread_time(), 0.0
        env.step(1)
        shares.append(inside[0] / (time.thread_time() - began))
    print(f"bare session / gymnasium: {np.median(shares):.4f} of the CPU time")
    assert np.median(shares) > 0.98
    env.close()


def test_a_vector_of_environments_has_one_model(toy_package):
    envs = gymnasium.vector.SyncVectorEnv([lambda: made(toy_package)] * 2)
    seen, _ = envs.reset(seed=[5, 5])
    assert np.array_equal(seen[0], seen[1])
    seen, *_ = envs.step(np.array([1, 3]))
    assert not np.array_equal(seen[0], seen[1])
    envs.close()
