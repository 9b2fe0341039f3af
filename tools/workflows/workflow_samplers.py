"""The workflows that sample with ComfyUI's own sampler nodes in place of LingBot-World Sampler."""

from workflow_graph import Graph
from workflow_nodes import Node, Output, Server
from workflow_parts import DOWNLOAD, GREEN, HF, PACKAGE, RUN, SAMPLER_ROOM, T5, UMT5, UMT5_FOLDER, Parts

HAND_OVER = "ceil(a * 0.219)"  # the high-noise expert's steps of `a`: at shift 5 sigma is 0.947 after 0.219 of them


def core_nodes(server: Server) -> Graph:
    note = f"""## ComfyUI's own nodes around the experts

The experts as ordinary MODELs in two *KSampler (Advanced)*. **Steps** is for both; *Hand over* computes the step at
which the official boundary lies, with shift 5 and the scheduler *simple*: 9 of 40. Each restarts its solver, so
the result differs a little from *LingBot-World Sampler*.

*Load CLIP*, type **wan**, encodes the text with ComfyUI's umt5 file (**{UMT5}** in models/text_encoders).

**Experts and VAE** (20 GB): {HF}

hf download cahlen/{PACKAGE} --exclude "models_t5*" --local-dir ComfyUI/models/lingbot_world/{PACKAGE}
"""
    parts = Parts(server, "core_nodes", note)
    parts.box_width = 296
    image = parts.image(apart=True)
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="orbit_left", easing="sine_in_out")
    high, low, vae = parts.models(1)
    offer = parts.offer(UMT5, UMT5, "text_encoders", UMT5_FOLDER)
    text = parts.clip_text("CLIPLoader", clip_name=UMT5, type="wan", models=offer)
    conditioned = parts.conditioned(text, image, vae, path)
    parts.begin("Steps", 3, GREEN)
    steps = parts.add("PrimitiveInt", title="Steps", value=40)["INT"]
    change = parts.add("ComfyMathExpression", title="Hand over", expression=HAND_OVER, **{"values.a": steps})
    common = {"positive": conditioned["positive"], "negative": conditioned["negative"], "steps": steps, "cfg": 5.0}
    common |= {"sampler_name": "dpmpp_2m", "scheduler": "simple"}
    parts.begin("Sampling, high noise", 3, GREEN)
    shifted = [parts.add("ModelSamplingSD3", model=expert, shift=5.0)["MODEL"] for expert in (high, low)]
    first = parts.add(
        "KSamplerAdvanced",
        title="High noise: the first steps",
        model=shifted[0],
        latent_image=parts.latent["latent"],
        end_at_step=change["INT"],
        return_with_leftover_noise="enable",
        **common,
    )
    parts.begin("Sampling, low noise", 4, GREEN)
    second = parts.add(
        "KSamplerAdvanced",
        title="Low noise: the others",
        model=shifted[1],
        latent_image=first["LATENT"],
        add_noise="disable",
        start_at_step=change["INT"],
        room=SAMPLER_ROOM,
        **common,
    )
    parts.save(second["LATENT"], vae, aside=1)
    return parts


def own_sampler(server: Server) -> Graph:
    note = f"""## Custom sampling

*LingBot-World Sampler* as separate nodes: **Guider** (both experts), **Solver** and **Sigmas**, in ComfyUI's
*SamplerCustomAdvanced*. The same seed and values give the same video. Set another *solver* in *Solver* and in the
advanced inputs of *Sigmas*. For a latent that already holds a video, lower *denoise* in *Sigmas*.

*Load Text Encoder* gives a CLIP that ComfyUI keeps: quicker when prompts change often, but it takes more memory.

{DOWNLOAD}"""
    parts = Parts(server, "own_sampler", note, note_width=480)
    image = parts.image()
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="truck_right")
    high, low, vae = parts.models(parts.column, vae_column=1)
    encoder = f"{PACKAGE}/{T5}"
    offer = parts.offer(encoder, T5)
    text = parts.clip_text("LingBotWorldLoadTextEncoder", text_encoder=encoder, models=offer)
    conditioning = parts.conditioned(text, image, vae, path)
    parts.save(_custom_sampling(parts, (high, low), conditioning), vae)
    return parts


def _custom_sampling(parts: Parts, models: tuple[Output, Output], conditioning: Node) -> Output:
    prompts = {"positive": conditioning["positive"], "negative": conditioning["negative"]}
    parts.begin("How to sample", 1, GREEN)
    pieces = {
        "sampler": parts.add("LingBotWorldSolver")["sampler"],
        "sigmas": parts.add("LingBotWorldSigmas")["sigmas"],
    }
    parts.begin("Sampling", 3, GREEN)
    pieces["noise"] = parts.add("RandomNoise")["NOISE"]
    guider = parts.add("LingBotWorldGuider", high_noise=models[0], low_noise=models[1], **prompts)["guider"]
    pieces["guider"] = guider
    latent = parts.latent["latent"]
    return parts.add("SamplerCustomAdvanced", latent_image=latent, room=SAMPLER_ROOM, **pieces)["output"]


def easy_cache(server: Server) -> Graph:
    note = f"""## EasyCache: fewer forwards

EasyCache skips a step if little changed since the last one. Each expert has its own; ComfyUI's log shows how many steps
were skipped. **reuse_threshold** 0.2 is ComfyUI's default. Measured on toy models only: of 40 steps 0 at 0.2, 2 at most
at 0.3, 15 at 0.6. Compare once with the real weights and the same seed.

{DOWNLOAD}
{RUN}"""
    parts = Parts(server, "easy_cache", note, note_width=480)
    image = parts.image()
    path = parts.camera("LingBotWorldCameraPreset", preview=False, preset="arc_right")

    def skip(level: str, expert: Output) -> Output:
        return parts.add("EasyCache", title=f"EasyCache, {level} noise", model=expert)["MODEL"]

    return parts.film(path, image, patch=("EasyCache for each expert", skip), vae_column=1)
