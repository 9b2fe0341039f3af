"""Quantizing on bad days: killed, out of disk, damaged, refused. What is there is whole, and a second run completes."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import open_checkpoint
from lingbot_world.quantize import QuantizeOptions, package, plan_quantize, quantize, verify
from lingbot_world.quantize.writer import TensorFile
from lingbot_world.weights.files import read_tensors
from quantize_cases import run, silent
from safetensors.torch import load_file, save_file

WEIGHTS = "diffusion_pytorch_model.safetensors"

# The command with a pause after each tensor, so that a signal finds it in the middle. For each line of JSON it runs in
# a process of its own that need not import torch again. It says its id and each tensor; its parent says when it ended.
SLOW = """
import json, os, sys, time
import lingbot_world.quantize, safetensors.torch
from lingbot_world.quantize.writer import TensorFile
from lingbot_world.weights.files import read_tensors
from lingbot_world.headless.command.cli import main
write, say = TensorFile.write, lambda text: os.write(1, text.encode())  # whole lines, whichever threads write
def slow(self, name, source):
    say("tensor\\n")
    time.sleep(0.02)
    return write(self, name, source)
TensorFile.write = slow
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        say(f"{os.getpid()}\\n")
        os._exit(main(["quantize", *json.loads(line)]))
    os.waitpid(child, 0)
    say("ended\\n")
"""


@pytest.fixture(scope="module")
def whole(golden, tmp_path_factory):
    """The bytes that an undisturbed run writes."""
    folder = tmp_path_factory.mktemp("whole") / "nf4"
    run(golden / "causal/model", folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def slow():
    """The process of SLOW."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.communicate()


def killed_after(process, source, destination, tensors, pause):
    process.stdin.write(json.dumps([str(source), str(destination), "--device", "cpu"]) + "\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    while tensors and (line := process.stdout.readline()):
        tensors -= line == "tensor\n"
    assert not tensors
    time.sleep(pause)
    with contextlib.suppress(ProcessLookupError):  # it is done
        os.kill(child, signal.SIGKILL)
    assert "ended\n" in iter(process.stdout.readline, "")


def kills():
    """How many runs are killed: two in the suite, more with LINGBOT_KILLS."""
    chance = random.Random(0)
    return [(chance.randrange(1, 126), 0.03 * chance.random()) for _ in range(int(os.environ.get("LINGBOT_KILLS", 2)))]


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
@pytest.mark.parametrize(("tensors", "pause"), kills())
def test_the_run_after_a_killed_one_completes_it(slow, golden, tmp_path, whole, tensors, pause, monkeypatch):
    source, target = golden / "causal/model", tmp_path / "nf4"
    killed_after(slow, source, target, tensors, pause)
    if target.exists():  # it was done before the signal came, but perhaps for the last act, which removes the journal
        (target / "model.safetensors.journal").unlink(missing_ok=True)
        assert {path.name: path.read_bytes() for path in target.iterdir()} == whole
        return
    written, write = [], TensorFile.write
    monkeypatch.setattr(TensorFile, "write", lambda self, *args: written.append(args[0]) or write(self, *args))
    run(source, target)
    assert len(written) <= 126 - tensors + 6  # what a thread was about to note is done again
    assert {path.name: path.read_bytes() for path in target.iterdir()} == whole


def test_what_the_disk_lost_is_written_again(golden, tmp_path, whole, monkeypatch):
    source, target = golden / "causal/model", tmp_path / "nf4"
    monkeypatch.setattr(TensorFile, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(source, target)
    monkeypatch.undo()
    part = tmp_path / "nf4.part/model.safetensors"
    assert not target.exists()
    with pytest.raises(CheckpointError):
        open_checkpoint(part)
    content = bytearray(part.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 5000] = bytes(5000)
    part.write_bytes(content)
    run(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == whole


def test_what_was_begun_with_other_options_is_begun_anew(golden, tmp_path, whole, monkeypatch):
    source, target = golden / "causal/model", tmp_path / "nf4"
    monkeypatch.setattr(TensorFile, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(source, target, blocksize=128, keep=("head.head",))
    monkeypatch.undo()
    run(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == whole


def stopped(_file):
    raise KeyboardInterrupt


def test_a_full_disk_is_said_and_what_is_done_is_kept(golden, tmp_path, whole, monkeypatch):
    source, target = golden / "causal/model", tmp_path / "nf4"
    write, calls = TensorFile.write, []

    def full(self, *args):
        calls.append(args)
        if len(calls) == 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, *args)

    monkeypatch.setattr(TensorFile, "write", full)
    with pytest.raises(InputError, match="No space left on device.*run it again"):
        run(source, target)
    assert not target.exists()
    run(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == whole
    assert len(calls) < 60 + 126 - 40


def test_what_could_not_begin_is_not_said_to_lie_anywhere(golden, tmp_path, monkeypatch):
    make = Path.mkdir

    def read_only(path, **keywords):
        if path.suffix == ".part":
            raise OSError(30, "Read-only file system", str(path))
        make(path, **keywords)

    plan = plan_quantize(golden / "causal/model", tmp_path / "nf4", QuantizeOptions(device="cpu"))
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(InputError, match=r"nf4\.part: Read-only file system\. Mend that and run it again$"):
        quantize(plan, silent)


def test_a_destination_that_appears_meanwhile_costs_no_work(golden, tmp_path, whole, monkeypatch):
    source, target = golden / "causal/model", tmp_path / "nf4"
    plan = plan_quantize(source, target, QuantizeOptions(device="cpu"))

    @contextlib.contextmanager
    def appearing(_name, _unit):
        target.mkdir(exist_ok=True)
        (target / "someone's").touch()
        yield lambda _done, _total: None

    with pytest.raises(InputError, match=r"nf4: Directory not empty\. Mend that and run it again: .*nf4\.part"):
        quantize(plan, appearing)
    with pytest.raises(InputError, match="nf4 exists already; name a folder that does not, or remove it"):
        quantize(plan, silent)
    shutil.rmtree(target)
    monkeypatch.setattr(TensorFile, "write", None)
    run(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == whole


def test_ctrl_c_says_where_the_next_run_goes_on(golden, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(TensorFile, "finish", stopped)
    command = ["quantize", str(golden / "causal/model"), str(tmp_path / "nf4"), "--device", "cpu"]
    assert main(command) == 130
    assert f"interrupted; the same command continues from {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(("device", "message"), [("bogus", "not a device"), ("cuda:99", "CUDA GPUs here; use cpu")])
def test_a_device_that_is_not_there_is_refused(golden, tmp_path, capsys, device, message):
    assert main(["quantize", str(golden / "causal/model"), str(tmp_path / "nf4"), "--device", device]) == 2
    assert f"--device {device}: " in (said := capsys.readouterr().err)
    assert message in said
    assert not list(tmp_path.iterdir())


def test_too_little_room_is_found_before_anything_is_written(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(package.shutil, "disk_usage", lambda _path: type("", (), {"free": 1 << 20}))
    with pytest.raises(InputError, match=r"0\.1 GB needed, 0\.0 GB are free"):
        run(golden / "causal/model", tmp_path / "nf4")


@pytest.mark.parametrize(("name", "value"), [("format", "q8"), ("blocksize", 100)])
def test_settings_that_no_reader_knows_are_refused_before_anything_is_written(golden, tmp_path, name, value):
    with pytest.raises(InputError, match=rf"`{name}` '?{value}'?: expected one of"):
        run(golden / "causal/model", tmp_path / "made", **{name: value})
    assert not list(tmp_path.iterdir())


def test_a_destination_that_exists_is_not_touched(golden, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        run(golden / "causal/model", tmp_path)


def test_numbers_that_are_not_finite_are_refused_by_name(golden, beside_config):
    tensors = load_file(golden / "model/high_noise_model_fp32.safetensors")
    tensors["blocks.1.ffn.0.weight"][3, 3] = float("nan")
    save_file(tensors, beside_config / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"blocks\.1\.ffn\.0\.weight holds NaN or infinity"):
        run(beside_config / "model.safetensors", beside_config / "nf4")


def test_weights_that_are_quantized_already_are_refused(golden, tmp_path):
    with pytest.raises(CheckpointError, match="nf4 already"):
        run(golden / "nf4/high_noise_model_bnb_nf4", tmp_path / "nf4")


def test_verify_names_a_tensor_with_one_bit_flipped(golden, tmp_path, capsys):
    run(golden / "causal/model", tmp_path / "nf4")
    assert main(["verify", str(tmp_path / "nf4")]) == 0
    assert "causal model, nf4, made from model; 381 tensors, 381 checksums agree" in capsys.readouterr().out
    entry = open_checkpoint(tmp_path / "nf4").tensors["blocks.1.ffn.2.weight"]
    with entry.path.open("r+b") as file:
        file.seek(entry.offset + 100)
        byte = file.read(1)[0]
        file.seek(entry.offset + 100)
        file.write(bytes([byte ^ 1]))
    assert main(["verify", str(tmp_path / "nf4"), "--fast"]) == 0
    assert "header and scales only" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "nf4")]) == 2
    assert "1 of 381 tensors are not what was written (blocks.1.ffn.2.weight)" in capsys.readouterr().err


def test_verify_notices_checksums_of_another_file(golden, tmp_path):
    run(golden / "causal/model", tmp_path / "nf4")
    meta = tmp_path / "nf4/quantization_meta.json"
    content = json.loads(meta.read_text())
    content["sha256"].popitem()
    meta.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="do not belong together"):
        verify(tmp_path / "nf4", silent, fast=True)


def test_verify_takes_a_text_encoder_that_was_quantized_by_itself(toy_package, tmp_path):
    run(toy_package / "models_t5_umt5-xxl-enc-bf16.pth", tmp_path / "t5")
    (found,) = verify(tmp_path / "t5", silent)
    assert (found.kind.split(",")[0], found.checked) == ("umt5 text encoder", found.tensors)


def test_verify_knows_a_model_by_its_tensors_not_by_its_name(golden, beside_config):
    shutil.copy(golden / "model/high_noise_model_fp32.safetensors", beside_config / "checkpoint500.safetensors")
    (found,) = verify(beside_config / "checkpoint500.safetensors", silent)
    assert found.kind == "LingBot-World expert, not quantized"


def test_verify_names_the_file_that_ends_early_meanwhile(golden, tmp_path, monkeypatch):
    run(golden / "causal/model", tmp_path / "nf4")
    file = tmp_path / "nf4/model.safetensors"

    def cut(*_):
        os.truncate(file, file.stat().st_size // 2)

    monkeypatch.setattr(sys.modules["lingbot_world.quantize.verify"], "check_scales", cut)
    with pytest.raises(CheckpointError, match="was replaced or changed since its header was read"):
        verify(tmp_path / "nf4", silent)


def test_verify_takes_what_others_made(golden, toy_package):
    found = verify(golden / "nf4/high_noise_model_bnb_nf4", silent)
    assert [(item.kind, item.checked) for item in found] == [("high-noise LingBot-World expert, nf4", None)]
    found = [item.kind.split()[0] for item in verify(toy_package, silent)]
    assert found == ["high-noise", "low-noise", "umt5", "Wan"]


@pytest.mark.parametrize("part", ["high_noise_model_bnb_nf4/model.safetensors", "Wan2.1_VAE.pth"])
def test_verify_names_values_that_are_not_finite_in_files_without_checksums(toy_package, tmp_path, part):
    shutil.copytree(toy_package, tmp_path / "toy")
    file = tmp_path / "toy" / part
    entries = read_tensors(file)
    name = next(name for name, entry in entries.items() if entry.dtype.is_floating_point and ".weight." not in name)
    tensors = {key: entry.view().clone() for key, entry in entries.items()}
    tensors[name].view(-1)[-1] = torch.inf
    (save_file if file.suffix == ".safetensors" else torch.save)(tensors, file)
    verify(tmp_path / "toy", silent, fast=True)
    with pytest.raises(CheckpointError, match=rf"{part}: NaN or infinity in 1 tensors"):
        verify(tmp_path / "toy", silent)
