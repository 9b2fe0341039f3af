"""The action spaces of the gymnasium environment."""

from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..errors import InputError
from ..live import Session
from ..live.controls import KEYS, RUN

PRESSED = (*KEYS, RUN)
"""The keyboard keys of the action space "keys"; entry i of an action is 1 if PRESSED[i] is held."""
SPACES = ("discrete", "keys", "box")


def action_space(name: str) -> Space[Any]:
    """Return the action space of this name. Raises InputError for another name.

    discrete: no key or one of eight keyboard keys.
    keys: any combination of nine keyboard keys.
    box: float32 [3], velocity, yaw and pitch from -1 to 1.
    """
    if name == "discrete":
        return spaces.Discrete(1 + len(KEYS))
    if name == "keys":
        return spaces.MultiBinary(len(PRESSED))
    if name == "box":
        return spaces.Box(-1.0, 1.0, (3,), np.float32)
    raise InputError(f"`actions` is {name!r:.40}; expected {', '.join(SPACES[:-1])} or {SPACES[-1]}")


def act(session: Session, space: Space[Any], action: Any) -> None:
    """Set a session's held keys or joystick to `action`. Raises InputError if `action` is not an element of `space`."""
    if isinstance(space, spaces.Box):
        with suppress(TypeError, ValueError, OverflowError):
            action = np.asarray(action, space.dtype)
    if not space.contains(action):
        raise InputError(f"the action is {action!r:.60}; expected one of {space}")
    if isinstance(space, spaces.Discrete):
        session.hold(KEYS[int(action) - 1] if action else ())
    elif isinstance(space, spaces.MultiBinary):
        session.hold(key for key, down in zip(PRESSED, action, strict=True) if down)
    else:
        velocity, yaw, pitch = (float(value) for value in action)
        session.stick(velocity, 0.0, yaw, pitch)
