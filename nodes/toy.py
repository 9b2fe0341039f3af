"""The node that writes a package of tiny trained models, with which the user can test the installation."""

from comfy_api.latest import io, ui

from ..host.files import folders
from ..host.files.image import read_image

OTHER = " (another toy, or an earlier version's; delete this folder and press again for the maze)"


class LingBotWorldToyPackage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldToyPackage",
            display_name="LingBot-World Toy Package",
            category="LingBot-World",
            description="Makes a package of tiny trained models (51 MB) in models/lingbot_world/toy, unless it exists. "
            "The models show a maze and follow the camera, on any CPU. Press the button once, then Run.",
            search_aliases=["lingbot", "toy", "test", "demo", "installation", "check"],
            is_output_node=True,
            inputs=[],
            outputs=[io.Image.Output("image", tooltip="The toy's start image, 512x288.")],
        )

    @classmethod
    def fingerprint_inputs(cls) -> bool | float:
        return float("nan") if _is_missing() else True  # not cached where the package was deleted

    @classmethod
    def execute(cls) -> io.NodeOutput:
        from ..toy import write_toy_world
        from ..toy.package import EXAMPLE

        folder, is_new = folders.toy_folder(), _is_missing()
        if is_new:
            write_toy_world(folder)
        old = "" if (folder / EXAMPLE / "yellow.png").is_file() else OTHER
        note = f"Made {folder}. Now press Run." if is_new else f"Ready: {folder}{old}"
        image = read_image(folder / EXAMPLE / "image.png")
        name = "lingbot_world_toy"  # a temporary file, which the nodes after this one show before they run
        saved = ui.ImageSaveHelper.save_images(image, name, io.FolderType.temp, None, compress_level=1)
        return io.NodeOutput(image, ui={"text": [note], "start": saved})


def _is_missing() -> bool:
    from ..toy.package import EXAMPLE

    return not (folders.toy_folder() / EXAMPLE / "prompt.txt").is_file()  # the last file to be written
