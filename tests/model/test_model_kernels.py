"""The Triton kernels without a GPU: each is compiled for one, and computed by Triton's interpreter.

torch brings Triton only with CUDA; elsewhere scripts/test.sh installs it beside the packages that all tests find."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from lingbot_world.model.choice.card import Card
from lingbot_world.model.kernels.hopper import attention as attention_hopper
from lingbot_world.model.kernels.hopper import convolution as convolution_hopper
from lingbot_world.model.kernels.hopper import launch as hopper
from lingbot_world.model.kernels.hopper import nvrtc
from lingbot_world.model.ops.matrix_8bit import EightBit

SCRIPTS = Path(__file__).parents[1] / "kernel_scripts"
TRITON = Path(sys.prefix) / "triton"
NO_TRITON = find_spec("triton") is None and not TRITON.is_dir()

SOURCES = {
    **{str(dtype): (partial(attention_hopper.source, dtype), b"attend") for dtype in attention_hopper.CONFIGURATIONS},
    "convolution": (convolution_hopper.source, b"convolve"),
    "values across": (partial(hopper.source, "values_across.cu"), b"put_across"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_written_in_cudas_language_compiles(name):
    source, function = SOURCES[name]
    try:
        code = nvrtc.compiled(source(), hopper.ARCHITECTURE)
    except OSError:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    assert function in code
    with pytest.raises(RuntimeError, match="does not compile the kernel: .*unknown_type"):
        nvrtc.compiled("unknown_type x;", hopper.ARCHITECTURE)


def test_a_kernel_is_tried_before_it_is_taken(caplog):
    want = torch.ones(8)
    assert hopper.is_accurate("sums are made", lambda: want * 1.001, want)
    assert caplog.text == ""
    assert not hopper.is_accurate("sums are made", lambda: want * 1.5, want)
    assert "sums are made by other kernels, slower: ours has an error of 0.5 here" in caplog.text
    assert not hopper.is_accurate("sums are made", lambda: want * torch.nan, want)

    def broken(error):
        raise error

    assert not hopper.is_accurate("sums are made", lambda: broken(RuntimeError("no\nplan")), want)
    assert "sums are made by other kernels, slower: no plan" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        hopper.is_accurate("sums are made", lambda: broken(torch.OutOfMemoryError()), want)


def test_maps_are_made_once(monkeypatch):
    made = []

    class Driver:
        def cuTensorMapEncodeTiled(self, *_arguments):  # noqa: N802  CUDA's name
            made.append(1)
            return 0

    monkeypatch.setattr(hopper, "libcuda", Driver)
    x = torch.empty(10, 96, dtype=torch.float16)
    first = hopper.tensor_map(x, (64, 8), hopper.SWIZZLE_64)
    assert hopper.tensor_map(x.view(10, 96), (64, 8), hopper.SWIZZLE_64) is first
    for other in (x[1:], x[:, :64], x[:5]):
        assert hopper.tensor_map(other, (64, 8), hopper.SWIZZLE_64) is not first
    assert hopper.tensor_map(x, (64, 4), hopper.SWIZZLE_64) is not first
    assert len(made) == 5


def attended(queries, keys, heads, blocks, kind, seen):
    """As `divide` and `take` in the source: of each tile of queries its keys, part after part, with where a part's
    results lie (None: not shared), if `seen` keys of those that Python counts are seen."""
    clusters, parts = blocks // kind.cluster, attention_hopper.split_last_round(queries, keys, heads, blocks, kind)[1]
    rows, key_tiles = -(-queries // attention_hopper.QUERIES), -(-seen // kind.tile)
    groups, parts, tiles = -(-rows * heads // kind.cluster), min(parts, key_tiles), rows * heads
    shared, done = groups % clusters, {}
    for number in range(groups - shared + shared * parts):
        alone = number < groups - shared or parts == 1
        part, of = (0, 1) if alone else ((number - groups + shared) // shared, parts)
        first, last = part * key_tiles // of, (part + 1) * key_tiles // of
        assert last > first, "both blocks of a cluster wait for keys"
        for tile in range((number - part * shared) * kind.cluster, (number - part * shared + 1) * kind.cluster):
            assert tile <= tiles, "queries that no head has are loaded as the first ones behind the last head's"
            if tile < tiles:
                at = None if alone else ((tile - (groups - shared) * kind.cluster) * parts + part)
                done.setdefault(tile, []).append((first, last, at))
    return done


@pytest.mark.parametrize("kind", attention_hopper.CONFIGURATIONS.values(), ids=lambda kind: kind.name)
def test_every_query_gets_all_keys_once(kind):
    """However the work is divided, and in the memory that there is for results of parts."""
    random, numbers = Random(0), [1, 2, 63, 64, 65, 191, 192, 193, 385]
    for _ in range(2000):
        queries, keys = (random.choice([*numbers, random.randint(1, 5000), random.randint(1, 40000)]) for _ in "qk")
        heads, blocks = random.choice([1, 2, 3, 12, 40]), 2 * random.randint(1, 66)
        seen = random.choice([keys, random.randint(1, keys)])
        shared, parts = attention_hopper.split_last_round(queries, keys, heads, blocks, kind)
        done = attended(queries, keys, heads, blocks, kind, seen)
        assert sorted(done) == list(range(-(-queries // attention_hopper.QUERIES) * heads))
        for each in done.values():
            ends = [0, *(last for _, last, _ in each)]
            assert [first for first, _, _ in each] == ends[:-1]
            assert ends[-1] == -(-seen // kind.tile)
        places = [at for each in done.values() for _, _, at in each if at is not None]
        assert len(set(places)) == len(places)
        assert max(places, default=0) < max(1, shared * parts)


class Launched:
    """Kernels whose launches are written down, on a card with 132 multiprocessors."""

    def __init__(self, monkeypatch):
        self.kinds = []
        monkeypatch.setattr(hopper, "libcuda", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *_arguments: 0))
        card = SimpleNamespace(multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
        monkeypatch.setattr(torch.cuda, "device_of", lambda _tensor: nullcontext())
        monkeypatch.setattr(attention_hopper, "_attend", lambda _device, _dtype: self)
        monkeypatch.setattr(attention_hopper, "_transpose_kernels", lambda _device: (self, self))
        monkeypatch.setattr(convolution_hopper, "_kernel", lambda _device: self)

    def __call__(self, _launch, *arguments):
        self.kinds = [self._kind(each) for each in arguments]

    @staticmethod
    def _kind(argument):
        if argument is None or isinstance(argument, torch.Tensor):
            return "address"
        return "number" if isinstance(argument, int) else "map"


def parameters(source, name):
    """What a function of CUDA's takes."""
    listed = re.search(rf"\b{name}\(([^)]*)\) \{{", source).group(1).split(",")
    return ["address" if "*" in each else "map" if "Map" in each else "number" for each in listed]


def test_launches_pass_what_the_kernels_take(monkeypatch):
    """What is in the wrong place, or missing, would be read as something else."""
    launched, fp8 = Launched(monkeypatch), torch.float8_e4m3fn
    x, one, mean = torch.zeros(300, 256, dtype=torch.bfloat16), torch.ones(1), torch.zeros(256)
    across, values = parameters(hopper.source("values_across.cu"), "across"), x.to(fp8)
    attended = parameters(attention_hopper.source(fp8), "attend")
    attention_hopper.attend(torch.empty_like(x), x, x, x, 2, padding_start=torch.zeros(1, dtype=torch.int32))
    assert launched.kinds == attended
    scales = one, one, one, mean, one
    for out in (torch.empty_like(x), EightBit(torch.empty_like(values), torch.empty(300, 1))):
        attention_hopper.attend(out, values, values, torch.zeros(256, 320).to(fp8), 2, scales, torch.zeros(3))
        assert launched.kinds == attended
    attention_hopper.transpose(values)
    assert launched.kinds == across
    attention_hopper.scatter_transposed_(torch.zeros(256, 320).to(fp8), torch.arange(300), x, mean, one)
    assert launched.kinds == parameters(hopper.source("values_across.cu"), "put_across")
    rows, weight = torch.zeros(3 * 6 * 7, 32, dtype=torch.float16), torch.zeros(96, 9 * 96, dtype=torch.float16)
    convolution_hopper.convolve(rows, torch.arange(3, dtype=torch.int32), weight, weight[0, :96], (5, 6))
    assert launched.kinds == parameters(convolution_hopper.source(), "convolve")


@pytest.mark.skipif(NO_TRITON, reason="needs Triton, which scripts/test.sh installs")
def test_every_kernel_as_triton_interprets_it():
    found = run_script("kernels.py", TRITON_INTERPRET="1")
    assert found["failed"] == {}
    assert found["cases"] >= 30


TARGETS = {
    **{f"cuda:{number}": Card("nvidia", "", divmod(number, 10)) for number in (75, 80, 86, 89, 90, 100, 120)},
    **{f"hip:{name}": Card("amd", "", arch=name) for name in ("gfx942", "gfx1100", "gfx1151", "gfx1201")},
}
SPILLED = {("cuda:90", "_convolve"): 288, ("cuda:100", "_convolve"): 64}
"""Bytes that kernels may spill, by card: the blocks of `_convolve` were the fastest on an H100 although they spill."""


@pytest.mark.slow
@pytest.mark.skipif(NO_TRITON, reason="needs Triton, which scripts/test.sh installs")
def test_every_kernel_compiles_for_the_cards_that_people_have(tmp_path):
    """None needs more shared memory than the card has, and none keeps registers in memory."""
    found = run_script("cards.py", *TARGETS, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    for target, card in TARGETS.items():
        assert found[target]["failed"] == [], target
        assert {"_layer_norm", "_encode_8bit", "_add_norm", "_recode"} <= found[target]["shared"].keys(), target
        too_large = {name: size for name, size in found[target]["shared"].items() if size > card.shared_memory}
        assert not too_large, target
        spilled = {
            name: size for name, size in found[target]["spilled"].items() if size > SPILLED.get((target, name), 0)
        }
        assert not spilled, target
    assert {target for target in TARGETS if "_convolve" not in found[target]["shared"]} == {"cuda:75"}


def run_script(name, *arguments, **variables):
    """What a script of tests/kernel_scripts prints."""
    path = os.pathsep.join([str(SCRIPTS.parent), str(TRITON), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    command = [sys.executable, SCRIPTS / name, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
