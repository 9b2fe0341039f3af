"""Write the tables of docs/cards.md: `python tools/cards/tables.py`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lingbot_world.doctor.estimate import MODELS, Setting, estimate_base, estimate_chunk, estimate_releases, recommended
from lingbot_world.doctor.page import describe_setting, format_minutes
from lingbot_world.doctor.published import CARDS, rates_of

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"
CONFIG, LARGE, SMALL = MODELS["1.3B"][1], (464, 832), (304, 528)
GOALS = (("RTX 5090", LARGE, 0.75), ("RTX 4060 8 GB", SMALL, 16 / 6), ("RTX 5060 8 GB", SMALL, 16 / 6))
"""The project's goals, each as (card, video size, seconds for a chunk of 16 frames)."""
OTHERS: tuple[tuple[str, str, float | None, float, Setting], ...] = (
    ("RTX 5090", "official", 1.63, 2.68, Setting(LARGE, 4, 18, 6, 5)),
    ("RTX 5090", "FlashDreams", 1.35, 1.86, Setting(LARGE, 4, 18, 6, 5)),
    ("RTX 5090", "one who built kernels for it", 0.64, 0.98, Setting(LARGE, 4, 18, 6, 5, True)),
    ("RTX 5060 8 GB", "official, laptop", 0.72, 0.766, Setting(SMALL, 1, 6, 6, 4)),
    ("Strix Halo", "ROCm fork", 0.83, 0.87, Setting((384, 672), 1, 12, 6, 4)),
)
"""Public forks of lingbot-world-v2 with the 1.3B, September to October 2026: card, code, seconds of the model and of a
chunk. The last two use the tiny decoder."""


def _table(heads: str, rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        [f"| {heads} |", "|---" * len(heads.split(" | ")) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def worked_out_table() -> str:
    """Return the estimates for all cards as Markdown."""
    made = []
    for name, card in CARDS.items():
        rows = estimate_releases(rates_of(card))
        of_window = [row for row in rows if row.model == "1.3B" and row.setting.window == 18]
        small = [_cell(row) for size in (LARGE, SMALL) for row in of_window if row.setting.size == size]
        large = recommended(rows, "14B")
        cell = "does not fit" if large is None else f"{_cell(large)} ({describe_setting(large)})"
        base = "; ".join(format_minutes(row) for row in estimate_base(rates_of(card)))
        made.append([name, *small, cell, base])
    heads = "card | 1.3B 832x464, exact | 8 bits | 1.3B 528x304, exact | 8 bits | 14B in 4 bits"
    return _table(f"{heads} | base, 5 s: exact; 8 bits", made)


def _cell(row) -> str:
    if row.seconds is None or row.place is None:
        return "does not fit"
    mark = "" if row.place.where == "all on the card" else "*"
    return f"{row.seconds.total:.2f} s, {row.frames_a_second:.1f}{mark}"


def parts_table() -> str:
    """Return a chunk's seconds by cause for the 1.3B in 8 bits on each card in GOALS."""
    rows = []
    for name, size, goal in GOALS:
        made = estimate_chunk(CONFIG, Setting(size, eight_bit=True), rates_of(CARDS[name]))
        parts = made.products, made.attention, made.vae, made.memory, made.launches, made.total, goal
        rows.append([f"{name}, {size[1]}x{size[0]}", *(f"{part:.2f}" for part in parts)])
    return _table("card, size | products | attention | VAE | memory | launches | all | goal", rows)


def measured_table() -> str:
    """Return other people's measurements next to our estimates."""
    rows = []
    for card, code, model, chunk, each in OTHERS:
        made = estimate_chunk(CONFIG, each, rates_of(CARDS[card]))
        off = made.model / model - 1 if model else made.total / chunk - 1
        words = f"{each.size[1]}x{each.size[0]}, chunk {each.frames}, window {each.window}, {each.forwards} forwards"
        theirs = f"{'-' if model is None else f'{model:.2f} s'}, {chunk:.2f} s"
        ours = f"{made.model:.2f}, {made.total:.2f} s"
        rows.append([f"{card}, {code}", words + ", 8 bits" * each.eight_bit, theirs, ours, f"{100 * off:+.0f} %"])
    return _table("card, code | setting | model, all: theirs | worked out | off by", rows)


def filled(text: str) -> str:
    """Return the page with the current tables."""
    tables = {"worked out": worked_out_table(), "parts": parts_table(), "measured": measured_table()}
    for name, table in tables.items():
        begin, end = re.escape(f"<!-- {name} -->"), re.escape("<!-- end -->")
        text = re.sub(f"({begin}).*?({end})", lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, count=1, flags=re.S)
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
