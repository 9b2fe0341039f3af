"""What `lingbot-world live` says before a model is loaded for it."""

import shutil
import socket

import pytest
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live import opening, running
from PIL import Image


@pytest.fixture
def refusal(toy_package, tmp_path, capsys, monkeypatch):
    """`refusal(...)`: what the command says, and that it loads no model."""

    def loaded(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(opening, "LoadedModel", loaded)

    def refused(*words, package=toy_package, code=2):
        walks = () if "--walks" in words else ("--walks", tmp_path / "walks")
        command = ["live", package, "--device", "cpu", "--no_open", "--port", 0, *walks, *words]
        try:
            ended = main([str(word) for word in command])
        except SystemExit as error:  # of words that cannot be read
            ended = error.code
        assert ended == code
        return capsys.readouterr().err.strip()

    return refused


def test_a_port_that_is_taken_is_told_at_once(refusal):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"--port {port} cannot be used: Address already in use" in refusal("--port", port)
    assert "--port 70000 cannot be used" in refusal("--port", 70000)


def test_a_folder_that_cannot_be_written_has_its_options_name(refusal):
    assert refusal("--walks", "/proc/walks").startswith("lingbot-world: --walks /proc/walks cannot be written")


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf", "1e9", "long"])
def test_a_bench_takes_seconds(refusal, seconds):
    assert f"{seconds!r}: expected seconds, 0.1 to 86400" in refusal(f"--bench={seconds}")


def test_a_folder_that_is_no_model_is_named(refusal, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        said = refusal("--port", 0, package=folder)
        assert str(folder) in said
        assert "image" not in said


@pytest.mark.parametrize("words", [["--walks", ""], ["--continue_from", ""]])
def test_a_path_that_is_empty_is_not_the_folder_one_is_in(refusal, words):
    assert f"argument {words[0]}: the path is empty" in refusal(*words)
    assert "argument CKPT: the path is empty" in refusal(package="")


def test_what_is_no_state_is_refused_in_one_line(refusal, tmp_path):
    """Also what would be a very long header of one, as a picture's first bytes are."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "short.state").write_bytes(b"1234")
    for name in ("a.png", "short.state"):
        said = refusal("--continue_from", tmp_path / name)
        assert said.startswith(f"lingbot-world: {tmp_path / name}: truncated or corrupt")
        assert said.endswith("expected a whole file that --save_state wrote")
    assert refusal("--continue_from", tmp_path / "none").endswith(f"the state {tmp_path / 'none'} does not exist")


def test_an_example_of_another_encoding_is_named(refusal, toy_package, tmp_path):
    package = tmp_path / "package"
    shutil.copytree(toy_package, package)
    (package / "example/prompt.txt").write_bytes("ein Caf\u00e9".encode("cp1252"))
    said = refusal(package=package)
    assert said.startswith(f"lingbot-world: {package / 'example/prompt.txt'}: not UTF-8 text")
    assert len(said.splitlines()) == 1


def test_an_origin_is_compared_as_browsers_say_it(toy_package, tmp_path, monkeypatch):
    class Nothing:
        """In place of a model."""

        def __init__(self, plan, _show):
            self.plan = plan

    seen = {}
    monkeypatch.setattr(opening, "LoadedModel", Nothing)

    async def serve(*_, **settings):
        seen.update(settings)

    monkeypatch.setattr(running, "serve", serve)
    words = ["--device", "cpu", "--no_open", "--walks", str(tmp_path), "--allow_origin", "http://localhost:8000/"]
    assert main(["live", str(toy_package), "--port", "0", "--width", "48", "--height", "32", *words]) == 0
    assert seen["origins"] == ("http://localhost:8000",)


def test_ctrl_c_while_the_model_is_loaded_promises_nothing(toy_package, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "LoadedModel", interrupted)
    words = ["--device", "cpu", "--no_open", "--walks", str(tmp_path), "--width", "48", "--height", "32"]
    assert main(["live", str(toy_package), "--port", "0", *words]) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted; nothing was walked")
