"""Experts as models: equal to the official implementation, mapped without copies, streamed without losing a byte."""

import gc
import os
import threading

import numpy as np
import pytest
import torch
from checkpoint_cases import NF4
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import chunks, load_expert, open_checkpoint, state_tensors, warm
from lingbot_world.loaders.uploader import Uploader, UploadSettings
from lingbot_world.model.layers.operations import materialise
from lingbot_world.model.quantized import parameters
from lingbot_world.weights.tensors import read_into
from safetensors.torch import load_file

PT = "nf4/pt_fallback/high_noise_model_bnb_nf4"
CPU = torch.device("cpu")
SETTINGS = {"default": UploadSettings(), "small": UploadSettings(3, 2, 1000), "tiny": UploadSettings(2, 1, 64)}


@pytest.fixture(scope="module")
def inputs(golden):
    found = np.load(golden / "model/inputs.npz")
    x = torch.from_numpy(np.concatenate([found["x"], found["y"]]))[None]
    return x, torch.from_numpy(found["context"])[None], torch.from_numpy(found["plucker"])


def entries_of(checkpoint):
    return checkpoint.entries(checkpoint.shapes)


def uploaded(entries, device=CPU, settings=None, progress=None, **options):
    """The entries' tensors on the device, complete."""
    with Uploader(device, settings) as uploader:
        tensors, upload = uploader.upload(entries, **options)
        upload.wait(progress)
    return tensors


# Against the official implementation


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("source", [NF4, PT])
def test_a_loaded_expert_equals_the_official_model(golden, inputs, source, mode):
    x, context, camera = inputs
    expected = np.load(golden / "nf4/expected.npz")
    with mode():
        model = load_expert(golden / source, dtype=torch.float32)
        for t in (999, 413):
            with_camera = model(x, torch.tensor([t]), context, camera)[0].numpy()
            without = model(x, torch.tensor([t]), context)[0].numpy()
            np.testing.assert_allclose(with_camera, expected[f"high/dq_fp32/t{t}/out_cam"], atol=3e-5)
            np.testing.assert_allclose(without, expected[f"high/dq_fp32/t{t}/out_nocam"], atol=3e-5)


@pytest.mark.parametrize("arithmetic", ["bf16", "fp8"])
def test_decoded_weights_stay_after_the_first_forward(golden, inputs, arithmetic, monkeypatch):
    x, context, camera = inputs
    decoded, name = [], "recode" if arithmetic == "fp8" else "decode"
    own = getattr(parameters, name)
    monkeypatch.setattr(parameters, name, lambda *arguments: decoded.append(1) or own(*arguments))
    settings = {"dtype": torch.float32, "arithmetic": arithmetic}
    models = [load_expert(golden / NF4, **settings, decoded_blocks=blocks) for blocks in (0, 1)]
    for kept in ([0, 0], [0, 8]):  # of the first block, in the second forward
        counts, made = [], []
        for model in models:
            decoded.clear()
            made.append(model(x, torch.tensor([413]), context, camera))
            counts.append(len(decoded))
        assert torch.equal(*made)
        assert counts == [counts[0], counts[0] - kept[1]]


def test_8_bits_that_are_made_of_wider_weights_may_stay(golden, inputs):
    x, context, camera = inputs
    settings = {"dtype": torch.float32, "arithmetic": "fp8"}
    file = golden / "model/low_noise_model_fp32.safetensors"
    kept, plain = (load_expert(file, **settings, decoded_blocks=blocks) for blocks in (1, 0))
    first, again, want = (model(x, torch.tensor([999]), context, camera) for model in (kept, kept, plain))
    assert torch.equal(first, want)
    assert torch.equal(again, want)
    weight, camera_weight = (kept.get_submodule(f"blocks.0.{name}").weight for name in ("ffn.0", "cam_scale_layer"))
    assert weight.recode(torch.float8_e4m3fn) is weight.recode(torch.float8_e4m3fn)
    assert weight.decode(torch.float32).data_ptr() == weight.data_ptr()
    assert type(camera_weight) is torch.nn.Parameter


def test_a_plain_expert_equals_the_official_model(golden, inputs):
    x, context, camera = inputs
    expected = np.load(golden / "model/expected.npz")
    model = load_expert(golden / "model/low_noise_model_fp32.safetensors", dtype=torch.float32)
    out = model(x, torch.tensor([999]), context, camera)[0].numpy()
    np.testing.assert_allclose(out, expected["low/t999/out_cam"], atol=3e-5)


# Mapped


def mapped_ranges(path):
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps if line.rstrip().endswith(str(path))]
    return [tuple(int(edge, 16) for edge in row[0].split("-")) for row in rows]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_on_the_cpu_every_4_bit_byte_is_a_view_of_the_file(golden):
    checkpoint = open_checkpoint(golden / NF4)
    model = load_expert(checkpoint)
    ranges = mapped_ranges(golden / NF4 / "model.safetensors")
    for name, weight in model.named_parameters():
        tensors = [weight]
        if name in checkpoint.quantized:
            scales = weight.scales
            tensors = [weight, scales.absmax, scales.nested_absmax, scales.nested_code, scales.code]
        for tensor in tensors:
            assert any(start <= tensor.data_ptr() < end for start, end in ranges), name


def test_parameters_are_frozen_and_declared_in_the_compute_dtype(golden):
    for dtype in (torch.bfloat16, torch.float32):
        model = load_expert(golden / NF4, dtype=dtype)
        assert not model.training
        for parameter in model.parameters():
            assert isinstance(parameter, torch.nn.Parameter)
            assert not parameter.requires_grad
            assert materialise(parameter, torch.empty(0, dtype=dtype)).dtype == dtype
            assert parameter.dtype == (torch.uint8 if hasattr(parameter, "decode") else dtype)


def test_some_names_only(golden):
    names = ["blocks.0.ffn.0.weight", "head.modulation"]
    assert list(state_tensors(open_checkpoint(golden / NF4), torch.float32, names=names)) == names


def test_a_write_to_a_view_never_reaches_the_file(golden):
    file = golden / "model/high_noise_model_fp32.safetensors"
    before = file.read_bytes()
    state_tensors(open_checkpoint(file), torch.float32)["head.modulation"].zero_()
    gc.collect()
    assert file.read_bytes() == before


def test_tensors_that_are_not_aligned_in_the_file_are_read_right(beside_config, golden):
    source = golden / "model/high_noise_model_fp32.safetensors"
    blob = source.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header, data = blob[8 : 8 + length], blob[8 + length :]
    (beside_config / "x.safetensors").write_bytes((length + 1).to_bytes(8, "little") + header + b" " + data)
    state = state_tensors(open_checkpoint(beside_config / "x.safetensors"), torch.float32)
    assert all(torch.equal(state[name], value) for name, value in load_file(source).items())


# Uploaded: the threads, chunks and buffers are those of a GPU load, only the copies are ordinary ones


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("source", [NF4, PT, "model/low_noise_model_fp32.safetensors"])
def test_streaming_moves_every_byte_to_an_aligned_place(golden, source, settings):
    entries = entries_of(open_checkpoint(golden / source))
    calls = []
    with torch.inference_mode():
        moved = uploaded(entries, settings=SETTINGS[settings], progress=lambda *call: calls.append(call))
    for entry in entries:
        tensor = moved[entry.name]
        assert (tensor.dtype, tensor.shape) == (entry.dtype, entry.shape)
        assert torch.equal(tensor, entry.view())
        small = tensor.dtype == torch.float32 and tensor.nbytes < chunks.SMALL
        assert (tensor.data_ptr() - tensor.untyped_storage().data_ptr()) % (4 if small else chunks.ALIGNMENT) == 0
    total = sum(entry.nbytes for entry in entries)
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_the_tensors_of_a_block_share_a_buffer_of_their_own(golden):
    moved = uploaded(entries_of(open_checkpoint(golden / NF4)))
    homes = {}
    for name, tensor in moved.items():
        group = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else ""
        homes.setdefault(group, set()).add(tensor.untyped_storage().data_ptr())
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_from_progress_stops_every_thread(golden, error):
    def stop(done, total):
        raise error("stop")

    before = threading.active_count()
    with pytest.raises(error):
        uploaded(entries_of(open_checkpoint(golden / NF4)), settings=SETTINGS["tiny"], progress=stop)
    assert threading.active_count() == before


def test_a_file_that_has_shrunk_is_an_error_and_stops_every_thread(golden, beside_config):
    file = beside_config / "model.safetensors"
    file.write_bytes((golden / NF4 / "model.safetensors").read_bytes())
    entries = entries_of(open_checkpoint(file))
    os.truncate(file, 250_000)
    before = threading.active_count()
    with pytest.raises(CheckpointError, match="was replaced or changed since its header was read"):
        uploaded(entries, settings=SETTINGS["small"])
    assert threading.active_count() <= before


def test_a_file_that_shrinks_while_it_is_open_is_an_error(golden, beside_config):
    file = beside_config / "model.safetensors"
    file.write_bytes((golden / NF4 / "model.safetensors").read_bytes())
    source = entries_of(open_checkpoint(file))[0].source
    with source.open() as opened:
        os.truncate(file, 250_000)
        opened.seek(250_000)
        with pytest.raises(CheckpointError, match="ends at byte 250,000 while it is being read"):
            read_into(file, opened, memoryview(bytearray(8)))


def test_streaming_needs_nothing_that_only_unix_has(golden, monkeypatch):
    for name in ("preadv", "pread", "posix_fadvise"):
        monkeypatch.delattr(os, name, raising=False)
    checkpoint = open_checkpoint(golden / NF4)
    moved = uploaded(entries_of(checkpoint))
    assert all(torch.equal(moved[entry.name], entry.view()) for entry in entries_of(checkpoint))
    warm(checkpoint).join(60)


def test_a_copied_expert_computes_as_a_mapped_one_and_needs_its_file_no_more(golden, inputs, beside_config):
    x, context, camera = inputs
    file = beside_config / "model.safetensors"
    file.write_bytes((golden / NF4 / "model.safetensors").read_bytes())
    copied = load_expert(file, dtype=torch.float32, copy=True)
    file.write_bytes(bytes(file.stat().st_size))
    t = torch.tensor([999])
    mapped = load_expert(golden / NF4, dtype=torch.float32)
    assert torch.equal(copied(x, t, context, camera), mapped(x, t, context, camera))


def test_layers_may_have_buffers_of_their_own(golden):
    def sharing(key):
        moved = uploaded(entries_of(open_checkpoint(golden / NF4)), buffer_key=key)
        places = {}
        for name, tensor in moved.items():
            places.setdefault(tensor.untyped_storage().data_ptr(), set()).add(chunks.layer_of(name))
        return places.values()

    assert max(map(len, sharing(chunks.layer_of))) == 1
    assert max(map(len, sharing(chunks.block_of))) > 10
    names = ["blocks.1.ffn.0.weight.absmax", "blocks.1.ffn.0.bias", "blocks.1.modulation", "head.head.weight"]
    assert list(map(chunks.layer_of, names)) == ["blocks.1.ffn.0"] * 2 + ["blocks.1.modulation", "head.head"]


def test_an_error_while_an_expert_is_loaded_stops_the_readers(golden, monkeypatch):
    def fail(*_):
        raise KeyError("mine")

    monkeypatch.setattr("lingbot_world.loaders.load.quantized_tensors", fail)
    before = threading.active_count()
    with pytest.raises(KeyError, match="mine"):
        load_expert(golden / NF4, copy=True)
    assert threading.active_count() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS)
def test_streaming_to_a_gpu_moves_every_byte(golden, settings):
    entries = entries_of(open_checkpoint(golden / NF4))
    moved = uploaded(entries, torch.device("cuda"), settings=SETTINGS[settings])
    assert all(torch.equal(moved[entry.name].cpu(), entry.view()) for entry in entries)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_expert_on_a_gpu_decodes_to_the_same_bits_and_an_interrupt_leaves_nothing(golden):
    def stop(done, total):
        raise KeyboardInterrupt

    before = torch.cuda.memory_allocated()
    with pytest.raises(KeyboardInterrupt):
        load_expert(golden / NF4, "cuda", progress=stop)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    mapped, moved = load_expert(golden / NF4), load_expert(golden / NF4, "cuda")
    for (name, here), there in zip(mapped.named_parameters(), moved.parameters(), strict=True):
        assert there.device.type == "cuda"
        here, there = (value.decode(torch.bfloat16) if hasattr(value, "decode") else value for value in (here, there))
        assert torch.equal(here, there.cpu()), name


# Warming


@pytest.mark.parametrize("portable", [False, True])
def test_warming_reads_in_the_background(golden, monkeypatch, portable):
    if portable:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    thread = warm(open_checkpoint(golden / NF4))
    assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()


def test_warming_a_file_that_is_gone_is_no_error(golden, beside_config):
    file = beside_config / "x.safetensors"
    file.write_bytes((golden / "model/low_noise_model_fp32.safetensors").read_bytes())
    checkpoint = open_checkpoint(file)
    file.unlink()
    warm(checkpoint).join(60)
