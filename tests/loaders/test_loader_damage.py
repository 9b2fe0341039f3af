"""Files that are no expert: cut short, lying about themselves, malicious, or something else. One clear error each."""

import contextlib
import json
import pickle
import random
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from checkpoint_cases import NF4, refused
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import open_checkpoint, state_tensors
from safetensors.torch import save_file


def start_of(path: Path, count: int) -> bytes:
    return path.read_bytes()[:count]


@pytest.mark.parametrize("keep", [0, 5, 4000, 300_000])
def test_a_truncated_file_says_so(golden, tmp_path, keep):
    file = tmp_path / "model.safetensors"
    file.write_bytes(start_of(golden / NF4 / "model.safetensors", keep))
    message = refused(file, "model.safetensors")
    assert "truncated" in message or "empty" in message


def write_header(path: Path, header, data=b"\0" * 64):
    header = header() if callable(header) else header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def item(begin, end, shape=(8,), dtype="U8"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": item(0, 32, (8,), "F32"), "b": item(16, 80, (64,))}, ("b at byte 16 overlaps",)),
        ({"a": item(0, 8), "b": item(16, 24)}, ("b at byte 16 leaves a gap",)),
        ({"a": item(0, 1024, (1024,))}, ("truncated",)),
        ({"a": item(0, 8)}, ("56 bytes after the last tensor",)),
        ({"a": item(0, 64, (8,))}, ("does not fill its byte range",)),
        ({"a": item(0, 8, (-8,))}, ("does not fill its byte range",)),
        ({"a": item(8, 0)}, ("does not fill its byte range",)),
        ({"a": item(0, 8, dtype="Q3")}, ("a is 'Q3', which is not read here",)),
        ({"a": item(0, 8, dtype=["U8"])}, ("which is not read here",)),
        ({"a": item(0, 0, (1 << 80, 0))}, ("does not fill its byte range",)),
        (b'{"a":' * 100_000, ("not JSON",)),
        ({"a": {"dtype": "U8"}}, ("header entry of a is broken",)),
        ({"a": 5}, ("header entry of a is broken",)),
        ([1], ("header is a list",)),
        ({"x" * 1001: item(0, 64, (64,))}, ("longest name of 1,001",)),
        (lambda: {f"t{n}": item(0, 0, (0,)) for n in range(100_001)}, ("100,001 tensors",)),
        (b"{not json", ("not JSON",)),
    ],
)
def test_a_lying_header_is_named(tmp_path, header, words):
    refused(write_header(tmp_path / "x.safetensors", header), "x.safetensors", *words)


def test_damage_anywhere_in_the_descriptions_is_a_clear_error_or_harmless(golden, tmp_path):
    good = (golden / NF4 / "model.safetensors").read_bytes()
    shutil.copy(golden / NF4 / "config.json", tmp_path)
    header = 8 + int.from_bytes(good[:8], "little")
    states = [match.start() for match in re.finditer(rb'\{"quant_type', good)]
    rng = random.Random(5)
    for _ in range(60):
        bad = bytearray(good)
        place = rng.choice([rng.randrange(8, header), rng.choice(states) + rng.randrange(160)])
        bad[place] = rng.choice(b'09-[]{}",:en\xff')
        (tmp_path / "model.safetensors").write_bytes(bad)
        with contextlib.suppress(CheckpointError):
            state_tensors(open_checkpoint(tmp_path), torch.float32)


def test_a_header_longer_than_the_file_is_named(tmp_path):
    file = tmp_path / "x.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    refused(file, "truncated", f"{1 << 60:,}")


class TouchesAFile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_pickle_is_refused_without_running(tmp_path):
    touched = tmp_path / "touched"
    torch.save({"patch_embedding.weight": TouchesAFile(touched)}, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "refused")
    assert not touched.exists()


def test_a_bare_pickle_is_refused_without_running(tmp_path):
    touched = tmp_path / "touched"
    (tmp_path / "model.pt").write_bytes(pickle.dumps(TouchesAFile(touched)))
    refused(tmp_path / "model.pt", "zip format")
    assert not touched.exists()


@pytest.mark.parametrize("keep", [1000, 100_000])
def test_a_truncated_pt_says_so(golden, tmp_path, keep):
    source = golden / "nf4/pt_fallback/high_noise_model_bnb_nf4/model.pt"
    (tmp_path / "model.pt").write_bytes(start_of(source, keep))
    refused(tmp_path / "model.pt", "cannot be read as torch.save weights")


def test_a_pt_that_is_called_safetensors_is_named(tmp_path):
    torch.save({"w": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="torch.save by its content; rename it to x.pt"):
        open_checkpoint(tmp_path / "x.safetensors")


def test_a_zip_that_is_no_checkpoint_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "model.pt", "a zip archive of other files (readme.txt), not torch.save's; unpack it")


@pytest.mark.parametrize("content", [{"step": 5, "w": torch.zeros(1)}, [torch.zeros(1)]])
def test_a_pt_of_other_things_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "model.pt")
    assert "tensors" in refused(tmp_path / "model.pt", "model.pt")


OTHERS = {
    "a LoRA": {"blocks.0.self_attn.q.lora_A.weight": (4, 64)},
    "a T5 text encoder": {"token_embedding.weight": (8, 4), "blocks.0.attn.q.weight": (4, 4)},
    "a VAE": {"encoder.conv1.weight": (8, 3, 3, 3, 3)},
    "Matrix-Game 3.0": {"patch_embedding.weight": (64, 48, 1, 2, 2), "blocks.0.cam_scale_layer.weight": (64, 64)},
    "Wan 2.2 TI2V 5B": {"patch_embedding.weight": (64, 48, 1, 2, 2), "blocks.0.self_attn.q.weight": (64, 64)},
    "a text-to-video model": {"patch_embedding.weight": (64, 16, 1, 2, 2), "blocks.0.self_attn.q.weight": (64, 64)},
    "a Wan 2.1 image-to-video model": {"blocks.0.cross_attn.k_img.weight": (4, 4)},
    "no transformer block": {"fc.weight": (4, 4)},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_named(tmp_path, kind):
    save_file({key: torch.zeros(shape) for key, shape in OTHERS[kind].items()}, tmp_path / "x.safetensors")
    refused(tmp_path / "x.safetensors", kind)


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"GGUF\3\0\0\0", "GGUF"), (b"version https://git-lfs.github.com", "git-lfs"), (b"<!DOCTYPE html>", "web page")],
)
def test_other_files_are_named(tmp_path, start, kind):
    (tmp_path / "model.safetensors").write_bytes(start + b"\n" * 100)
    refused(tmp_path / "model.safetensors", kind)


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", r"..\secret.pt", "below/a.safetensors"])
def test_an_index_does_not_lead_out_of_its_folder(tmp_path, name):
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    refused(tmp_path, f"names {name!r}, expected the name of a file next to it")


def test_a_folder_with_a_gguf_alone_says_so(tmp_path):
    (tmp_path / "lingbot-Q4_K_M.gguf").write_bytes(b"GGUF" + bytes(60))
    refused(tmp_path, "lingbot-Q4_K_M.gguf: ", "GGUF")


def test_an_empty_folder_and_a_missing_path_are_named(tmp_path):
    refused(tmp_path, "no weights in this folder")
    refused(tmp_path / "nothing", "no such file or folder")
