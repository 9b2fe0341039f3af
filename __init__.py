"""LingBot-World for ComfyUI: ComfyUI's door to the nodes, and the root of the `lingbot_world` engine."""

__version__ = "0.1.0"

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Called by ComfyUI; everything that needs ComfyUI is imported from here on."""
    from .nodes import LingBotWorldExtension

    return LingBotWorldExtension()
