"""Recordings that miss a kernel are found by their trial and not used; right ones are replayed."""

import gc
import logging
import weakref
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from lingbot_world.model.attention.exact import sdpa
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.forward import Camera, ForwardInputs
from lingbot_world.model.graphs import trial
from lingbot_world.model.graphs.forward import ForwardGraphs
from lingbot_world.model.host_memory import pause_collector
from lingbot_world.model.layers.attention import SelfAttention
from lingbot_world.pipeline.world import World
from lingbot_world.vae.recording import Recording
from played_graphs import PlayedGraph, missed, played_graphs  # noqa: F401
from rollout_cases import CHUNKS_OF_1, model_of, run

pytestmark = pytest.mark.usefixtures("played_graphs")


@pytest.fixture
def graphs(monkeypatch):
    """The recordings of every World of a test, all of whose forwards may be recorded."""
    made = []
    lane_of = World._branch

    def lane(self, *arguments):
        own = lane_of(self, *arguments)
        own.cache = type(own.cache)(steady=True)
        own.options["graphs"] = ForwardGraphs()
        made.append(own.options["graphs"])
        return own

    monkeypatch.setattr(World, "_branch", lane)
    return made


@pytest.fixture
def attention():
    """`attention(function)` becomes the model's self-attention for one test."""
    model = model_of()
    before = model._attentions[0]

    def take(function):
        for layer in model.modules():
            if isinstance(layer, SelfAttention):
                layer.attention = function

    yield take
    take(before)


def test_a_right_recording_is_replayed(graphs, caplog):
    plain = plain_video()
    made = run(CHUNKS_OF_1)
    assert graphs[-1].recorded > 0
    assert torch.equal(made, plain)
    assert not caplog.records


def test_a_recording_that_misses_a_kernel_is_not_used(graphs, attention, caplog):
    def on_another_stream(q, k, v, heads, options):
        with missed():
            return sdpa(q, k, v, heads, options)

    plain = plain_video()
    attention(on_another_stream)
    made = run(CHUNKS_OF_1)
    assert torch.equal(made, plain)
    assert graphs[-1].recorded == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the first replay was wrong" in caplog.text


def test_a_recording_that_fails_in_another_process_is_not_used(graphs, monkeypatch, caplog):
    """All processes run their forwards as usual then, or their exchanges would not fit together."""
    plain = plain_video()
    monkeypatch.setattr("lingbot_world.model.graphs.forward._all_agree", lambda _share, _fine: False)
    assert torch.equal(run(CHUNKS_OF_1), plain)
    assert graphs[-1].recorded == 0
    assert not caplog.records


class Interrupt(BaseException):
    """Raised by a forward, as ComfyUI's interrupt is."""


class Made:
    """Stands for a tensor that is allocated during a recording. CUDA's allocator, as ComfyUI has it, ends the process
    if one is freed after a recording that was never replayed."""

    def __init__(self, *_others: object) -> None:
        self.data_ptr, self.nbytes = (lambda: 0), 0


@pytest.mark.parametrize("error", [RuntimeError, Interrupt])
def test_nothing_of_a_recording_that_ends_early_outlives_it(error, monkeypatch, caplog):
    """An interrupt is raised behind the recording; after another error the forward runs as usual."""
    cache, made, left = CameraCache(steady=True), [], []
    graphs, result = ForwardGraphs(), torch.ones(3)
    options = {"kv_cache": SimpleNamespace(window_state="full", keep=False), "weights": "static"}

    def compute(given, _options):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            return given.x + 1
        own, kept = Made(), (Made(), Made())
        made.extend(map(weakref.ref, (own, *kept)))
        cache.put(0, kept)
        raise error("stopped") from ValueError("the reason")

    def end(graph):
        gc.collect()
        left.extend(each for each in made if each() is not None)
        graph.__exit__(None, None, None)

    monkeypatch.setattr(PlayedGraph, "capture_end", end)
    camera, given = Camera(torch.ones(1), cache), [torch.ones(3) for _ in range(6)]
    inputs = ForwardInputs(given[0], (given[1], given[2]), given[3], camera, (given[4], given[5]))
    assert torch.equal(graphs.run(compute, inputs, options), result + 1)
    if error is Interrupt:
        with pytest.raises(Interrupt):
            graphs.run(compute, inputs, options)
    else:
        assert torch.equal(graphs.run(compute, inputs, options), result + 1)
        assert "cannot be recorded as a CUDA graph, and runs as usual: stopped" in caplog.text
    assert len(made) == 3
    assert not left
    assert cache.kept == {}


def plain_video():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardGraphs, "run", lambda _self, compute, given, options: compute(given, options))
        return run(CHUNKS_OF_1)


class Doubler:
    """Decodes a latent to the sum of all latents so far, doubled, in two frames. Its state lies in place."""

    def __init__(self, hidden=False):
        self.sum, self._hidden = torch.zeros(3), hidden

    def state(self):
        return [self.sum]

    def decode(self, latent):
        if self._hidden:
            with missed():
                double = latent * 2
        else:
            double = latent * 2
        self.sum += double
        yield self.sum.clone()
        yield double


@pytest.mark.parametrize("hidden", [False, True], ids=["right", "misses a kernel"])
def test_the_decoders_recording_is_tried(hidden, caplog):
    latents = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    decoder, plain = Doubler(hidden), Doubler()
    recording = Recording(decoder.state)
    for latent in latents:
        frames = [frame.clone() for frame in recording.decode(decoder.decode, latent)]
        assert all(map(torch.equal, frames, plain.decode(latent)))
    assert recording.made is not hidden
    assert caplog.text.count("the first replay was wrong") == hidden


def test_the_garbage_collector_rests_during_a_recording():
    """It could free an object that waits for the GPU, such as an old cache in host memory."""
    recording, rests = Recording(), []

    def decode(latent):
        rests.append(not gc.isenabled())
        yield latent * 2

    for _ in range(4):
        list(recording.decode(decode, torch.ones(3)))
    assert recording.made
    assert rests == [False, True, False]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("got", "refused"), [([1.0, 2.0], False), ([1.0, 2.001], False), ([1.0, 2.1], True), ([1.0, float("nan")], True)]
)
def test_what_is_refused(got, refused):
    error = trial.relative_error([torch.tensor(got)], [torch.tensor([1.0, 2.0])])
    assert bool(trial.refusal("A forward", error)) == refused


def test_numbers_that_are_not_finite_are_no_fault_of_the_recording():
    """A VAE in fp16 has them; its caller decodes again in fp32."""
    same = torch.tensor([1.0, float("nan"), float("inf")])
    assert trial.relative_error([same], [same.clone()]) == 0


def test_the_collector_stays_off_until_the_last_of_two_threads():
    """A model may load while another thread records: whichever ends first."""
    loading, recording = ExitStack(), ExitStack()
    assert gc.isenabled()
    for each in (loading, recording):
        each.enter_context(pause_collector())
    loading.close()
    assert not gc.isenabled()
    recording.close()
    assert gc.isenabled()
