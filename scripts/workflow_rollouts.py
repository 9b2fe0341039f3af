"""The workflows of the causal models, LingBot-World Fast and 2.0."""

from __future__ import annotations

from workflow_graph import Graph, Node, Output, Server
from workflow_parts import BLUE, FAST_LORA, GREEN, GREY, PACKAGE, RED, VIOLET, Parts

FAST = f"{PACKAGE}/lingbot_world_fast"
SHOT_FRAMES, WINDOW, SINK = 321, 18, 6

CAUSAL_MODELS = f"""**Model**: LingBot-World Fast goes into the base model's package, beside text encoder and VAE. Fetch
it, and make 4-bit weights of it once, with the Python that runs ComfyUI:

```
pip install -e ComfyUI/custom_nodes/lingbot-world-comfyui
hf download robbyant/lingbot-world-fast --local-dir fast
lingbot-world quantize fast
  ComfyUI/models/lingbot_world/{PACKAGE}/lingbot_world_fast
```

Then press **R** and choose it in *Load Causal Model*. LingBot-World 2.0 works the same in a folder of its own; keep
**v2** in its name, so that steps, window and sink are its own. Fast is Apache-2.0, 2.0 is CC BY-NC-SA 4.0: not for
commercial use.

Text encoder and VAE come from ComfyUI's list of missing models.
"""


def fast(server: Server) -> Graph:
    note = f"""# LingBot-World Fast

A causal model makes the video in chunks of twelve frames, with four unguided steps each: about a twentieth of the base
model's work. The newest frame is shown after every chunk.

{CAUSAL_MODELS}
**Length**: 9, 21, 33 and so on; the camera path says how long. Memory grows with the length until the *window* is full.
"""
    parts = Parts(server, "fast", note)
    return _one_shot(parts, parts.causal_model(FAST))


def fast_lora(server: Server) -> Graph:
    note = f"""# A LoRA on LingBot-World Fast

One model, so one LoRA: choose yours in the LoRA loader (**ComfyUI/models/loras**). LoRAs for Wan's 14B models fit. On
4-bit weights it is added exactly while the layer runs.

{CAUSAL_MODELS}"""
    parts = Parts(server, "fast_lora", note)
    model = parts.causal_model(FAST)
    with parts.graph.group("LoRA", 1, RED):
        model = parts.graph.add("LoraLoaderModelOnly", model=model, lora_name=FAST_LORA)["MODEL"]
    return _one_shot(parts, model)


def _one_shot(parts: Parts, model: Output) -> Graph:
    vae, (text, _), image = parts.vae(), parts.text(), parts.image()
    path = parts.camera("LingBotWorldCameraPreset", preset="dolly_in")
    with parts.graph.group("5. Rollout", 3, GREEN):
        made = parts.rollout(model, text, vae, path, start_image=image["image"])
    parts.save_images(made["images"], 3)
    return parts.graph


SHOTS = [
    ("dolly_in", "A quiet courtyard in late afternoon light; the camera moves slowly forward between old trees."),
    ("pan_right", "The courtyard at dusk: lanterns are lit one by one along the old walls, warm light on the stones."),
    ("crane_up", "Night over the courtyard, seen from above: lanterns below, rain begins to fall on the tiled roofs."),
]


def fast_long(server: Server) -> Graph:
    note = f"""# A minute in three shots that continue each other

Each *Rollout* goes on from the *state* of the one before, with a camera and a prompt of its own. Change the last shot
and press Run: the first two are kept. Twenty seconds a shot.

*window* {WINDOW} and *sink* {SINK} keep memory where it is after the first four seconds: a chunk looks back on the last
{WINDOW - SINK} latent frames and on the video's first {SINK}. All shots of a video have the same.

{CAUSAL_MODELS}"""
    parts = Parts(server, "fast_long", note)
    model, vae, image = parts.causal_model(FAST), parts.vae(), parts.image()
    made: list[Node] = []
    for number, (preset, prompt) in enumerate(SHOTS, 1):
        with parts.graph.group(f"Shot {number}: prompt", number + 1, BLUE):
            text = parts.text_node(prompt=prompt)
        with parts.graph.group(f"Shot {number}: camera", number + 1, VIOLET):
            path = parts.graph.add("LingBotWorldCameraPreset", preset=preset, frames=SHOT_FRAMES)
        begin = {"state": made[-1]["state"]} if made else {"start_image": image["image"]}
        with parts.graph.group(f"Shot {number}: rollout", number + 1, GREEN):
            values = {"window": WINDOW, "sink": SINK, **begin}
            made.append(parts.rollout(model, text["positive"], vae, path, **values))
    with parts.graph.group("All shots", 5, GREY):
        shots = {f"images.image{index}": shot["images"] for index, shot in enumerate(made)}
        images = parts.graph.add("BatchImagesNode", **shots)["IMAGE"]
    parts.save_images(images, 5)
    return parts.graph
