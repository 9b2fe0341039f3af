"""The environment of gymnasium: spaces, equal frames for equal seeds and actions, options of a reset, bad input."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from lingbot_world.errors import InputError
from lingbot_world.gym import ID
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
    assert info["pose"][2, 3] > 0
    env.unwrapped.session.event("rain")
    _, _, _, _, turned = env.step(np.array([0, 1, 0], np.float32))
    assert turned["pose"][0, 2] > 0
    assert env.unwrapped.session.walk.kept.last_prompt[0] == "a castle. It rains."
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
    assert env.unwrapped.session.walk.kept.last_prompt[0] == "a sea"
    seen = [env.reset(seed=1, options={"state": given})[0] for given in (state, tmp_path / "a.state")]
    assert np.array_equal(*seen)
    with pytest.raises(InputError, match="an image and a state"):
        env.reset(options={"state": state, "image": "x.png"})
    with pytest.raises(InputError, match="'picture'"):
        env.reset(options={"picture": "x.png"})
    env.close()


def test_bad_actions_and_spaces_are_refused_in_a_sentence(toy_package):
    with pytest.raises(InputError, match="`actions` is 'mouse'; expected discrete, keys or box"):
        made(toy_package, actions="mouse")
    env = made(toy_package).unwrapped
    with pytest.raises(InputError, match="call `reset` first"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InputError, match="the action is 9; expected one of Discrete"):
        env.step(9)
    assert env.step(0)[4]["chunk"] == 1, "the walk goes on"
    env.close()


def test_a_vector_of_environments_has_one_model(toy_package):
    envs = gymnasium.vector.SyncVectorEnv([lambda: made(toy_package)] * 2)
    seen, _ = envs.reset(seed=[5, 5])
    assert np.array_equal(seen[0], seen[1])
    seen, *_ = envs.step(np.array([1, 3]))
    assert not np.array_equal(seen[0], seen[1])
    envs.close()
