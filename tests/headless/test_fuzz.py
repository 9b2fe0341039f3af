"""Damaged files of every kind end in the pack's own error or load: no other exception, no hang, no runaway memory.

The suite tries a few hundred mutations; LINGBOT_FUZZ=20000 tries as many of each kind."""

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from camera_cases import colmap_binary
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.pose_folder import load_array
from lingbot_world.errors import LingBotError
from lingbot_world.loaders import open_checkpoint, state_tensors
from lingbot_world.loaders.files import read_tensors
from lingbot_world.text import load_tokenizer
from safetensors.torch import save_file

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
EXAMPLES = int(os.environ.get("LINGBOT_FUZZ", 40))
MEMORY, SECONDS = 512 << 20, 2
TOKENS = (
    b"0",
    b"-1",
    b"1e400",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"true",
    b"9" * 30,
    b"[" * 3000,
    b'"\\ud800"',
    b"\x00",
    b"\xff\xfe",
    b"'",
    b"(",
    b",",
    b":",
    b"}",
    b"shape",
    b"__class__",
)

edit = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(1, 255)),
    st.tuples(st.just("put"), st.integers(0, 1 << 20), st.sampled_from(TOKENS)),
    st.tuples(st.just("replace"), st.integers(0, 1 << 20), st.sampled_from(TOKENS)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.integers(1, 4000)),
    st.tuples(st.just("repeat"), st.integers(0, 1 << 20), st.integers(1, 500)),
    st.tuples(st.just("end"), st.integers(0, 1 << 20), st.just(0)),
)


def mutated(content: bytes, edits, head: int) -> bytes:
    """The content with each edit made; three of four fall into the first `head` bytes, where headers are."""
    for kind, where, what in edits:
        if not content:
            break
        at = where % (min(head, len(content)) if where % 4 else len(content))
        before, after = content[:at], content[at:]
        if kind == "flip":
            content = before + bytes([after[0] ^ what]) + after[1:]
        elif kind == "end":
            content = before
        elif kind == "cut":
            content = before + after[what:]
        elif kind == "repeat":
            content = before + after[:what] * 2 + after[what:]
        else:
            content = before + what + after[len(what) * (kind == "replace") :]
    return content


def fuzz(read, content: bytes, target: Path, head: int = 1500) -> None:
    """Write mutations of `content` to `target` and `read` them."""

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES <= 40,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(edit, min_size=1, max_size=3))
    def attempt(edits):
        target.write_bytes(mutated(content, edits, head))
        begin = time.process_time()
        with limited_memory(), contextlib.suppress(LingBotError):
            read()
        assert time.process_time() - begin < SECONDS

    target.write_bytes(content)
    read()  # whatever is imported late is imported now
    attempt()


class limited_memory:  # noqa: N801
    """512 MB of address space more than now; Linux only."""

    def __enter__(self):
        if sys.platform == "linux":
            import resource

            self._before = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, self._before[1]))

    def __exit__(self, *_):
        if sys.platform == "linux":
            import resource

            resource.setrlimit(resource.RLIMIT_AS, self._before)


@pytest.fixture(scope="module")
def expert(golden, tmp_path_factory):
    """A folder that the mutations are written into."""
    folder = tmp_path_factory.mktemp("expert")
    shutil.copytree(golden / "nf4/high_noise_model_bnb_nf4", folder, dirs_exist_ok=True)
    (folder / "quantization_meta.json").write_text('{"quant": {"quant_type": "nf4"}}')
    return folder


def load(folder):
    for parameter in state_tensors(open_checkpoint(folder), torch.float32).values():
        if hasattr(parameter, "decode"):
            parameter.decode(torch.float32)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "quantization_meta.json"])
def test_experts(expert, tmp_path, name):
    folder = tmp_path / "expert"
    shutil.copytree(expert, folder)
    fuzz(lambda: load(folder), (folder / name).read_bytes(), folder / name, head=30_000)


def test_torch_save_files(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(100), "b": torch.ones(3, 4)}, file)
    fuzz(lambda: read_tensors(file), file.read_bytes(), file, head=3000)


def test_indexes_of_shards(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    save_file({"a": torch.zeros(4)}, tmp_path / "model-00001-of-00001.safetensors")
    content = json.dumps({"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}})
    fuzz(lambda: read_tensors(tmp_path), content.encode(), index)


@pytest.mark.parametrize("name", ["x" * 3000, "a\0b", "", ".."])
def test_names_in_an_index_that_are_no_files(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(LingBotError, match="1 of its 1 shards missing|expected the name of a file beside it"):
        read_tensors(index)


def test_tokenizers(toy_package, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = (toy_package / "tokenizer/tokenizer.json").read_bytes()
    fuzz(lambda: load_tokenizer(file).encode("A castle by the sea, and <0x41>"), content, file, head=3000)


def test_pose_arrays(toy_package, tmp_path):
    for name in ("poses.npy", "intrinsics.npy"):
        fuzz(
            lambda: load_array(tmp_path / "x.npy"),
            (toy_package / "example" / name).read_bytes(),
            tmp_path / "x.npy",
            head=130,
        )


def test_pose_folders(toy_package, tmp_path):
    folder = tmp_path / "path"
    shutil.copytree(toy_package / "example", folder)
    fuzz(lambda: read_camera(folder, "lingbot"), (folder / "poses.npy").read_bytes(), folder / "poses.npy", head=130)


def test_vipe_archives(tmp_path):
    file = tmp_path / "pose" / "x.npz"
    file.parent.mkdir()
    np.savez_compressed(file, data=np.tile(np.eye(4), (9, 1, 1)), inds=np.arange(9))
    fuzz(lambda: read_camera(file, "vipe"), file.read_bytes(), file, head=700)


NERF = {
    "fl_x": 500,
    "fl_y": 500,
    "cx": 416,
    "cy": 240,
    "w": 832,
    "h": 480,
    "frames": [{"file_path": f"images/{n:03}.png", "transform_matrix": np.eye(4).tolist()} for n in range(6)],
}
REAL_ESTATE = "https://x\n" + "".join(
    f"{n * 33333} 0.6 1.0 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 {n / 10}\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("name", "format_", "content"),
    [
        ("transforms.json", "transforms", json.dumps(NERF)),
        ("clip.txt", "realestate10k", REAL_ESTATE),
        ("00.txt", "kitti", "1 0 0 0 0 1 0 0 0 0 1 0\n" * 9),
    ],
)
def test_camera_text_files(tmp_path, name, format_, content):
    file = tmp_path / name
    fuzz(lambda: read_camera(file, format_), content.encode(), file)


@pytest.mark.parametrize("name", ["images.bin", "cameras.bin"])
def test_colmap_in_binary(tmp_path, name):
    file = colmap_binary(tmp_path / "colmap") / name
    fuzz(lambda: read_camera(file.parent, "colmap"), file.read_bytes(), file)


def test_a_rust_panic_is_an_error_like_others(toy_package, tmp_path):
    content = json.loads((toy_package / "tokenizer/tokenizer.json").read_text())
    content["model"]["vocab"] = content["model"]["vocab"][:1]
    content["model"]["unk_id"] = 5
    for broken in (content, {**content, "added_tokens": [{"id": 1 << 31}]}, {}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
        with pytest.raises(LingBotError):
            load_tokenizer(tmp_path)
