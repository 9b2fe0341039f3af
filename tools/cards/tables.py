"""Print the tables of docs/cards.md, or write them into it: `python tools/cards/tables.py [--write]`."""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from lingbot_world.doctor.estimate import (
    MODELS,
    Estimate,
    Setting,
    estimate_base,
    estimate_chunk,
    estimate_releases,
    recommended,
)
from lingbot_world.doctor.page import describe_setting, format_minutes
from lingbot_world.doctor.published import CARDS, rates_of

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"


LARGE, SMALL = (464, 832), (304, 528)
GOALS = (("RTX 5090", LARGE, 0.75), ("RTX 4060 8 GB", SMALL, 16 / 6), ("RTX 5060 8 GB", SMALL, 16 / 6))
"""The project's goals, each as (card, video size, seconds for a chunk of 16 frames)."""


class Measured(NamedTuple):
    """Other people's measurement. `model`, `chunk`: seconds, None if unknown; `frames`, `window`: latent frames."""

    card: str
    code: str
    model: float | None
    chunk: float | None
    size: tuple[int, int]
    frames: int
    window: int
    forwards: int
    eight_bit: bool


OTHERS: tuple[Measured, ...] = (
    Measured("RTX 5090", "official", 1.63, 2.68, (464, 832), 4, 18, 5, False),
    Measured("RTX 5090", "FlashDreams", 1.35, 1.86, (464, 832), 4, 18, 5, False),
    Measured("RTX 5090", "one who built kernels for it", 0.64, 0.98, (464, 832), 4, 18, 5, True),
    Measured("RTX 5060 8 GB", "official, laptop", 0.72, 0.766, (304, 528), 1, 6, 4, False),
    Measured("Strix Halo", "ROCm fork", 0.83, 0.87, (384, 672), 1, 12, 4, False),
)
"""Public forks of lingbot-world-v2 with the 1.3B, September to October 2026. The last two use the tiny decoder."""


def worked_out_table() -> str:
    """Return the estimates for all cards as Markdown."""
    lines = [
        "| card | 1.3B 832x464, exact | 8 bits | 1.3B 528x304, exact | 8 bits | 14B in 4 bits "
        "| base, 5 s: exact; 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, card in CARDS.items():
        rows = estimate_releases(rates_of(card))
        of_window = [row for row in rows if row.model == "1.3B" and row.setting.window == 18]
        small = [_cell(row) for size in (LARGE, SMALL) for row in of_window if row.setting.size == size]
        large = recommended(rows, "14B")
        cell = "does not fit" if large is None else f"{_cell(large)} ({describe_setting(large)})"
        base = "; ".join(format_minutes(row) for row in estimate_base(rates_of(card)))
        lines.append(f"| {name} | {' | '.join(small)} | {cell} | {base} |")
    return "\n".join(lines)


def _cell(row: Estimate) -> str:
    if row.seconds is None or row.place is None:
        return "does not fit"
    mark = "" if row.place.where == "all on the card" else "*"
    return f"{row.seconds.total:.2f} s, {row.frames_a_second:.1f}{mark}"


def parts_table() -> str:
    """Return a chunk's seconds by cause for the 1.3B in 8 bits on each card in GOALS."""
    lines = [
        "| card, size | products | attention | VAE | memory | launches | all | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, size, goal in GOALS:
        made = estimate_chunk(MODELS["1.3B"][1], Setting(size, eight_bit=True), rates_of(CARDS[name]))
        parts = made.products, made.attention, made.vae, made.memory, made.launches, made.total
        cells = " | ".join(f"{part:.2f}" for part in parts)
        lines.append(f"| {name}, {size[1]}x{size[0]} | {cells} | {goal:.2f} |")
    return "\n".join(lines)


def measured_table() -> str:
    """Return other people's measurements next to our estimates."""
    lines = ["| card, code | setting | model, all: theirs | worked out | off by |", "|---|---|---|---|---|"]
    config = MODELS["1.3B"][1]
    for each in OTHERS:
        setting = Setting(each.size, each.frames, each.window, 6, each.forwards, each.eight_bit)
        made = estimate_chunk(config, setting, rates_of(CARDS[each.card]))
        theirs = each.model or each.chunk or 0.0
        off = f"{100 * (made.model / theirs - 1):+.0f} %" if each.model else f"{100 * (made.total / theirs - 1):+.0f} %"
        words = f"{each.size[1]}x{each.size[0]}, chunk {each.frames}, window {each.window}, {each.forwards} forwards"
        words += ", 8 bits" * each.eight_bit
        figures = f"{_seconds(each.model)}, {_seconds(each.chunk)}"
        lines.append(
            f"| {each.card}, {each.code} | {words} | {figures} | {made.model:.2f}, {made.total:.2f} s | {off} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def filled(text: str) -> str:
    """Return the page with the current tables."""
    tables = {"worked out": worked_out_table(), "parts": parts_table(), "measured": measured_table()}
    for name, table in tables.items():
        begin, end = re.escape(f"<!-- {name} -->"), re.escape("<!-- end -->")
        text = re.sub(f"({begin}).*?({end})", lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, count=1, flags=re.S)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write them into docs/cards.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    print(worked_out_table(), parts_table(), measured_table(), sep="\n\n")


if __name__ == "__main__":
    main()
