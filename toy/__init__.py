"""Two packages of tiny models, one trained and one random, which run on a CPU without downloads."""

from .package import write_example, write_toy_package
from .world import write_maze, write_toy_world

__all__ = ["write_example", "write_maze", "write_toy_package", "write_toy_world"]
