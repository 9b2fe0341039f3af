"""The package as a Python program has it: types at the door, images and frames in memory, progress, and an end."""

import re

import numpy as np
import pytest
from lingbot_world import CancelledError, GenerateOptions, camera_embedding, generate, load_expert, sample
from lingbot_world.errors import InputError, LingBotError
from lingbot_world.pipeline.state import load_state
from PIL import Image
from rollout_run_cases import small_options

pytestmark = pytest.mark.usefixtures("one_thread")

NEEDED = {"ckpt_dir": "x", "prompt": "p", "output": "o.mp4"}


@pytest.fixture
def options(toy_package):
    """`options(causal=True, ...)`: those of a small run whose frames are kept."""

    def build(causal=False, **changes):
        base = {"ckpt_dir": toy_package, "frame_num": 5, "sampling_steps": 4, "schedule": None}
        given = {"action_path": None, "output": None} | ({} if causal else base)
        return small_options(toy_package, toy_package, **given | changes)

    return build


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"seed": "1"}, "a whole number or None, found str"),
        ({"seed": True}, "a whole number or None, found bool"),
        ({"frame_num": 81.0}, "a whole number, found float"),
        ({"prompt": None}, "text, found NoneType"),
        ({"ckpt_dir": None}, "text or a path, found NoneType"),
        ({"output": 3}, "text or a path or None, found int"),
        ({"action_path": 3}, "text or a path or None, found int"),
        ({"lora": ("a.safetensors",)}, "a tuple of LoraFile, found tuple"),
        ({"vae_tiling": "no"}, "True or False, found str"),
        ({"guide_scale": "5"}, "a number or a tuple of a number, found str"),
        ({"shift": "5"}, "a number or None, found str"),
        ({"solver": 3}, "text, found int"),
        ({"schedule": 5}, "text or a tuple of a whole number or None, found int"),
    ],
    ids=str,
)
def test_an_option_of_a_wrong_type_is_refused_at_once(given, expected):
    with pytest.raises(InputError, match=re.escape(expected)):
        GenerateOptions(**NEEDED | given)


def test_numbers_of_numpy_and_whole_numbers_for_others_are_right():
    numbers = {"seed": np.int64(3), "shift": 5, "boundary": np.float32(0.5), "guide_scale": [4, 6]}
    options = GenerateOptions(**NEEDED, **numbers, schedule=(0, 500))
    assert (type(options.seed), type(options.boundary)) == (int, float), "as torch takes them"


@pytest.mark.parametrize(
    "call",
    [
        lambda: generate("x"),
        lambda: generate(GenerateOptions(**NEEDED), on_progress=3),
        lambda: load_expert(5),
        lambda: load_expert("x", dtype="bf16"),
        lambda: camera_embedding(np.eye(4)[None].repeat(5, 0), [500, 500, 416, 240], frames="5", height=16, width=16),
        lambda: camera_embedding("poses", [500, 500, 416, 240], frames=5, height=16, width=16),
        lambda: sample(1, 2, 3, 4, 5, 6, steps=1, shift=2.0),
    ],
)
def test_a_public_function_says_what_type_it_expects(call):
    with pytest.raises(LingBotError, match="expected"):
        call()


def test_an_image_may_be_one_in_memory_and_frames_are_given_back(options, toy_package, tmp_path):
    file = toy_package / "example/image.png"
    pixels = np.array(Image.open(file).convert("RGB"))
    frames = [generate(options(image=image)).frames for image in (file, Image.open(file), pixels)]
    assert frames[0].shape == (5, 32, 48, 3)
    assert frames[0].dtype == np.uint8
    assert np.array_equal(frames[0], frames[1])
    assert np.array_equal(frames[0], frames[2])
    written = generate(options(output=tmp_path / "png"))
    assert written.frames is None
    stored = [np.array(Image.open(file)) for file in sorted(written.path.iterdir())]
    assert np.array_equal(frames[0], stored)
    assert generate(options(causal=True)).frames.shape == (21, 32, 48, 3)


@pytest.mark.parametrize("image", [np.zeros((32, 48)), np.zeros((32, 48, 4), np.uint8), 3, b"png"], ids=str)
def test_an_image_that_is_none_is_refused(options, image):
    with pytest.raises(InputError, match=r"`image` .*expected .*array uint8 \[height, width, 3\]"):
        generate(options(image=image))


def test_a_program_is_told_how_far_the_run_is(options):
    told = []
    generate(options(boundary=0.9), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    told.clear()
    generate(options(causal=True), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(9, 21), (21, 21)]


def test_a_program_may_end_a_run(options, tmp_path):
    told = []
    watched = {"on_progress": lambda *done: told.append(done), "cancel": lambda: bool(told)}
    with pytest.raises(CancelledError, match="cancelled in stage 'high-noise steps'"):
        generate(options(output=tmp_path / "a.mp4"), **watched)
    assert told == [(1, 4)]
    assert not (tmp_path / "a.mp4").exists()
    told.clear()
    video, state = tmp_path / "b.mp4", tmp_path / "b.state"
    with pytest.raises(CancelledError):
        generate(options(causal=True, output=video, save_state=state), **watched)
    assert video.is_file()
    assert load_state(state).latent.shape[2] == 3
