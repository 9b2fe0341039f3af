"""What encoding two prompts with a full-size umt5-xxl costs in memory and time.

    python tools/bench/measure_text_memory.py [--device cuda] [--format pth] [--folder DIR] [--keep]

Writes an encoder file of the real size (11.4 GB, random bf16) and a tokenizer with 256,300 pieces, encodes in a fresh
process while a thread watches the process's anonymous memory, and checks the limits: less than 1 GB more at the peak,
back within 100 MB afterwards. On a GPU also: seconds and peak GPU memory. Linux only (/proc).
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase

import torch
from lingbot_world.text import NEGATIVE_PROMPT, encode
from lingbot_world.text.weights import UMT5Config
from memory_watch import Peak, process_bytes
from safetensors.torch import safe_open

XXL = UMT5Config(
    vocab_size=256384, dim=4096, attention_dim=4096, ffn_dim=10240, num_heads=64, num_layers=24, buckets=32
)
PIECES = 256_300
PROMPT = "The video presents a soaring journey through a fantasy jungle, towards a castle on a green hill."
PEAK_LIMIT, REST_LIMIT = 1000, 100  # MB
PIECE = 64 << 20


def main() -> None:
    options = parse_options()
    if options.measure:
        measure(options.measure, options.tokenizer, options.device, getattr(torch, options.dtype))
        return
    folder = Path(tempfile.mkdtemp(prefix="umt5-", dir=options.folder))
    try:
        encoder, tokenizer = write_files(folder, options.format)
        command = [sys.executable, __file__, "--measure", encoder, "--tokenizer", tokenizer]
        command += ["--device", options.device, "--dtype", options.dtype]
        sys.exit(subprocess.run([str(part) for part in command], check=False).returncode)
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--format", default="safetensors", choices=("safetensors", "pth"))
    parser.add_argument("--folder", help="where to write the files (default: the system's temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the files there")
    parser.add_argument("--measure", help="an encoder file that is already there, with --tokenizer")
    parser.add_argument("--tokenizer", help="its tokenizer")
    return parser.parse_args()


def write_files(folder: Path, file_format: str) -> tuple[Path, Path]:
    started = time.perf_counter()
    encoder = write_safetensors(folder / "umt5.safetensors", XXL)
    if file_format == "pth":
        encoder = convert_to_pth(encoder)
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    seconds = time.perf_counter() - started
    print(f"{encoder}: {encoder.stat().st_size / 1e9:.2f} GB written in {seconds:.0f} s", flush=True)
    return encoder, tokenizer


def write_safetensors(file: Path, config: UMT5Config) -> Path:
    """Random bf16 of the usual scale; one random piece is written again and again, so nothing is held."""
    header, offset = {}, 0
    for key, shape in config.parameter_shapes().items():
        nbytes = 2 * torch.Size(shape).numel()
        header[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = (torch.randn(PIECE // 2) * 0.02).bfloat16().view(torch.uint8).numpy()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, offset, PIECE):
            out.write(piece[: offset - start])
    return file


def convert_to_pth(file: Path) -> Path:
    with safe_open(file, "pt") as opened:
        torch.save({key: opened.get_tensor(key) for key in opened.keys()}, file.with_suffix(".pth"))  # noqa: SIM118
    file.unlink()
    return file.with_suffix(".pth")


def write_tokenizer(file: Path) -> Path:
    """A unigram vocabulary of the real size, made of random words and the letters."""
    draw = random.Random(0)
    letters = [chr(code) for code in range(33, 127)] + sorted({*NEGATIVE_PROMPT})
    words = {"\u2581" + "".join(draw.choices(ascii_lowercase, k=draw.randint(2, 9))) for _ in range(PIECES)}
    pieces = ["<pad>", "</s>", "<s>", "<unk>", "\u2581", *letters, *sorted(words)]
    while len(pieces) < PIECES:
        pieces.append(f"<filler_{len(pieces)}>")
    vocabulary = [[piece, -1.0 - i / 1e4] for i, piece in enumerate(pieces[:PIECES])]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocabulary}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    file.write_text(json.dumps({"version": "1.0", "pre_tokenizer": space, "model": model}), "utf-8")
    return file


def measure(encoder: str, tokenizer: str, device: str, dtype: torch.dtype) -> None:
    on_gpu = device.startswith("cuda")
    if on_gpu:
        start_gpu(device)
    before = process_bytes(os.getpid())
    with Peak() as peak:
        started = time.perf_counter()
        tokens = [len(out.cpu()) for out in encode([PROMPT, NEGATIVE_PROMPT], encoder, tokenizer, device, dtype)]
        seconds = time.perf_counter() - started
    grown, kept = ((value - before) / 1e6 for value in (peak.bytes, process_bytes(os.getpid())))
    print(f"{len(tokens)} prompts of {tokens} tokens: {seconds:.2f} s, tokenizer included")
    print(f"anonymous memory: before {before / 1e6:.0f} MB, peak +{grown:.0f} MB, after {kept:+.0f} MB")
    if on_gpu:
        print(f"GPU memory: peak {torch.cuda.max_memory_allocated(device) / 1e6:.0f} MB")
    within = grown < PEAK_LIMIT and kept < REST_LIMIT
    sys.exit(None if within else f"over the limit: peak +{PEAK_LIMIT} MB, after +{REST_LIMIT} MB")


def start_gpu(device: str) -> None:
    """The CUDA context and cuBLAS are the process's own cost, not the encoding's."""
    matrix = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
    (matrix @ matrix).sum().item()
    torch.cuda.reset_peak_memory_stats(device)


if __name__ == "__main__":
    main()
