#!/usr/bin/env python3
"""Write workflows/*.json, workflows/api/*.json and subgraphs/*.json from the graphs described here.

    python tools/workflows/make_workflows.py --server http://127.0.0.1:8188

A running ComfyUI with this pack lists the nodes' inputs and outputs. Change a graph here, not in the JSON."""

import argparse
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

from workflow_blueprints import BLUEPRINTS, everything_else, go_on, larger, simple, views
from workflow_graph import Graph, dump
from workflow_nodes import CORE, IMAGE_HEIGHT, PACK, PREVIEW_HEIGHT, Output, Server
from workflow_parts import BLUE, BUTTON, DOWNLOAD, LIGHTNING, LORA_FOLDER, RUN, VIOLET, Parts, flight
from workflow_rollouts import fast, fast_long, fast_lora, real_time, walk, walk_toy
from workflow_samplers import core_nodes, easy_cache, own_sampler

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS, SUBGRAPHS = ROOT / "workflows", ROOT / "subgraphs"


def camera(server: Server) -> Graph:
    note = f"""## An image becomes a film

The camera follows the path that you draw in **Camera Editor**: drag its points, choose a move from its list, or press
**R** and fly with **W A S D** and **I J K L**.

**To try it first**, without download or GPU: template *16 Toy*. Here you need:

{DOWNLOAD}
**Speed**: this graph is exact. On GeForce set *arithmetic* and *attention* of *Load Experts* to **8bit**: worked out,
a 4060 takes 33 minutes, not 88.

{RUN}"""
    parts = Parts(server, "camera", note, note_width=440)
    image = parts.image(apart=True)
    return parts.film(parts.editor(image["image"], flight()), image)


def moves(server: Server) -> Graph:
    note = f"""## Moves by name and by keys

**Camera Keys** walks like a game: 26 frames forward, 15 with a turn to the right. **Camera Preset** then rises.
**Camera Chain** starts each path where the previous one ended. Give both about the same speed: the model divides every
step by the longest one.

{DOWNLOAD}
{RUN}"""
    parts = Parts(server, "moves", note)
    image = parts.load_image()
    parts.begin("Camera path", 1, VIOLET)
    walk = parts.add("LingBotWorldCameraKeys", script="w-26,wl-15")
    rise = parts.add("LingBotWorldCameraPreset", preset="crane_up", frames=41)
    parts.begin("One path", 2, VIOLET)
    both = {"cameras.camera0": walk["camera"], "cameras.camera1": rise["camera"]}
    path = parts.add("LingBotWorldCameraChain", **both, frames=81, smooth=4.0, room=20)
    parts.preview(path)
    return everything_else(parts, image, path)


def poses(server: Server) -> Graph:
    note = f"""## A camera path from files

**Import Camera** reads the paths of other programs: ViPE, COLMAP, RealEstate10K, KITTI, nerfstudio, Blender, and
poses.npy. Drop the file, its folder or a zip on the node and choose its format. ViPE's files lack the size of the
video: enter its width and height.

{DOWNLOAD}
{RUN}"""
    parts = Parts(server, "poses", note, note_width=420)
    image = parts.image()
    values = {"file": "vipe/pose/my_video.npz", "format": "vipe", "image_width": 1280, "image_height": 720}
    return parts.film(parts.camera("LingBotWorldCameraImport", extra_height=BUTTON, room=160, **values), image)


def from_video(server: Server) -> Graph:
    note = f"""## The camera of another video

**Camera from Video** finds the camera path of a clip; your image gets the same path. Take one shot of a few seconds,
with texture. The chain spreads the move over 81 frames.

**Needs**, in ComfyUI's Python: *pip install opencv-python-headless pycolmap*

{DOWNLOAD}
{RUN}"""
    parts = Parts(server, "from_video", note)
    image = parts.load_image()
    parts.begin("Another video", 1, BLUE)
    video = parts.add("LoadVideo", file="my_camera_move.mp4", extra_height=PREVIEW_HEIGHT, room=60)["VIDEO"]
    frames = parts.add("GetVideoComponents", collapsed=True, video=video)["IMAGE"]
    parts.begin("Its camera", 1, VIOLET)
    found = parts.add("LingBotWorldCameraFromVideo", images=frames, room=60)
    parts.begin("Camera path", 2, VIOLET)
    spread = {"cameras.camera0": found["camera"], "frames": 81, "room": 20}
    path = parts.add("LingBotWorldCameraChain", **spread)
    parts.preview(path)
    return everything_else(parts, image, path)


def lora_four_steps(server: Server) -> Graph:
    note = f"""## A LoRA on each expert, and four steps

These two LoRAs (Wan 2.2 Lightning, **models/loras**) make a video in **4 steps without guidance**: a twentieth of the
work, with lower quality, and it follows prompt and camera less than 40 steps. For a style LoRA choose its pair, and
set 40 steps, cfg 5, boundary 0.947. On 4-bit weights a LoRA is added exactly, while the layer runs.

{DOWNLOAD}"""
    parts = Parts(server, "lora_four_steps", note)
    image = parts.image(apart=True)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="dolly_in")

    def lora(level: str, expert: Output) -> Output:
        name = LIGHTNING[level == "low"]
        values = {"title": f"LoRA, {level} noise", "model": expert, "lora_name": name}
        return parts.add("LoraLoaderModelOnly", models=parts.offer(name, name, "loras", LORA_FOLDER), **values)["MODEL"]

    values = {"steps": 4, "cfg_high": 1.0, "cfg_low": 1.0, "boundary": 0.9}
    return parts.film(path, image, patch=("A LoRA for each expert", lora), **values)


def first_last(server: Server) -> Graph:
    note = f"""## First and last frame

ComfyUI's *WanFirstLastFrameToVideo* fixes both ends. The model chooses the camera between them; write the movement into
the prompt. LingBot-World was trained on first frames only. How well it reaches the last frame was not tried with real
weights.

{DOWNLOAD}
{RUN}"""
    parts = Parts(server, "first_last", note)
    image = parts.image(apart=True)
    parts.begin("Last frame", 1, BLUE)
    look = {"title": "Load the last frame", "extra_height": IMAGE_HEIGHT}
    last = parts.add("LoadImage", image="example.png", **look)
    return parts.film(None, image, end_image=last["IMAGE"])


def toy(server: Server) -> Graph:
    note = """## Does the installation work?

Runs the whole pipeline with tiny trained models, on any CPU: a walk through a door of a maze, small and soft.

1. Press **Make the toy package** on the node below.
2. Press **Run**.
"""
    parts = Parts(server, "toy", note, package="toy")
    image = parts.image()
    path = parts.camera("LingBotWorldLoadPoses", poses="toy/example", frames=33, extra_height=BUTTON, room=160)
    return parts.film(path, image)


TITLES: dict[Callable[[Server], Graph], str] = {
    camera: "Start here - draw the camera",
    simple: "Simple - four nodes",
    moves: "Camera moves by name and by keys",
    poses: "Camera path from files",
    from_video: "Camera of another video",
    views: "Camera placed in 3D",
    fast: "Fast - a video in chunks",
    fast_long: "Fast - a minute in three shots",
    go_on: "Go on from a video's last frame, and enlarge",
    larger: "Larger and smoother",
    first_last: "First and last frame, no camera path",
    lora_four_steps: "LoRA on each expert, four steps",
    easy_cache: "EasyCache - fewer forwards",
    own_sampler: "Custom sampling - guider, solver, sigmas",
    core_nodes: "ComfyUI's own samplers and text encoder",
    toy: "Toy - test the installation on a CPU",
    fast_lora: "Fast - with a LoRA",
    real_time: "Real time - 2.0 1.3B",
    walk: "Walk with 1.3B, render with base",
    walk_toy: "Walk in the toy",
}
"""Titles in the order of the template browser, numbered. A new one comes last, so that the others keep their names."""


def ask(address: str) -> Server:
    """Return the nodes of the ComfyUI at `address`. The version of this pack comes from pyproject.toml."""
    import tomllib  # from Python 3.11 on

    def get(path: str) -> dict:
        with urllib.request.urlopen(address.rstrip("/") + path, timeout=60) as answer:
            return json.load(answer)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = get("/system_stats")["system"]["comfyui_version"]
    return Server(get("/object_info"), {CORE: core, PACK: project["version"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="a ComfyUI that has this pack (%(default)s)")
    server = ask(parser.parse_args().server)
    for number, (make, title) in enumerate(TITLES.items(), 1):
        graph = make(server)
        (WORKFLOWS / f"{number:02} {title}.json").write_text(dump(graph.ui()), encoding="utf-8")
        (WORKFLOWS / "api" / f"{graph.name}.json").write_text(dump(graph.api()), encoding="utf-8")
        print(number, graph.name)
    for blueprint in (make(server) for make in BLUEPRINTS):
        (SUBGRAPHS / f"{blueprint.name}.json").write_text(dump(blueprint.blueprint()), encoding="utf-8")
        print(blueprint.name)


if __name__ == "__main__":
    main()
