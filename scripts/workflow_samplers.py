"""The workflows that sample with ComfyUI's own sampler nodes in place of LingBot-World Sampler."""

from __future__ import annotations

from workflow_graph import Graph, Node, Output, Server
from workflow_parts import DOWNLOAD, GREEN, Parts


def two_samplers(server: Server) -> Graph:
    note = f"""# Two of ComfyUI's own samplers

The experts as ordinary MODELs in two *KSampler (Advanced)*, as people use Wan 2.2: the high-noise expert does steps
0 to 9 of 40, the low-noise one the rest. At shift 5 that is where the official boundary, 0.947, lies.

Each sampler starts its solver afresh, so the result differs a little from *LingBot-World Sampler*, which keeps the
solver going across the switch and uses the official one.

{DOWNLOAD}
"""
    parts = Parts(server, "two_samplers", note)
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


def own_sampler(server: Server) -> Graph:
    note = f"""# ComfyUI's custom sampling

*LingBot-World Sampler* in pieces, for graphs that need one of them: *Guider* (both experts, switching at the boundary),
*Solver* and *Sigmas*, in ComfyUI's *SamplerCustomAdvanced*. Same seed and values, same video.

The text encoder is loaded as an ordinary CLIP here, for *CLIP Text Encode*: it stays under ComfyUI's management, which
is quicker when you change prompts often and takes more memory.

Another *solver* goes into *Solver* and, among its advanced inputs, *Sigmas*. For a latent that already holds a video,
lower *denoise* in *Sigmas*.

{DOWNLOAD}
"""
    parts = Parts(server, "own_sampler", note)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="truck_right")
    high, low, vae = parts.models()
    text, image = parts.clip_text(parts.own_clip), parts.image()
    video = parts.video(text, image, vae, path["frames"])
    parts.save(_custom_sampling(parts, (high, low), parts.apply(video, path), video["latent"]), vae, column=4)
    return parts.graph


def _custom_sampling(parts: Parts, models: tuple[Output, Output], conditioning: Node, latent: Output) -> Output:
    prompts = {"positive": conditioning["positive"], "negative": conditioning["negative"]}
    with parts.graph.group("7. Sampling", 3, GREEN):
        noise = parts.graph.add("RandomNoise")["NOISE"]
        guider = parts.graph.add("LingBotWorldGuider", high_noise=models[0], low_noise=models[1], **prompts)["guider"]
        pieces = {
            "noise": noise,
            "guider": guider,
            "sampler": parts.graph.add("LingBotWorldSolver")["sampler"],
            "sigmas": parts.graph.add("LingBotWorldSigmas")["sigmas"],
        }
        return parts.graph.add("SamplerCustomAdvanced", latent_image=latent, **pieces)["output"]
