"""Figures of live walks at full size on a GPU, with random weights made on the spot: the table of docs/benchmarks.md.

    python tools/bench/bench_live.py --folder SCRATCH [--seconds 15] [--cases 1.3b-chunk1 14b-chunk3 ...]

Runs `lingbot-world live ... --bench` for each case and prints JSON. The models take 30 GB."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import random_package
from bench_common import parser_of

SMALL = ("--width", "832", "--height", "464")
LARGE = ("--width", "640", "--height", "384", "--arithmetic", "fp8", "--attention", "8bit")
CASES = {
    "1.3b-chunk1": (random_package.small, SMALL, 1),
    "1.3b-chunk4": (random_package.small, SMALL, 4),
    "14b-chunk3": (random_package.causal, LARGE, 3),
    "14b-chunk1": (random_package.causal, LARGE, 1),
}


def bench(folder: Path, case: str, seconds: float, more: list[str]) -> dict:
    make, settings, chunk = CASES[case]
    model = make(folder)
    for file in model.iterdir():
        if file.is_file():
            file.read_bytes()
    with tempfile.TemporaryDirectory() as walks:
        words = ["live", str(model), *settings, "--window", "18", "--sink", "6", "--chunk", str(chunk), *more]
        words += ["--walks", walks, "--bench", str(seconds)]
        environment = random_package.environment() | {"LINGBOT_WORLD_PROMPTS": ""}  # the prompt is encoded
        command = [sys.executable, "-m", "lingbot_world", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return {"failed": done.stderr[-2000:]} if done.returncode else json.loads(done.stdout)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("more", nargs="*", help="after --: passed to the command")
    options = parser.parse_args()
    random_package.around(options.folder)
    for case in options.cases:
        print(json.dumps({case: bench(options.folder, case, options.seconds, options.more)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
