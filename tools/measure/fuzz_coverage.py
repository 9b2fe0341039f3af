"""A coverage-guided fuzzer over the readers of weight files, JSON, tokenizers, arrays and camera files.

    python -m venv FUZZ && FUZZ/bin/pip install atheris
    PYTHONPATH=FUZZ/lib/python3.11/site-packages .venv/bin/python tools/measure/fuzz_coverage.py [--seconds 600] [KIND]

Every input has to end in an error of the pack's own or a valid load, within 2 s. Each kind has a process of its own;
what one finds lies under out/fuzz/KIND. Not part of the suite, which fuzzes without a look at coverage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
OUT = ROOT / "out" / "fuzz"
WORDS = (
    "dtype",
    "shape",
    "data_offsets",
    "F32",
    "BF16",
    "U8",
    "I64",
    "[0,48]",
    "[2,6]",
    "1e999",
    "NaN",
    "null",
    "true",
    "{}",
    "[]",
    ":",
    ",",
    "-1",
    "99999999999999999999",
    "weight_map",
    "transform_matrix",
    "frames",
    "fl_x",
    "descr",
    "fortran_order",
    "<f8",
    "(4,4)",
    "\\x93NUMPY",
    "PK\\x03\\x04",
    "vocab",
    "model",
)
KINDS = ("header", "safetensors", "config", "index", "torch", "tokenizer", "npy", "npz", "json_path", "text_path")


def reader(kind: str, folder: Path) -> tuple[Path, Callable[[], object], list[Path]]:
    """The file that inputs are written to, what reads it, and valid files to begin with."""
    import shutil

    from lingbot_world.camera.formats import read_camera
    from lingbot_world.camera.pose_folder import load_array
    from lingbot_world.loaders import open_checkpoint
    from lingbot_world.loaders.files import read_tensors
    from lingbot_world.text import load_tokenizer

    expert = GOLDEN / "nf4" / "high_noise_model_bnb_nf4"
    if kind in ("safetensors", "config"):
        shutil.copytree(expert, folder, dirs_exist_ok=True)
        file = folder / ("model.safetensors" if kind == "safetensors" else "config.json")
        return file, lambda: open_checkpoint(folder), [expert / file.name, *header_only(folder, expert / file.name)]
    if kind == "header":
        first = folder / "first.json"
        entry = {"dtype": "F32", "shape": [2, 6], "data_offsets": [0, 48]}
        first.write_text(json.dumps({"__metadata__": {"format": "pt"}, "patch_embedding.weight": entry}))
        return folder / "model.safetensors", lambda: open_checkpoint(folder / "model.safetensors"), [first]
    if kind == "index":
        first = folder / "first.index.json"
        first.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
        return folder / "model.safetensors.index.json", lambda: read_tensors(folder), [first]
    if kind == "torch":
        import torch

        torch.save({"a.weight": torch.zeros(2, 3)}, folder / "first.bin")
        return folder / "model.pt", lambda: read_tensors(folder / "model.pt"), [folder / "first.bin"]
    if kind == "tokenizer":
        small = folder / "first.json"
        model = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
        small.write_text(json.dumps({"version": "1.0", "model": model}))
        (folder / "tokenizer").mkdir()
        return folder / "tokenizer/tokenizer.json", lambda: load_tokenizer(folder / "tokenizer"), [small]
    return camera_reader(kind, folder, load_array, read_camera)


def header_only(folder: Path, file: Path) -> list[Path]:
    """A valid safetensors file of a few bytes: mutations of a whole model hardly ever meet its header."""
    import torch
    from safetensors.torch import save_file

    if file.suffix != ".safetensors":
        return []
    save_file({"patch_embedding.weight": torch.zeros(2, 3, 1, 2, 2)}, folder.with_name("small.safetensors"))
    return [folder.with_name("small.safetensors")]


def camera_reader(kind: str, folder: Path, load_array, read_camera) -> tuple[Path, Callable[[], object], list[Path]]:  # noqa: ANN001
    import numpy as np

    poses = np.tile(np.eye(4), (5, 1, 1))
    first = folder / f"first.{kind}"
    if kind == "npy":
        with first.open("wb") as file:
            np.save(file, poses)
        return folder / "poses.npy", lambda: load_array(folder / "poses.npy"), [first]
    if kind == "npz":
        with first.open("wb") as file:
            np.savez(file, data=poses, inds=np.arange(5))
        return folder / "poses.npz", lambda: read_camera(folder / "poses.npz", "vipe"), [first]
    if kind == "json_path":
        frames = [{"file_path": f"{i}.png", "transform_matrix": matrix.tolist()} for i, matrix in enumerate(poses)]
        first.write_text(json.dumps({"w": 832, "h": 480, "fl_x": 500, "frames": frames}))
        return folder / "transforms.json", lambda: read_camera(folder / "transforms.json", "transforms"), [first]
    first.write_text("https://a.b/c\n" + "\n".join(f"{i} .5 .9 .5 .5 0 0 1 0 0 0 0 1 0 0 0 0 1 {i}" for i in range(5)))
    return folder / "path.txt", lambda: read_camera(folder / "path.txt", "realestate10k"), [first]


def fuzz(kind: str, seconds: int) -> None:
    """Run one kind in this process, until the time is up or something is found."""
    import atheris

    with atheris.instrument_imports(include=["lingbot_world"]):
        import lingbot_world.camera.formats
        import lingbot_world.loaders.checkpoint
        import lingbot_world.text  # noqa: F401
    from lingbot_world.errors import LingBotError

    out = OUT / kind
    corpus = out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    words = out / "words"
    words.write_text("".join(f'"{word}"\n' for word in WORDS))
    folder = Path(tempfile.mkdtemp(prefix="lingbot-fuzz-")) / "model"
    folder.mkdir()
    file, read, seeds = reader(kind, folder)
    for index, seed in enumerate(seeds):
        (corpus / f"seed{index}").write_bytes(seed.read_bytes())

    def attempt(data: bytes) -> None:
        # A header by itself: hardly any mutation of a whole file leaves its length right.
        file.write_bytes(len(data).to_bytes(8, "little") + data + bytes(48) if kind == "header" else data)
        try:
            read()
        except LingBotError:
            return

    options = [
        f"-max_total_time={seconds}",
        "-timeout=2",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={out}/",
        f"-dict={words}",
        "-max_len=20000",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], attempt)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=int, default=600, help="for all kinds together")
    parser.add_argument("--here", action="store_true", help="one kind, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        fuzz(arguments.kinds[0], arguments.seconds)
        return
    for kind in arguments.kinds:
        each = arguments.seconds // len(arguments.kinds)
        done = subprocess.run(
            [sys.executable, __file__, kind, "--here", "--seconds", str(each)],
            capture_output=True,
            text=True,
            errors="replace",
        )
        stats = [line for line in done.stderr.splitlines() if "Done" in line or "cov:" in line][-2:]
        found = "found nothing" if done.returncode == 0 else f"FOUND, see {OUT / kind}"
        print(f"{kind}: {found}", *stats, sep="\n  ", flush=True)
        if done.returncode:
            print(done.stderr[-3000:])


if __name__ == "__main__":
    main()
