"""What `live --bench` makes of what it receives, by made-up arrivals."""

import signal
import time
from types import SimpleNamespace

import pytest
from lingbot_world.headless.live import measuring
from lingbot_world.headless.live.measuring import WARM, Walker
from live_cases import live_process, wait_for


@pytest.fixture
def told(monkeypatch):
    """told(waits): the figures of a walk of sixteen batches a second, in which each key (when it is pressed, in seconds
    after the first frames, and how long it is not seen) is in the first batch after its wait."""

    def figures(waits, seconds=12.0):
        clock, walker = SimpleNamespace(now=0.0), Walker("", 16)
        monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        keys = dict(enumerate(waits, 1))
        happen = [(number / 16, 0, None) for number in range(int(16 * seconds) + 1)]
        happen += [(at, 1, number) for number, (at, _) in keys.items()]
        happen += [(at + wait, 2, number) for number, (at, wait) in keys.items()]
        for at, kind, number in sorted(happen, key=lambda entry: entry[:2]):
            clock.now = 5 + at
            if kind == 1:
                walker._pressed[number] = clock.now
            else:
                walker._take({"type": "frame_batch", "num_frames": 4, "event_id": number or 0})
        return walker._figures(began=3.0)

    return figures


def test_keys_of_the_first_seconds_count_for_the_longest_wait_alone(told):
    slow, quick = [(0.5, 1.5), (WARM - 0.1, 0.9)], [(WARM + 1 + second, 0.25) for second in range(6)]
    figures = told(slow + quick)
    assert figures["first_chunk_s"] == 2.0
    assert (figures["key_to_pixel_p50_s"], figures["key_to_pixel_p95_s"], figures["keys"]) == (0.25, 0.25, 6)
    assert figures["key_to_pixel_most_s"] == 1.5


def test_a_walk_that_is_over_before_is_counted_whole(told):
    figures = told([(0.5, 0.3), (1.5, 0.3)], seconds=2.0)
    assert (figures["key_to_pixel_p50_s"], figures["key_to_pixel_most_s"], figures["keys"]) == (0.3, 0.3, 2)
    assert told([], seconds=2.0)["key_to_pixel_p95_s"] == 0.0


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_twice_ends_a_bench_whose_walk_is_kept(toy_package, tmp_path):
    process = live_process(toy_package, "--device", "cpu", "--walks", tmp_path, "--bench", 60)
    try:
        wait_for(lambda: any(file.stat().st_size > 30_000 for file in tmp_path.glob("*/latent.f32")))
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert said.strip().endswith("interrupted; the walk is kept")
    assert "Traceback" not in said
    assert next(tmp_path.glob("*/walk.state")).is_file()
