"""Figures of live walks at full size on a GPU, with random weights made on the spot: the table of docs/benchmarks.md.

    python tools/bench/bench_live.py --folder SCRATCH [--seconds 15] [--cases 1.3b-chunk1 14b-chunk3 ...]

Each case is the command itself, `lingbot-world live ... --bench`, whose client walks twice: played at 16 frames a
second, and as fast as frames come. Prints JSON, a case at a time. Models that lie in SCRATCH are used again; to make
them takes some minutes and 30 GB, the four cases four minutes. The page cache is warm: files are read once before."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import random_package

EIGHT_BIT = ("--arithmetic", "fp8", "--attention", "8bit")
SMALL = ("--width", "832", "--height", "464", "--window", "18", "--sink", "6")
LARGE = ("--width", "640", "--height", "384", "--window", "18", "--sink", "6", *EIGHT_BIT)
CASES = {
    "1.3b-chunk1": ("small", SMALL, 1),
    "1.3b-chunk4": ("small", SMALL, 4),
    "14b-chunk3": ("causal", LARGE, 3),
    "14b-chunk1": ("causal", LARGE, 1),
}


def bench(folder: Path, case: str, seconds: float, more: list[str]) -> dict:
    kind, settings, chunk = CASES[case]
    model = getattr(random_package, kind)(folder)
    for file in model.iterdir():
        if file.is_file():
            file.read_bytes()
    with tempfile.TemporaryDirectory() as walks:
        words = ["live", str(model), *settings, "--chunk", str(chunk), "--walks", walks, "--bench", str(seconds), *more]
        environment = random_package.environment() | {"LINGBOT_WORLD_PROMPTS": ""}  # the prompt is encoded
        command = [sys.executable, "-m", "lingbot_world", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("more", nargs="*", help="after --: handed on to the command")
    options = parser.parse_args()
    random_package.around(options.folder)
    for case in options.cases:
        print(json.dumps({case: bench(options.folder, case, options.seconds, options.more)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
