"""A gymnasium environment in which an agent walks through a generated world."""

from ..errors import require

ID = "LingBotWorld-v0"
__all__ = ["ID", "register_envs"]


def register_envs() -> None:
    """Register the environment "LingBotWorld-v0" with gymnasium. Raises DependencyError without gymnasium."""
    registration = require("gymnasium.envs.registration", '"lingbot-world[gym]"')
    if ID not in registration.registry:
        registration.register(ID, entry_point="lingbot_world.gym.env:LingBotWorldEnv")


register_envs()
