"""What people who are new to the command type: it is understood, or refused in one line that says what to do."""

import logging
import os
import resource
import signal
import subprocess
import sys
import warnings

import lingbot_world
import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError, describe_os_error
from lingbot_world.headless import devices
from lingbot_world.headless.command.cli import FlagFormatter, main
from lingbot_world.headless.files.pictures import read_image
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.process.processes import check_gpus
from lingbot_world.headless.stages import DECODE_AGAIN
from lingbot_world.pipeline.geometry import explicit_geometry, first_frame
from PIL import Image
from refusals import refusal

pytestmark = pytest.mark.usefixtures("one_thread")
ADDRESS = "https://example.org/x"
CAUSAL = [
    "--ckpt_dir",
    "TOY/lingbot_world_fast",
    "--image",
    "TOY/example/image.png",
    "--device",
    "cpu",
    "--width",
    "48",
]
CAUSAL += ["--height", "32", "--frame_num", "9", "--prompt", "x", "--output", "v.mp4"]


def test_every_option_may_be_written_with_dashes(command, toy_package, tmp_path, capsys):
    words = [word.replace("_", "-") if word.startswith("--") else word for word in command()]
    assert "--ckpt-dir" in words
    assert main([*words, "--dry-run", "--guide-scale=1,2", "--noise-device", "cpu"]) == 0
    assert main(["camera", "make", str(tmp_path / "a-path"), "--keys", "w-10,none-7", "--fov-deg", "60"]) == 0
    assert (tmp_path / "a-path/poses.npy").is_file()
    said = capsys.readouterr().out
    assert "48x32, 5 frames" in said


def test_a_prompt_that_names_a_file_is_noted_and_a_file_is_read(command, tmp_path, capsys):
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffein Schloß\n".encode())
    for prompt in ("prompt.txt", "@prompt.txt"):
        assert main([*command(prompt=prompt), "--dry_run"]) == 0
        assert "--prompt_file reads a file" in capsys.readouterr().out
    videos = []
    for number, words in enumerate((["--prompt_file", str(file)], ["--prompt", "ein Schloß"])):
        output = tmp_path / str(number)
        assert main([*command(prompt=None, sampling_steps=1, output=output), *words]) == 0
        videos.append([np.array(Image.open(frame)) for frame in sorted(output.iterdir())])
    assert np.array_equal(*videos)
    capsys.readouterr()
    for words, reason in (
        (["--prompt_file", file, "--prompt", "x"], "exclude each other"),
        (["--prompt_file", tmp_path], "Is a directory"),
        (["--prompt_file", tmp_path / "nowhere"], "No such file"),
        ([], "--prompt is missing"),
    ):
        assert reason in refusal([*command(prompt=None), *words], capsys)


def test_a_dry_run_says_that_a_prompt_is_cut(command, capsys):
    assert main([*command(prompt="castle " * 600), "--dry_run"]) == 0
    assert "the text encoder takes 512: the last" in capsys.readouterr().out


def test_more_gpus_than_there_are_is_refused(command, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "--gpus 2: torch sees 0 CUDA GPUs" in refusal([*command(device="cuda"), "--gpus", "2"], capsys)
    check_gpus(2, "cpu")
    check_gpus(2, None)  # processes on the CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for device in (None, "cuda"):
        with pytest.raises(InputError, match="give `gpus` 1"):
            check_gpus(2, device)


@pytest.mark.parametrize("option", ["ckpt_dir", "image", "action_path", "output", "lora", "vae", "assets_dir"])
def test_an_address_is_no_path(option, command, capsys):
    assert "download the files first" in refusal(command(**{option: ADDRESS}), capsys)
    if option != "lora":
        given = {"ckpt_dir": "x", "prompt": "x", "output": None, option: ADDRESS}
        with pytest.raises(InputError, match=f"`{option}` {ADDRESS}: an address"):
            GenerateOptions(**given)


def test_addresses_are_refused_by_the_other_commands_too(tmp_path, capsys):
    one = ("inspect", "live", "verify", "measure", "toy")
    for words in (
        *([name, ADDRESS] for name in one),
        ["quantize", ADDRESS, tmp_path / "q"],
        ["camera", "show", ADDRESS],
    ):
        assert "download the files first" in refusal(words, capsys)
    words = ["live", "no-owner/no-model", "--port", "0"]  # the usual one may be another program's
    assert "`hf download no-owner/no-model --local-dir FOLDER`" in refusal(words, capsys)


def test_what_the_download_left_is_named(toy_package, tmp_path, capsys):
    place = tmp_path / "package/.cache/huggingface/download"
    place.mkdir(parents=True)
    (place / "abc.incomplete").touch()
    assert f"download in {tmp_path / 'package'} was not finished (abc.incomplete)" in refusal(
        ["inspect", tmp_path / "package"], capsys
    )


def test_json_of_windows_is_read(toy_package, tmp_path, capsys):
    import shutil

    model = tmp_path / "fast"
    shutil.copytree(toy_package / "lingbot_world_fast", model)
    config = model / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    assert main(["inspect", str(model)]) == 0
    (tmp_path / "workflow.json").write_bytes(b"\xef\xbb\xbf{}")
    assert main(["queue", str(tmp_path / "workflow.json"), "--list"]) == 0


def test_more_frames_than_a_path_may_have_are_refused_at_once(command, toy_package, capsys):
    causal = command(ckpt_dir=toy_package / "lingbot_world_fast", sampling_steps=None, frame_num=10**8)
    for words in (causal, command(frame_num=10**8)):
        assert "--frame_num 100000000: expected at most 100,000 frames" in refusal(words, capsys)


PIPES = {
    "prompt": ["--prompt_file", "PIPE"],
    "lora": ["--prompt", "x", "--lora", "PIPE"],
    "vae": ["--prompt", "x", "--vae", "PIPE"],
    "text encoder": ["--prompt", "x", "--text_encoder", "PIPE"],
    "expert": ["--prompt", "x", "--high", "PIPE"],
}
OTHERS = {
    "like": ["generate", "--like", "PIPE", "--output", "x.mp4"],
    "like a picture": ["generate", "--like", "PIPE.png", "--output", "x.mp4"],
    "inspect": ["inspect", "PIPE"],
    "verify": ["verify", "PIPE"],
    "quantize": ["quantize", "PIPE", "q"],
    "from-video": ["camera", "from-video", "PIPE", "path"],
    "show": ["camera", "show", "PIPE"],
    "measure": ["measure", "PIPE"],
    "frames": ["measure", "FOLDER"],
    "batch": ["batch", "PIPE", "out", "--ckpt_dir", "FOLDER"],
    "queue": ["queue", "PIPE"],
}


@pytest.mark.parametrize("device", [False, True], ids=["pipe", "device"])
@pytest.mark.parametrize("name", [*PIPES, *OTHERS])
def test_a_pipe_that_nobody_writes_to_and_a_device_without_end_are_refused(
    name, device, command, tmp_path, capsys, monkeypatch, usual_signals
):
    """A read of the first waits for ever, one of the second fills the memory."""
    (tmp_path / "folder").mkdir()
    for path in ("pipe", "pipe.png", "folder/1.png"):
        os.symlink("/dev/zero", tmp_path / path) if device else os.mkfifo(tmp_path / path)
    paths = {"PIPE": tmp_path / "pipe", "PIPE.png": tmp_path / "pipe.png", "FOLDER": tmp_path / "folder"}
    words = OTHERS.get(name) or [*command(prompt=None), "--dry_run", *PIPES[name]]
    signal.alarm(60)
    try:
        refusal([paths.get(word, word) for word in words], capsys)
    finally:
        signal.alarm(0)


def test_a_pipe_with_a_writer_is_read(command, tmp_path, capsys):
    reader, writer = os.pipe()
    os.write(writer, b"a castle")
    os.close(writer)
    assert main([*command(prompt=None), "--dry_run", "--prompt_file", f"/dev/fd/{reader}"]) == 0
    os.close(reader)


@pytest.mark.parametrize("lora", ["", "high=", "low="])
def test_a_lora_without_a_path_is_not_the_folder_one_is_in(lora, command, capsys):
    assert "the path is empty" in refusal([*command(), "--lora", lora], capsys)


def test_more_processes_than_a_cpu_has_cores_are_refused(command, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "--gpus 99: more processes than" in refusal([*command(), "--gpus", "99"], capsys)


def test_a_host_that_is_none_is_named_and_not_the_port(toy_package, capsys):
    said = refusal(["live", toy_package / "lingbot_world_fast", "--host", "no such host"], capsys)
    assert "--host 'no such host': no address" in said


CASES = {
    "a folder as drawing": (["camera", "show", "TOY/example", "--output", "TOY"], "is a folder; name a file in it"),
    "a folder as state": (["generate", *CAUSAL, "--save_state", "TOY"], "is a folder; name a file in it"),
    "the state as the growing video": (["generate", *CAUSAL, "--save_state", "v.part.mp4"], "is the video's file"),
    "no picture": (["camera", "show", "TOY/example", "--image", ""], "argument --image: the path is empty"),
    "like nothing": (["generate", "--like", "", "--output", "x.mp4"], "argument --like: the path is empty"),
    "no workflow": (["queue", ""], "argument workflow: the path is empty"),
    "no output": (["queue", "TOY/example/live.json", "--output", ""], "argument --output: the path is empty"),
    "too few frames a second": (["measure", "TOY/example", "--fps", "1e-300"], "--fps 1e-300: expected 0.001 or more"),
    "an origin": (["live", "TOY", "--allow_origin", "*"], "'*': expected a page's address"),
    "a speed": (["live", "TOY", "--speed", "fast"], "'fast': expected a fraction from 0.05 to 1"),
    "a host": (["live", "TOY", "--host", "192.0.2.1", "--no_open"], "--host '192.0.2.1': not an address of this"),
    "a port": (["live", "TOY", "--port", "-1", "--no_open"], "--port -1 cannot be used: a port is a number"),
    "two replays": (["live", "TOY", "--replay", "x", "--bench"], "--replay and --bench exclude each other"),
    "an option of another command": (["live", "TOY", "--dry_run"], "--dry_run; `lingbot-world live --help` lists"),
    "no walks": (["live", "--walks", "nowhere"], "--walks nowhere: no such folder"),
    "a forgotten model": (["live", "--walks", "TOY", "--seed", "5"], "CKPT is missing: the folder of a causal model"),
    "a seed of nothing": (
        ["camera", "make", "x", "--preset", "dolly_in", "--seed", "3"],
        "give --shake too, or leave it",
    ),
    "a size of nothing": (["camera", "show", "TOY/example", "--image_size", "9x9"], "--image_size is for ViPE's files"),
    "a disk of a card": (["doctor", "--card", "4090", "--disk", "TOY"], "--card and --disk exclude each other"),
    "a window of an expert": (["inspect", "TOY/low_noise_model_bnb_nf4", "--window", "3"], "--window has no effect"),
    "a release of a VAE": (["inspect", "TOY/Wan2.1_VAE.pth", "--release", "v2"], "--release has no effect"),
    "another size": (["live", "TOY", "--replay", "x", "--width", "64"], "--replay and --width exclude each other"),
}


@pytest.mark.parametrize("case", CASES)
def test_odd_uses_are_refused_in_one_line(case, toy_package, tmp_path, capsys, monkeypatch):
    words, reason = CASES[case]
    monkeypatch.chdir(tmp_path)
    assert reason in refusal([word.replace("TOY", str(toy_package)) for word in words], capsys)
    assert os.listdir(tmp_path) == []


def test_a_device_as_output_is_named(command, capsys):
    assert "/dev/null is a device" in refusal(command(output="/dev/null"), capsys)


def test_a_disk_without_room_for_a_path_is_named(tmp_path, capsys):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        said = refusal(["camera", "make", tmp_path / "path", "--preset", "dolly_in"], capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert f"{tmp_path / 'path'}: cannot be written (File too large; write to a disk" in said
    assert "make room" in describe_os_error(OSError("32016 requested and 1520 written"))
    assert not (tmp_path / "path").exists()


def test_a_picture_of_pillow_gives_no_warning_of_memory_that_may_not_be_written():
    picture = np.asarray(Image.new("RGB", (48, 32), "red"))
    assert not picture.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = first_frame(read_image(picture), explicit_geometry(48, 32, 5, None))
    assert torch.equal(frame, first_frame(picture.copy(), explicit_geometry(48, 32, 5, None)))


def test_a_warning_names_options_as_flags():
    record = logging.makeLogRecord({"msg": DECODE_AGAIN, "args": ("a number is too large",)})
    assert "too large. With --vae_dtype fp32 they are" in FlagFormatter().format(record)


LIST = ["queue", lingbot_world.__path__[0] + "/workflows/api/toy.json", "--list"]


@pytest.mark.parametrize("moment", ["import numbers", "import torch", "exit"])
def test_ctrl_c_prints_no_traceback_while_the_command_starts_and_ends(moment, toy_package):
    """A signal comes exactly when a module is imported, or when the interpreter exits."""
    wait = f"""
import builtins, os, signal, sys, atexit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit an ignored SIGINT
name, plain = {moment.removeprefix("import ")!r}, builtins.__import__
def hooked(asked, *rest):
    if asked == name:
        builtins.__import__ = plain
        os.kill(os.getpid(), signal.SIGINT)
    return plain(asked, *rest)
from lingbot_world.headless.command.entry import main
if name == "exit":
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
else:
    builtins.__import__ = hooked
sys.argv = ["lingbot-world", *{["inspect", str(toy_package)] if moment != "exit" else LIST!r}]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", wait], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode in (-2, 130)


def test_no_module_but_our_own_is_imported_before_ctrl_c_is_handled(tmp_path):
    code = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
import lingbot_world.headless.command.entry
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    (tmp_path / "lingbot_world").symlink_to(lingbot_world.__path__[0], target_is_directory=True)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["lingbot_world"], done.stderr


@pytest.mark.parametrize(("build", "warned"), [(None, True), ("13.0", False)])
def test_a_cpu_build_of_torch_next_to_a_driver_is_noticed(build, warned, tmp_path, monkeypatch, caplog):
    program = tmp_path / ("nvidia-smi.exe" if os.name == "nt" else "nvidia-smi")
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    devices._warn_of_cpu_build.cache_clear()
    assert devices.find_device(None) == devices.find_device(None) == torch.device("cpu")
    assert ["--torch-backend auto" in text for text in caplog.messages] == [True] * warned
