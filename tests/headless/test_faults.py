"""The command on bad days: out of GPU memory, a disk that fails, files that are replaced or closed to the user. One
line, exit code 2, nothing written, everything freed, and the next run makes its video."""

import errno
import gc
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.headless import preparation, stages
from lingbot_world.headless import run as runs
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders.uploader import ChunkReader
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.pipeline import chunk_loop
from lingbot_world.pipeline.memory import Residency
from lingbot_world.vae import VAE
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")

STREAMED = Residency(both=False, resident_blocks=0, camera_cache_bytes=0)
PARTS = ["low_noise_model_bnb_nf4/config.json", "tokenizer/tokenizer.json", "models_t5_umt5-xxl-enc-bf16.pth"]
PARTS += ["high_noise_model_bnb_nf4/model.safetensors", "Wan2.1_VAE.pth", "example/poses.npy", "example/image.png"]
EXPERTS = [f"{role}_noise_model_bnb_nf4/model.safetensors" for role in ("high", "low")]


@pytest.fixture
def package(toy_package, tmp_path):
    """A toy package that a test may spoil."""
    return shutil.copytree(toy_package, tmp_path / "package")


@pytest.fixture
def frames(command, tmp_path):
    """`frames(...)` runs the command and returns the frames of its video, or the line that it ended with."""

    def make(**changes):
        output = tmp_path / "frames"
        shutil.rmtree(output, ignore_errors=True)
        code = main(command(output=output / "*.png", **changes))
        made = sorted(output.glob("*.png")) if output.exists() else []
        assert bool(made) == (code == 0)
        return np.stack([np.asarray(Image.open(file)) for file in made]) if made else code

    return make


@pytest.fixture(scope="module")
def undisturbed():
    """What `want(options)` has seen, by options."""
    return {}


@pytest.fixture
def want(frames, undisturbed):
    """`want(...)`: the frames of a run with nothing wrong; those of equal options are made once."""

    def make(**changes):
        key = str(changes)
        if key not in undisturbed:
            undisturbed[key] = frames(**changes)
        return undisturbed[key]

    return make


@pytest.fixture
def causal(toy_package):
    """Options of `frames` for the toy's causal model."""
    return {"ckpt_dir": toy_package / "lingbot_world_fast", "frame_num": 9, "sampling_steps": None}


def line(capsys):
    error = capsys.readouterr().err.rpartition("lingbot-world: ")[2]
    assert error.count("\n") == 1, error
    return error


def open_files():
    """Mapped and open files of this process; elsewhere than on Linux none."""
    if sys.platform != "linux":
        return []
    opened = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [*Path("/proc/self/maps").read_text().splitlines(), *opened]


@pytest.fixture(autouse=True)
def before():
    """Files that are open already: other tests keep a world from one to the next."""
    BEFORE.clear()
    BEFORE.update(open_files())


BEFORE: set[str] = set()


def left_over(*folders):
    """What a run that ended has not freed: models, and mapped or open files of these folders."""
    gc.collect()
    left = [type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, LingBotWorldModel | VAE)]
    own = (entry for entry in open_files() if entry not in BEFORE)
    return left + [entry for entry in own if any(str(folder) in entry for folder in folders)]


class Fault:
    """Calls of `work` from the `first` on raise `error`."""

    def __init__(self, work, first, error):
        self.work, self.first, self.error, self.calls = work, first, error, 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        if self.calls >= self.first:
            raise self.error
        return self.work(*arguments, **keywords)


@pytest.mark.parametrize(
    ("rollout", "module", "place", "first", "stage"),
    [
        (False, stages, "load_expert", 1, "load high-noise expert"),
        (False, stages, "load_expert", 2, "load low-noise expert"),
        (False, stages, "decode_latent", 1, "VAE decode"),
        (False, stages, "encode_first_frame", 1, "VAE encode"),
        (False, stages, "encode", 1, "text"),
        (True, preparation, "load_model", 1, ""),
        (True, preparation, "encode_first_frame", 1, ""),
        (True, preparation, "stripe_decoder", 1, ""),
        (True, chunk_loop, "World", 1, ""),
    ],
)
def test_out_of_gpu_memory(
    frames, want, causal, toy_package, monkeypatch, capsys, rollout, module, place, first, stage
):
    options = causal if rollout else {}
    whole = want(**options)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    monkeypatch.setattr(module, place, Fault(getattr(module, place), first, error))
    assert frames(**options) == 2
    assert f"the GPU's memory ran out in stage '{stage}" in line(capsys)
    del error
    monkeypatch.undo()
    assert left_over(toy_package) == []
    assert np.array_equal(frames(**options), whole)


@pytest.mark.parametrize("first", [1, 8])
def test_a_disk_that_fails_half_way(frames, toy_package, monkeypatch, capsys, first):
    """The experts' blocks stream from their files, as on a GPU that is too small for them."""
    monkeypatch.setattr(runs, "choose_residency", lambda *_: STREAMED)

    class File:
        def __init__(self, file):
            self._file, self.seek, self.close, self.fileno = file, file.seek, file.close, file.fileno

        def readinto(self, buffer):
            reads.append(buffer)
            if len(reads) >= first:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return self._file.readinto(buffer)

    reads, read = [], ChunkReader.read

    def faulty(lane, chunk, buffer):
        if not isinstance(chunk.source, torch.Tensor) and chunk.source not in lane._files:
            lane._files[chunk.source] = File(chunk.source.open())
        read(lane, chunk, buffer)

    monkeypatch.setattr(ChunkReader, "read", faulty)
    assert frames() == 2
    assert "model.safetensors: cannot be read (Input/output error)" in line(capsys)
    monkeypatch.undo()
    assert left_over(toy_package) == []
    assert len(frames()) == 5


def test_files_that_are_replaced_while_they_are_mapped_serve_to_the_end(frames, package, monkeypatch):
    want, load = frames(ckpt_dir=package), stages.load_expert

    def replaced(*arguments, **more):
        for name in EXPERTS:
            replace(package / name)
        return load(*arguments, **more)

    monkeypatch.setattr(stages, "load_expert", replaced)
    assert np.array_equal(frames(ckpt_dir=package), want)


def test_a_file_that_is_replaced_before_it_is_read_is_refused(frames, package, monkeypatch, capsys):
    load = stages.load_expert

    def replaced(expert, *rest, **more):
        replace(package / EXPERTS[1])
        return load(expert, *rest, **more)

    monkeypatch.setattr(stages, "load_expert", replaced)
    monkeypatch.setattr(runs, "choose_residency", lambda *_: STREAMED)
    assert frames(ckpt_dir=package) == 2
    assert f"{package / EXPERTS[1]}: was replaced or changed" in line(capsys)
    assert left_over(package) == []


def replace(file):
    """Another file of the same size takes the name, as a download or a copy does it."""
    new = file.with_name("new")
    new.write_bytes(bytes(file.stat().st_size))
    os.replace(new, file)


@contextmanager
def as_nobody():
    """Root may read everything. In here it is somebody else."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_package(toy_package):
    """A toy package in a folder that everybody may read."""
    folder = Path(tempfile.mkdtemp(prefix="lingbot-rights-"))
    try:
        folder.chmod(0o777)
        package = shutil.copytree(toy_package, folder / "package")
        package.chmod(0o755)
        yield package
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="has rights of another kind")
@pytest.mark.parametrize("name", [*PARTS, "low_noise_model_bnb_nf4", "."])
def test_a_file_or_folder_without_rights_is_named(command, open_package, capsys, name):
    (open_package / name).chmod(0)
    example = open_package / "example"
    arguments = command(
        ckpt_dir=open_package,
        image=example / "image.png",
        action_path=example,
        output=open_package.parent / "video.mp4",
    )
    with as_nobody():
        assert main(arguments) == 2
    error = line(capsys)
    assert str(open_package / name) in error
    assert "ermission denied" in error
    (open_package / name).chmod(0o755)
    assert not (open_package.parent / "video.mp4").exists()
