"""Walks of the toy's random causal model, at its smallest."""

from contextlib import contextmanager
from functools import cache

from lingbot_world.headless.live.opening import Opened, plan_live
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.live import Session


@cache
def opened(package, **changes):
    """The toy's causal model, two steps a chunk, 48x32, loaded once for each way of asking."""
    options = {
        "ckpt_dir": package / "lingbot_world_fast", "image": package / "example/image.png", "prompt": "a castle",
        "output": package.parent / "unused.mp4", "width": 48, "height": 32, "schedule": "0,500", "device": "cpu",
        "window": 6, "sink": 2, "chunk": 1,
    }  # fmt: skip
    return Opened(plan_live(GenerateOptions(**{**options, **changes})))


@contextmanager
def walking(package, folder, begin=None, **changes):
    """A Session that is asked for its frames."""
    loaded = opened(package, **changes)
    with Session(loaded.engine(), begin or loaded.start, folder=folder, fps=0) as session:
        yield session


def chunks(session, count):
    """The next chunks' hand-outs."""
    made = []
    for frames in session:
        made.append(frames)
        if frames.last:
            count -= 1
        if not count:
            return made
    raise AssertionError("the walk ended")
