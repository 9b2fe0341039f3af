"""The gymnasium environment. A step generates one chunk of video with the agent's action held."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .. import open_live
from ..errors import InputError
from ..headless.live.beginning import start_of
from ..live import Engine, Frames, Session, Start
from ..live.session import OPTIONS
from ..options import FPS
from .actions import act, action_space

RESET_OPTIONS = ("image", "prompt", "state")
LARGEST_SEED = 2**31
Reward = Callable[[np.ndarray, dict[str, Any]], "float | tuple[float, bool]"]
"""A function reward(observation, info) that returns the reward as a number, or a pair (reward, whether the episode has
ended)."""


class LingBotWorldEnv(gymnasium.Env[np.ndarray, Any]):
    """A walk through a generated world, as a gymnasium environment.

    The observation is the last frame of a chunk, uint8 [H, W, 3]. `info` has these items:

    pose: the camera-to-world pose of this frame, float64 [4, 4].
    seconds: the length of the video so far.
    chunk: the index of the chunk.
    latent_frame: the index of the chunk's first latent frame.
    action: the action that was held from this latent frame to the end of the chunk; absent after `reset`.

    Successive environments with the same arguments share one model, unless an argument is unhashable, such as an image
    in memory. `unwrapped.session` has methods to change prompts and events.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012

    def __init__(
        self,
        ckpt: str | Path,
        actions: str = "discrete",
        render_mode: str | None = None,
        reward: Reward | None = None,
        session: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Open the model in the folder `ckpt`.

        actions: the action space, "discrete", "keys" or "box".
        render_mode: "rgb_array" makes `render` return frames; with None it returns None.
        reward: the reward function; None gives a reward of 0 for every chunk.
        session: arguments of `Session`, such as speed and events.
        options: arguments of `open_live`, such as image, prompt, chunk, width and device. Without an image or a prompt,
        a walk begins with that of the example in `ckpt` or next to it.

        Raises a LingBotError for invalid arguments and files.
        """
        self.action_space = action_space(actions)
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"`render_mode` is {render_mode!r:.40}; expected rgb_array, or none")
        if reward is not None and not callable(reward):
            raise InputError(f"`reward` is {reward!r:.40}; expected a function of (observation, info)")
        self.render_mode, self._reward = render_mode, reward
        self._options = _check_names("session", session, OPTIONS)
        self._engine, self._start = _open(ckpt, {"image": None, "prompt": None, **options})
        self.observation_space = spaces.Box(0, 255, (*self._engine.size, 3), np.uint8)
        self._session: Session | None = None
        self._last_frame: np.ndarray | None = None

    @property
    def session(self) -> Session:
        """The current walk's session, with methods to change prompt and events. Raises InputError without a walk."""
        if self._session is None:
            raise InputError("no walk has begun; call `reset` first")
        return self._session

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new walk, make its first chunk, and return (observation, `info`).

        seed: the seed of the noise; None draws a random seed.
        options: the start of the walk, a dict with these optional keys:

        - `image`: the first frame.
        - `state`: a saved walk to continue, as a file, a walk's folder, or a WorldState.
        - `prompt`: the prompt. By default it is that of `state`, or without a state that of the environment.

        Without `image` and `state` the walk begins where the environment's walks begin by default. Raises InputError
        for any other option, and for both an image and a state.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(LARGEST_SEED)) if seed is None else seed
        start = replace(self._begin(_check_names("options", options, RESET_OPTIONS)), seed=drawn)
        start.check(self._engine)
        self.close()
        self._session = Session(self._engine, start, **{"fps": 0, **self._options})
        return self._chunk()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Generate one chunk with `action` held, and return (observation, reward, terminated, truncated, info).
        `terminated` comes from the reward function; `truncated` is always False. Raises InputError for an action
        outside of the action space, and without a walk, that is before `reset` or after `close`."""
        act(self.session, self.action_space, action)
        seen, info = self._chunk()
        info["action"] = action
        reward = 0.0 if self._reward is None else self._reward(seen, info)
        return seen, *_value_and_end(reward), False, info

    def render(self) -> np.ndarray | None:  # type: ignore[override, unused-ignore]
        """Return the last frame, uint8 [H, W, 3], if `render_mode` is "rgb_array", else None. Without a walk the result
        is None."""
        return self._last_frame

    def close(self) -> None:
        """End the walk. The model stays loaded for other environments."""
        if self._session is not None:
            self._session.close()
        self._session = self._last_frame = None

    def _chunk(self) -> tuple[np.ndarray, dict[str, Any]]:
        frames: Frames = next(self.session)
        while not frames.last:
            frames = next(self.session)
        seen = frames.pixels[-1].copy()
        self._last_frame = (
            None if self.render_mode is None else seen.copy()
        )  # the caller may write into the observation
        assert frames.poses is not None  # a walk knows the poses of its frames
        info = {
            "pose": frames.poses[-1].copy(),
            "seconds": (frames.first + len(frames.pixels)) / FPS,
            "chunk": frames.chunk,
            "latent_frame": frames.chunk * self._engine.chunk,
        }
        return seen, info

    def _begin(self, options: dict[str, Any]) -> Start:
        image, prompt, state = (options.get(name) for name in RESET_OPTIONS)
        return start_of(self._engine, self._start, image, prompt, state)


def _check_names(name: str, values: Any, known: Collection[str]) -> dict[str, Any]:
    """Return a copy of the dict `values` that the user passed as the argument `name`. Raises InputError for another
    type and for a key not in `known`."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InputError(f"`{name}` is {values!r:.40}; expected a dict with {', '.join(known)}")
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        raise InputError(f"`{name}` has {unknown!r:.40}; expected {', '.join(known)}")
    return dict(values)


def _value_and_end(reward: Any) -> tuple[float, bool]:
    """Return (reward, whether the episode ends) from a reward function's result. Raises InputError for another
    result."""
    try:
        value, ended = reward if isinstance(reward, tuple) else (reward, False)
        return float(value), bool(ended)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`reward` returned {reward!r:.40}; expected a number, or (a number, whether the episode ends)"
        ) from error


def _open(ckpt: str | Path, options: dict[str, Any]) -> tuple[Engine, Start]:
    """Return a model's engine and default start. The model of the last call is used again if the arguments are equal.
    Unhashable arguments, such as an image in memory, always load a model."""
    try:
        return _open_cached(ckpt, tuple(sorted(options.items())))
    except TypeError:  # an image in memory
        return open_live(ckpt, **options)


@lru_cache(maxsize=1)
def _open_cached(ckpt: str | Path, options: tuple[tuple[str, Any], ...]) -> tuple[Engine, Start]:
    return open_live(ckpt, **dict(options))
