"""The tables of docs/cards.md: speeds estimated from published figures, and other people's measurements."""

from collections.abc import Iterator

from .page import base_lines, minutes, setting_words
from .published import CARDS, OTHERS, rates_of
from .work import MODELS, Row, Setting, base_rows, preset, released, rows_of, worked_out

LARGE, SMALL = (464, 832), (304, 528)
GOALS = (("RTX 5090", LARGE, 0.75), ("RTX 4060 8 GB", SMALL, 16 / 6), ("RTX 5060 8 GB", SMALL, 16 / 6))
"""The project's goals, each as (card, video size, seconds for a chunk of 16 frames)."""


def card_page(name: str) -> str:
    """Return the estimated speed of each release on a card as text. `name` is a key of CARDS."""
    rows = rows_of(rates_of(CARDS[name]))
    lines = [f"{name}, worked out from published figures and the shares of them that others' kernels reached"]
    for row in rows:
        result = (
            "does not fit" if row.seconds is None else f"{row.seconds.total:.2f} s, {row.frames_a_second:.1f} a second"
        )
        where = "" if row.fit is None else f", {row.fit.where}"
        lines.append(f"  {released(row.model):<22} {setting_words(row):<42} {result}{where}")
    for model in MODELS:
        if (best := preset(rows, model)) is not None:
            lines.append(f"  take for {released(model)}: {setting_words(best)}")
    lines.append(base_lines(base_rows(rates_of(CARDS[name]))))
    return "\n".join(lines)


def worked_out_table() -> str:
    """Return the Markdown table with the estimates for all cards. Its columns are the 1.3B model in exact and 8-bit
    arithmetic at two sizes, the 14B model's preset, and a video by the base model."""
    lines = [
        "| card | 1.3B 832x464, exact | 8 bits | 1.3B 528x304, exact | 8 bits | 14B in 4 bits "
        "| base, 5 s: exact; 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, card in CARDS.items():
        rows = rows_of(rates_of(card))
        small = [_cell(row) for size in (LARGE, SMALL) for row in _of_size(rows, size)]
        large = preset(rows, "14B")
        cell = "does not fit" if large is None else f"{_cell(large)} ({setting_words(large)})"
        base = "; ".join(minutes(row) for row in base_rows(rates_of(card)))
        lines.append(f"| {name} | {' | '.join(small)} | {cell} | {base} |")
    return "\n".join(lines)


def _of_size(rows: list[Row], size: tuple[int, int]) -> Iterator[Row]:
    return (row for row in rows if row.model == "1.3B" and row.setting.size == size and row.setting.window == 18)


def _cell(row: Row) -> str:
    if row.seconds is None or row.fit is None:
        return "does not fit"
    mark = "" if row.fit.where == "all on the card" else "*"
    return f"{row.seconds.total:.2f} s, {row.frames_a_second:.1f}{mark}"


def parts_table() -> str:
    """Return the Markdown table of a chunk's seconds by cause (matrix products, attention, VAE and others). Its rows
    are the 1.3B model in 8 bits on each card in GOALS."""
    lines = [
        "| card, size | products | attention | VAE | memory | launches | all | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, size, goal in GOALS:
        made = worked_out(MODELS["1.3B"][1], Setting(size, eight_bit=True), rates_of(CARDS[name]))
        parts = made.products, made.attention, made.vae, made.memory, made.launches, made.total
        cells = " | ".join(f"{part:.2f}" for part in parts)
        lines.append(f"| {name}, {size[1]}x{size[0]} | {cells} | {goal:.2f} |")
    return "\n".join(lines)


def measured_table() -> str:
    """Return the Markdown table of other people's measurements of the 1.3B model, next to our estimates."""
    lines = ["| card, code | setting | model, all: theirs | worked out | off by |", "|---|---|---|---|---|"]
    config = MODELS["1.3B"][1]
    for each in OTHERS:
        setting = Setting(each.size, each.frames, each.window, 6, each.forwards, each.eight_bit)
        made = worked_out(config, setting, rates_of(CARDS[each.card]))
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
