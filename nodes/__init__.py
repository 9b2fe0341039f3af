"""ComfyUI's V3 node classes: words and sockets, no maths."""

from types import ModuleType

from comfy_api.latest import ComfyExtension, io

from ..host import folders
from . import experts, image, sampling

folders.register()


class LingBotWorldExtension(ComfyExtension):
    """Every node class of the modules above."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [node for module in (experts, image, sampling) for node in _nodes_of(module)]


def _nodes_of(module: ModuleType) -> list[type[io.ComfyNode]]:
    classes = (thing for thing in vars(module).values() if isinstance(thing, type))
    return [thing for thing in classes if issubclass(thing, io.ComfyNode) and thing.__module__ == module.__name__]
