"""LingBot-World for ComfyUI: ComfyUI's door to the nodes, and the root of the `lingbot_world` engine."""

from importlib import import_module

__version__ = "0.1.0"

WEB_DIRECTORY = "./web"

_PUBLIC = {
    "GenerateOptions": ".headless.plan",
    "generate": ".headless.run",
    "camera_embedding": ".camera",
    "load_expert": ".loaders",
    "sample": ".pipeline",
}
"""What people want from Python, and where it lies. Imported when first asked for: ComfyUI imports this file too."""


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), name)


async def comfy_entrypoint():
    """Called by ComfyUI; everything that needs ComfyUI is imported from here on."""
    from .nodes import LingBotWorldExtension

    return LingBotWorldExtension()
