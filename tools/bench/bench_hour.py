"""An hour of walking: does memory stay, does a chunk's time stay, are the poses still exact?

    python tools/bench/bench_hour.py --package TOY [--minutes 60] [--chunk 3] [--size 96x160]

TOY is what `lingbot-world toy` wrote (`--random` for the fastest). W is held, so that the way is known: the last
position, and every latent frame's step as the model gets it, are compared with it. Prints a row for each tenth."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_report import GB
from lingbot_world import live, open_live
from lingbot_world.camera.moves.keys import STEP
from lingbot_world.live.camera import FRAMES_TO_SPEED, WALKING_UNIT, model_steps
from lingbot_world.options import FPS
from memory_watch import process_bytes


def walk(session: live.Session, frames: int) -> None:
    """Press W, and take so many frames; a row for each tenth of them."""
    session.press("w")
    begin, rows = time.perf_counter(), 0
    for made in session:
        done = made.first + len(made.pixels)
        if done >= frames * (rows + 1) / 10:
            rows += 1
            now = time.perf_counter()
            held = process_bytes(os.getpid()) / GB
            rate = frames / 10 / (now - begin)
            print(f"{done / FPS / 60:6.1f} min: {held:.3f} GB, {rate:.1f} frames a second", flush=True)
            begin = now
        if done >= frames:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--chunk", type=int, default=3)
    parser.add_argument("--size", default="96x160")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))
    package = Path(options.package)
    model = next(each for each in (package / "lingbot_world_fast", package) if each.is_dir())
    engine, start = open_live(model, image=package / "example/image.png", prompt="A room.", chunk=options.chunk,
                              height=height, width=width)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, live.Session(engine, start, folder=folder) as session:
        walk(session, int(options.minutes * 60 * FPS))
        session.close(whole=True)
        poses = np.load(next(Path(folder).glob("*/camera/poses.npy")))
    off = abs(poses[-1, 2, 3] - way(len(poses)))
    print(f"{len(poses)} poses, {poses.dtype}; the last is {off:.1e} from where it should be")
    steps = model_steps(poses[::4].astype(np.float64), None, WALKING_UNIT)[2:, 2, 3]
    print(f"a latent frame's step is 1 within {abs(steps - 1).max():.1e}")


def way(frames: int) -> float:
    """Where W leads in so many frames, the first of which stands and the next of which are slower."""
    slower = sum(1 - number / FRAMES_TO_SPEED for number in range(1, FRAMES_TO_SPEED))
    return STEP * (frames - 1 - slower)


if __name__ == "__main__":
    main()
