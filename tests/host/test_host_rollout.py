"""LingBot-World Rollout on a real ComfyUI: equal to the official runs and to the command, and well-behaved."""

import os

import pytest
from host_runner import Report, run_checks
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.run import generate

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def found(comfy_host, toy_package, tmp_path_factory) -> Report:
    folder = tmp_path_factory.mktemp("states")
    first, second = folder / "first.state", folder / "second.state"
    options = {
        "ckpt_dir": toy_package / "lingbot_world_fast",
        "action_path": toy_package / "example",
        "frame_num": 21,
        "device": "cpu",
        "output": folder / "*.png",
    }
    image = {"image": toy_package / "example/image.png", "width": 64, "height": 48}
    generate(GenerateOptions(prompt="a castle", seed=1, save_state=first, **image, **options))
    generate(GenerateOptions(prompt="a tower", seed=2, continue_from=first, save_state=second, **options))
    return run_checks(comfy_host, "rollout_checks.py", str(toy_package), str(first), str(second))


def test_the_latents_are_the_official_ones(found):
    assert len(found["golden"]) == (12 if os.environ.get("LINGBOT_TESTS") == "all" else 6)
    assert {name.split()[-1] for name in found["golden"]} == {"True", "False"}
    assert max(found["golden"].values()) < 1


def test_keys_and_values_are_gone_when_a_walk_is_over(found):
    assert found["left_behind"] == [9, 0]


def test_forwards_are_recorded_where_nothing_stands_between_their_kernels(found):
    result = found["recorded_forwards"]
    assert result["plain"]["forwards"] > 10
    assert result["plain"]["weights"] == ["static"]
    assert all(result[name]["forwards"] == 0 for name in ("patch", "wrapper", "away", "lora"))
    assert max(each["gap"] for each in result.values()) < 1e-4
    assert result["plain"]["cleared"] == 1  # when the run ends, as whenever ComfyUI asks for memory
    assert not any(each["kept"] for each in result.values())
    assert result["plain"]["waited"] == 0  # no number is read from the device, which would wait for it


def test_a_rollout_is_what_the_command_makes_of_the_same_seed(found):
    command = found["the_command"]
    assert max(command[name] for name in ("first", "second", "from the command's state")) < 1e-4
    assert max(command["poses"], command["last pose"]) < 1e-7  # a CameraPath makes rotations orthonormal
    assert command["prompts"] == [2, 2]


def test_images_are_the_new_frames_and_the_latent_is_the_whole_video(found):
    command = found["the_command"]
    assert command["frames"] == [21, 24]
    assert command["images"] == 0
    assert command["latent"] < 1e-5
    assert found["other_chunks_stay"] == {"kept": True, "grown": 6}


def test_another_release_that_goes_on_with_a_video_is_told(found):
    (rounded, left_over), (rounded_too, left_over_too, *other) = found["the_command"]["notes"]
    assert (rounded, left_over) == (rounded_too, left_over_too)
    assert rounded == "Frames come in chunks of 12 if a video continues: the video has 24 frames, not 21."
    assert left_over.startswith("The first 21 of the camera path's 81 poses are used; a continued run begins with")
    assert other == ["The video so far was made by LingBot-World 2.0; LingBot-World Fast continues it."]


def test_a_video_begins_with_the_last_frame_of_a_latent_as_with_that_frame(found):
    result = found["from_a_latent"]
    assert result["latent"] == result["images"] == 0
    assert result["frames"] == 9
    assert result["other"] > 1e-2
    assert result["of"] > 43
    assert result["long"] < 1e-5


def test_what_of_a_path_a_video_that_goes_on_does_not_follow_is_told(found):
    assert found["paths"]["short"] == ["The camera path holds 13 poses: the video has 12 frames, not 81."]
    rounded, far = found["paths"]["far"]
    assert "the video has 84 frames, not 81" in rounded
    assert "times that of the video's first path" in far


def test_grey_frames_are_encoded_until_they_repeat(found):
    assert found["grey_frames"] == {"frames": 30, "settled": 0, "before": 0}


def test_a_lora_acts_in_every_forward(found):
    assert found["lora"]["gap"] < 1e-4
    assert found["lora"]["effect"] > 1e-2


def test_a_lora_is_held_on_the_device_only_where_there_is_room(found):
    assert found["lora"]["held with and without room"] == [True, False]


def test_an_interrupt_stops_within_a_forward_and_leaves_the_next_run_alone(found):
    assert found["interrupted"] == {"stopped": True, "forwards": 8, "bytes": 0, "after": 0}


def test_a_chunk_is_shown_from_host_memory_when_the_next_one_is_begun(found):
    assert found["pictures"] == {"waiting": 0, "shown": [0]}


def test_behind_multigpu_cfg_split_it_runs_on_one_device_and_says_so(found):
    split = found["on_two_devices"]
    assert split["gap"] == 0
    assert set(split["loaded"]) == {1}
    assert ["one device" in note for note in split["notes"]] == [True, False]  # poses are left over


def test_comfyui_is_told_of_a_chunk_and_of_the_keys_and_values(found):
    short, twice, windowed = found["memory"]["asked"]
    assert twice - short == windowed - short == found["memory"]["chunk of keys and values"]


def test_free_memory_is_not_asked_for_before_each_forward(found):
    *_, one_chunk, three_chunks = found["free_memory"]
    assert one_chunk == three_chunks > 0


def test_keys_and_values_go_where_there_is_room(found):
    places = found["places"]
    assert places.pop("80 64 auto") == [False, False, False, 0]
    assert places.pop("30 64 auto") == [True, False, False, 0]
    assert places.pop("20 64 auto") == [False, True, False, 0]
    assert places.pop("20 24 auto") == [True, True, False, 0]
    assert places.pop("8 64 auto") == [False, True, False, 0]
    assert places.pop("30 64 host") == [False, True, False, 0]
    assert "too little for keys and values of 18 latent frames with kv_cache gpu" in places.pop("20 64 gpu")
    assert not places


def test_attention_in_8_bits_keeps_its_keys_and_values_as_it_takes_them(found):
    result = found["attention_in_8_bits"]
    assert result["place"] == [False, False, True, 0]
    assert 1e-4 < result["from exact"] < 2e-2
    assert result["in the engine"] < result["from exact"] / 4, result  # a last bit decides how a value is rounded
    assert result["on host"] == 0, result
    assert result["handed on"] < result["from exact"] / 3, result  # queries by another scale
    assert result["doubled"] > 1e-2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("base expert", "expert of the base model"),
        ("no image", "start_image is missing"),
        ("latent and image", "start_latent and start_image are both connected"),
        ("latent and state", "start_latent and state are both connected"),
        ("channels of a latent", "start_latent is [1, 48, 3, 6, 8], expected [1, 16, frames, height, width]"),
        ("batch of latents", "start_latent is [2, 16, 3, 6, 8], expected [1, 16"),
        ("latent of an image", "start_latent is [1, 16, 6, 8], expected [1, 16"),
        ("odd latent", "start_latent is of 64x56, and both have to be multiples of 16"),
        ("odd image", "start_image is 96x50, and both have to be multiples of 16"),
        ("state of another size", "the state is of 64x48, start_image is 96x64"),
        ("state of another model", "another model: num_layers 7, not 3"),
        ("window", "`window` 5 and `sink` 3: a window holds its sink and a chunk of 3"),
        ("few frames", "5 frames do not fill a chunk of 3 latent frames: at least 9"),
        ("short path", "8 camera poses do not fill a chunk of 3 latent frames: at least 9"),
        ("indices", "expected one or more rising numbers"),
        ("prompt", "embeddings of 7 values, the model takes 64"),
        ("two prompts", "a rollout takes one"),
        ("camera in the prompt", "connect the text node itself"),
        ("guider", "connect it to LingBot-World Rollout"),
        ("guider with one", "connect it to LingBot-World Rollout"),
        ("core's sampler", "connect it to LingBot-World Rollout"),
    ],
)
def test_what_cannot_work_is_refused_in_words(found, case, words):
    assert words in (found["refusals"][case] or "nothing was refused")
