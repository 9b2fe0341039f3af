"""Experts whose last blocks pass through slots: the same bits, the memory as promised, and nothing left behind."""

import gc
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import load_expert, offload, open_checkpoint
from lingbot_world.loaders.uploader import ChunkReader, CudaChunkReader, Uploader, UploadSettings
from lingbot_world.model.cache import CameraCache
from lingbot_world.toy.experts import write_expert
from model_cases import SMALL, random_inputs, random_state
from torch.multiprocessing.reductions import StorageWeakRef

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = replace(SMALL, num_layers=5)
LAYERS = CONFIG.num_layers
KINDS = {
    "nf4": {"quant_type": "nf4"},
    "fp4": {"quant_type": "fp4"},
    "fp32": {"quant_type": None, "dtype": torch.float32},
    "bf16": {"quant_type": None, "dtype": torch.bfloat16},
}
RESIDENT = [0, 1, LAYERS - 2, LAYERS - 1, LAYERS]
CASES = [("nf4", resident) for resident in RESIDENT]
CASES += [(kind, resident) for kind in ("fp4", "fp32", "bf16", "pt") for resident in (1, LAYERS)]
"""Kinds of files and numbers of resident blocks. Which slot a block takes has nothing to do with its kind, so that one
kind alone has every number."""
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An expert in every kind of file, by kind."""
    folder, state = tmp_path_factory.mktemp("experts"), random_state(CONFIG)
    (folder / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    paths = {kind: folder / f"{kind}.safetensors" for kind in KINDS}
    for kind, options in KINDS.items():
        write_expert(paths[kind], CONFIG, state.items(), **options)
    torch.save(state, folder / "state.pt")
    return paths | {"pt": folder / "state.pt"}


@pytest.fixture
def copy(files, tmp_path):
    """A copy of the NF4 file that a test may spoil."""
    (tmp_path / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    path = tmp_path / "model.safetensors"
    path.write_bytes(files["nf4"].read_bytes())
    return path


def load(path, resident, device="cpu", dtype=torch.float32):
    """Resident weights are copied, as to a GPU, in place of being mapped."""
    return load_expert(path, device, dtype, copy=True, resident_blocks=resident)


def steps(model, device="cpu", cache=None, count=2):
    """Velocities of a few forwards, each with inputs of its own and all with the same camera. In the second one the
    blocks are in other slots than in the first."""
    results = []
    for seed in range(count):
        inputs = random_inputs(CONFIG, 2, (2, 4, 4), seed=seed) | {
            "camera": random_inputs(CONFIG, 1, (2, 4, 4))["camera"]
        }
        inputs = {name: value.to(device) for name, value in inputs.items()}
        results.append(model(**inputs, options={"camera_cache": cache}).cpu())
    return results


def equal(left, right):
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def whole(files):
    """`whole(kind, device)`: what an expert gives whose blocks are all resident; each is made once."""
    made = {}

    def make(kind, device="cpu"):
        if (kind, device) not in made:
            made[kind, device] = steps(load(files[kind], None, device), device)
        return made[kind, device]

    return make


@pytest.fixture
def slow(monkeypatch):
    """Reads that take 2 ms, so that a block that nobody waited for is not there yet."""
    read = ChunkReader.read

    def late(lane, chunk, buffer):
        time.sleep(0.002)
        read(lane, chunk, buffer)

    monkeypatch.setattr(ChunkReader, "read", late)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "resident"), CASES)
def test_streamed_blocks_give_the_same_bits(kind, resident, device, files, whole, slow):
    assert equal(steps(load(files[kind], resident, device), device), whole(kind, device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("late", ["blocks", "copies"])
def test_blocks_and_copies_on_a_gpu_wait_for_each_other(late, files, monkeypatch):
    carry, wanted = CudaChunkReader.copy_chunk, steps(load(files["nf4"], None, "cuda"), "cuda")

    def carry_late(lane, chunk):
        with torch.cuda.stream(lane._stream):
            torch.cuda._sleep(20_000_000)
        return carry(lane, chunk)

    if late == "copies":
        monkeypatch.setattr(CudaChunkReader, "copy_chunk", carry_late)
    model = load(files["nf4"], 0, "cuda")
    for block in model.blocks if late == "blocks" else ():
        block.register_forward_pre_hook(lambda *_: torch.cuda._sleep(20_000_000))
    assert equal(steps(model, "cuda"), wanted)


@pytest.mark.parametrize("slots", [1, 2, 3, LAYERS + 1])
def test_any_number_of_slots_serves(slots, files, whole, slow, monkeypatch):
    monkeypatch.setattr(offload, "SLOTS", slots)
    monkeypatch.setattr(offload, "SETTINGS", UploadSettings(3, 2, 2000))
    for resident in (0, 2):
        assert equal(steps(load(files["nf4"], resident)), whole("nf4"))


def test_half_precision_and_the_camera_cache(files, slow):
    wanted, model = load(files["fp32"], None, dtype=torch.bfloat16), load(files["fp32"], 1, dtype=torch.bfloat16)
    cache = CameraCache()
    assert equal(steps(model, cache=cache), steps(wanted))
    assert cache.nbytes > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_outlives_the_mode_it_was_loaded_in(mode, files, slow):
    with mode():
        model = load(files["nf4"], 0)
        first = steps(model)
    assert equal(steps(model), first)


@pytest.mark.parametrize("resident", [0, 1, LAYERS - 1, LAYERS, None])
@pytest.mark.parametrize("kind", ["nf4", "fp32"])
def test_weights_take_what_weight_bytes_says(kind, resident, files):
    checkpoint, storages = open_checkpoint(files[kind]), {}
    model = load(checkpoint, resident, dtype=torch.float32 if kind == "fp32" else torch.bfloat16)
    for parameter in model.parameters():
        for part in _parts(parameter):
            storages[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
    wanted = offload.weight_bytes(checkpoint, LAYERS if resident is None else resident)
    assert sum(storages.values()) == wanted
    assert offload.weight_bytes(checkpoint, None) == checkpoint.nbytes


def _parts(parameter):
    """The tensors behind a parameter; the nested offsets, which are no entries of the file, left out."""
    if not hasattr(parameter, "scales"):
        return [parameter]
    scales = parameter.scales
    return [parameter, scales.absmax, scales.code, scales.nested_absmax, scales.nested_code]


def test_blocks_that_need_different_room_share_the_slots(copy, files, slow):
    """A checkpoint may leave some layers of some blocks unquantized."""
    quantized, plain = (open_checkpoint(files[kind]) for kind in ("nf4", "fp32"))
    tensors = {name: tensor for name, tensor in _stored(quantized).items() if not name.startswith("blocks.2.ffn")}
    tensors |= {name: tensor for name, tensor in _stored(plain).items() if name.startswith("blocks.2.ffn")}
    from safetensors.torch import save_file

    save_file(tensors, copy)
    assert equal(steps(load(copy, 1)), steps(load(copy, None)))


def _stored(checkpoint):
    return {name: entry.view().clone() for name, entry in checkpoint.tensors.items()}


def test_the_first_blocks_of_the_next_step_come_while_the_last_ones_run(files, monkeypatch):
    filled, fill = [], offload.BlockStreamer._fill
    monkeypatch.setattr(offload.BlockStreamer, "_fill", lambda self, index: filled.append(index) or fill(self, index))
    model = load(files["nf4"], 1)
    assert filled == [1, 2]
    steps(model, count=2)
    assert filled == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_blocks_that_all_have_a_slot_are_read_once(files, monkeypatch):
    model = load(files["nf4"], LAYERS - offload.SLOTS)
    steps(model, count=1)
    monkeypatch.setattr(ChunkReader, "read", None)
    steps(model)


def test_a_forward_that_ended_early_does_no_harm_to_the_next(files, whole, slow):
    def interrupt(*_):
        raise KeyboardInterrupt

    for where in range(LAYERS):
        model = load(files["nf4"], 1)
        handle = model.blocks[where].register_forward_hook(interrupt, prepend=True)
        with pytest.raises(KeyboardInterrupt):
            steps(model)
        handle.remove()
        assert equal(steps(model), whole("nf4"))


def test_a_file_that_shrinks_is_an_error_of_the_forward_every_time(copy):
    model = load(copy, 0)
    os.truncate(copy, copy.stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"model.safetensors: (ends at byte .* being read|was replaced)"):
            steps(model)


def test_a_scale_that_is_not_finite_is_refused_before_anything_runs(copy):
    entry = open_checkpoint(copy).quantized["blocks.4.ffn.0.weight"].nested_absmax
    with copy.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\x00\x00\xc0\x7f")
    with pytest.raises(CheckpointError, match=r"NaN or infinity.*blocks\.4\.ffn\.0\.weight"):
        load(copy, 0)


@pytest.mark.parametrize("resident", [None, 0])
@pytest.mark.parametrize("value", [b"\xc0\x7f", b"\x80\xff"], ids=["nan", "infinity"])
def test_a_plain_weight_that_is_not_finite_is_named_by_the_first_forward(copy, resident, value):
    entry = open_checkpoint(copy).tensors["blocks.4.norm3.bias"]
    with copy.open("r+b") as file:
        file.seek(entry.offset + 2)
        file.write(value)
    with pytest.raises(CheckpointError, match=rf"{copy}: NaN or infinity in 1 tensors \(blocks\.4\.norm3\.bias\)"):
        steps(load(copy, resident))


def test_weights_are_not_blamed_for_an_input_that_is_not_finite(files):
    model, inputs = load(files["bf16"], None), random_inputs(CONFIG, 1, (2, 4, 4))
    for _ in range(2):
        assert model(**inputs | {"x": inputs["x"] * torch.inf}).isnan().any()


@pytest.mark.parametrize("reason", ["drop", "error", "interrupt"])
def test_threads_and_slots_go_with_the_model_without_the_collector(reason, copy, slow):
    def stop(*_):
        raise KeyboardInterrupt

    gc.collect()
    before = threading.active_count()
    gc.disable()
    try:
        model = load(copy, 0)
        slot = StorageWeakRef(model.blocks[0].ffn[0].weight.untyped_storage())
        if reason == "interrupt":
            model.blocks[2].register_forward_hook(stop)
        if reason == "error":
            os.truncate(copy, 1000)
        if reason != "drop":
            with pytest.raises((KeyboardInterrupt, CheckpointError)):
                steps(model)
        assert threading.active_count() > before
        assert not slot.expired()
        del model
        assert threading.active_count() == before
        assert slot.expired()
    finally:
        gc.enable()


def test_closing_in_one_of_the_threads_that_it_waits_for_closes(files):
    """The collector may run there."""
    before = threading.active_count()
    uploader = Uploader(torch.device("cpu"), offload.SETTINGS)
    uploader._threads.submit(uploader.close).result(60)
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_a_forward_that_waits_for_a_file(files, monkeypatch):
    reading, release, read = threading.Event(), threading.Event(), ChunkReader.read

    def stuck(lane, chunk, buffer):
        if threading.current_thread().name.startswith("lingbot-upload"):
            reading.set()
            release.wait(200)
        read(lane, chunk, buffer)

    monkeypatch.setattr(ChunkReader, "read", stuck)
    model = load_expert(files["nf4"], dtype=torch.float32, resident_blocks=0)
    assert reading.wait(60)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            steps(model)
        assert time.monotonic() - started < 100
    finally:
        release.set()
