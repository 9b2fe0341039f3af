"""ComfyUI's V3 node classes: texts and sockets, no maths."""

from importlib import import_module

from comfy_api.latest import ComfyExtension, io

from ..host import installed, needs
from ..host.files import folders
from ..version import __version__

MODULES = (
    "load_models",
    "text",
    "image",
    "camera.poses",
    "camera.make",
    "camera.files",
    "camera.preview",
    "measure",
    "sampling",
    "rollout",
    "live",
    "state",
    "quantize",
    "toy",
    "machine",
    "camera.export",
)

folders.register()


class LingBotWorldExtension(ComfyExtension):
    """The node classes of all modules that work with this ComfyUI; none in a second copy of the pack."""

    modules = MODULES

    async def on_load(self) -> None:
        """Register the pack's routes and write the example image. ComfyUI calls this once its server runs."""
        from server import PromptServer

        self.modules = () if installed.gives_way() else MODULES
        if not self.modules:
            return

        from ..host.files import drawing, uploads
        from ..host.prompt import queue as queued_prompt
        from ..host.sampling import live_route

        for part in (drawing, live_route, queued_prompt, installed, uploads):
            part.register(PromptServer.instance)
        folders.lay_out_example()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        modules = [import_module(f".{name}", __name__) for name in needs.usable(self.modules, __version__)]
        own = [
            thing
            for module in modules
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        ]
        return [thing for thing in own if isinstance(thing, type) and issubclass(thing, io.ComfyNode)]
