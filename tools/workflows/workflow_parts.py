"""Parts of the shipped workflows: models' addresses, and groups of nodes."""

import json
import math
import re
import textwrap
from collections.abc import Callable

from workflow_graph import Graph
from workflow_nodes import IMAGE_HEIGHT, PREVIEW_HEIGHT, Inlet, Node, Output, Server

PACKAGE, NO_PACKAGE = "lingbot-world-base-cam-nf4", "none (choose both experts)"
HUGGING_FACE = "https://huggingface.co"
FILES = f"{HUGGING_FACE}/cahlen/{PACKAGE}/resolve/main"
UMT5_FOLDER = f"{HUGGING_FACE}/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/text_encoders"
LORA_FOLDER = f"{HUGGING_FACE}/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/loras"

EXPERTS = [f"{level}_noise_model_bnb_nf4/model.safetensors" for level in ("high", "low")]
T5, VAE = "models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"
UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
LIGHTNING = [f"wan2.2_i2v_lightx2v_4steps_lora_v1_{level}_noise.safetensors" for level in ("high", "low")]

PROMPT = (
    "A quiet courtyard in late afternoon light. The camera moves slowly forward between old trees; leaves stir in a "
    "light wind, dust drifts through the sun, shadows creep over the flagstones. Natural colours, sharp detail."
)
TOY_PROMPT = "a maze with red and blue walls by day"
FPS = 16.0
RED, BLUE, VIOLET, GREEN, GREY, BROWN = "#8a4b4b", "#3f789e", "#6b5b95", "#3f7e5c", "#5a5a5a", "#7a5c2e"

HF = "after *pip install huggingface_hub* run, in the folder that contains *ComfyUI*,"
TOKENIZER = f"[tokenizer.json]({FILES}/tokenizer/tokenizer.json) into *{PACKAGE}/tokenizer*"
DOWNLOAD = f"""**Models** (31 GB). ComfyUI's list of missing models lacks the tokenizer, and a browser saves both
experts under one name. So {HF}

hf download cahlen/{PACKAGE} --local-dir ComfyUI/models/lingbot_world/{PACKAGE}
"""
RUN = """Choose your image in *Load Image* and press **Run**. 40 steps are good, 20 a draft.
"""
EDITOR_HEIGHT, DRAWING_HEIGHT, DRAWING_WIDTH = 440, 324, 526
SAMPLER_ROOM = 140  # pixels for the preview that ComfyUI draws while it samples
BUTTON = 26  # the pixels of a button below a node's widgets
HEADING_GAP, HEADING_LINE, LETTER, NOTE_EDGE = 32, 18.3, 6.85, 5  # pixels of a note's headings
LINE = 20  # what Prepare Image's line takes beyond the fields that it hides


def large(note: str) -> str:
    """Make each paragraph a heading of the third level: ordinary text is too small in a view of the whole graph."""
    title, *paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\d\. )", note.strip()))
    return "\n\n".join([title, *(f"### {paragraph}" for paragraph in paragraphs)]) + "\n"


def note_height(text: str, width: int) -> int:
    """Return the pixels of a note's text in the Nodes 2.0 of front-end 1.49, the tallest of all renderers."""
    shown = re.sub(r"\]\([^)]*\)|[*\[#]", "", text)
    lines = [textwrap.wrap(paragraph.strip(), int((width - 28) / LETTER)) for paragraph in shown.split("\n\n")]
    return round(NOTE_EDGE + sum(HEADING_GAP + HEADING_LINE * len(wrapped) for wrapped in lines))


def flight() -> str:
    """Return an editor's state: forward, a turn to the right, and back to the left, higher."""
    stations = [(0, 0, 0, 0, 0), (24, 0.1, 0, 0.9, 12), (48, 0.6, -0.2, 1.6, 24), (80, 0.5, -0.5, 2.8, -10)]
    keyframes = []
    for frame, x, y, z, yaw_deg in stations:
        half = math.radians(yaw_deg) / 2
        turn = [0, round(math.sin(half), 6), 0, round(math.cos(half), 6)] if yaw_deg else [0, 0, 0, 1]
        keyframes.append({"frame": frame, "position": [x, y, z], "quaternion": turn})
    state = {"version": 1, "frames": 81, "fps": 16, "fov_deg": 79, "ease": "linear", "loop": False}
    return json.dumps({**state, "keyframes": keyframes}, separators=(",", ":"))


Patch = tuple[str, Callable[[str, Output], Output]]


class Parts(Graph):
    """A graph with the shipped workflows' groups of nodes, each in its usual column."""

    def __init__(
        self, server: Server, name: str, note: str, package: str = PACKAGE, note_width: int = 360, first: int = 1
    ):
        super().__init__(server, name, first)
        self.package, self.prompt = package, TOY_PROMPT if package == "toy" else PROMPT
        self.latent: Node | None = None
        self.column = 2  # of models and prompt; the sampler stands in the next one
        if note:
            self.begin("Read me", 0, BROWN)
            text = large(note)
            look = {"title": "Read me", "extra_height": note_height(text, note_width), "color": "#432"}
            self.place(Node(self.next_id, "MarkdownNote", note_width, {"text": text}, {}, {}, [], **look))

    def offer(self, name: str, path: str, directory: str = "lingbot_world", base: str = FILES) -> list[dict]:
        """Return a file's entry for the missing-model dialog, none for the toy."""
        return [] if self.package == "toy" else [{"name": name, "url": f"{base}/{path}", "directory": directory}]

    def experts(self) -> dict:
        """Return the experts' files, which the missing-model dialog needs; the toy as a package."""
        if self.package == "toy":
            return {"package": "toy"}
        names = [f"{self.package}/{path}" for path in EXPERTS]
        offers = [offer for name, path in zip(names, EXPERTS, strict=True) for offer in self.offer(name, path)]
        chosen = dict(zip(("high_noise_expert", "low_noise_expert"), names, strict=True))
        return {"package": NO_PACKAGE, **chosen, "models": offers}

    def models(self, column: int | None = None, vae_column: int | None = None) -> tuple[Output, Output, Output]:
        """Add both experts and the VAE, in other columns if named."""
        title, place = ("Models", self.column) if column is None else ("Experts", column)
        self.begin(title, place, RED)
        experts = self.add("LingBotWorldLoadExperts", **self.experts())
        if column is None:
            vae = self.vae()
        if column is not None:
            self.begin("VAE", vae_column or self.column, RED)
            vae = self.vae()
        return experts["high noise"], experts["low noise"], vae

    def causal_model(self, name: str) -> Output:
        self.begin("Models", self.column, RED)
        return self.add("LingBotWorldLoadCausal", model_name=name)["MODEL"]

    def vae(self, collapsed: bool = False) -> Output:
        vae = f"{self.package}/{VAE}"
        values = {"vae_name": vae, "models": self.offer(vae, VAE), "collapsed": collapsed}
        return self.add("LingBotWorldLoadVAE", **values)["VAE"]

    def text(self, column: int | None = None, extra_height: int = 0, **prompts: str) -> tuple[Output, Output]:
        """Add a group with the streaming text encoder. Return positive and negative."""
        self.begin("Prompt", self.column if column is None else column, BLUE)
        node = self.text_node(extra_height, **prompts)
        return node["positive"], node["negative"]

    def text_node(self, extra_height: int = 0, **prompts: str) -> Node:
        encoder, values = f"{self.package}/{T5}", {"prompt": self.prompt, **prompts}
        values |= {"models": self.offer(encoder, T5), "extra_height": extra_height}
        return self.add("LingBotWorldTextEncode", text_encoder=encoder, **values)

    def rollout(self, model: Output, text: Output, vae: Output, path: Node, **values) -> Node:
        given = {"model": model, "positive": text, "vae": vae, "camera": path["camera"], "frames": path["frames"]}
        return self.add("LingBotWorldRollout", **{"extra_height": PREVIEW_HEIGHT, **given, **values})

    def clip_text(self, loader: str, **inputs) -> tuple[Output, Output]:
        """Return positive and negative from core's text nodes, over the loader's CLIP."""
        self.begin("Prompt", self.column, BLUE)
        clip = self.add(loader, **inputs)["CLIP"]
        positive = self.add("CLIPTextEncode", title="Positive prompt", clip=clip, text=PROMPT)
        negative = self.info["LingBotWorldTextEncode"]["input"]["required"]["negative"][1]["default"]
        negative = self.add("CLIPTextEncode", title="Negative prompt", clip=clip, text=negative)
        return positive["CONDITIONING"], negative["CONDITIONING"]

    def load_image(self, column: int = 0, **look) -> Output:
        self.begin("Start image", column, BLUE)
        return self.add("LoadImage", image="example.png", extra_height=IMAGE_HEIGHT, **look)["IMAGE"]

    def image(self, column: int = 0, apart: bool = False, **look) -> Node:
        """Add the prepared start image, with `apart` in the next column; the toy's next to the button that makes it."""
        if self.package == "toy":
            self.begin("Start image", 0, BLUE)
            made = self.add("LingBotWorldToyPackage", extra_height=2 * BUTTON)["image"]
            return self.prepare(made, size="width and height", width=256, height=144)
        loaded = self.load_image(column)
        if apart:
            self.begin("Video size", 1, BLUE)
        return self.prepare(loaded, **look)

    def prepare(self, image: Output | Inlet, **size) -> Node:
        return self.add("LingBotWorldPrepareImage", image=image, extra_height=LINE, **size)

    def camera(self, kind: str, preview: bool = True, **values) -> Node:
        """Add a path and its drawing."""
        self.begin("Camera path", 1, VIOLET)
        path = self.add(kind, **values)
        if preview:
            self.preview(path)
        return path

    def editor(self, image: Output, path: str) -> Node:
        look = {"preview": False, "box_width": 460, "extra_height": EDITOR_HEIGHT}
        return self.camera("LingBotWorldCameraEditor", path=path, image=image, **look)

    def preview(self, path: Node) -> None:
        size = {"width": 640, "height": 400}  # a smaller drawing has larger letters in the same box
        look = {"box_width": DRAWING_WIDTH, "extra_height": DRAWING_HEIGHT, **size}
        self.add("LingBotWorldCameraPreview", camera=path["camera"], **look)

    def conditioned(self, text: tuple[Output, Output], image: Node, vae: Output, path: Node | None, **more) -> Node:
        """Add WanImageToVideo with the path, at the top: Nodes 2.0 counts both as open when it zooms a template."""
        kind = "WanFirstLastFrameToVideo" if "end_image" in more else "WanImageToVideo"
        pair = {"positive": text[0], "negative": text[1], "vae": vae, "start_image": image["image"]}
        size = {"width": image["width"], "height": image["height"], "length": path["frames"] if path else 81}
        self.begin("Into the model: nothing to set", self.column, BLUE, top=True)
        self.latent = video = self.add(kind, collapsed=True, **pair, **size, **more)
        if path is None:
            return video
        given = {name: video[name] for name in ("positive", "negative", "latent")}
        return self.add("LingBotWorldApplyCamera", collapsed=True, camera=path["LINGBOT_CAMERA"], **given)

    def sample(self, models: tuple[Output, Output], conditioning: Node, **values) -> Output:
        few = {"steps": 8, "cfg_high": 1.0, "cfg_low": 1.0} if self.package == "toy" else {}
        experts = {"high_noise": models[0], "low_noise": models[1]}
        prompts = {name: conditioning[name] for name in ("positive", "negative")}
        given = {**experts, **prompts, "latent": self.latent["latent"], "room": SAMPLER_ROOM}
        self.begin("Sampling", self.column + 1, GREEN)
        return self.add("LingBotWorldSampler", **given, **few, **values)["LATENT"]

    def save(self, latent: Output, vae: Output, aside: int = 0) -> None:
        """Decode and save, `aside` columns right of the sampler."""
        self.begin("Video", self.column + 1 + aside, GREY)
        self.video_file(self.add("VAEDecode", collapsed=True, samples=latent, vae=vae)["IMAGE"])

    def video_file(self, images: Output, fps: float = FPS) -> None:
        video = self.add("CreateVideo", collapsed=True, images=images, fps=fps)["VIDEO"]
        self.save_video(video)

    def save_video(self, video: Output) -> None:
        prefix = {"filename_prefix": "video/LingBot-World", "format": "mp4", "format.codec": "h264"}
        self.add("SaveVideo", video=video, room=PREVIEW_HEIGHT, **prefix)  # front-ends give it its least height

    def film(
        self, camera: Node | None, image: Node, patch: Patch | None = None, vae_column: int | None = None, **sampling
    ) -> Graph:
        """Add all around an image and a path, if any. `patch`: a group's title, and a function of level and expert."""
        end = {name: sampling.pop(name) for name in ("end_image",) if name in sampling}
        high, low, vae = self.models(1 if patch else None, vae_column)
        if patch:
            self.begin(patch[0], self.column, RED)
            high, low = (patch[1](level, expert) for level, expert in (("high", high), ("low", low)))
        conditioning = self.conditioned(self.text(), image, vae, camera, **end)
        self.save(self.sample((high, low), conditioning, **sampling), vae)
        return self
