"""The entry point for ComfyUI, and the public names for Python programs."""

from .version import __version__

TYPE_CHECKING = False  # as typing's; the import of typing takes most of the time in which Ctrl-C prints a traceback
if TYPE_CHECKING:
    from .camera import camera_embedding
    from .errors import CancelledError
    from .headless.live.opening import open_live
    from .headless.options import GenerateOptions
    from .headless.run import generate
    from .loaders import load_expert
    from .nodes import LingBotWorldExtension
    from .options import LoraFile
    from .pipeline import sample

__all__ = [
    "__version__",
    "CancelledError",
    "GenerateOptions",
    "LoraFile",
    "camera_embedding",
    "generate",
    "load_expert",
    "open_live",
    "sample",
]

WEB_DIRECTORY = "./web"

_PUBLIC = {
    "CancelledError": ".errors",
    "GenerateOptions": ".headless.options",
    "LoraFile": ".options",
    "generate": ".headless.run",
    "camera_embedding": ".camera",
    "load_expert": ".loaders",
    "open_live": ".headless.live.opening",
    "sample": ".pipeline",
}
"""The modules of the public names, imported on first use."""


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # here, as each import lengthens the time in which Ctrl-C prints a traceback

    from .headless.process.starting import let_waiting_threads_sleep

    let_waiting_threads_sleep()
    return getattr(import_module(_PUBLIC[name], __name__), name)


async def comfy_entrypoint() -> "LingBotWorldExtension":
    """Return the extension with all nodes, for ComfyUI. Modules that need ComfyUI are imported only here."""
    from .nodes import LingBotWorldExtension

    return LingBotWorldExtension()
