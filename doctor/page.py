"""The doctor's text output: a machine check, a GPU's estimates, and a table row for docs/cards.md."""

from collections.abc import Sequence
from typing import Any

from ..version import __version__
from .checkup import Checkup
from .estimate import MODELS, Estimate, estimate_base, estimate_releases, recommended, release_name
from .published import CARDS, rates_of

BYTES = ("memory_total", "memory_free", "memory_held_elsewhere", "ram_total", "ram_free", "page_file")


def format_checkup(found: Checkup) -> str:
    """Return a machine check as a page of text."""
    parts = [
        _machine(found),
        _trials(found),
        _rates(found),
        _releases(found.rows),
        base_lines(found.base),
        _presets(found),
    ]
    if found.advice:
        parts.append("\n".join(["To do", *(f"  - {each}" for each in found.advice)]))
    return "\n\n".join(part for part in parts if part)


def _machine(found: Checkup) -> str:
    names = [name.replace("_", " ") for name in found.facts]
    width = max(map(len, names))
    values = [_value(name, value) for name, value in found.facts.items()]
    return "\n".join(
        [f"LingBot-World {__version__}", *(f"  {n:<{width}}  {v}" for n, v in zip(names, values, strict=True))]
    )


def _value(name: str, value: Any) -> str:
    if name in BYTES:
        return f"{value / 1e9:.1f} GB"
    if isinstance(value, dict):
        return ", ".join(
            f"{key.replace('_mb_s', '')} {each}{' MB/s' * key.endswith('mb_s')}" for key, each in value.items()
        )
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _trials(found: Checkup) -> str:
    lines = ["What computes what: each candidate, tried here"]
    for work, tried in found.trials.items():
        for each in tried:
            error = "" if each.error is None else f"error {each.error:.2g}"
            time = "" if each.seconds is None else f", {1e3 * each.seconds:.3g} ms"
            lines.append(f"  {work:<15} {each.name:<22} {each.reason or f'right, {error}{time}'}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _rates(found: Checkup) -> str:
    lines = [f"  {work:<15} {rate.tflops:8.3g}  by {rate.name}" for work, rate in found.rates.items() if rate.tflops]
    return "\n".join(["TFLOP/s", *lines]) if lines else ""


def _releases(rows: Sequence[Estimate]) -> str:
    if not rows:
        return ""
    lines = ["Worked out from these: seconds a chunk of 4 latent frames, frames a second"]
    for row in rows:
        lines.append(f"  {release_name(row.model):<22} {describe_setting(row):<42} {_result(row)}")
    return "\n".join(lines)


def base_lines(rows: Sequence[Estimate]) -> str:
    """Return the base model's estimated minutes for a video as text; "" without estimates."""
    if not rows:
        return ""
    lines = ["Base, 81 frames at 832x480 in 40 guided steps"]
    for row in rows:
        words = "8 bits" if row.setting.eight_bit else "exact"
        where = "" if row.place is None else f", {row.place.where}"
        lines.append(f"  {words:<6}  {format_minutes(row)}{where}")
    return "\n".join(lines)


def format_minutes(row: Estimate) -> str:
    """Return an estimate's time as text such as "12 min" or "does not fit"."""
    return "does not fit" if row.seconds is None else f"{row.seconds.total / 60:.0f} min"


def describe_setting(row: Estimate) -> str:
    """Return an estimate's video size, attention window and number format as text."""
    height, width = row.setting.size
    return f"{width}x{height}, window {row.setting.window}, {'8 bits' if row.setting.eight_bit else 'exact'}"


def _result(row: Estimate) -> str:
    if row.place is None or row.seconds is None:
        return "does not fit"
    return f"{row.seconds.total:6.2f} s {row.frames_a_second:6.1f} a second, {row.place.where}"


def _presets(found: Checkup) -> str:
    lines = ["Take"]
    for model, row in found.presets.items():
        height, width = row.setting.size
        flags = f"--width {width} --height {height} --window {row.setting.window} --sink {row.setting.sink}"
        eight = " --arithmetic 8bit --attention 8bit" if row.setting.eight_bit else ""
        lines.append(f"  {release_name(model)}: {flags}{eight}")
    return "\n".join(lines) if len(lines) > 1 else ""


def card_page(name: str) -> str:
    """Return a text on the estimated speeds of all LingBot-World models on a GPU. `name`: the GPU's key in CARDS."""
    rows = estimate_releases(rates_of(CARDS[name]))
    lines = [f"{name}, worked out from published figures and the shares of them that kernels reached"]
    for row in rows:
        result = (
            "does not fit" if row.seconds is None else f"{row.seconds.total:.2f} s, {row.frames_a_second:.1f} a second"
        )
        where = "" if row.place is None else f", {row.place.where}"
        lines.append(f"  {release_name(row.model):<22} {describe_setting(row):<42} {result}{where}")
    for model in MODELS:
        if (best := recommended(rows, model)) is not None:
            lines.append(f"  take for {release_name(model)}: {describe_setting(best)}")
    lines.append(base_lines(estimate_base(rates_of(CARDS[name]))))
    return "\n".join(lines)


def table_row(found: Checkup) -> str:
    """Return a machine check as a row of the table in docs/cards.md."""
    rates = " / ".join(f"{rate.tflops:.3g}" for rate in found.rates.values() if rate.tflops) or "-"
    made = "; ".join(
        f"{model} {describe_setting(each)}: {each.frames_a_second:.1f}" for model, each in found.presets.items()
    )
    facts = found.facts
    cells = [facts["card"], f"{facts['torch']}; driver {facts['driver']}", rates, made or "-", f"doctor {__version__}"]
    return f"| {' | '.join(cells)} |"
