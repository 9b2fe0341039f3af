"""Memory that is pinned by a thread, with the calls of CUDA's runtime stood in for."""

import gc
import threading
from contextlib import nullcontext

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.model.host_memory import Pinning, zero_and_pin

GPU = torch.device("cuda:0")


class Owner:
    """What the memory is pinned for."""


class Runtime:
    """CUDA's runtime; `refused` is the first registration that fails, `before` is called before each."""

    def __init__(self, refused=None, before=lambda: None):
        self.registered, self.freed, self._refused, self._before = [], [], refused, before

    def cudaHostRegister(self, address, _nbytes, _flags):  # noqa: N802
        self._before()
        self.registered.append(address)
        return 2 if len(self.registered) == self._refused else 0

    def cudaHostUnregister(self, address):  # noqa: N802
        self.freed.append(address)


@pytest.fixture
def cuda(monkeypatch):
    def build(*arguments):
        runtime = Runtime(*arguments)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        return runtime

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    return build


def groups(count):
    return [[torch.full((10,), 7.0), torch.full((10,), 7.0)] for _ in range(count)]


def ended(runtime, count, before):
    """Waits until so many tensors were freed, whoever does it of the threads that were not there `before`."""
    for thread in set(threading.enumerate()).difference(before):
        if thread.daemon is False:
            thread.join(60)
    return len(runtime.freed) == count


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_a_thread_pins_and_zeroes_in_its_makers_mode_until_the_owner_goes(cuda, mode):
    runtime, owner = cuda(), Owner()
    with mode():
        given = groups(3)
        pinning = Pinning(owner, given, GPU)
        for index, group in enumerate(given):
            pinning.wait(index)
            assert not any(tensor.any() for tensor in group)
    assert len(runtime.registered) == 6
    assert runtime.freed == []
    del owner
    assert runtime.freed == runtime.registered


def test_after_a_refusal_nothing_more_is_touched(cuda):
    runtime, owner, given = cuda(3), Owner(), groups(5)
    pinning = Pinning(owner, given, GPU)
    pinning.wait(0)
    for index in range(1, 5):
        with pytest.raises(InputError, match="cannot be pinned .CUDA error 2"):
            pinning.wait(index)
    assert len(runtime.registered) == 3
    assert all(tensor.all() for group in given[2:] for tensor in group)
    del owner
    assert runtime.freed == runtime.registered[:2]


def test_an_owner_that_goes_early_stops_the_thread(cuda):
    gone, at_work = threading.Event(), threading.Event()
    runtime, owner = cuda(None, lambda: (at_work.set(), gone.wait(60))), Owner()
    Pinning(owner, groups(50), GPU)
    assert at_work.wait(60)
    threading.Timer(0.1, gone.set).start()
    del owner  # waits for the tensors that are being pinned
    assert len(runtime.registered) == len(runtime.freed) <= 4


def test_an_owner_that_is_collected_in_the_thread_itself(cuda):
    gone, before = threading.Event(), threading.enumerate()
    runtime, owner = cuda(None, lambda: gone.wait(60) and gc.collect()), Owner()
    owner.own = owner  # as an error's traceback holds what it passed
    pinning = Pinning(owner, groups(2), GPU)
    gc.disable()
    try:
        del owner
        gone.set()
        pinning._thread.join(60)
    finally:
        gc.enable()
    assert ended(runtime, len(runtime.registered), before)
    assert runtime.registered


def test_memory_that_is_pinned_at_once_needs_no_thread(cuda):
    runtime, owner, before = cuda(), Owner(), threading.active_count()
    for group in groups(15):
        zero_and_pin(owner, group, GPU)
    assert threading.active_count() == before
    del owner
    assert sorted(runtime.freed) == sorted(runtime.registered)
