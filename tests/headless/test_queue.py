"""`lingbot-world queue` without a ComfyUI: files that are no workflows, and a server that hangs up."""

import base64
import hashlib
import socket
import threading
from types import SimpleNamespace

import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.client import queue
from lingbot_world.headless.client.server import Server
from lingbot_world.headless.command.cli import main

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of every websocket's handshake (RFC 6455)
CLOSE = b"\x88\x00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON (Expecting property name"),
        ('{"nodes": []}', "is the canvas format; take workflows/api/'s"),
        ('{"1": {"class_type": "LoadImage"}}', "every entry needs a class_type and inputs"),
        ('{"1": {"class_type": "LoadImage", "inputs": 5}}', "every entry needs a class_type and inputs"),
        ("[]", "is not an API-format workflow"),
        ('"\u00e9"', "not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_workflow_is_named(tmp_path, capsys, text, said):
    file = tmp_path / "workflow.json"
    file.write_text(text, encoding="latin-1")
    assert main(["queue", str(file), "--list"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lingbot-world: {file}")
    assert said in error


def test_an_output_that_is_there_is_refused_before_anything_is_sent(tmp_path, capsys):
    workflow, output = tmp_path / "workflow.json", tmp_path / "a.mp4"
    workflow.write_text("{}")
    output.write_text("precious")
    assert main(["queue", str(workflow), "--server", "127.0.0.1:1", "--output", str(output)]) == 2
    assert f"{output} exists already" in capsys.readouterr().err
    assert output.read_text() == "precious"


def test_a_folder_keeps_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "request", lambda *_: b"video")
    item = {"filename": "a.mp4", "subfolder": "", "type": "output"}
    server, given = Server("127.0.0.1:1"), (False, False, False, True)
    made = [queue._download(server, item, tmp_path, overwrite).name for overwrite in given]
    assert made == ["a.mp4", "a (2).mp4", "a (3).mp4", "a.mp4"]


def test_a_file_is_called_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "request", lambda *_: b"image")
    item = {"filename": "a.png", "subfolder": "", "type": "output"}
    for name, made in (("b.mp4", "b.png"), ("b.mp4", "b (2).png"), ("c", "c")):
        assert queue._download(Server("127.0.0.1:1"), item, tmp_path / name, False) == tmp_path / made


def test_a_setting_is_of_one_node():
    nodes = {
        "1": {"class_type": "Rollout", "inputs": {"seed": 1}, "_meta": {"title": "Rollout 2.0"}},
        "2": {"class_type": "Rollout", "inputs": {"seed": 2}},
        "Rollout": {"class_type": "Note", "inputs": {"text": ""}},
    }
    for setting in ("Rollout 2.0.seed=5", "2.seed=6", "Note.text=a=b"):
        queue._put_setting(nodes, setting)
    assert [list(node["inputs"].values()) for node in nodes.values()] == [[5], [6], ["a=b"]]
    for setting, said in {"Rollout.seed=7": "the nodes 1, 2 match; name one by its id", "2.steps=1": "no node"}.items():
        with pytest.raises(InputError, match=said):
            queue._put_setting(nodes, setting)


def test_a_server_that_closes_the_connection_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=shake_hands_and_hang_up, args=(listening,), daemon=True).start()
        server = Server(f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(InputError, match=f"{server.url} has closed the connection"):
            list(server.events(server.connect(), "prompt"))


@pytest.mark.parametrize(
    "message", ['{"type": "theirs", "data": null}', '{"type": "theirs"}', "[1]", "hello", b"preview"]
)
def test_what_other_packs_send_is_passed_over(message):
    done = '{"type": "executing", "data": {"prompt_id": "mine", "node": null}}'
    heard = iter([message, done])
    events = Server("127.0.0.1:1").events(SimpleNamespace(recv=lambda: next(heard)), "mine")
    assert next(events) == ("executing", {"prompt_id": "mine", "node": None})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"Content-Length: 15\r\n\r\n<html>log in</ht",
            r"/history/1 answers b'<html>log in</h', which ComfyUI does not",
        ),
        (b"Content-Length: 2\r\n\r\n[]", r"/history/1 answers b'\[\]', which ComfyUI does not"),
        (b"Content-Length: 1000\r\n\r\nhalf of it", "no ComfyUI answers at .*IncompleteRead"),
    ],
)
def test_an_answer_that_is_not_comfyuis_is_named(answer, said):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer_with, args=(listening, answer), daemon=True).start()
        with pytest.raises(InputError, match=said):
            Server(f"127.0.0.1:{listening.getsockname()[1]}").ask("/history/1")


def test_a_queue_that_names_no_prompt_is_refused(monkeypatch):
    monkeypatch.setattr(Server, "request", lambda *_: b"{}")
    with pytest.raises(InputError, match="/prompt answers {}, without a prompt_id; is it a ComfyUI"):
        Server("127.0.0.1:1").queue({})


def answer_with(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)


def shake_hands_and_hang_up(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        asked = connection.recv(4096).decode()
        key = next(line.split(": ")[1] for line in asked.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        connection.sendall(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode() + CLOSE)
        connection.recv(4096)
