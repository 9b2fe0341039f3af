"""The tools of `lingbot-world mcp`, called by the official client, in this process and over standard input."""

import base64
import sys
from io import BytesIO

import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")
TOOLS = {"start_walk", "act", "look", "prompt", "event", "save"}


@pytest.fixture
def explorer(toy_package, tmp_path):
    from lingbot_world.headless.mcp.explorer import Explorer

    options = {"width": 48, "height": 32, "schedule": "0", "device": "cpu", "window": 6, "sink": 2, "chunk": 1}
    options["prompt"] = "a yard"
    (tmp_path / "events.json").write_text('[{"name": "rain", "text": "It begins to rain.", "key": 1}]')
    made = Explorer(toy_package, options, tmp_path / "walks", tmp_path / "events.json")
    yield made
    made.close()


def talk(server, conversation):
    """Run a conversation(call) with the server; call(tool, **arguments) gives is_error, the texts and the images."""
    mcp, anyio = pytest.importorskip("mcp"), pytest.importorskip("anyio")  # here, as this import takes seconds

    async def run():
        async with mcp.Client(server) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS

            async def call(tool, **arguments):
                answer = await client.call_tool(tool, arguments)
                texts = "\n".join(part.text for part in answer.content if part.type == "text")
                images = [part for part in answer.content if part.type == "image"]
                assert all(part.mime_type == "image/jpeg" for part in images)
                return answer.is_error, texts, [Image.open(BytesIO(base64.b64decode(part.data))) for part in images]

            await conversation(call)

    anyio.run(run)


def test_an_assistant_walks_looks_prompts_and_saves(explorer, tmp_path):
    from lingbot_world.headless.mcp.serving import build_server
    from lingbot_world.pipeline.state import load_state

    async def conversation(call):
        failed, words, images = await call("start_walk", seed=3, prompt="a castle")
        assert not failed, words
        assert "prompt: a castle" in words
        assert images[0].size == (48, 32)
        assert "0.1 s of the walk in" in words
        assert "events: rain; active: none" in words
        failed, words, _ = await call("act", keys=["w"], seconds=1.0)
        assert not failed
        assert "1.1 s of the walk" in words
        assert " 0.00 right, 0.00 up" in words
        assert "facing 0 degrees right, 0 up" in words
        assert " 0.00 ahead" not in words, "it has moved"
        _, looked, again = await call("look")
        assert looked == words
        assert len(again) == 1
        _, turned, _ = await call("act", yaw=20, seconds=1)
        assert "facing 20 degrees right" in turned
        assert (await call("event", name="rain"))[1].endswith("rain")
        _, words, _ = await call("prompt", text="a castle at night")
        assert words == "From the next action on: a castle at night. It begins to rain."
        _, words, _ = await call("act", seconds=0.25)
        assert "prompt: a castle at night. It begins to rain." in words
        failed, words, _ = await call("save")
        assert not failed
        assert "walk-1" in words

    talk(build_server(explorer), conversation)
    explorer.close()
    folder = tmp_path / "walks/walk-1"
    assert [prompt.text for prompt in load_state(folder / "walk.state").prompts][-1].endswith("It begins to rain.")
    assert (folder / "walk.mp4").stat().st_size
    assert (folder / "camera/poses.npy").is_file()


def test_bad_input_is_a_sentence_and_the_walk_stays(explorer, toy_package, tmp_path):
    from lingbot_world.headless.mcp.serving import build_server

    async def conversation(call):
        failed, words, _ = await call("look")
        assert failed
        assert words.endswith("no walk has begun; call start_walk first")
        await call("start_walk")
        for tool, arguments, told in (
            ("act", {"keys": ["x"]}, "no such key: 'x'"),
            ("act", {"key": ["w"]}, "key\n  Extra inputs are not permitted"),
            ("look", {"seconds": 1}, "Extra inputs are not permitted"),
            ("act", {"seconds": 60}, "expected more than 0 and at most 10"),
            ("act", {"yaw": 1000.0}, "expected -360 to 360 degrees"),
            ("act", {"seconds": 0}, "expected more than 0 and at most 10"),
            ("prompt", {"text": " "}, "the prompt is empty"),
            ("event", {"name": "snow"}, "the events of this world: rain"),
            ("start_walk", {"image": str(tmp_path / "none.png")}, "no such file"),
            ("start_walk", {"continue_from": str(tmp_path / "none.state")}, "does not exist"),
            ("start_walk", {"image": "a.png", "continue_from": "a.state"}, "give one of both"),
        ):
            failed, words, _ = await call(tool, **arguments)
            assert failed, tool
            assert told in words
        with pytest.raises(InputError, match="`pitch` nan; expected -360 to 360"):
            explorer.act(["w"], 0.25, 0.0, float("nan"))
        failed, words, _ = await call("act", keys=["w"], seconds=0.25)
        assert not failed
        assert "0.3 s of the walk" in words
        failed, words, _ = await call("start_walk", image=str(toy_package / "example/image.png"), prompt="a sea")
        assert not failed
        assert "prompt: a sea" in words
        assert "walk-2" in words
        failed, words, _ = await call("start_walk", continue_from=str(tmp_path / "walks/walk-1"))
        assert not failed

    talk(build_server(explorer), conversation)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--width", "65", "--height", "32"], "65 is not a multiple of 16"),
        (["--chunk", "9"], "expected 1, 2, 3 or 4 latent frames"),
        (["--window", "1", "--sink", "3"], "a window holds its sink"),
        (["--schedule", "x"], "expected v1, v2 or indices"),
        (["--image", "none.png"], "none.png: no such file"),
        (["--events", "none.json"], "none.json: cannot be read"),
    ],
)
def test_a_bad_option_is_refused_before_the_server_starts(toy_package, tmp_path, capsys, words, told):
    pytest.importorskip("mcp")
    assert main(["mcp", str(toy_package), "--walks", str(tmp_path), "--device", "cpu", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


def test_a_missing_package_is_said(toy_package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", str(toy_package)]) == 2
    assert 'pip install --upgrade "lingbot-world[mcp]"' in capsys.readouterr().err


def test_the_command_answers_on_standard_input_and_output(toy_package, tmp_path):
    from mcp.client.stdio import StdioServerParameters, stdio_client

    size = ["--width", "48", "--height", "32", "--schedule", "0", "--device", "cpu", "--chunk", "1"]
    words = ["-m", "lingbot_world", "mcp", str(toy_package), "--walks", str(tmp_path / "walks"), *size]

    async def conversation(call):
        failed, words, images = await call("start_walk")
        assert not failed
        assert len(images) == 1

    talk(stdio_client(StdioServerParameters(command=sys.executable, args=words, cwd=tmp_path)), conversation)
    assert (tmp_path / "walks/walk-1/walk.json").is_file()
