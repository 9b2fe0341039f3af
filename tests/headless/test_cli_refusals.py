"""What the command refuses: in one line, with exit code 2, before anything is loaded or written."""

import os
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.command.flags import with_flags
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.toy.weights import EXPERT
from PIL import Image
from refusals import refusal
from safetensors.torch import save_file

pytestmark = pytest.mark.usefixtures("one_thread")


def spoil(folder, toy_package, **arrays):
    """A camera folder like the toy's with some arrays replaced by what `change(array)` makes of them."""
    folder.mkdir()
    for name in ("poses", "intrinsics"):
        array = np.load(toy_package / f"example/{name}.npy")
        np.save(folder / f"{name}.npy", arrays[name](array) if name in arrays else array)
    return folder


def with_value(index, value):
    def change(array):
        array[index] = value
        return array

    return change


CAMERAS = {
    "shape": ({"poses": lambda poses: poses[:, :2]}, r"\[81, 2, 4\]"),
    "scaled": ({"poses": with_value((3, 0, 0), 2.0)}, "frame 3 .*rigid"),
    "nan": ({"poses": with_value((4, 0, 3), np.nan)}, "frame 4 .*finite"),
    "few": ({"poses": lambda poses: poses[:4]}, "4 poses"),
    "focal": ({"intrinsics": with_value((0, 0), 0.0)}, "focal length"),
}


def test_a_path_of_another_program_is_to_be_converted(command, tmp_path, capsys):
    """A path that is not there is not."""
    (tmp_path / "transforms.json").write_text("{}")
    how = "which `lingbot-world camera convert` makes of other programs' paths"
    for path in (tmp_path / "transforms.json", tmp_path):
        said = refusal(command(action_path=path), capsys)
        assert str(path) in said
        assert how in said
    assert how not in refusal(command(action_path=tmp_path / "nowhere"), capsys)


@pytest.mark.parametrize("case", CAMERAS)
def test_bad_cameras_are_refused(case, command, toy_package, tmp_path, capsys):
    changes, message = CAMERAS[case]
    folder = spoil(tmp_path / "poses", toy_package, **changes)
    error = refusal(command(action_path=folder), capsys)
    assert re.search(message, error)
    assert str(folder) in error
    assert not (tmp_path / "out").exists()


OPTIONS = {
    "no package": ({"ckpt_dir": "nowhere"}, "nowhere"),
    "no image": ({"image": "nowhere.png"}, "nowhere.png: no such file"),
    "no vae": ({"vae": "nowhere.pth"}, "nowhere.pth"),
    "width": ({"width": 65}, "width 65 is not a multiple of 16"),
    "width alone": ({"height": None}, "--width and --height"),
    "boundary": ({"boundary": 947}, "--boundary 947"),
    "steps": ({"sampling_steps": 0}, "--sampling_steps 0: at least 1"),
    "shift": ({"shift": 0}, "--shift 0.0: a number over 0"),
    "frames": ({"frame_num": 0}, "--frame_num 0: expected at least 1 frame"),
    "scale": ({"guide_scale": "1,2,3"}, "--guide_scale 1.0,2.0,3.0: expected one number"),
    "reuse": ({"reuse_threshold": 2}, "--reuse_threshold 2"),
    "seed": ({"seed": -1}, "--seed -1"),
    "fps": ({"fps": -3}, "--fps -3"),
    "no frames a second": ({"fps": 0}, "--fps 0"),
    "more frames a second than are counted": ({"fps": 99999999999}, "--fps 99999999999: expected 1 to 1000"),
    "a preset without an end": (
        {"action_path": None, "preset": "pan_left", "frame_num": 10**12},
        "--frame_num 1000000000000: expected at most 100,000 frames at a time",
    ),
    "a folder as image": ({"image": "/proc"}, "--image /proc: a folder; name a file in it"),
    "a suffix alone": ({"output": "out/.mp4"}, "--output 'out/.mp4': the file has no name"),
    "device": ({"device": "abacus"}, "--device abacus"),
    "device without memory": ({"device": "meta"}, "--device meta: torch cannot use it here"),
    "suffix": ({"output": "video.txt"}, "video.txt"),
    "one png": ({"output": "frame.png"}, "frame.png"),
    "two numbers": ({"output": "a*_%d.png"}, "one * or %05d"),
    "bytes that are no UTF-8": ({"prompt": "caf\udce9"}, "--prompt is not UTF-8 text: character 4 is '\\udce9'"),
    "half a character": ({"negative": "\ud83d"}, "--negative is not UTF-8 text: character 1 is"),
    "a device as image": ({"image": "/dev/null"}, "--image /dev/null: a pipe or a device; expected an image file"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options_are_refused(case, command, tmp_path, capsys, monkeypatch):
    changes, message = OPTIONS[case]
    monkeypatch.chdir(tmp_path)
    assert message in refusal(command(**changes), capsys)
    assert os.listdir(tmp_path) == []


def test_noise_from_a_gpu_that_is_not_there_is_refused(command, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--noise_device cuda: torch sees no CUDA GPU" in refusal(command(noise_device="cuda"), capsys)


@pytest.mark.parametrize("name", ["solver", "noise_device", "dtype", "residency", "camera_cache"])
def test_python_hears_of_a_word_that_is_no_choice_without_flags(name, toy_package, tmp_path):
    example = toy_package / "example"
    options = GenerateOptions(
        ckpt_dir=toy_package, image=example / "image.png", prompt="", output=tmp_path / "x.mp4", **{name: "euler"}
    )
    with pytest.raises(InputError, match=f"`{name}` euler: expected one of .*, "):
        make_plan(options)


@pytest.mark.parametrize("option", ["output", "image", "ckpt_dir", "action_path", "save_state", "vae"])
def test_a_path_that_is_empty_is_not_the_folder_one_is_in(option, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"argument --{option}: the path is empty" in refusal(command(**{option: ""}), capsys)
    assert os.listdir(tmp_path) == []


def test_python_hears_of_an_output_that_is_empty(toy_package):
    image = toy_package / "example/image.png"
    with pytest.raises(InputError, match="`output` '': the file has no name"):
        make_plan(GenerateOptions(ckpt_dir=toy_package, image=image, prompt="", output=""))


def test_an_image_of_floating_point_numbers_is_refused_and_not_black(command, tmp_path, capsys):
    Image.fromarray(np.full((30, 40), 0.5, np.float32)).save(tmp_path / "a.tif")
    said = refusal(command(image=tmp_path / "a.tif"), capsys)
    assert "a.tif: its pixels are floating-point numbers; save it in 8 or 16 bits" in said


def test_an_image_of_too_many_pixels_is_to_be_scaled_down(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert "too many pixels; scale it down (" in refusal(command(), capsys)


@pytest.mark.parametrize("words", ["--size 480", "--size 0*9", "--guide_scale much", "--solver euler"])
def test_words_that_mean_nothing_are_refused_in_one_line(words, command, capsys):
    said = refusal([*command(), *words.split()], capsys)
    assert words.split()[1] in said
    assert said.startswith("lingbot-world: argument --")


def test_an_unreadable_image_is_refused(command, toy_package, tmp_path, capsys):
    image = tmp_path / "image.png"
    for content in (b"", b"not an image", (toy_package / "example/image.png").read_bytes()[:3000]):
        image.write_bytes(content)
        assert f"{image}: not an image" in refusal(command(image=image), capsys)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_loaded(command, toy_package, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir.mp4").mkdir()
    for output in ("file/video.mp4", "file/png/*.png", "dir.mp4", "file"):
        assert str(tmp_path / output.split("/")[0]) in refusal(command(output=tmp_path / output), capsys)
    assert "cannot be written" in refusal(command(output="/proc/video.mp4"), capsys)


@pytest.mark.parametrize("name", ["a" * 251 + ".mp4", "a" * 248 + "*.png"])
def test_a_name_without_room_for_what_it_ends_in_meanwhile_is_refused(command, tmp_path, capsys, name):
    said = refusal(command(output=tmp_path / name), capsys)
    assert said.startswith(f"lingbot-world: --output {tmp_path}/{'a' * 248}")
    assert "File name too long, with the suffix .part of an unfinished file; choose a shorter name" in said


def test_what_is_there_already_is_replaced_only_when_that_is_asked_for(command, tmp_path, capsys):
    (tmp_path / "old.mp4").write_text("precious")
    for output in ("old.mp4", "png"):
        words = command(output=tmp_path / output, sampling_steps=1)
        if output == "png":
            assert main(words) == 0
            capsys.readouterr()
        error = refusal(words, capsys)
        assert f"{tmp_path / output}" in error
        assert "exists already; write elsewhere, or give --overwrite" in error
        assert output == "png" or (tmp_path / "old.mp4").read_bytes() == b"precious"
        assert main([*words, "--overwrite"]) == 0
        capsys.readouterr()
    assert (tmp_path / "old.mp4").stat().st_size > 500


def test_a_video_that_would_replace_its_own_image_is_refused(command, toy_package, tmp_path, capsys):
    image = tmp_path / "frame_00003.png"
    shutil.copy(toy_package / "example/image.png", image)
    words = command(image=image, output=f"{tmp_path}/../{tmp_path.name}/frame_*.png")
    assert "frame_00003.png is the --image, which would be replaced" in refusal([*words, "--overwrite"], capsys)


def test_a_full_disk_is_refused(command, tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "the disk has 0 MB free" in refusal(command(), capsys)


def test_a_broken_package_is_refused_before_the_first_stage(command, toy_package, tmp_path, capsys):
    package = tmp_path / "package"
    low = package / "low_noise_model_bnb_nf4/model.safetensors"
    for file, spoilt in (
        (low, lambda data: data[:-100]),
        (package / "Wan2.1_VAE.pth", lambda data: data[:1000]),
        (package / "models_t5_umt5-xxl-enc-bf16.pth", lambda data: b"x" * 100),
        (package / "tokenizer/tokenizer.json", lambda data: data[:500]),
    ):
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(toy_package, package)
        file.write_bytes(spoilt(file.read_bytes()))
        error = refusal(command(ckpt_dir=package), capsys)
        assert file.name in error or file.parent.name in error
        file.unlink()
        refusal(command(ckpt_dir=package), capsys)
    assert not (tmp_path / "out").exists()


def test_one_expert_twice_and_swapped_experts_are_refused(command, toy_package, capsys):
    high, low = (toy_package / f"{name}_noise_model_bnb_nf4" for name in ("high", "low"))
    assert "swapped" in refusal(command(high=low, low=high), capsys)
    refusal(command(low=high), capsys)


def test_a_camera_for_a_plain_wan_checkpoint_is_refused_and_without_one_it_runs(command, toy_package, tmp_path, capsys):
    from lingbot_world.toy.experts import write_expert_folder
    from lingbot_world.toy.weights import EXPERT, expert_tensors

    plain = EXPERT.__class__(**vars(EXPERT) | {"control": None})
    for name, seed in (("high", 1), ("low", 2)):
        wanted = plain.parameter_shapes()
        tensors = ((key, tensor) for key, tensor in expert_tensors(seed) if key in wanted)
        write_expert_folder(tmp_path / f"{name}_noise_model", plain, tensors)
    experts = {name: tmp_path / f"{name}_noise_model" for name in ("high", "low")}
    assert "no camera layers" in refusal(command(**experts), capsys)
    assert main(command(**experts, action_path=None, output=tmp_path / "png")) == 0


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_video_writer_it_names_the_interpreter_and_what_to_install(
    command, tmp_path, capsys, monkeypatch, broken
):
    """A broken one, whose libraries are not there, is found before the run as well."""
    (tmp_path / "av.py").write_text("raise OSError('libavcodec.so: cannot open shared object file')")
    if broken:
        monkeypatch.delitem(sys.modules, "av", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setitem(sys.modules, "av", None)
    error = refusal(command(output=tmp_path / "x.mp4"), capsys)
    assert sys.executable in error
    assert 'pip install --upgrade "lingbot-world[cli]"' in error
    assert ("libavcodec.so" in error) is broken


def test_a_png_pattern_may_have_a_percent_sign(command, tmp_path):
    assert main(command(output=tmp_path / "100%_*.png", sampling_steps=1)) == 0
    assert main(command(output=tmp_path / "100%d_%02d%.png", sampling_steps=1)) == 2
    assert main(command(output=tmp_path / "50%_%02d.png", sampling_steps=1)) == 0
    assert {file.name for file in tmp_path.glob("*.png")} == {
        *(f"100%_{index:05}.png" for index in range(5)),
        *(f"50%_{index:02}.png" for index in range(5)),
    }


def test_what_is_likely_a_mistake_is_said(toy_package, tmp_path, capsys):
    pictures = [Image.new("RGBA", (64, 48), (level, 0, 0, 0)) for level in (0, 200)]
    pictures[0].save(tmp_path / "two.webp", save_all=True, append_images=pictures[1:], lossless=True)
    file = tmp_path / "night_high.safetensors"
    layer = "diffusion_model.blocks.0.ffn.0"
    save_file(
        {
            f"{layer}.lora_A.weight": torch.zeros(1, EXPERT.dim),
            f"{layer}.lora_B.weight": torch.zeros(EXPERT.ffn_dim, 1),
        },
        file,
    )
    file.with_name("night_low.safetensors").touch()  # a bare "high" says something next to it
    given = ["generate", "--ckpt_dir", str(toy_package), "--image", str(tmp_path / "two.webp"), "--device", "cpu"]
    given += ["--output", str(tmp_path / "video.mp4"), "--dry_run", "--frame_num", "5", "--prompt"]

    def said(*more):
        assert main([*given, *more]) == 0
        return capsys.readouterr().out

    words = said(" ", "--lora", f"low={file}", f"low={file}", "--residency", "stream")
    assert "two.webp has 2 images; the video begins with the first." in words
    assert "two.webp is transparent in places, and was put on white." in words
    assert main([*given, " ", "--quiet"]) == 0
    assert capsys.readouterr() == ("", f"{tmp_path / 'two.webp'} is transparent in places, and was put on white.\n")
    assert "The prompt is empty." in words
    assert "on the low-noise expert, given 2 times" in words
    assert "night_high.safetensors is for the high-noise expert by its name" in words
    assert "--residency stream has no effect on a CPU" in words
    assert "the same text" in said("a yard", "--negative", "a yard")
    assert "the negative prompt has no effect" in said("a yard", "--negative", "fog", "--guide_scale", "1")
    assert "Guidance is 0: only the negative prompt has an effect" in said("a yard", "--guide_scale", "0")
    assert "by its name" not in said("a yard", "--lora", f"high={file}")
    assert said("a yard", "--lora", f"low={file}:0.5", "--lora", f"high={file}").count(", strength ") == 2


def test_a_message_names_options_by_their_flags_and_other_names_as_they_are():
    message = "`start` of the file that `events` names, and `every`"
    assert with_flags(message, {"every"}) == "`start` of the file that --events names, and --every"
