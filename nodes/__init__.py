"""ComfyUI's V3 node classes: words and sockets, no maths."""

from types import ModuleType

from comfy_api.latest import ComfyExtension, io

from ..host import folders
from . import camera, camera_files, camera_make, camera_preview, image, rollout, sampling, text, toy
from . import load_models as experts

MODULES = (experts, text, image, camera, camera_make, camera_files, camera_preview, sampling, rollout, toy)

folders.register()


class LingBotWorldExtension(ComfyExtension):
    """Every node class of the modules above."""

    async def on_load(self) -> None:
        """Called by ComfyUI, whose server runs by then."""
        from server import PromptServer

        from ..host import uploads

        uploads.register(PromptServer.instance)

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [node for module in MODULES for node in _nodes_of(module)]


def _nodes_of(module: ModuleType) -> list[type[io.ComfyNode]]:
    public = (thing for name, thing in vars(module).items() if not name.startswith("_") and isinstance(thing, type))
    return [thing for thing in public if issubclass(thing, io.ComfyNode) and thing.__module__ == module.__name__]
