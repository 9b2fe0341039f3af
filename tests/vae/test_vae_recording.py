"""The decoder's work for a latent frame as a CUDA graph: slots that change, what is replayed, and what is not."""

import threading
from types import SimpleNamespace

import pytest
import torch
from lingbot_world.live.walk import Walk
from lingbot_world.model.graphs.capture import ONE_AT_A_TIME
from lingbot_world.toy.weights import Weights
from lingbot_world.vae import Stripe, VideoDecoder, decode_latent, load_vae, pooled
from lingbot_world.vae.recording import Recording
from lingbot_world.vae.slots import Slots, layers_in_order
from lingbot_world.vae.weights import vae_shapes

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


def test_a_layers_two_frames_stay_until_it_has_seen_two_more():
    layers = [f"layer {number}" for number in range(4)]
    slots, pool, seen = Slots(dict.fromkeys(layers, "pool")), [None] * 9, {layer: [None, None] for layer in layers}
    for number in range(60):
        layer = layers[(number * number + number // 7) % 4]
        before, last, new = slots.take(layer)
        assert [pool[before], pool[last]] == seen[layer]
        pool[new] = number
        seen[layer] = [seen[layer][1], number]


def test_layers_get_frames_in_the_networks_order():
    weights = {name: torch.empty(shape, device="meta") for name, shape in vae_shapes(8).items()}
    first, later = (layers_in_order(weights, first) for first in (True, False))
    assert set(later) - set(first) == {f"decoder.upsamples.{number}.time_conv" for number in (3, 7)}
    assert first[:3] == later[:3] == ["decoder.conv1", "decoder.middle.0.residual.2", "decoder.middle.0.residual.6"]
    assert (first.count("decoder.head.2"), later.count("decoder.head.2")) == (1, 4)
    assert [later.count(f"decoder.upsamples.{number}.residual.2") for number in (2, 4, 8, 12)] == [1, 2, 4, 4]


@pytest.mark.parametrize(
    ("device", "dtype", "width", "recorded"),
    [
        ("cuda", torch.float16, 96, True),
        ("cuda", torch.float16, 8, False),
        ("cuda", torch.bfloat16, 96, False),
        ("cuda", None, 96, False),
        ("cpu", torch.float16, 96, False),
    ],
)
def test_what_is_recorded_is_known_before(device, dtype, width, recorded, monkeypatch):
    """The planner counts its memory."""
    monkeypatch.setattr(pooled, "triton_loads", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    assert pooled.can_record(torch.device(device), dtype, width) == recorded


def test_where_recording_fails_frames_are_made_as_usual(caplog):
    """Here there is no CUDA at all."""
    recording, made = Recording(), []

    def decode(latent):
        made.append(latent)
        return iter([latent + 1, latent + 2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", refuse)
        for number in range(4):
            frames = list(recording.decode(decode, torch.tensor(float(number))))
            assert frames == [number + 1, number + 2]
    assert len(made) == 4
    assert not recording.made
    assert caplog.text.count("cannot be recorded as a CUDA graph, and runs as usual: no graphs here") == 1


def test_a_walk_waits_for_its_gpus_before_its_recordings_are_dropped(monkeypatch):
    """Their memory may be given back at once. A GPU that failed is no reason to keep them."""
    order, walk = [], object.__new__(Walk)

    class Held:
        device = torch.device("cuda", 1)

        def __del__(self):
            order.append("dropped")

    def wait(device):
        order.append(device.index)
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    walk.engine, walk._world, walk._decoder = SimpleNamespace(device=torch.device("cuda", 0)), Held(), Held()
    walk._free_world()
    assert sorted(order[:2]) == [0, 1]
    assert order[2:] == ["dropped", "dropped"]


def refuse():
    raise RuntimeError("no graphs here")


@pytest.fixture(scope="module")
def half():
    random = Weights(0)
    tensors = {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(96).items()}
    vae = load_vae(tensors, device="cuda").decoding_in_half()
    assert pooled.suits(vae)
    return vae


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def is_recorded(decoder):
    (only,) = decoder._decoders.values()
    return only.recording is not None and only.recording.made


@needs_hopper
@pytest.mark.parametrize("size", [(13, 21), (34, 34)])
@pytest.mark.parametrize("stripe", [False, True], ids=["whole", "stripe"])
def test_replayed_frames_have_the_bits_of_computed_ones(half, size, stripe):
    """Parked between the parts, nothing is recorded."""
    part = Stripe.of(*size, 1, 3) if stripe else None
    ways = [VideoDecoder(half, *size, park=park, stripe=part) for park in (False, True)]
    latent = noise(1, 16, 24, *size)
    for each in latent.split([1, 1, 1, 4, 10, 7], dim=2):
        replayed, computed = (decoder.decode(each) for decoder in ways)
        assert torch.equal(replayed, computed)
        assert replayed.float().std() > 10
    assert [is_recorded(decoder) for decoder in ways] == [True, False]


@needs_hopper
def test_videos_behind_each_other_and_side_by_side(half):
    """Frames that come later, of two decoders in turns; the last part forgets the video."""
    latents = noise(2, 1, 16, 8, 20, 22)
    wanted = [VideoDecoder(half, 20, 22, park=True).decode(latent) for latent in latents]
    first = VideoDecoder(half, 20, 22)
    for _ in range(2):
        decoders, made = (first, first.anew(20, 22)), ([], [])
        for index in range(4):
            for decoder, latent, parts in zip(decoders, latents, made, strict=True):
                part = latent[:, :, 2 * index : 2 * index + 2]
                parts.append(decoder.decode(part, non_blocking=True, last=index == 3))
        torch.cuda.synchronize()
        assert all(torch.equal(torch.cat(parts), want) for parts, want in zip(made, wanted, strict=True))
        assert not is_recorded(first)


@needs_hopper
def test_threads_that_decode_while_another_one_records(half):
    latent, done, x = noise(1, 16, 12, 20, 22), threading.Event(), torch.ones(64, 64, device="cuda")
    want, made = decode_latent(half, latent), [[], []]

    def decode(parts):
        with torch.cuda.stream(torch.cuda.Stream()):
            decoder = VideoDecoder(half, 20, 22)
            parts += [decoder.decode(part) for part in latent.split(2, dim=2)]
            parts.append(is_recorded(decoder))

    threads = [threading.Thread(target=decode, args=(parts,)) for parts in made]
    [thread.start() for thread in threads]
    while any(thread.is_alive() for thread in threads):
        with ONE_AT_A_TIME:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(100):
                    x.copy_((2 * x).tanh())
        done.wait(0.001)
    for parts in made:
        assert parts.pop()
        assert torch.equal(torch.cat(parts), want)


@needs_hopper
def test_without_memory_for_a_recording_frames_are_made_as_usual(half, monkeypatch, caplog):
    latent, doubled = noise(1, 16, 6, 20, 22), pooled.PooledDecoder._doubled
    want = VideoDecoder(half, 20, 22, park=True).decode(latent)

    def too_large(self, name, x):
        if torch.cuda.is_current_stream_capturing():
            x.new_empty(2**46)
        return doubled(self, name, x)

    monkeypatch.setattr(pooled.PooledDecoder, "_doubled", too_large)
    decoder = VideoDecoder(half, 20, 22)
    got = [decoder.decode(part) for part in latent.split(1, dim=2)]
    assert torch.equal(torch.cat(got), want)
    assert not is_recorded(decoder)
    assert caplog.text.count("cannot be recorded as a CUDA graph") == 1
    monkeypatch.undo()
    assert torch.equal(decode_latent(half, latent), want)  # CUDA goes on


@needs_hopper
def test_a_number_too_large_is_told_of_replayed_frames_too(half):
    decoder, latent = VideoDecoder(half, 20, 22), noise(1, 16, 1, 20, 22)
    for _ in range(5):
        decoder.decode(latent)
    assert is_recorded(decoder)
    with pytest.raises(OverflowError, match="too large for fp16"):
        decoder.decode(latent * torch.nan)
