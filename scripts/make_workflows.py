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

import tomllib
from workflow_graph import CORE, PACK, Graph, Node, Server, dump
from workflow_parts import DOWNLOAD, LIGHTNING, LORA_FOLDER, RED, SIZES, STYLE, UMT5, VIOLET, Parts
from workflow_rollouts import fast, fast_long, fast_lora
from workflow_samplers import own_sampler, two_samplers

WORKFLOWS = Path(__file__).resolve().parent.parent / "workflows"


def camera(server: Server) -> Graph:
    note = f"""# Camera from a pose folder

The video starts from your image and follows a camera path.

{DOWNLOAD}
**Camera**: put a folder with **poses.npy** and **intrinsics.npy** into **ComfyUI/input**, press **R**, and choose it
in *Load Poses*. Poses are camera-to-world, OpenCV axes, one a frame. A file with fewer poses shortens the
video. No poses yet? The *preset_orbit* and *fly* workflows make a path on the canvas.

{SIZES}"""
    parts = Parts(server, "camera", note)
    return parts.film(parts.camera("LingBotWorldLoadPoses", poses="my_camera_path"))


def no_camera(server: Server) -> Graph:
    note = f"""# Without a camera path

The model chooses the camera itself; write the movement into the prompt. The camera layers are skipped, so a step is
about a seventh faster.

{DOWNLOAD}
**Length**: set it in *WanImageToVideo*, 4n+1 frames.

{SIZES}"""
    return Parts(server, "no_camera", note).film(None)


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


def lora(server: Server) -> Graph:
    note = f"""# A LoRA on each expert

LoRAs for Wan 2.2 come in pairs, one for each expert; choose yours in the two LoRA loaders (**ComfyUI/models/loras**).
ComfyUI's own loaders do it, stack as many as you like. On 4-bit weights a LoRA is added exactly while the layer runs;
nothing is quantized again.

{DOWNLOAD}
{SIZES}"""
    return _with_loras(Parts(server, "lora", note), STYLE, offers=False)


def lora_four_steps(server: Server) -> Graph:
    note = f"""# Four steps with a distilled LoRA

A step-distilled LoRA on each expert makes a video in **4 steps without guidance**: cfg is 1 for both experts, so the
negative prompt is not used and a step takes half the time. The boundary is 0.9 here, which gives each expert two of
the four steps. Quality and obedience to the camera are below those of 40 steps: good for drafts.

{DOWNLOAD}
The LoRAs (Wan 2.2 Lightning, image to video) go to **ComfyUI/models/loras**.
"""
    values = {"steps": 4, "cfg_high": 1.0, "cfg_low": 1.0, "boundary": 0.9}
    return _with_loras(Parts(server, "lora_four_steps", note), LIGHTNING, offers=True, **values)


def clip_text(server: Server) -> Graph:
    note = f"""# Text by ComfyUI's own CLIP loader

If you already have ComfyUI's umt5 file for Wan (**{UMT5}** or an fp16 one in **models/text_encoders**),
*Load CLIP* with type **wan** and two *CLIP Text Encode* do what *LingBot-World Text Encode* does. The encoder then
stays under ComfyUI's management, which is quicker when you change prompts often and takes more memory.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(server, "clip_text", note)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="pan_right")
    high, low, vae = parts.models()
    text, image = parts.clip_text(parts.core_clip), parts.image()
    video = parts.video(text, image, vae, path["frames"])
    parts.save(parts.sample((high, low), parts.apply(video, path), video["latent"]), vae)
    return parts.graph


def toy(server: Server) -> Graph:
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
    parts = Parts(server, "toy", note, package="toy")
    path = parts.camera("LingBotWorldLoadPoses", preview=False, poses="toy/example", frames=9)
    size = {"size": "width and height", "width": 96, "height": 64}
    return parts.film(path, size, steps=4)


def preset_orbit(server: Server) -> Graph:
    note = f"""# A camera move by its name

*Camera Preset* makes the path: orbit, dolly, pan, crane and more, with easing and amount. Chain several with
*Camera Chain*.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(server, "preset_orbit", note)
    return parts.film(parts.camera("LingBotWorldCameraPreset", preset="orbit_left", easing="sine_in_out"))


def keys(server: Server) -> Graph:
    note = f"""# Two moves, one after the other

*Camera Keys* walks as a game does: here 26 frames forward, then 15 forward with a turn to the right. *Camera Preset*
then rises. *Camera Chain* begins each move where the last one ended, rounds the joints and fits all into 81 frames;
wire further moves to its free input.

The model measures every step against the longest one: give both moves about the same speed, or the slower one stands
nearly still. Here both go 0.05 units a frame.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(server, "keys", note)
    high, low, vae = parts.models()
    text, image, path = parts.text(), parts.image(), _two_moves(parts)
    video = parts.video(text, image, vae, path["frames"], column=3)
    conditioned = parts.apply(video, path, column=3)
    parts.save(parts.sample((high, low), conditioned, video["latent"], column=4), vae, column=4)
    return parts.graph


def _two_moves(parts: Parts) -> Node:
    with parts.graph.group("4. Camera path", 2, VIOLET):
        walk = parts.graph.add("LingBotWorldCameraKeys", script="w-26,wl-15")
        rise = parts.graph.add("LingBotWorldCameraPreset", preset="crane_up", frames=41)
        moves = {"cameras.camera0": walk["camera"], "cameras.camera1": rise["camera"]}
        path = parts.graph.add("LingBotWorldCameraChain", **moves, frames=81, smooth=4.0)
        parts.preview(path)
        return path


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


def fly(server: Server) -> Graph:
    note = f"""# Fly the camera yourself

Click into *Camera Editor* and press **R**: your flight is recorded while you hold **W A S D** to move and **I J K L**
to turn. **Esc** ends it. Or drag the keyframes in the views. The path is saved with the workflow.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(server, "fly", note)
    high, low, vae = parts.models()
    text, image = parts.text(), parts.image()
    look = {"preview": False, "box_width": 460, "extra_height": 420}
    path = parts.camera("LingBotWorldCameraEditor", path=flight(), image=image["image"], **look)
    video = parts.video(text, image, vae, path["frames"])
    parts.save(parts.sample((high, low), parts.apply(video, path), video["latent"]), vae)
    return parts.graph


def from_video(server: Server) -> Graph:
    note = f"""# The camera of another video

*Import Camera* reads the path that a tracker found in a real video, here ViPE's **pose/my_video.npz** in
**ComfyUI/input/vipe** (with **intrinsics/my_video.npz** beside the folder). It also reads COLMAP, RealEstate10K,
nerfstudio and Blender files; you say which. ViPE's files do not say how large the video was: give its width and height.

{DOWNLOAD}
{SIZES}"""
    parts = Parts(server, "from_video", note)
    values = {"file": "vipe/pose/my_video.npz", "format": "vipe", "image_width": 1280, "image_height": 720}
    return parts.film(parts.camera("LingBotWorldCameraImport", **values))


WORKFLOW_MAKERS: list[Callable[[Server], Graph]] = [
    camera,
    no_camera,
    lora,
    lora_four_steps,
    clip_text,
    two_samplers,
    own_sampler,
    preset_orbit,
    keys,
    fly,
    from_video,
    fast,
    fast_long,
    fast_lora,
    toy,
]


def ask(address: str) -> Server:
    """What the ComfyUI at `address` has; this pack's own version comes from pyproject.toml."""

    def get(path: str) -> dict:
        with urllib.request.urlopen(address.rstrip("/") + path, timeout=60) as answer:
            return json.load(answer)

    project = tomllib.loads((WORKFLOWS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = get("/system_stats")["system"]["comfyui_version"]
    return Server(get("/object_info"), {CORE: core, PACK: project["version"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="a ComfyUI that has this pack (%(default)s)")
    server = ask(parser.parse_args().server)
    for make in WORKFLOW_MAKERS:
        graph = make(server)
        (WORKFLOWS / f"{graph.name}.json").write_text(dump(graph.ui()), encoding="utf-8")
        (WORKFLOWS / "api" / f"{graph.name}.json").write_text(dump(graph.api()), encoding="utf-8")
        print(graph.name)


if __name__ == "__main__":
    main()
