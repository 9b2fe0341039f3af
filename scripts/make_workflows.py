#!/usr/bin/env python3
"""Write workflows/*.json and workflows/api/*.json from the graphs described here.

    python scripts/make_workflows.py --server http://127.0.0.1:8188

A running ComfyUI with this pack says what the nodes' inputs and outputs are. Change a graph here, not in the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import urllib.request
from collections.abc import Callable
from pathlib import Path

from workflow_graph import PREVIEW_HEIGHT, Graph, Node, Output, dump

WORKFLOWS = Path(__file__).resolve().parent.parent / "workflows"
PACKAGE = "lingbot-world-base-cam-nf4"
HUGGING_FACE = "https://huggingface.co"
FILES = f"{HUGGING_FACE}/cahlen/{PACKAGE}/resolve/main"
UMT5_FOLDER = f"{HUGGING_FACE}/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/text_encoders"
LORA_FOLDER = f"{HUGGING_FACE}/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/loras"

EXPERTS = [f"{level}_noise_model_bnb_nf4/model.safetensors" for level in ("high", "low")]
T5, VAE = "models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"
UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
LIGHTNING = [f"wan2.2_i2v_lightx2v_4steps_lora_v1_{level}_noise.safetensors" for level in ("high", "low")]
STYLE = [f"my_lora_{level}_noise.safetensors" for level in ("high", "low")]

PROMPT = (
    "A quiet courtyard in late afternoon light. The camera moves slowly forward between old trees; leaves stir in a "
    "light wind, dust drifts through the sun, shadows creep over the flagstones. Natural colours, sharp detail."
)
FPS = 16.0
RED, BLUE, VIOLET, GREEN, GREY, BROWN = "#8a4b4b", "#3f789e", "#6b5b95", "#3f7e5c", "#5a5a5a", "#7a5c2e"

DOWNLOAD = f"""**Models**: one command, in one line, fetches everything into its place:

```
hf download cahlen/{PACKAGE}
  --local-dir ComfyUI/models/lingbot_world/{PACKAGE}
```
"""
SIZES = """**Size**: *Prepare Image* keeps the image's aspect ratio on 480x832 pixels. Frames are 4n+1 at 16 a
second: 81 are five seconds. 40 steps are good, 20 a draft.
"""


class Parts:
    """The pieces that the workflows share, each in its usual column: inputs, models and prompt, camera, result."""

    def __init__(self, info: dict, name: str, note: str, package: str = PACKAGE):
        self.graph = Graph(info, name)
        self.package = package
        with self.graph.group("Read me", 0, BROWN):
            self.graph.note(note.strip() + "\n", title="Read me", width=420, height=330)

    def offer(self, name: str, path: str, directory: str = "lingbot_world", base: str = FILES) -> list[dict]:
        """What the missing-model dialog offers for a file; the toy package is made, not downloaded."""
        return [] if self.package == "toy" else [{"name": name, "url": f"{base}/{path}", "directory": directory}]

    def models(self) -> tuple[Output, Output, Output]:
        """High-noise expert, low-noise expert, VAE."""
        offers = [offer for path in EXPERTS for offer in self.offer(f"{self.package}/{path}", path)]
        vae = f"{self.package}/{VAE}"
        with self.graph.group("1. Models", 1, RED):
            experts = self.graph.add("LingBotWorldLoadExperts", package=self.package, models=offers)
            loader = self.graph.add("LingBotWorldLoadVAE", vae_name=vae, models=self.offer(vae, VAE))
        return experts["high noise"], experts["low noise"], loader["VAE"]

    def text(self, **prompts: str) -> tuple[Output, Output]:
        """Positive, negative; the encoder streams and is gone afterwards."""
        encoder = f"{self.package}/{T5}"
        with self.graph.group("2. Prompt", 1, BLUE):
            node = self.graph.add(
                "LingBotWorldTextEncode",
                text_encoder=encoder,
                models=self.offer(encoder, T5),
                **{"prompt": PROMPT, **prompts},
            )
        return node["positive"], node["negative"]

    def clip_text(self) -> tuple[Output, Output]:
        """Positive, negative from core's nodes and the umt5 file that Wan users own."""
        with self.graph.group("2. Prompt", 1, BLUE):
            offer = self.offer(UMT5, UMT5, "text_encoders", UMT5_FOLDER)
            clip = self.graph.add("CLIPLoader", clip_name=UMT5, type="wan", models=offer)["CLIP"]
            positive = self.graph.add("CLIPTextEncode", title="Positive prompt", clip=clip, text=PROMPT)
            negative = self.graph.info["LingBotWorldTextEncode"]["input"]["required"]["negative"][1]["default"]
            negative = self.graph.add("CLIPTextEncode", title="Negative prompt", clip=clip, text=negative)
        return positive["CONDITIONING"], negative["CONDITIONING"]

    def image(self, **size) -> Node:
        """The prepared start image with its width and height."""
        with self.graph.group("3. Start image", 0, BLUE):
            loaded = self.graph.add("LoadImage", image="example.png", extra_height=PREVIEW_HEIGHT)
            return self.graph.add("LingBotWorldPrepareImage", image=loaded["IMAGE"], **size)

    def camera(self, kind: str, preview: bool = True, **values) -> Node:
        """A path, and the drawing of what the model will receive of it."""
        with self.graph.group("4. Camera path", 2, VIOLET):
            path = self.graph.add(kind, **values)
            if preview:
                look = {"box_width": 440, "extra_height": PREVIEW_HEIGHT}
                self.graph.add("LingBotWorldCameraPreview", camera=path["camera"], **look)
            return path

    def video(
        self, text: tuple[Output, Output], image: Node, vae: Output, length: Output | int, column: int = 3
    ) -> Node:
        """WanImageToVideo: the empty latent, and the start image in the conditioning."""
        with self.graph.group("5. Video size", 2, BLUE):
            return self.graph.add(
                "WanImageToVideo",
                positive=text[0],
                negative=text[1],
                vae=vae,
                start_image=image["image"],
                width=image["width"],
                height=image["height"],
                length=length,
            )

    def apply(self, video: Node, camera: Node) -> Node:
        with self.graph.group("6. Camera to model", 2, VIOLET):
            return self.graph.add(
                "LingBotWorldApplyCamera",
                positive=video["positive"],
                negative=video["negative"],
                camera=camera["camera"],
                latent=video["latent"],
            )

    def sample(self, models: tuple[Output, Output], conditioning: Node, latent: Output, **values) -> Output:
        with self.graph.group("7. Sampling", 3, GREEN):
            node = self.graph.add(
                "LingBotWorldSampler",
                high_noise=models[0],
                low_noise=models[1],
                positive=conditioning["positive"],
                negative=conditioning["negative"],
                latent=latent,
                **values,
            )
        return node["LATENT"]

    def save(self, latent: Output, vae: Output, column: int = 3) -> None:
        with self.graph.group("8. Save", column, GREY):
            images = self.graph.add("VAEDecode", samples=latent, vae=vae)["IMAGE"]
            video = self.graph.add("CreateVideo", images=images, fps=FPS)["VIDEO"]
            prefix = {"filename_prefix": "video/LingBot-World", "format": "mp4", "format.codec": "h264"}
            self.graph.add("SaveVideo", box_width=420, video=video, extra_height=PREVIEW_HEIGHT, **prefix)

    def film(self, camera: Node | None, size: dict | None = None, prompts: dict | None = None, **sampling) -> Graph:
        """Everything around a camera path, or without one."""
        high, low, vae = self.models()
        text, image = self.text(**(prompts or {})), self.image(**(size or {}))
        video = self.video(text, image, vae, camera["frames"] if camera else 81)
        conditioning = self.apply(video, camera) if camera else video
        self.save(self.sample((high, low), conditioning, video["latent"], **sampling), vae)
        return self.graph


def camera(info: dict) -> Graph:
    note = f"""# Camera from a pose folder

The video starts from your image and follows a camera path.

{DOWNLOAD}
**Camera**: put a folder with **poses.npy** and **intrinsics.npy** into **ComfyUI/input** and choose it in *Load Poses*
(press **R** to refresh). Poses are camera-to-world, OpenCV axes, one a frame. A file with fewer poses shortens the
video. No poses yet? The *preset_orbit* and *fly* workflows make a path on the canvas.

{SIZES}"""
    parts = Parts(info, "camera", note)
    return parts.film(parts.camera("LingBotWorldLoadPoses", poses="my_camera_path"))


def no_camera(info: dict) -> Graph:
    note = f"""# Without a camera path

The model chooses the camera itself; write the movement into the prompt. The camera layers are skipped, so a step is
about a seventh faster.

{DOWNLOAD}
**Length**: set it in *WanImageToVideo*, 4n+1 frames.

{SIZES}"""
    return Parts(info, "no_camera", note).film(None)


def _with_loras(parts: Parts, names: list[str], offers: bool, **sampling) -> Graph:
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="dolly_in")
    high, low, vae = parts.models()
    with parts.graph.group("LoRA on each expert", 1, RED):
        high, low = (
            parts.graph.add(
                "LoraLoaderModelOnly",
                title=f"LoRA, {level} noise",
                model=expert,
                lora_name=name,
                models=parts.offer(name, name, "loras", LORA_FOLDER) if offers else [],
            )["MODEL"]
            for level, expert, name in (("high", high, names[0]), ("low", low, names[1]))
        )
    text, image = parts.text(), parts.image()
    video = parts.video(text, image, vae, path["frames"])
    parts.save(parts.sample((high, low), parts.apply(video, path), video["latent"], **sampling), vae)
    return parts.graph


def lora(info: dict) -> Graph:
    note = f"""# A LoRA on each expert

LoRAs for Wan 2.2 come in pairs, one for each expert; choose yours in the two LoRA loaders (**ComfyUI/models/loras**).
ComfyUI's own loaders do it, stack as many as you like. On 4-bit weights a LoRA is added exactly while the layer runs;
nothing is quantized again.

{DOWNLOAD}
{SIZES}"""
    return _with_loras(Parts(info, "lora", note), STYLE, offers=False)


def lora_four_steps(info: dict) -> Graph:
    note = f"""# Four steps with a distilled LoRA

A step-distilled LoRA on each expert makes a video in **4 steps without guidance**: cfg is 1 for both experts, so the
negative prompt is not used and a step takes half the time. The boundary is 0.9 here, which gives each expert two of
the four steps. Quality and obedience to the camera are below those of 40 steps: good for drafts.

{DOWNLOAD}
The LoRAs (Wan 2.2 Lightning, image to video) go to **ComfyUI/models/loras**.
"""
    values = {"steps": 4, "cfg_high": 1.0, "cfg_low": 1.0, "boundary": 0.9}
    return _with_loras(Parts(info, "lora_four_steps", note), LIGHTNING, offers=True, **values)


def clip_text(info: dict) -> Graph:
    note = f"""# Text by ComfyUI's own CLIP loader

If you already have ComfyUI's umt5 file for Wan (**{UMT5}** or an fp16 one in **models/text_encoders**),
*Load CLIP* with type **wan** and two *CLIP Text Encode* do what *LingBot-World Text Encode* does. The encoder then
stays under ComfyUI's management, which is quicker when you change prompts often and takes more memory.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(info, "clip_text", note)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="pan_right")
    high, low, vae = parts.models()
    text, image = parts.clip_text(), parts.image()
    video = parts.video(text, image, vae, path["frames"])
    parts.save(parts.sample((high, low), parts.apply(video, path), video["latent"]), vae)
    return parts.graph


def two_samplers(info: dict) -> Graph:
    note = f"""# Two of ComfyUI's own samplers

The experts as ordinary MODELs in two *KSampler (Advanced)*, as people use Wan 2.2: the high-noise expert does steps
0 to 9 of 40, the low-noise one the rest. At shift 5 that is where the official boundary, 0.947, lies.

Each sampler starts its solver afresh, so the result differs a little from *LingBot-World Sampler*, which keeps the
solver going across the switch and uses the official one.

{DOWNLOAD}
"""
    parts = Parts(info, "two_samplers", note)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="dolly_in")
    high, low, vae = parts.models()
    text, image = parts.text(), parts.image()
    video = parts.video(text, image, vae, path["frames"])
    conditioned = parts.apply(video, path)
    common = {"positive": conditioned["positive"], "negative": conditioned["negative"], "steps": 40, "cfg": 5.0}
    common |= {"sampler_name": "dpmpp_2m", "scheduler": "simple"}
    with parts.graph.group("7. Sampling", 3, GREEN):
        shifted = [parts.graph.add("ModelSamplingSD3", model=expert, shift=5.0)["MODEL"] for expert in (high, low)]
        first = parts.graph.add(
            "KSamplerAdvanced",
            title="High noise: steps 0 to 9",
            model=shifted[0],
            latent_image=video["latent"],
            end_at_step=9,
            return_with_leftover_noise="enable",
            **common,
        )
        second = parts.graph.add(
            "KSamplerAdvanced",
            title="Low noise: steps 9 to 40",
            model=shifted[1],
            latent_image=first["LATENT"],
            add_noise="disable",
            start_at_step=9,
            **common,
        )
    parts.save(second["LATENT"], vae, column=4)
    return parts.graph


def toy(info: dict) -> Graph:
    note = """# The toy package

Every node of the real workflow on tiny random models: it runs on any CPU in seconds, and **its video is noise**. Use it
to see whether your installation works.

Write the package once, with the Python that runs ComfyUI:

```
pip install -e ComfyUI/custom_nodes/lingbot-world-comfyui
lingbot-world toy ComfyUI/models/lingbot_world/toy
```

Then press **R**, and **Run**.
"""
    parts = Parts(info, "toy", note, package="toy")
    path = parts.camera("LingBotWorldLoadPoses", preview=False, poses="toy/example", frames=9)
    size = {"size": "width and height", "width": 96, "height": 64}
    return parts.film(path, size, steps=4)


def preset_orbit(info: dict) -> Graph:
    note = f"""# A camera move by its name

*Camera Preset* makes the path: orbit, dolly, pan, crane and more, with easing and amount. Chain several with
*Camera Chain*.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(info, "preset_orbit", note)
    return parts.film(parts.camera("LingBotWorldCameraPreset", preset="orbit_left", easing="sine_in_out"))


def flight() -> str:
    """An editor state, as the editor itself writes it: forward, a turn to the right, and back to the left, higher."""
    stations = [(0, 0, 0, 0, 0), (24, 0.1, 0, 0.9, 12), (48, 0.6, -0.2, 1.6, 24), (80, 0.5, -0.5, 2.8, -10)]
    keyframes = []
    for frame, x, y, z, yaw_deg in stations:
        half = math.radians(yaw_deg) / 2
        turn = [0, round(math.sin(half), 6), 0, round(math.cos(half), 6)] if yaw_deg else [0, 0, 0, 1]
        keyframes.append({"frame": frame, "position": [x, y, z], "quaternion": turn})
    state = {"version": 1, "frames": 81, "fps": 16, "fov_deg": 79, "ease": "linear", "loop": False}
    return json.dumps({**state, "keyframes": keyframes}, separators=(",", ":"))


def fly(info: dict) -> Graph:
    note = f"""# Fly the camera yourself

In *Camera Editor* hold **W A S D** to move and **I J K L** to turn, and your flight is recorded; or drag the keyframes
in the views. The path is saved with the workflow.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(info, "fly", note)
    high, low, vae = parts.models()
    text, image = parts.text(), parts.image()
    look = {"preview": False, "box_width": 460, "extra_height": 420}
    path = parts.camera("LingBotWorldCameraEditor", path=flight(), image=image["image"], **look)
    video = parts.video(text, image, vae, path["frames"])
    parts.save(parts.sample((high, low), parts.apply(video, path), video["latent"]), vae)
    return parts.graph


def from_video(info: dict) -> Graph:
    note = f"""# The camera of another video

*Import Camera* reads the path that a tracker found in a real video, here ViPE's **pose/my_video.npz** in
**ComfyUI/input/vipe** (with **intrinsics/my_video.npz** beside the folder). It also reads COLMAP, RealEstate10K,
nerfstudio and Blender files; you say which. ViPE's files do not say how large the video was: give its width and height.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(info, "from_video", note)
    values = {"file": "vipe/pose/my_video.npz", "format": "vipe", "image_width": 1280, "image_height": 720}
    return parts.film(parts.camera("LingBotWorldCameraImport", **values))


WORKFLOW_MAKERS: list[Callable[[dict], Graph]] = [
    camera,
    no_camera,
    lora,
    lora_four_steps,
    clip_text,
    two_samplers,
    preset_orbit,
    fly,
    from_video,
    toy,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="a ComfyUI that has this pack (%(default)s)")
    server = parser.parse_args().server.rstrip("/")
    with urllib.request.urlopen(f"{server}/object_info", timeout=60) as answer:
        info = json.load(answer)
    for make in WORKFLOW_MAKERS:
        graph = make(info)
        (WORKFLOWS / f"{graph.name}.json").write_text(dump(graph.ui()), encoding="utf-8")
        (WORKFLOWS / "api" / f"{graph.name}.json").write_text(dump(graph.api()), encoding="utf-8")
        print(graph.name)


if __name__ == "__main__":
    main()
