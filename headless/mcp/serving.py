"""A server of the Model Context Protocol (MCP) with an Explorer's methods as tools."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool

from ...errors import LingBotError
from ...version import __version__
from .explorer import Explorer, Seen

ABOUT = """A generated world that you walk through. Call start_walk first, then act and look at the returned image.
The world is made while you walk, and only when you act: it stands still otherwise. Keys: w a s d walk, i j k l look up,
left, down, right, shift runs. Places that you left are forgotten after a while."""


def build_server(explorer: Explorer) -> MCPServer:
    """Return an MCP server whose tools call the explorer's methods. The assistant reads each tool's docstring as the
    tool's description."""

    def start_walk(
        image: str | None = None, prompt: str | None = None, seed: int = 0, continue_from: str | None = None
    ) -> list[Any]:
        """Begin a walk, and return the last frame of its first chunk. The previous walk ends and stays in its folder.

        image: a file on this machine with the first frame.
        prompt: a description of the world.
        seed: the seed of the noise.
        continue_from: the file of a saved state, or the folder of a walk, in place of an image.

        Without `continue_from`, the first walk takes an omitted image or prompt from the model's example, and a later
        walk takes it from the first walk.
        """
        return _shown(explorer.start(image, prompt, seed, continue_from))

    def act(keys: list[str] | None = None, seconds: float = 1.0, yaw: float = 0.0, pitch: float = 0.0) -> list[Any]:
        """Hold keys for some seconds (at most 10) and return the last frame.

        keys: any of w a s d (walk), i j k l (look up, left, down, right) and shift (run). yaw and pitch: additional
        degrees to turn right and up.
        """
        return _shown(explorer.act(keys or [], seconds, yaw, pitch))

    def look() -> list[Any]:
        """Return the last frame and the position of the camera again, without making new frames."""
        return _shown(explorer.look())

    def prompt(text: str, at_once: bool = False) -> str:
        """Set a new prompt, which changes the world from the next action on. text: the new prompt. at_once: also update
        the model's memory of past frames, so that the image changes sooner."""
        return explorer.prompt(text, at_once)

    def event(name: str, on: bool | None = None) -> str:
        """Begin or end an event of this world, such as rain. While the event is active, its sentence is added to the
        prompt. on: true begins the event and false ends it. Without `on`, an inactive event begins and an active one
        ends."""
        return explorer.event(name, on)

    def save() -> str:
        """Write the state and the camera path of the walk into its folder, which the answer names. Another walk can
        begin there: give start_walk this folder as continue_from."""
        return explorer.save()

    tools = [_tool(function) for function in (start_walk, act, look, prompt, event, save)]
    return MCPServer("lingbot-world", instructions=ABOUT, version=__version__, tools=tools, log_level="WARNING")


def serve(explorer: Explorer) -> None:
    """Serve a client on standard input and output until it disconnects, then end the walk."""
    try:
        build_server(explorer).run("stdio")
    finally:
        explorer.close()


def _shown(seen: Seen) -> list[Any]:
    text, jpeg = seen
    return [text, Image(data=jpeg, format="jpeg")]


def _tool(function: Callable[..., Any]) -> Tool:
    """Return `function` as an MCP tool that rejects unknown arguments."""
    tool = Tool.from_function(_with_errors(function), structured_output=False)
    arguments = tool.fn_metadata.arg_model
    strict: Any = type(arguments.__name__, (arguments,), {}, extra="forbid")
    tool.fn_metadata.arg_model, tool.parameters = strict, strict.model_json_schema()
    return tool


def _with_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `tool` so that LingBotErrors become ToolErrors. The assistant receives their message."""

    @wraps(tool)
    def answer(**given: Any) -> Any:
        try:
            return tool(**given)
        except LingBotError as error:
            raise ToolError(str(error)) from error

    return answer
