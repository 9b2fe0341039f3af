"""Every candidate of the table of kernels, on the card at hand and on cards that it plays.

    python tools/cards/try_kernels.py --out FOLDER [--cards native 7.5 8.6 8.9 12.0]
        [--parts candidates models vae launches]

For each card: each candidate's trial (its error, and on the card itself its time); a few blocks of the 1.3B's and of
the 14B's widths in each arithmetic and attention, in dB from exact bf16; each decoder of the VAE, in dB from fp32; and
the launches of a block. Other functions of comfy-kitchen were tried at commit ee44ac1. Times on played cards mean
nothing. 3 to 6 minutes on an H100: the card itself first, then the played ones side by side."""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from functools import partial
from itertools import product
from pathlib import Path

HERE = Path(__file__).absolute().parent
ROOT = HERE.parents[1]
CARDS = ("native", "7.5", "8.6", "8.9", "12.0")
PARTS = ("candidates", "models", "vae", "launches")
LIMIT = 280
"""Seconds of a card."""


def importable() -> None:
    """Make this checkout importable as lingbot_world where it is not installed."""
    try:
        import lingbot_world  # noqa: F401
    except ImportError:
        folder = Path(tempfile.mkdtemp())
        (folder / "lingbot_world").symlink_to(ROOT)
        sys.path.insert(0, str(folder))


def try_candidates(timed: bool) -> None:
    """Try the candidates of each operation at the widths of both models."""
    import lingbot_world.model.dit
    import lingbot_world.vae.convolutions  # noqa: F401
    import torch
    from lingbot_world.model.choice.rates import LARGE_SIZES, SIZES
    from lingbot_world.model.choice.trials import Size
    from model_cases import shown

    device = torch.device("cuda", 0)
    small = SIZES | {"norms": Size(6032, 0, 1536)}
    for model, sizes in (("1.3B", small), ("14B", LARGE_SIZES)):
        for work, size in sizes.items():
            shown(f"{work}, {model}", partial(_candidates, work, size, device, timed))


def _candidates(work, size, device, timed: bool) -> dict:
    from lingbot_world.model.choice.card import card_of
    from lingbot_world.model.choice.table import candidates, missing
    from lingbot_world.model.choice.trials import try_all

    card = card_of(device)
    absent = {each.name: why for each in candidates(work, card) if (why := missing(each.name, card)) is not None}
    present = [each for each in candidates(work, card) if each.name not in absent]
    return absent | {trial.name: trial._asdict() for trial in try_all(present, device, size, timed=timed)}


def try_models() -> None:
    """Compute a few blocks of each width in each arithmetic and attention, against exact bf16 of the same weights."""
    import torch
    from lingbot_world.loaders import load_expert
    from lingbot_world.model.config import ModelConfig
    from model_cases import shown

    sys.path.insert(0, str(HERE.parent / "bench"))
    from random_package import write_random_expert

    folder, common = Path(tempfile.mkdtemp()), {"freq_dim": 256, "text_dim": 4096}
    small = ModelConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=6, **common)
    large = ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=2, **common)
    for name, config, bf16 in (("1.3B", small, True), ("14B in NF4", large, False)):
        path = write_random_expert(folder / name.replace(" ", ""), config, bf16=bf16, device="cuda")
        generator, grid = torch.Generator("cuda").manual_seed(1), (3, 58, 104)
        inputs = {
            "x": torch.randn(1, 36, *grid, device="cuda", generator=generator),
            "timestep": torch.tensor([900.0], device="cuda"),
            "context": torch.randn(1, 40, 4096, device="cuda", generator=generator),
            "camera": 0.47 * torch.randn(1, 384, *grid, device="cuda", generator=generator),
        }
        exact = load_expert(path, "cuda", torch.bfloat16)(**inputs)
        for arithmetic, attention in product(("bf16", "int8", "fp8", "8bit"), ("exact", "8bit")):
            run = partial(_forward, path, inputs, exact, arithmetic, attention)
            shown(f"{name}, {arithmetic}, attention {attention}", run)


def _forward(path: Path, inputs: dict, exact, arithmetic: str, attention: str) -> dict:
    import torch
    from lingbot_world.loaders import load_expert
    from lingbot_world.model.attention.choose_8bit import check_8_bits
    from model_cases import decibels, relative

    model = load_expert(path, "cuda", torch.bfloat16, arithmetic=arithmetic, attention_mode=attention)
    notes = check_8_bits(arithmetic, attention, torch.device("cuda"), model.config)
    return {"dB": decibels(relative(model(**inputs), exact)), "notes": notes}


def run_card(card: str, parts: list[str]) -> None:
    """Try everything as one card; each result is printed as a line of JSON."""
    importable()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ["LINGBOT_WORLD_CARDS"] = ""
    sys.path.insert(0, str(HERE))
    shared: dict[str, int] = {}
    if card != "native":
        from play import play

        shared = play(card)
    import torch
    from lingbot_world.model.choice.card import card_of
    from lingbot_world.model.choice.kept import versions
    from model_cases import try_launches, try_vae

    found = {"card": card_of(torch.device("cuda", 0)).known_as, "versions": versions(), "shared": shared}
    print(json.dumps(found), flush=True)
    known = {
        "candidates": partial(try_candidates, card == "native"),
        "models": try_models,
        "vae": partial(try_vae, card == "native"),
        "launches": try_launches,
    }
    for part in parts:
        try:
            known[part]()
        except Exception:
            print(traceback.format_exc(), flush=True)
    print("shared memory of what Triton compiled:", shared)


def start(card: str, out: Path, parts: list[str]) -> subprocess.Popen:
    """Start a process that tries one card."""
    command = [sys.executable, __file__, "--out", str(out), "--only", card, "--parts", *parts]
    with (out / f"{card}.txt").open("w") as text:
        return subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT)


def end(card: str, process: subprocess.Popen, out: Path) -> None:
    """Wait for the process of a card, and print its results."""
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
