"""ComfyUI's node classes (V3 schema): names, texts and sockets. The package `host` computes the results."""

from importlib import import_module

from comfy_api.latest import ComfyExtension, io

from ..host import installed, needs
from ..host.files import folders
from ..version import __version__
from .validation import refuse_empty_inputs

MODULES = (
    *("load_models", "text", "image", "camera.poses", "camera.make", "camera.files", "camera.preview"),
    *("measure", "sampling.experts", "sampling.rollout", "sampling.live", "sampling.state"),
    *("quantize", "toy", "machine", "camera.export"),
)

folders.register()


class LingBotWorldExtension(ComfyExtension):
    """The extension object from which ComfyUI gets this pack's node classes."""

    modules = MODULES

    async def on_load(self) -> None:
        """Register the HTTP routes and write the example image. A second installed copy of the pack does nothing."""
        from server import PromptServer

        self.modules = () if installed.disable_second_copy() else MODULES
        if not self.modules:
            return

        from ..host.files import drawing, uploads
        from ..host.prompt import queue as queued_prompt
        from ..host.sampling import live_route

        for part in (drawing, live_route, queued_prompt, installed, uploads):
            part.register(PromptServer.instance)
        folders.write_example_image()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        modules = [import_module(f".{name}", __name__) for name in needs.usable_modules(self.modules, __version__)]
        own = [
            thing
            for module in modules
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        ]
        nodes = [thing for thing in own if isinstance(thing, type) and issubclass(thing, io.ComfyNode)]
        return [refuse_empty_inputs(node) for node in nodes]
