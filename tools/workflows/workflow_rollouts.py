"""The workflows of the causal models, LingBot-World Fast and 2.0."""

from collections.abc import Callable

from workflow_graph import Graph
from workflow_nodes import PREVIEW_HEIGHT, Node, Output, Server
from workflow_parts import BUTTON, DOWNLOAD, GREEN, GREY, HF, HUGGING_FACE, PACKAGE, RED, TOKENIZER, VIOLET, Parts

QUANTIZED = f"{PACKAGE}/lingbot_world_fast"
FAST = f"{QUANTIZED}/model.safetensors"
SMALL = "lingbot-world-v2-1.3b-causal-fast"
SHARDS = f"{SMALL}/*.safetensors"
TEN_SECONDS = 157
FAST_LORA = "Wan2.2-Fun-A14B-InP-high-noise-HPS2.1.safetensors"
REWARD_FOLDER = f"{HUGGING_FACE}/alibaba-pai/Wan2.2-Fun-Reward-LoRAs/resolve/main"
VIEW_HEIGHT = 410  # of Live's
NARROW = 284  # the nodes of a walk, which takes five columns
SHOT_FRAMES, WINDOW, SINK = 321, 18, 6

CAUSAL_MODELS = f"""**Model** (37 GB): {HF}

hf download robbyant/lingbot-world-fast --local-dir ComfyUI/models/lingbot_world/lingbot-world-fast

Press **R**, then **Quantize now** on its node, once (10 GB). Text encoder (11 GB) and VAE are in ComfyUI's list of
missing models; put {TOKENIZER}. With 8 GB set *window* 18, *sink* 6: they take up to 22 GB of RAM, 12 with *kv cache*
**8bit**. Fast is Apache-2.0, 2.0 CC BY-NC-SA 4.0; keep **v2** in its folder's name.
"""


def fast(server: Server) -> Graph:
    note = f"""## LingBot-World Fast

Chunks of twelve frames, in four steps each: a twentieth of the base model's work.

{CAUSAL_MODELS}"""
    parts = Parts(server, "fast", note, note_width=420)
    graph = _one_shot(parts, "dolly_in")
    graph.begin("Once: 4-bit weights", 2, RED)
    weights = {"source": QUANTIZED.rpartition("/")[2].replace("_", "-"), "name": QUANTIZED}
    graph.add("LingBotWorldQuantize", extra_height=BUTTON, **weights).muted = True
    return graph


def fast_lora(server: Server) -> Graph:
    note = """## A LoRA on LingBot-World Fast

One model, so one LoRA loader; chain more loaders for more LoRAs. On 4-bit weights a LoRA is exact: it is added while
the layer runs.

**LoRA**: one for Wan's 14B models, in **models/loras**. The example, from ComfyUI's list of missing models, is a reward
LoRA of Wan 2.2 Fun (Apache-2.0, strength 0.5 as its authors use it). It was not tried with the real Fast.

Steps, window and sink stay as they are: Fast needs no step-distilled LoRA.

Template *07 Fast* shows how to make the model."""
    return _one_shot(Parts(server, "fast_lora", note), "arc_left", _with_lora)


def real_time(server: Server) -> Graph:
    note = f"""## LingBot-World 2.0, 1.3B

The small model of 2.0, with its own steps, shift and window. **Below a 4090** set *width and height* 528 and 304,
*arithmetic* and *attention* of *Load Causal Model* **8bit**.

**Model** (6.8 GB): {HF}

hf download robbyant/{SMALL} --local-dir ComfyUI/models/lingbot_world/{SMALL}

Then press **R**. Keep the folder's name. CC BY-NC-SA 4.0, for non-commercial use. Text encoder (11 GB) and VAE (0.5 GB)
are in ComfyUI's list of missing models; put {TOKENIZER}.
"""
    parts = Parts(server, "real_time", note, note_width=420)
    return _one_shot(parts, "dolly_in", model_name=SHARDS, frames=TEN_SECONDS)


def walk(server: Server) -> Graph:
    note = f"""## Walk, then render

Press **Run**, and walk in *Live*: **W A S D**, arrows, mouse, gamepad. After five seconds, or at **Stop**, the base
model renders your path. While the seed stays, the walk is kept. If nobody opens the view, the camera follows *recorded
path*.

**To try it first**, without download or GPU: template *20 Walk in the toy*.

{DOWNLOAD}
**1.3B**: as in template *18 Real time*."""
    parts = Parts(server, "walk", note, note_width=NARROW)
    parts.box_width = NARROW
    return _walked(parts, SHARDS, frames=81, chunk="1")


def walk_toy(server: Server) -> Graph:
    note = """## Walk in the toy

A walk in a small maze, on any CPU, without a download.

1. Press **Make the toy package** on the node below.
2. Press **Run**, and walk in *Live*: **W A S D**, arrows, mouse, gamepad.

After two seconds, or at **Stop**, the toy's base model renders your path.
"""
    parts = Parts(server, "walk_toy", note, package="toy", note_width=NARROW)
    parts.box_width = NARROW
    length = {"frames": 33, "chunk": "1", "window": 18, "sink": 6}
    return _walked(parts, "toy/lingbot_world_fast/model.safetensors", **length)


def _walked(parts: Parts, causal: str, **live) -> Graph:
    """Live on a causal model, then the base model along that path. The toy makes few steps, unguided."""
    image = parts.image(1)
    parts.begin("If nobody walks", 1, VIOLET, top=True)
    preset = {"preset": "dolly_in" if parts.package == "toy" else "arc_left", "frames": live["frames"]}
    recorded = parts.add("LingBotWorldCameraPreset", collapsed=True, **preset)
    parts.column = 1
    model, vae = parts.causal_model(causal), parts.vae()
    text = parts.text(column=int(parts.package == "toy"))
    parts.begin("Walk", 2, GREEN)
    given = {"model": model, "vae": vae, "positive": text[0], "start_image": image["image"]}
    look = {"box_width": 400, "extra_height": VIEW_HEIGHT}
    walked = parts.add("LingBotWorldLive", **given, camera=recorded["camera"], **live, **look)
    parts.column = 3
    parts.begin("Base model", 3, RED)
    experts = parts.add("LingBotWorldLoadExperts", **parts.experts())
    conditioning = parts.conditioned(text, image, vae, walked)
    parts.save(parts.sample((experts["high noise"], experts["low noise"]), conditioning), vae)
    return parts


def _with_lora(parts: Parts, model: Output) -> Output:
    parts.begin("LoRA", parts.column, RED)
    offer = parts.offer(FAST_LORA, FAST_LORA, "loras", REWARD_FOLDER)
    values = {"lora_name": FAST_LORA, "strength_model": 0.5, "models": offer}
    return parts.add("LoraLoaderModelOnly", title="LoRA", model=model, **values)["MODEL"]


def _one_shot(
    parts: Parts,
    move: str,
    patch: Callable[[Parts, Output], Output] | None = None,
    model_name: str = FAST,
    **length: int,
) -> Graph:
    image = parts.image()
    path = parts.camera("LingBotWorldCameraPreset", preset=move, **length)
    model, vae = parts.causal_model(model_name), parts.vae()
    model = patch(parts, model) if patch else model
    text, _ = parts.text(extra_height=-50)  # the negative prompt is not read
    parts.begin("Rollout", 3, GREEN)
    made = parts.rollout(model, text, vae, path, start_image=image["image"])
    parts.begin("Video", 3, GREY)
    parts.video_file(made["images"])
    return parts


SHOTS = [
    ("dolly_in", "A quiet courtyard in late afternoon light; the camera moves slowly forward between old trees."),
    ("pan_right", "The courtyard at dusk: lanterns are lit one by one along the old walls, warm light on the stones."),
    ("crane_up", "Night over the courtyard, seen from above: lanterns below, rain begins to fall on the tiled roofs."),
]


def fast_long(server: Server) -> Graph:
    note = f"""## A minute in three shots

Each **Rollout** continues from the *state* of the previous one, with its own camera and prompt, twenty seconds each.
Change the last shot and press Run: the first two are kept. *window* {WINDOW} and *sink* {SINK} keep memory constant
after four seconds; all shots of a video use the same. *Save State* keeps the state: *Load State* continues another day.

Template *07 Fast* shows how to make the model."""
    parts = Parts(server, "fast_long", note)
    parts.box_width = 296
    image = parts.image(collapsed=True)
    parts.begin("Models", 0, RED)
    vae = parts.vae(collapsed=True)
    model = parts.add("LingBotWorldLoadCausal", model_name=FAST)["MODEL"]
    made: list[Node] = []
    for number, (preset, prompt) in enumerate(SHOTS, 1):
        parts.begin(f"Shot {number}", number, VIOLET)
        text = parts.text_node(prompt=prompt)
        look = {"title": f"Camera of shot {number}", "collapsed": True}
        path = parts.add("LingBotWorldCameraPreset", preset=preset, frames=SHOT_FRAMES, **look)
        begin = {"state": made[-1]["state"]} if made else {"start_image": image["image"]}
        values = {"window": WINDOW, "sink": SINK, **begin, "extra_height": 0}
        made.append(parts.rollout(model, text["positive"], vae, path, **values))
    parts.begin("Video", 4, GREY)
    parts.add("LingBotWorldSaveState", room=PREVIEW_HEIGHT, state=made[-1]["state"])
    shots = {f"images.image{index}": shot["images"] for index, shot in enumerate(made)}
    parts.video_file(parts.add("BatchImagesNode", collapsed=True, **shots)["IMAGE"])
    return parts
