"""What passes until a run's first step: every import that takes long, then every stage.

    python tools/bench/bench_start.py --ckpt_dir DIR --image IMAGE --prompt TEXT --output x.mp4    # as for `generate`

An import's figure is what it adds to those above it. Run it twice and read the second: the first fills the page cache.
"""

import importlib
import sys
import time

STARTED = time.perf_counter()
IMPORTS = ("numpy", "torch", "lingbot_world.headless.run", "PIL.Image", "tokenizers", "ftfy", "scipy.spatial.transform")


def main() -> None:
    for name in IMPORTS:
        begin, known = time.perf_counter(), len(sys.modules)
        importlib.import_module(name)
        print(f"{time.perf_counter() - begin:7.2f} s  import {name} ({len(sys.modules) - known} modules)", flush=True)
    from lingbot_world.headless.command import cli

    first_step, show_progress = [], cli.progress_bar

    def show(name: str, unit: str):
        if (name.endswith("noise steps") or name == "chunks") and not first_step:
            first_step.append(time.perf_counter() - STARTED)
        return show_progress(name, unit)

    cli.progress_bar = show
    failed = cli.main(["generate", *sys.argv[1:]])  # prints its stages
    if failed:
        sys.exit(failed)
    print(f"{first_step[0]:7.2f} s  from the start to the first step")


if __name__ == "__main__":
    main()
