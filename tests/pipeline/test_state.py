"""States: videos of chunks of any size, with keys and guided, go on from a file that is checked when it is read."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from lingbot_world.camera.path import CameraPath
from lingbot_world.errors import InputError
from lingbot_world.options import RELEASES, Window
from lingbot_world.pipeline.spec import RolloutRequest, plan_rollout
from lingbot_world.pipeline.state import Prompt, load_state
from rollout_cases import ACTIONS, CASES, GLOBAL, GUIDED, arrays, model_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FRAME, SIZE = torch.zeros(3, 32, 48), (4, 6)
FLAGS = torch.zeros(3, 4, dtype=torch.float64)
PRETRAIN = next(release for release in RELEASES.values() if release.guided)
FAST = RELEASES["v1"]


class Video:
    """A video that is made in one go or in parts: all that is drawn comes from one generator."""

    def __init__(self, case):
        self.model, self.release = model_of(case), PRETRAIN if case is GUIDED else FAST
        self.generator = torch.Generator().manual_seed(1)
        self.image, *self.prompts = (self.draw(shape) for shape in ((1, 16, 1, *SIZE), (1, 5, 64), (1, 7, 64)))

    def draw(self, shape):
        return torch.randn(shape, generator=self.generator)

    def plan(self, latent_frames, state=None, path=None, **asked):
        frames = 4 * latent_frames - (3 if state is None else 0)
        asked = RolloutRequest(**{"frames": frames, "indices": (0, 500), "steps": 2} | asked)
        return plan_rollout(self.model.config, self.release, asked, path, FRAME, state)

    def make(self, spec, noise):
        """The state after what `spec` makes of the noise."""
        prompts = self.prompts if spec.guided else self.prompts[:1]
        renoise = torch.Generator().manual_seed(spec.latent_frames_before)
        latents = list(
            spec.loop.run(
                self.model,
                spec.chunks(self.image, noise, *prompts),
                lambda shape: torch.randn(shape, generator=renoise),
                device="cpu",
            )
        )
        new = torch.cat(latents[spec.latent_frames_before // spec.chunk :], dim=2)
        return spec.state_after(new, Prompt("a castle", prompts[0], 0, *prompts[1:]))

    def state(self, chunk=3, **asked):
        """Of one chunk."""
        return self.make(self.plan(chunk, chunk=chunk, **asked), self.draw((1, 16, chunk, *SIZE)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_spec_gives_each_chunk_the_official_camera_and_keys(case):
    """And a video of the official length."""
    given = {name: array.squeeze(0) if name in ("noise", "y") else array for name, array in arrays(case).items()}
    flags = given["action"].numpy() if "action" in given else None
    path = CameraPath(given["poses"].numpy(), given["intrinsics"].numpy(), actions=flags)
    height, width = given["noise"].shape[2:]
    asked = RolloutRequest(frames=case.frames, chunk=case.chunk, window=case.window, sink=case.sink)
    spec = plan_rollout(model_of(case).config, FAST, asked, path, torch.zeros(3, 8 * height, 8 * width))
    image, noise = torch.zeros(1, 16, 1, height, width), given["noise"][None]
    chunks = list(spec.chunks(image, noise, torch.zeros(1, 1, 64)))
    assert {chunk.latent.shape[2] for chunk in chunks} == {case.chunk}
    assert torch.equal(torch.cat([chunk.latent for chunk in chunks], 2), noise)
    assert torch.equal(torch.cat([chunk.y for chunk in chunks], 2)[0, :4], given["y"][:4]), "the mask"
    torch.testing.assert_close(torch.cat([chunk.camera for chunk in chunks], 2), given["plucker"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "chunk", "window"),
    [
        (GLOBAL, 1, None),
        (GLOBAL, 2, 5),
        (GLOBAL, 4, None),
        (ACTIONS, 3, None),
        (ACTIONS, 1, 3),
        (GUIDED, 3, None),
        (GUIDED, 4, 7),
    ],
    ids=lambda value: str(value),
)
def test_a_video_goes_on_from_its_file_as_if_it_had_not_stopped(case, chunk, window, tmp_path):
    """The second part is the same bits, whether it goes on from the state or from the file."""
    video, frames = Video(case), 2 * chunk
    noise = video.draw((1, 16, 2 * frames, *SIZE))
    first = video.make(video.plan(frames, chunk=chunk, window=window), noise[:, :, :frames])
    first.save(tmp_path / "first.state")
    whole, read = first, load_state(tmp_path / "first.state")
    assert (read.chunk, read.window, read.release) == (chunk, Window(window or 0), video.release.name)
    assert (read.flags is not None) == (case is ACTIONS)
    assert (read.prompts[0].negative is not None) == (case is GUIDED)
    whole, again = (video.make(video.plan(frames, state), noise[:, :, frames:]) for state in (first, read))
    assert torch.equal(whole.latent, again.latent)
    assert torch.equal(whole.latent[:, :, :frames], first.latent)
    whole.save(tmp_path / "whole.state")  # both parts' prompts share one embedding in memory
    assert torch.equal(load_state(tmp_path / "whole.state").latent, whole.latent)
    assert [prompt.chunks for prompt in again.prompts] == [2, 2]
    at_once = video.make(video.plan(2 * frames, chunk=chunk, window=window), noise).latent[:, :, :frames]
    assert torch.equal(at_once, first.latent), "the first part, made of a longer video"


def test_a_continued_guided_video_is_the_one_that_was_made_at_once():
    """Nothing is drawn between guided steps, so that all of it can be compared."""
    video = Video(GUIDED)
    noise = video.draw((1, 16, 6, *SIZE))
    first = video.make(video.plan(3), noise[:, :, :3])
    second = video.make(video.plan(3, first), noise[:, :, 3:])
    assert torch.equal(second.latent, video.make(video.plan(6), noise).latent)


def test_the_keys_of_a_path_are_kept_and_go_on(tmp_path):
    video = Video(ACTIONS)
    poses = np.repeat(np.eye(4)[None], 9, axis=0)
    poses[:, 2, 3] = np.arange(9)
    flags = np.eye(4)[[0, 0, 0, 0, 1, 1, 1, 1, 2]]
    path = CameraPath(poses, [[400.0, 400.0, 416.0, 240.0]], actions=flags)
    noise = video.draw((1, 16, 3, *SIZE))
    video.make(video.plan(3, path=path), noise).save(tmp_path / "a.state")
    read = load_state(tmp_path / "a.state")
    assert torch.equal(read.flags, torch.from_numpy(flags[[0, 4, 8]]))
    back = CameraPath(poses, path.intrinsics, actions=flags[::-1].copy())
    on = video.make(video.plan(3, read, back), noise)
    assert on.flags.shape == (6, 4)
    assert torch.equal(on.flags[:3], read.flags)
    assert on.flags[3:].sum() == 3
    with pytest.raises(InputError, match="also takes the keys W, A, S, D, and the path has none"):
        video.plan(3, path=CameraPath(poses, path.intrinsics))


def test_a_state_goes_on_in_its_own_chunks_and_on_its_own_side_of_guidance():
    video = Video(GLOBAL)
    ones, guided = video.state(chunk=1), Video(GUIDED).state()
    assert video.plan(4, ones).chunk == 1
    with pytest.raises(InputError, match="`chunk` 3: the state was made in chunks of 1 latent.*leave `chunk` out"):
        video.plan(3, ones, chunk=3)
    with pytest.raises(InputError, match="guidance by a negative prompt, or without, and this run is not"):
        video.plan(3, guided)
    with pytest.raises(InputError, match="guidance by a negative prompt, or without, and this run is not"):
        Video(GUIDED).plan(3, guided, guide_scale=1.0)
    with pytest.raises(InputError, match="the state was made with another model: control"):
        Video(ACTIONS).plan(3, video.state())


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """`parts(case)`: the tensors and the metadata of a state of one chunk."""
    folder = tmp_path_factory.mktemp("states")

    def read(case):
        path = folder / f"{case}.state"
        if not path.exists():
            Video(case).state().save(path)
        with safe_open(path, "pt") as file:
            return load_file(path), json.loads(file.metadata()["lingbot_world"])

    return read


def written(tensors, metadata, path):
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, {"lingbot_world": json.dumps(metadata)})
    return load_state(path)


def test_a_file_from_before_there_were_chunks_of_other_sizes_has_three(parts, tmp_path):
    tensors, metadata = parts(GLOBAL)
    del metadata["chunk"]
    assert written(tensors, metadata, tmp_path / "old.state").chunk == 3


DAMAGES = {
    "prompt: values": ("prompt.0", lambda t: t[..., :32], r"prompt.0: shape .1, \d+, 32., expected 1 to 32 tokens"),
    "prompt: no batch": ("prompt.0", lambda t: t[0], "prompt.0: shape .*, expected 1 to 32"),
    "prompt: batch": ("prompt.0", lambda t: t.repeat(2, 1, 1), "prompt.0: shape .*, expected 1 to 32"),
    "prompt: long": ("prompt.0", lambda t: t[:, :1].repeat(1, 600, 1), "prompt.0: shape .1, 600.*, expected 1 to 32"),
    "prompt: empty": ("prompt.0", lambda t: t[:, :0], "prompt.0: shape .1, 0.*, expected 1 to 32"),
    "prompt: nan": ("prompt.0", lambda t: t * math.nan, "prompt.0: expected finite floating-point numbers"),
    "prompt: whole": ("prompt.0", lambda t: t.int(), "prompt.0: expected finite floating-point numbers"),
    "poses": ("poses", lambda t: t * 2, "poses: frame 0 .and 2 more. has a last row other than"),
    "rotation": ("poses", lambda t: torch.cat([t[:, :3] * 2, t[:, 3:]], 1), "poses: frame 0 .and 2 more. is not rigid"),
    "last pose": ("last_pose", torch.zeros_like, "last_pose: frame 0 has a last row other than"),
    "lens": ("lens", torch.zeros_like, "lens: frame 0 .and 2 more. has a focal length of zero or less"),
    "negative lens": ("lens", lambda t: -t, "lens: frame 0 .and 2 more. has a focal length of zero or less"),
    "half window": ("window", lambda _: 6.5, "window is 6.5, expected a whole number"),
    "small window": ("window", lambda _: 2, "`window` 2 and `sink` 0: a window holds its sink"),
    "scale": ("scale", lambda _: -1.0, "scale is -1.0, expected 0 or a length above it"),
    "no scale": ("scale", lambda _: math.nan, "scale is nan, expected 0"),
    "half chunks": ("prompts", lambda all: [all[0] | {"chunks": 1.0}], "chunks is 1.0, expected a whole number"),
    "no prompts": ("prompts", lambda _: [], "parts do not fit together: chunks"),
    "chunks": ("prompts", lambda all: [all[0] | {"chunks": n} for n in (-1, 2)], "parts do not fit together: chunks"),
    "chunk": ("chunk", lambda _: 5, "chunk is 5, expected one of 1, 2, 3, 4"),
    "other chunks": ("chunk", lambda _: 2, "parts do not fit together: chunks"),
    "half chunk": ("chunk", lambda _: 1.5, "chunk is 1.5, expected a whole number"),
    "keys of nobody": ("flags", lambda _: FLAGS, "flags go with an action model, and with no other"),
    "few keys": ("flags", lambda t: t[1:], "flags has 2 rows for 3 poses", ACTIONS),
    "five keys": ("flags", lambda t: t.repeat(1, 2)[:, :5], "flags: shape", ACTIONS),
    "negative": ("negative.0", lambda t: t[..., :7], r"negative.0: shape .1, 7, 7., expected 1 to 32 tokens", GUIDED),
}


@pytest.mark.parametrize("case", [None, *DAMAGES])
def test_a_state_is_checked_when_it_is_read(parts, tmp_path, case):
    """All of it, so that nothing heavy begins with one that cannot go on. Without a damage it is taken."""
    key, damage, said, *of = DAMAGES.get(case, ("", None, ""))
    tensors, metadata = parts(*of or [GLOBAL])
    tensors["prompt.1"], file = tensors["prompt.0"].clone(), tmp_path / "b.state"
    if case is None:
        assert written(tensors, metadata, file).chunks == 1
        return
    part = metadata if key in metadata else tensors
    part[key] = damage(part.get(key))
    with pytest.raises(InputError, match=rf"b\.state: not a state that can be continued \(.*{said}.*; write it again"):
        written(tensors, metadata, file)


@pytest.mark.parametrize("chunk", [0, 5, -1])
def test_chunks_that_no_model_was_trained_with_are_refused(chunk):
    with pytest.raises(InputError, match=f"`chunk` {chunk}: expected 1, 2, 3 or 4 latent frames"):
        Video(GLOBAL).plan(5, chunk=chunk)


def test_a_base_expert_and_a_video_without_a_first_frame_are_refused():
    config = model_of().config
    with pytest.raises(InputError, match="an expert of the base model"):
        plan_rollout(replace(config, causal=False), FAST, RolloutRequest(frames=9), frame=FRAME)
    with pytest.raises(InputError, match="`image` is missing"):
        plan_rollout(config, FAST, RolloutRequest(frames=9))


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
def test_who_may_read_a_state_is_whoever_may_read_files(tmp_path):
    """Newer versions of safetensors give what they write to its owner alone."""
    before = os.umask(0o027)
    try:
        Video(GLOBAL).state().save(tmp_path / "mine.state")
    finally:
        os.umask(before)
    assert (tmp_path / "mine.state").stat().st_mode & 0o777 == 0o640


def test_a_name_that_the_disk_does_not_take_is_an_error_of_ours(tmp_path):
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        Video(GLOBAL).state().save(tmp_path / ("x" * 300))


def test_a_state_that_finds_the_disk_full_is_one_sentence_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the full disk."""
    resource, state = pytest.importorskip("resource"), tmp_path / "a.state"
    Video(GLOBAL).state().save(state)
    before, there = state.read_bytes(), {*tmp_path.iterdir()}
    made, limits = load_state(state), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=f"the state {state} cannot be written: .*File too large"):
            made.save(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert state.read_bytes() == before
    assert {*tmp_path.iterdir()} == there
