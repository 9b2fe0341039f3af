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
"""A function reward(observation, info) that returns the reward, or a pair (reward, whether the episode has ended)."""


class LingBotWorldEnv(gymnasium.Env[np.ndarray, Any]):
    """An environment in which the agent walks through a generated world. `actions` selects the action space; an action
    is held for one chunk of video. The observation is the chunk's last frame, uint8 [H, W, 3]. The function `reward`
    returns the reward and may end the episode; without it, the reward is 0 and no episode ends. The items of `info`:

    pose: the frame's camera-to-world pose, float64 [4, 4].
    seconds: the length of the video so far.
    chunk: the index of the chunk.
    latent_frame: the index of the chunk's first latent frame.
    action: the action held during the chunk; absent after `reset`.

    An environment shares the previous one's model if their arguments are equal and hashable.
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
        """Open the model in the folder `ckpt`. Raises a LingBotError for invalid arguments and files.

        actions: the action space, "discrete", "keys" or "box".
        render_mode: "rgb_array" or None.
        reward: the reward function; None: the reward is always 0.
        session: arguments of `Session`, such as speed and events.
        options: arguments of `open_live`; image and prompt default to those of the package's example.
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
        """Begin a new walk, generate its first chunk, and return (observation, info). Raises InputError for invalid
        options.

        seed: the seed of the noise; None: random.
        options: optionally `prompt`, and either `image` or `state`, a saved walk to continue.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(LARGEST_SEED)) if seed is None else seed
        start = replace(self._begin(_check_names("options", options, RESET_OPTIONS)), seed=drawn)
        start.check(self._engine)
        self.close()
        self._session = Session(self._engine, start, **{"fps": 0, **self._options})
        return self._chunk()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Generate one chunk with `action` held. Return (observation, reward, terminated, False, info); False is the
        Gym API's `truncated`. Raises InputError for an invalid action, and if `reset` has not begun a walk."""
        act(self.session, self.action_space, action)
        seen, info = self._chunk()
        info["action"] = action
        reward = 0.0 if self._reward is None else self._reward(seen, info)
        return seen, *_value_and_end(reward), False, info

    def render(self) -> np.ndarray | None:  # type: ignore[override, unused-ignore]
        """Return the last frame, uint8 [H, W, 3], or None without a walk or without a `render_mode`."""
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
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InputError(f"`{name}` is {values!r:.40}; expected a dict with {', '.join(known)}")
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        raise InputError(f"`{name}` has {unknown!r:.40}; expected {', '.join(known)}")
    return dict(values)


def _value_and_end(reward: Any) -> tuple[float, bool]:
    try:
        value, ended = reward if isinstance(reward, tuple) else (reward, False)
        return float(value), bool(ended)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`reward` returned {reward!r:.40}; expected a number, or (a number, whether the episode ends)"
        ) from error


def _open(ckpt: str | Path, options: dict[str, Any]) -> tuple[Engine, Start]:
    """Return the engine and the default start of the model in `ckpt`. The latest result is cached and returned again
    for equal arguments. Unhashable arguments are not cached."""
    try:
        return _open_cached(ckpt, tuple(sorted(options.items())))
    except TypeError:  # an image in memory
        return open_live(ckpt, **options)


@lru_cache(maxsize=1)
def _open_cached(ckpt: str | Path, options: tuple[tuple[str, Any], ...]) -> tuple[Engine, Start]:
    return open_live(ckpt, **dict(options))
