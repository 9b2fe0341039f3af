"""An hour of walking: does memory stay, does a chunk's time stay, are the poses still exact?

    python tools/bench/bench_hour.py --package TOY [--minutes 60] [--chunk 3] [--size 96x160]
    python tools/bench/bench_hour.py --random SCRATCH --chunk 4 --size 384x640 --arithmetic fp8 --attention 8bit

TOY is what `lingbot-world toy` wrote (`--random` for the fastest); in SCRATCH a 1.3B of random weights is made. W is
held, so that the way is known: the last position, and every latent frame's step as the model gets it, are compared with
it. The minutes are those that are walked, at 16 frames a second: a machine that is faster takes less. Prints a row for
each tenth."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import random_package
import torch
from bench_report import GB
from lingbot_world import live, open_live
from lingbot_world.camera.moves.keys import STEP
from lingbot_world.live.camera import FRAMES_TO_SPEED, WALKING_UNIT, model_steps
from lingbot_world.options import FPS
from memory_watch import process_bytes


def walk(session: live.Session, frames: int) -> None:
    """Press W, and take so many frames; a row for each tenth of them."""
    session.press("w")
    begin = last = time.perf_counter()
    rows, most = 0, 0.0
    for made in session:
        done, now = made.first + len(made.pixels), time.perf_counter()
        most, last = max(most, now - last), now
        if done >= frames * (rows + 1) / 10:
            rows += 1
            rate = frames / 10 / (now - begin)
            row = f"{done / FPS / 60:6.1f} min: {held()}, {rate:.1f} frames a second"
            print(f"{row}, for the next ones {most:.3f} s at most", flush=True)
            begin, most = now, 0.0
        if done >= frames:
            return


def held() -> str:
    """Return the memory of the process and, on a GPU, of its tensors and of torch's allocator."""
    figures = f"{process_bytes(os.getpid()) / GB:.3f} GB"
    if torch.cuda.is_available():
        tensors, reserved = torch.cuda.memory_allocated() / GB, torch.cuda.memory_reserved() / GB
        figures += f", on the GPU {tensors:.3f}, reserved {reserved:.3f}"
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    package = parser.add_mutually_exclusive_group(required=True)
    package.add_argument("--package", type=Path)
    package.add_argument("--random", type=Path, metavar="SCRATCH")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--chunk", type=int, default=3)
    parser.add_argument("--size", default="96x160")
    parser.add_argument("--arithmetic", default="auto")
    parser.add_argument("--attention", default="auto")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))
    folder = options.random or options.package
    window = {"window": 18, "sink": 6} if options.random else {}
    if options.random:
        random_package.around(folder)
        model = random_package.small(folder)
    else:
        model = next(each for each in (folder / "lingbot_world_fast", folder) if each.is_dir())
    engine, start = open_live(
        model,
        image=folder / "example/image.png",
        prompt="A room.",
        chunk=options.chunk,
        height=height,
        width=width,
        arithmetic=options.arithmetic,
        attention=options.attention,
        **window,
    )
    with tempfile.TemporaryDirectory() as folder, live.Session(engine, start, folder=folder, speed=1.0) as session:
        walk(session, int(options.minutes * 60 * FPS))
        session.close(whole=True)
        poses = np.load(next(Path(folder).glob("*/camera/poses.npy")))
    off = abs(poses[-1, 2, 3] - way(len(poses)))
    print(f"{len(poses)} poses, {poses.dtype}; the last is {off:.1e} from where it should be")
    steps = model_steps(poses[::4].astype(np.float64), None, WALKING_UNIT)[2:, 2, 3]
    print(f"a latent frame's step is 1 within {abs(steps - 1).max():.1e}")


def way(frames: int) -> float:
    """Return the distance that a held W covers in this many frames; the first one does not move, and the next ones are
    slower."""
    slower = sum(1 - number / FRAMES_TO_SPEED for number in range(1, FRAMES_TO_SPEED))
    return STEP * (frames - 1 - slower)


if __name__ == "__main__":
    main()
