"""The server of live walks: SGLang's protocol, and what our own page asks for besides."""

import json
import shutil
from io import BytesIO

import numpy as np
import pytest
import websocket
from lingbot_world.headless.command.cli import main
from lingbot_world.live.wire.encoder import Encoder
from lingbot_world.live.wire.protocol import Output
from lingbot_world.toy import scene
from live_cases import Server, ask, png, wait_for
from PIL import Image


@pytest.fixture
def server(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks") as started:
        yield started


def test_a_script_of_so_many_chunks_as_sglangs_collector_asks_for_it(server):
    """Chunks in order and whole, whole numbers, the keys that were asked for, and an end with code 1000."""
    keys = {"camera_actions": [["w"], ["w", "l"], []]}
    asked = {"prompt": "a castle", "first_frame": png(), "size": "48x32", "num_frames": 29, "num_inference_steps": 4}
    asked |= {"guidance_scale": 1.0, "seed": 42, "max_chunks": 3, "realtime_output_pacing": False}
    client = server.client(**asked, generator_device="cuda", condition_inputs=keys)
    last = client.chunk(2)
    code, data = client.socket.recv_data()
    assert (code, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1000)
    assert [batch["chunk_index"] for batch in client.batches] == [0, 1, 2]
    assert [batch["num_frames"] for batch in client.batches] == [1, 4, 4]
    for batch, payload in zip(client.batches, client.frames, strict=True):
        assert (batch["content_type"], batch["format"], batch["channels"]) == ("application/x-raw-rgb", "rgb24", 3)
        assert len(payload) == batch["num_frames"] * batch["bytes_per_frame"] == batch["num_frames"] * 48 * 32 * 3
        assert batch["is_final_frame_batch"] is True
    for name in ("request_prepare_ms", "scheduler_forward_ms", "chunk_total_ms", "ws_write_ms", "ws_payload_bytes"):
        assert type(last[name]) is int
    assert not any(isinstance(value, float) for value in last.values())
    assert {message["type"] for message in client.told} == {"chunk_stats"}
    walk = next((server.folder).iterdir())
    wait_for(lambda: (walk / "camera/poses.npy").is_file())
    poses = np.load(walk / "camera/poses.npy")
    assert poses[-1, 2, 3] > 0.1
    assert poses[-1, 0, 2] > 0.05


def test_held_keys_and_their_event_come_back_in_the_next_frames(server):
    client = server.client(realtime_output_format="jpeg")
    client.chunk()
    client.event(
        "camera_actions",
        {
            "mode": "state",
            "transitions": [{"actions": ["w"], "client_ts_ms": 5}, {"actions": ["w", "j"], "client_ts_ms": 9}],
        },
        event_id=41,
    )
    batch = client.until(lambda message: message.get("event_id") == 41)
    assert (batch["encoding"], batch["content_type"]) == ("jpeg", "image/jpeg")
    start, sizes = 0, batch["payload_lengths"]
    for size in sizes:
        assert Image.open(BytesIO(client.frames[-1][start : start + size])).size == (48, 32)
        start += size
    client.close()


def test_a_composite_input_steers_and_says(server):
    client = server.client(lingbot_world=True)
    client.status("started")
    client.event(
        "composite_input",
        {"input_types": ["camera_actions", "prompt"], "camera_actions": [["d"]] * 3, "prompt": "a sea"},
        event_id=7,
    )
    assert client.status("prompt")["text"] == "a sea"
    assert any(batch.get("event_id") == 7 for batch in client.batches) or client.until(lambda m: m.get("event_id") == 7)
    client.close()


def test_our_page_pauses_goes_back_and_begins_again_with_another_picture(server):
    client = server.client(lingbot_world=True, lingbot_chunk=1)
    facts = client.status("started")
    assert (facts["chunk"], facts["window"], facts["sink"], facts["width"]) == (1, 6, 2, 48)
    client.chunk(4)
    client.event("back", 2)
    client.status("back")
    assert client.until(lambda message: message["type"] == "frame_batch")["chunk_index"] == 2
    client.event("pause")
    client.status("paused")
    client.event("restart", {"prompt": "a sea", "first_frame": png()})
    client.status("restarted")
    assert client.until(lambda message: message["type"] == "frame_batch")["first_frame_index"] == 0
    assert client.status("figures")["chunks"] >= 0
    client.close()


def test_what_was_walked_can_be_had_while_it_is_walked(server):
    client = server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.chunk(6)
    for what, begins in (("state", None), ("path", b"PK"), ("video", None)):
        status, body = ask(server, f"/walk/{what}?walk={token}")
        assert status == 200, body
        assert body.startswith(begins or b"")
    assert ask(server, "/walk/state?walk=no")[0] == 404
    assert ask(server, "/walk/..%2f..%2fetc/passwd")[0] == 404
    client.close()


def test_the_figures_of_a_bench_are_json_and_nothing_else(toy_package, tmp_path, capsys):
    """The model is one that looks back on the whole video: there is a note, too."""
    words = ["--width", "48", "--height", "32", "--schedule", "0", "--device", "cpu", "--walks", str(tmp_path)]
    assert main(["live", str(toy_package), "--bench", "2", "--no_open", *words]) == 0
    told = capsys.readouterr()
    figures = json.loads(told.out)
    for walk in ("at_16", "fastest"):
        latency = [figures[walk][f"key_to_pixel_{name}_s"] for name in ("p50", "p95", "most")]
        assert figures[walk]["keys"] > 0
        assert 0 < latency[0] <= latency[1] <= latency[2] < 60
    assert (figures["width"], figures["height"]) == (48, 32)
    assert "48x32 on cpu" in told.err
    assert "a walk has no end" in told.err


def test_the_page_and_what_sglangs_clients_ask_first(server):
    status, page = ask(server, "/")
    assert status == 200
    assert b"live/start.mjs" in page
    assert ask(server, "/live/start.mjs")[0] == 200
    assert json.loads(ask(server, "/v1/models")[1])["data"][0]["id"] == "lingbot_world_fast"
    assert {"version"} <= set(json.loads(ask(server, "/server_info")[1]))


def offered(server):
    """What the page is told of each picture, and the picture."""
    told = json.loads(ask(server, "/examples")[1])
    assert ask(server, f"/example/{len(told)}")[0] == 404
    return [(entry, Image.open(BytesIO(ask(server, f"/example/{number}")[1]))) for number, entry in enumerate(told)]


def test_the_pictures_of_a_packages_example_are_offered_with_their_prompts(toy_package, tmp_path):
    """The one that the server was started with comes first, and once."""
    package = tmp_path / "package"
    shutil.copytree(toy_package, package)
    for name, side in (("sea", 20), ("a_hill", 30)):
        (package / f"example/{name}.png").write_bytes(png(side, 16))
    (package / "example/sea.txt").write_text("a sea at night\n", encoding="utf-8-sig")  # as Windows' editors write it
    (package / "example/z.png").mkdir()
    with Server(package, tmp_path / "walks") as server:
        (own, picture), *others = offered(server)
    assert own == {"name": "the server's own picture", "prompt": "a castle", "own": True}
    assert picture.size == (48, 32)
    assert [(told["name"], told["prompt"], told["own"], picture.size) for told, picture in others] == [
        ("a_hill", "a castle", False, (30, 16)),
        ("a sea at night", "a sea at night", False, (20, 16)),
    ]
    with Server(package, tmp_path / "walks", image=package / "example/sea.png") as server:
        assert [(told["name"], picture.size) for told, picture in offered(server)] == [
            ("the server's own picture", (48, 32)),
            ("a_hill", (30, 16)),
            (scene.PROMPT, (832, 480)),
        ]


def test_a_landscape_is_offered_where_a_package_has_no_picture(toy_package, tmp_path):
    package, picture = tmp_path / "package", tmp_path / "own.png"
    shutil.copytree(toy_package, package, ignore=shutil.ignore_patterns("*.png"))
    picture.write_bytes(png())
    with Server(package, tmp_path / "walks", image=picture) as server:
        assert [told["name"] for told, _ in offered(server)] == ["the server's own picture", "a landscape"]


@pytest.mark.parametrize("name", ["jpeg", "webp", "h264"])
def test_frames_are_encoded_so_that_each_can_be_decoded_when_it_is_there(name):
    av = pytest.importorskip("av")
    pixels = np.full((4, 64, 96, 3), (200, 100, 50), np.uint8)
    told, payload = Encoder(Output(name, 90, 48), 16).encode(pixels)
    assert (told["num_frames"], told["width"], told["height"]) == (4, 48, 32)
    assert sum(told["payload_lengths"]) == len(payload)
    start, decoder = 0, av.CodecContext.create("h264", "r")
    for size in told["payload_lengths"]:
        part, start = payload[start : start + size], start + size
        if name == "h264":
            assert part[:4] == bytes([0, 0, 0, 1])
            frames = decoder.decode(av.Packet(part))
            seen = frames[0].to_ndarray(format="rgb24") if frames else None
        else:
            seen = np.array(Image.open(BytesIO(part)).convert("RGB"))
        assert seen is None or np.abs(seen.astype(int) - pixels[0, :32, :48]).mean() < 6
