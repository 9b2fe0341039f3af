"""Every candidate of the table of kernels, on the card at hand and on cards that it plays.

    python tools/cards/try_kernels.py --out FOLDER [--cards native 7.5 8.6 8.9 12.0]
        [--parts candidates models vae launches]

For each card: each candidate's error, and its time on the card itself; a few blocks of both models in each arithmetic
and attention, in dB from exact bf16; each VAE decoder, in dB from fp32; the launches of a block. 3 to 6 minutes on an
H100. Needs an environment with `lingbot_world`."""

import argparse
import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

CARDS = ("native", "7.5", "8.6", "8.9", "12.0")
PARTS = ("candidates", "models", "vae", "launches")
LIMIT = 280  # seconds of a card


def run_card(card: str, parts: list[str]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ["LINGBOT_WORLD_CARDS"] = ""
    shared: dict[str, int] = {}
    if card != "native":
        from play import play

        shared = play(card)
    import model_cases
    import torch
    from lingbot_world.model.choice.user_cache import versions

    known_as = model_cases.card_of(torch.device("cuda", 0)).known_as
    print(json.dumps({"card": known_as, "versions": versions(), "shared": shared}), flush=True)
    for part in parts:
        try:
            timed = [card == "native"] if part in ("candidates", "vae") else []
            getattr(model_cases, f"try_{part}")(*timed)
        except Exception:
            print(traceback.format_exc(), flush=True)
    print("shared memory of what Triton compiled:", shared)


def start(card: str, out: Path, parts: list[str]) -> subprocess.Popen:
    command = [sys.executable, __file__, "--out", str(out), "--only", card, "--parts", *parts]
    with (out / f"{card}.txt").open("w") as text:
        return subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT)


def end(card: str, process: subprocess.Popen, out: Path) -> None:
    try:
        code = str(process.wait(LIMIT))
    except subprocess.TimeoutExpired:
        process.kill()
        code = f"stopped after {LIMIT} s"
    print(f"===== {card}: exit {code}")
    print((out / f"{card}.txt").read_text(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for a .txt of each card")
    parser.add_argument("--cards", nargs="+", default=CARDS, choices=CARDS)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--only", choices=CARDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only:
        run_card(options.only, options.parts)
        return
    alone = [card for card in options.cards if card == "native"]
    for together in (alone, [card for card in options.cards if card != "native"]):
        for card, process in [(card, start(card, options.out, options.parts)) for card in together]:
            end(card, process, options.out)


if __name__ == "__main__":
    main()
