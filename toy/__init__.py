"""A complete package of tiny random models, so that everything runs on a CPU without downloads."""

from .package import write_example, write_toy_package

__all__ = ["write_example", "write_toy_package"]
