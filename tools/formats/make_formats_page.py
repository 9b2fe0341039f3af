"""Writes docs/formats.md from the readers' lists of fields: `python tools/formats/make_formats_page.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lingbot_world.camera.formats import FORMATS, sniff
from lingbot_world.fields import Field
from lingbot_world.headless.files import video_reader
from lingbot_world.tools.formats import file_fields

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
EFFECTS = {"applied": "applied", "refused": "refused", "reported": "reported", "ignored": "no effect"}
INTRODUCTION = """\
# Files: what is read, applied and refused

In short: safetensors, .pt, GGUF, bitsandbytes' 4 bits, and ComfyUI's fp8, int8, nvfp4 and mxfp8 files of LingBot-World
work, plain LoRAs of many trainers and camera paths of the programs below. GPTQ, AWQ, and LoRAs of the kinds LoKr, LoHa
and DoRA do not: they are refused by name.

Every field of a format that changes the meaning of the rest is in one of these tables. *Applied*: the result follows
the field. *Refused*: an error names the field and a remedy. *Reported*: the field has no effect, and a note names it.
*No effect*: the field cannot change the result. Keys and tensors that no table has are an error or a note.

This page is written from the readers' own lists by `python tools/formats/make_formats_page.py`; a test compares both.
"""


class Section(NamedTuple):
    heading: str
    text: str
    tables: dict[str, Sequence[Field]]


SECTIONS = [
    Section(
        "Cameras",
        "`lingbot-world camera show FILE` reads all of these, and so does *Import LingBot-World Camera*. `--fov_deg` "
        "replaces a lens that is missing, unreadable or not a pinhole. A camera stands still if its poses differ only "
        "by the rounding of the file's numbers.",
        {f"`{name}`: {format.description}": format.fields for name, format in FORMATS.items()}
        | {"Texts in any JSON or .npz": sniff.FIELDS},
    ),
    Section(
        "Images",
        "First frames, frames in folders, and images that a live client sends. HEIC needs the package `pillow-heif`. "
        "On the canvas ComfyUI's *Load Image* reads the file; the node after it reports if the colours differ.",
        {"PNG, JPEG, WebP, TIFF, AVIF, HEIC and other formats that Pillow reads": file_fields.IMAGES},
    ),
    Section(
        "Videos",
        "Read by `camera from-video`, `camera measure` and `measure`, through FFmpeg. On the canvas ComfyUI's *Load "
        "Video* reads the file, without sample aspect ratio and time stamps.",
        {"MP4, MOV, MKV, WebM and other formats that FFmpeg reads": video_reader.FIELDS},
    ),
    Section(
        "Model weights",
        "Experts, causal models, text encoders and VAEs are read by the same code, so each may have any of these "
        "forms. They keep their form in memory and are decoded at each use; LoRAs are added to the decoded weight. "
        "GGUF needs the package `gguf`. nvfp4, mxfp8 and rotated int8 go through `comfy-kitchen`, to ComfyUI's bits. "
        "`quantize` reads every form except bitsandbytes' own, and writes nf4, `comfy-fp8`, int8 and nvfp4.",
        {
            "safetensors, .pt, .pth: plain values": file_fields.SAFETENSORS,
            "config.json next to the weights": file_fields.CONFIG,
            "bitsandbytes' 4 bits, and formats of the same kind": file_fields.BITSANDBYTES,
            "ComfyUI's quantized layers": file_fields.COMFYUI,
            "GGUF, as ComfyUI-GGUF's converter and llama.cpp write it": file_fields.GGUF,
            "umt5 text encoders": file_fields.TEXT_ENCODER,
            "VAEs": file_fields.VAE,
        },
    ),
    Section(
        "LoRAs",
        "Files of `--lora`, of `quantize --lora`, and of ComfyUI's LoRA loaders on our models. A folder "
        "written by PEFT works too. On the canvas, parts of a LoRA that ComfyUI's own loader leaves out are applied, "
        "with a note; in a node for several LoRAs only where the tensors show the file. ComfyUI applies LoHa, LoKr and "
        "DoRA itself.",
        {"Keys": file_fields.LORA_KEYS, "Scale, in the header or adapter_config.json": file_fields.LORA_SCALE},
    ),
    Section("Names", "The names of files and folders show the kind of a model.", {"": file_fields.NAMES}),
]


def page() -> str:
    lines = [INTRODUCTION]
    for section in SECTIONS:
        lines += [f"## {section.heading}", "", section.text, ""]
        for caption, fields in section.tables.items():
            lines += [*([f"**{caption}**", ""] if caption else []), "| field | | |", "|---|---|---|"]
            lines += [*map(_row, fields), ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(field: Field) -> str:
    names = ", ".join(f"`{_cell(name)}`" for name in field.names)
    return f"| {names} | {EFFECTS[field.effect]} | {_cell(field.how)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
