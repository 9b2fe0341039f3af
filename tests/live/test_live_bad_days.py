"""Bad days of a live server: none ends it, each is told with a sentence."""

import asyncio
import signal
import socket
import threading
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest
import websocket
from lingbot_world.errors import InputError
from lingbot_world.headless.live import pictures
from lingbot_world.headless.live.beginning import update_state
from lingbot_world.headless.live.pictures import read_upload
from lingbot_world.headless.live.recording import WalkRecording
from lingbot_world.headless.live.serving import ENDPOINT, MAX_CONNECTIONS
from lingbot_world.headless.live.walk_server import MAX_QUEUED
from lingbot_world.live import Frames, load_walk
from lingbot_world.live.walk import Walk
from lingbot_world.live.wire import connection
from lingbot_world.live.wire.client import MOST_MESSAGES, Client
from lingbot_world.live.wire.codec import MSGPACK
from lingbot_world.live.wire.connection import MOST_UNPROCESSED
from lingbot_world.live.wire.protocol import MOST_PROMPT, read_init
from lingbot_world.live.wire.steering import TimeLimits
from lingbot_world.pipeline.state import load_state
from live_cases import PATIENCE, Server, ask, live_process, png, wait_for


@pytest.fixture
def server(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks") as started:
        yield started


def test_the_second_waits_in_line_and_another_program_is_refused_with_a_sentence(server):
    first = server.client(lingbot_world=True)
    first.chunk()
    second = server.client(lingbot_world=True)
    assert second.status("waiting")["place"] == 1
    assert "another client walks here" in server.client().error()
    first.close()
    second.status("started")
    second.chunk()
    second.close()


def test_a_closed_tab_frees_everything(server):
    client = server.client(lingbot_world=True)
    client.chunk(1)
    world = weakref.ref(server.server.visit.session.walk._world)
    client.close()
    wait_for(lambda: server.server.visit is None and world() is None)


def test_a_lost_connection_is_taken_up_again(server):
    client = server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    reached = client.chunk(2)["chunk_index"]
    client.tear()
    wait_for(lambda: server.server.visit.client is None)
    assert server.server.visit.session.paused
    again = server.client(lingbot_world=True, resume=token)
    assert again.status("started")["resume"] == token
    assert again.chunk()["chunk_index"] > reached
    again.close()


@pytest.mark.parametrize("ours", [True, False])
def test_who_waits_in_line_waits_shorter_for_a_lost_connection(toy_package, tmp_path, ours):
    """Also who comes to the line later, and a program, which hears nothing of a line."""
    with Server(toy_package, tmp_path, limits=TimeLimits(reconnect=1e6, reconnect_in_line=0.0)) as server:
        lost = server.client(lingbot_world=True)
        token = lost.status("started")["resume"]
        lost.chunk(1)
        if ours:
            later = server.client(lingbot_world=True)
            later.status("waiting")
        lost.tear()
        if not ours:
            wait_for(lambda: server.server.visit.client is None)
            later = server.client()
        later.chunk()
        again = server.client(lingbot_world=True, resume=token)
        assert "the walk is over" in again.error()


def test_a_client_that_is_frozen_loses_its_place_to_who_waits(toy_package, tmp_path, monkeypatch):
    """As a laptop whose lid is closed: nothing is read, and nothing said."""
    monkeypatch.setattr(connection, "HEARTBEAT", 0.5)
    with Server(toy_package, tmp_path, limits=TimeLimits(reconnect=1e6, reconnect_in_line=0.0)) as server:
        frozen = server.client(lingbot_world=True)
        frozen.status("started")
        monkeypatch.undo()
        server.client(lingbot_world=True).status("started")


def test_who_had_paused_comes_back_to_a_pause(server):
    client = server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.chunk(1)
    client.event("pause")
    client.status("paused")
    client.tear()
    wait_for(lambda: server.server.visit.client is None)
    again = server.client(lingbot_world=True, resume=token)
    again.status("paused")
    again.status("figures")
    assert server.server.visit.session.paused
    again.event("resume")
    again.chunk()
    again.close()


def test_who_comes_back_too_late_is_told_and_does_not_begin_anew(toy_package, tmp_path):
    with Server(toy_package, tmp_path, limits=TimeLimits(reconnect=0.2)) as server:
        client = server.client(lingbot_world=True)
        token = client.status("started")["resume"]
        client.chunk(1)
        client.tear()
        wait_for(lambda: server.server.visit is None)
        again = server.client(lingbot_world=True, resume=token)
        assert "the walk is over" in again.error()
        with pytest.raises(ConnectionError):
            again.receive()
        assert server.server.visit is None
        assert len(list(tmp_path.iterdir())) == 1


def test_who_waits_in_line_and_goes_leaves_no_ghost(server):
    """However much was pressed meanwhile, of which nothing is done."""
    first = server.client(lingbot_world=True)
    first.chunk()
    second, third = server.client(lingbot_world=True), server.client(lingbot_world=True)
    second.status("waiting")
    third.status("waiting")
    for client in (second, third):
        for _ in range(3 * MOST_UNPROCESSED):
            client.event("pause")
    second.close()
    wait_for(lambda: len(server.server._queue) == 1)
    first.close()
    third.status("started")
    third.chunk(2)
    assert not server.server.visit.session.paused
    third.close()


def test_a_connection_is_taken_up_again_while_another_walk_is_begun(server, monkeypatch):
    """There is no walk for a while then."""
    make, begun, go_on = Walk.__init__, threading.Event(), threading.Event()

    def slowly(walk, *arguments, **options):
        begun.set()
        assert go_on.wait(PATIENCE)
        make(walk, *arguments, **options)

    client = server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.chunk(1)
    monkeypatch.setattr(Walk, "__init__", slowly)
    client.event("restart", {})
    assert begun.wait(PATIENCE)
    client.tear()
    wait_for(lambda: server.server.visit.client is None)
    again = server.client(lingbot_world=True, resume=token)
    wait_for(lambda: server.server.visit.client is not None)
    go_on.set()
    assert again.status("started")["resume"] == token
    again.chunk(1)
    again.close()


def test_who_comes_back_is_told_that_the_walk_was_no_longer_kept(server):
    client = server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.chunk(1)
    client.tear()
    wait_for(lambda: server.server.visit.client is None)
    server.server.visit.session._warn_unsaved("the disk is full")
    wait_for(lambda: server.server.visit.missed)
    again = server.client(lingbot_world=True, resume=token)
    assert again.status("kept")["reason"] == "the disk is full"
    again.chunk(1)
    assert not server.server.visit.missed
    again.close()


def test_messages_that_nobody_reads_do_not_pile_up():
    client = Client(None, read_init({"type": "init", "lingbot_world": True}), None, MSGPACK)
    for _ in range(3 * MOST_MESSAGES):
        client.queue_message({"type": "error", "content": "no"})
    assert len(client._waiting) == MOST_MESSAGES


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("camera_actions", {"mode": "state", "transitions": [{"actions": ["w"]}]}),
        ("camera_actions", {"mode": "state", "transitions": [{"actions": []}]}),
        ("look", [2, 0]),
        ("stick", [0, 0, 0, 0]),
    ],
    ids=["another key let go", "the key let go", "the mouse", "the stick let go"],
)
def test_a_pause_holds_until_something_is_pressed(server, kind, payload):
    client = server.client(lingbot_world=True)
    client.chunk()
    client.event("camera_actions", {"mode": "state", "transitions": [{"actions": ["w", "a"]}]})
    client.event("pause")
    client.status("paused")
    client.event(kind, payload)
    client.status("figures")
    assert server.server.visit.session.paused
    client.event("camera_actions", {"mode": "state", "transitions": [{"actions": ["w", "d"]}]})
    client.status("resumed")
    client.close()


def test_a_client_that_does_not_read_stalls_nobody_and_is_told_what_it_missed(server):
    client = server.client(lingbot_world=True, fps=16)
    client.status("started")
    visit, told = server.server.visit, []

    class Slow:
        """A network that takes nothing for a while."""

        def __init__(self, socket):
            self.socket, self.open = socket, False

        async def send_bytes(self, data):
            while not self.open:
                await asyncio.sleep(0.01)
            await self.socket.send_bytes(data)

    wait_for(lambda: visit.client is not None)
    slow = visit.client._socket = Slow(visit.client._socket)
    reading = threading.Thread(
        target=lambda: told.append(client.until(lambda m: m["type"] == "chunk_stats" and m["dropped_frames"] > 0)),
        daemon=True,
    )
    reading.start()  # pings are answered meanwhile
    made = visit.session.walk.chunks
    wait_for(lambda: visit.session.walk.chunks > made + 12, 120)
    slow.open = True
    reading.join(60)
    assert told[0]["dropped_frames"] >= 4
    client.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first_frame": b"no picture"}, "not an image"),
        ({"first_frame": "/etc/passwd"}, "fetches no URL"),
        ({"size": "4096x4096"}, "is larger than memory was planned for"),
        ({"prompt": "a" * (MOST_PROMPT + 1)}, "characters"),
        ({"realtime_causal_kv_cache_num_frames": 500}, "is larger than memory was planned for"),
        ({"fps": 1e9}, "fps"),
        ({"realtime_output_format": "bmp"}, "realtime_output_format"),
        ({"lingbot_chunk": 7}, "chunk"),
    ],
)
def test_what_cannot_be_walked_is_refused_with_a_sentence(server, changes, said):
    client = server.client(**changes)
    assert said in client.error()
    client.close()
    wait_for(lambda: not server.server._taken)


def test_a_prompt_of_a_megabyte_does_not_end_the_walk(server):
    client = server.client()
    client.chunk()
    client.event("prompt", "a" * 1_000_000)
    assert "not a message" in client.error()
    client.event("prompt", "a" * 20_000)
    assert str(MOST_PROMPT) in client.error()
    client.chunk(client.batches[-1]["chunk_index"] + 1)
    client.close()


def test_a_message_beyond_all_limits_ends_its_own_connection_alone(server):
    client = server.client()
    client.chunk()
    with suppress(OSError):  # the server may have closed the connection before it was given all
        client.socket.send_binary(b"\xc6\xff\xff\xff\xff" + bytes(18_000_000))
    with pytest.raises((OSError, websocket.WebSocketException)):
        client.until(lambda message: False)
    wait_for(lambda: server.server.visit is None)
    server.client().chunk()


def test_a_page_of_another_origin_is_refused(toy_package, tmp_path):
    with Server(toy_package, tmp_path, origins=("http://localhost:8000",)) as server:
        assert ask(server, "/", Origin="http://evil.example")[0] == 403
        assert ask(server, "/", Host="evil.example")[0] == 403
        with pytest.raises(websocket.WebSocketBadStatusException):
            server.client(header=["Origin: http://evil.example"])
        own = server.client(header=["Origin: http://localhost:8000"])
        own.chunk()
        own.close()


def test_a_token_is_asked_of_every_request(toy_package, tmp_path):
    with Server(toy_package, tmp_path, token="a secret") as server:
        for path in ("/", "/live/start.mjs", "/v1/models", "/?token=wrong"):
            assert ask(server, path)[0] == 403
        assert ask(server, "/?token=a%20secret")[0] == 200
        with pytest.raises(websocket.WebSocketBadStatusException):
            server.client(query="?token=wrong")
        client = server.client(query="?token=a%20secret")
        client.chunk()
        client.close()
        for cookie, status in (("a secret", 200), ("wrong", 403)):  # what the page has from its address
            assert ask(server, "/examples", Cookie=f'lingbot_world_{server.port}="{cookie}"')[0] == status
            assert ask(server, "/examples", Cookie=f'lingbot_world_1="{cookie}"')[0] == 403


def test_two_hundred_connections_are_none_too_many(server):
    walker, opened, refused = server.client(), [], []
    walker.chunk()
    for _ in range(200):
        try:
            opened.append(server.client(first=False))
        except websocket.WebSocketBadStatusException as error:
            refused.append(error.status_code)
    assert len(opened) == MAX_CONNECTIONS - 1
    assert refused == [503] * (200 - len(opened))
    walker.chunk(walker.batches[-1]["chunk_index"] + 2)
    for client in opened:
        client.close()
    walker.close()


def test_the_line_has_an_end(server):
    first = server.client(lingbot_world=True)
    first.chunk()
    waiting = [server.client(lingbot_world=True) for _ in range(MAX_QUEUED)]
    for client in waiting:
        client.status("waiting")
    assert "wait in line" in server.client(lingbot_world=True).error()
    waiting[0].close()
    wait_for(lambda: len(server.server._queue) == MAX_QUEUED - 1)
    for client in (*waiting[1:], first):
        client.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_is_full_ends_the_video_and_nothing_else(tmp_path):
    recording = WalkRecording(Path("/dev/full"), 16)
    for first in range(60):
        recording.add(Frames(np.zeros((4, 32, 48, 3), np.uint8), first, 4 * first, 0, 1, None, 0.1))
    wait_for(lambda: recording.failure)
    assert "No space left" in recording.failure
    recording.close()


def test_a_picture_has_limits(monkeypatch):
    assert read_upload(png(200, 50), (32, 48), crop=True).shape == (50, 75, 3)
    assert read_upload(png(200, 50), (32, 48), crop=False).shape == (50, 200, 3)
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)
    with pytest.raises(InputError, match="scale it down"):
        read_upload(png(200, 50), (32, 48), crop=True)
    with pytest.raises(InputError, match="^not an image that can be read; PNG, JPEG and WebP are$"):
        read_upload(b"GIF89a" + bytes(50), (32, 48), crop=True)
    with pytest.raises(InputError, match=r"^not an image that can be read \(.*truncated.*\); PNG"):
        read_upload(png(10, 10)[:-30], (32, 48), crop=True)


def started(package, folder, *more):
    """The command, and the port and the query of its address."""
    process = live_process(package, "--no_open", "--port", 0, "--walks", folder, *more)
    for line in process.stdout:
        if line.startswith("http://127.0.0.1:"):
            port, query = line.strip().split(":")[2].split("/")
            return process, int(port), query
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize(("number", "more"), [(signal.SIGKILL, []), (signal.SIGTERM, ["--lan"])])
@pytest.mark.usefixtures("usual_signals")
def test_a_killed_server_leaves_the_state_of_the_last_chunk(toy_package, tmp_path, number, more):
    """With `--lan` nobody gets in without the token of its address."""
    process, port, query = started(toy_package, tmp_path / "walks", *more)
    address = f"ws://127.0.0.1:{port}{ENDPOINT}"
    try:
        if more:
            assert len(query) > len("?token=") + 16
            with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
                websocket.create_connection(address, timeout=60)
        socket = websocket.create_connection(address + query, timeout=60)
        keys = {"camera_actions": [["w"]] * 9}
        socket.send_binary(msgpack.packb({"type": "init", "fps": 60, "condition_inputs": keys}))
        seen = 0
        while seen < 4:
            message = msgpack.unpackb(socket.recv())
            seen += message["type"] == "chunk_stats"
        process.send_signal(number)
        assert process.wait(PATIENCE) == (0 if number == signal.SIGTERM else -number)
    finally:
        process.kill()
        process.communicate()
    walk = next((tmp_path / "walks").iterdir())
    state = load_walk(walk)
    assert state.chunks >= 4
    assert state.poses[-1, 2, 3] > 0
    for name in ("walk.state", "camera/poses.npy"):
        assert (walk / name).is_file() == (number == signal.SIGTERM)
    assert load_state(update_state(str(walk))).chunks == state.chunks
    assert len(np.load(walk / "camera/poses.npy")) == state.frames


def test_half_sent_requests_are_closed(toy_package, tmp_path):
    """Nothing at all, half a line, half of the headers, of a body and of a second request."""
    get, host = b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body, chunks = b"Content-Length: 900\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n5\r\nha"
    with Server(toy_package, tmp_path, limits=TimeLimits(reading=0.2)) as server, ExitStack() as stack:
        where, opened = ("127.0.0.1", server.port), []
        for sent in (b"", get[:7], host + b"X-Slow: ", host + body, host + chunks, host + b"\r\n" + get):
            connection = stack.enter_context(socket.create_connection(where, timeout=PATIENCE))
            connection.sendall(sent)
            opened.append(connection)
        for connection in opened:
            while connection.recv(65536):
                pass
