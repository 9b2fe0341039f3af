"""Nodes, model folders and the hooks of other packs inside ComfyUI. Argument: a base directory laid out by the test."""

import sys
from pathlib import Path

from embed import embed

BASE = Path(sys.argv[1])
embed("--extra-model-paths-config", str(BASE / "extra.yaml"), base=str(BASE))

from utils.extra_config import load_extra_path_config  # noqa: E402

load_extra_path_config(str(BASE / "extra.yaml"))  # as main.py does before it loads packs

from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
from comfy.ldm.flux.layers import EmbedND  # noqa: E402
from comfy.ldm.wan.model import WanModel  # noqa: E402
from comfy_execution.utils import CurrentNodeContext  # noqa: E402
from common import INPUTS, NF4, check, engine_run, experts, gap, predict, refused, report  # noqa: E402
from lingbot_world.host.files import folders  # noqa: E402
from lingbot_world.host.files.search import fingerprint  # noqa: E402
from lingbot_world.host.model.transformer import HostModel  # noqa: E402
from lingbot_world.host.prompt import queue as queued_prompt  # noqa: E402
from lingbot_world.model.layers.rope import rope_table  # noqa: E402
from lingbot_world.nodes.load_models import FROM_PACKAGE, NO_PACKAGE, LingBotWorldLoadExperts  # noqa: E402
from lingbot_world.nodes.sampling.experts import LingBotWorldSampler, LingBotWorldSigmas  # noqa: E402


@check
def choices():
    return {
        "packages": folders.package_choices(),
        "experts": folders.expert_choices(),
        "vaes": folders.vae_choices(),
        "text encoders": folders.text_encoder_choices(),
        "tokenizers": folders.tokenizer_choices(),
    }


@check
def resolving():
    encoder = folders.resolve_text_encoder("toy/models_t5_umt5-xxl-enc-bf16.pth")
    loose = folders.resolve_text_encoder("loose_t5.safetensors")
    return {
        "both slashes": folders.resolve_expert("toy\\high_noise_model_bnb_nf4")
        == folders.resolve_expert("toy/high_noise_model_bnb_nf4"),
        "extra path": str(folders.resolve_package("elsewhere").relative_to(BASE)),
        "tokenizer beside": str(folders.resolve_tokenizer("auto", encoder).relative_to(BASE)),
        "tokenizer of a package": str(folders.resolve_tokenizer("auto", loose).relative_to(BASE)),
        "named tokenizer": str(folders.resolve_tokenizer("toy/tokenizer", loose).relative_to(BASE)),
    }


@check
def untrusted_names():
    """Names that leave the model folders, or are not there: an error for each."""
    names = [
        "../../secret.safetensors",
        "..\\..\\secret.safetensors",
        str(BASE / "secret.safetensors"),
        "",
        "toy/../..",
        "C:\\secret.safetensors",
        "a\0b",
        "toy/./x",
        "not_there.pt",
    ]
    resolvers = (folders.resolve_expert, folders.resolve_text_encoder, folders.resolve_vae, folders.resolve_package)
    return [repr(name) for name in names for resolve in resolvers if not refused(resolve, name)]


@check
def fingerprints():
    """Writing a file anew changes its package's fingerprint."""
    folder = folders.resolve_expert("toy/high_noise_model_bnb_nf4")
    before = fingerprint([folder, None])
    again = fingerprint([folder])
    (folder / "config.json").touch()
    return {"steady": before == again, "changes": fingerprint([folder]) != before}


def validate(package, high, low):
    """As ComfyUI does it: the node gets its package, and finds the two files in the prompt that is being validated."""
    queued_prompt._queued.set({"1": {"inputs": {"high_noise_expert": high, "low_noise_expert": low}}})
    with CurrentNodeContext("prompt", "1"):
        return LingBotWorldLoadExperts.validate_inputs(package)


@check
def loading():
    """Package, files and mixtures give the same experts; only mapping, so that it is quick and takes no memory."""
    found = {}
    load = LingBotWorldLoadExperts.execute
    high, low = "toy/high_noise_model_bnb_nf4", "toy/low_noise_model_bnb_nf4"
    for name, arguments in {
        "package": ("toy", FROM_PACKAGE, FROM_PACKAGE),
        "files": (NO_PACKAGE, high, low),
        "mixed": ("toy", high, FROM_PACKAGE),
    }.items():
        assert validate(*arguments) is True
        models = load(*arguments, "fp32").result
        found[name] = gap(predict(models[0]), predict(experts(NF4)[0]))
    found["dtype"] = [
        str(load("toy", FROM_PACKAGE, FROM_PACKAGE, dtype).result[0].model_dtype())
        for dtype in ("default", "bf16", "fp32")
    ]
    return found


@check
def bad_experts():
    """What the loader says to checkpoints that cannot be the pair, before anything is sampled."""
    load = LingBotWorldLoadExperts.execute
    high, low = "toy/high_noise_model_bnb_nf4", "toy/low_noise_model_bnb_nf4"
    return {
        "nothing chosen": validate(NO_PACKAGE, FROM_PACKAGE, FROM_PACKAGE),
        "outside": validate(NO_PACKAGE, "../../secret.safetensors", low),
        "gone": validate(NO_PACKAGE, high, "gone.safetensors"),
        "package gone": validate("gone", FROM_PACKAGE, FROM_PACKAGE),
        "swapped": refused(load, NO_PACKAGE, low, high, "fp32"),
        "one twice": refused(load, NO_PACKAGE, high, high, "fp32"),
        "gguf": refused(load, NO_PACKAGE, "wan.pt", low, "fp32"),
        "lora": refused(load, NO_PACKAGE, "lora.safetensors", low, "fp32"),
    }


@check
def schedules():
    """The sigmas node: steps, and the tail of a longer schedule for denoise below 1."""
    from lingbot_world.sampling import flow_sigmas

    whole = LingBotWorldSigmas.execute(8, 5.0, 1.0, "unipc").result[0]
    half = LingBotWorldSigmas.execute(8, 5.0, 0.5, "unipc").result[0]
    return {"whole": torch.equal(whole, flow_sigmas(8, 5.0)), "half": torch.equal(half, flow_sigmas(16, 5.0)[-9:])}


@check
def sampler_node():
    """The all-in-one node twice with one seed, once with another; and against the engine with the same noise."""
    from common import prompts

    high, low = experts(NF4)
    latent = {"samples": torch.zeros(1, 16, *INPUTS["noise"].shape[1:]), "downscale_ratio_spacial": 8}

    def run(seed):
        out = LingBotWorldSampler.execute(high, low, *prompts(high), latent, seed, 5, 5.0, 6.0, 4.0, 0.947, "dpmpp")
        return out.result[0]

    first, again, other = run(3), run(3), run(4)
    noise = torch.randn(first["samples"].shape, generator=torch.manual_seed(3))
    want = engine_run(noise, steps=5, shift=5.0, solver="dpmpp")
    return {
        "keys": sorted(first),
        "same seed": torch.equal(first["samples"], again["samples"]),
        "other seed": gap(first["samples"], other["samples"]),
        "engine": gap(high.model.process_latent_in(first["samples"]), want),
    }


@check
def block_hooks():
    """patches_replace, double_block, attn1_patch, attn2_patch: called for each block, and what they return counts."""
    high, _ = experts(NF4)
    plain, found, calls = predict(high), {}, []

    def options(**patches):
        calls.clear()
        return {"patches": {name: [patch] for name, patch in patches.items()}}

    def same(name):
        def patch(given):
            calls.append(given["transformer_options"]["block_index"])
            return given if name == "double_block" else given["x"]

        return patch

    def doubled(given):
        return given["x"] * 2

    def replace(given, extra):
        calls.append(sorted(given))
        return extra["original_block"](given)

    for name in ("double_block", "attn1_patch", "attn2_patch"):
        found[name] = {"gap": gap(predict(high, options=options(**{name: same(name)})), plain), "blocks": list(calls)}
    for name in ("attn1_patch", "attn2_patch"):
        found[name]["effect"] = gap(predict(high, options=options(**{name: doubled})), plain)
    replaced = {"patches_replace": {"dit": {("double_block", 1): replace}}}
    calls.clear()
    found["replace"] = {"gap": gap(predict(high, options=replaced), plain), "given": list(calls)}
    skipped = {"patches_replace": {"dit": {("double_block", 1): lambda given, extra: {"img": given["img"]}}}}
    found["replace"]["effect"] = gap(predict(high, options=skipped), plain)
    return found


@check
def rope_as_core():
    """Cosines and sines of ScaleROPE's options beside those of core's own Wan."""
    given = {"scale_t": 1.5, "scale_x": 0.5, "shift_y": 2.0, "shift_t": -1.0}
    grid, head_dim = (3, 4, 5), 32
    side = 2 * (head_dim // 6)
    embedder = EmbedND(dim=head_dim, theta=10000.0, axes_dim=[head_dim - 2 * side, side, side])
    like_core = SimpleNamespace(patch_size=(1, 1, 1), rope_embedder=embedder, dim=head_dim, num_heads=1)
    freqs = WanModel.rope_encode(like_core, *grid, transformer_options={"rope_options": given})
    wanted = freqs.flatten(0, 2).reshape(-1, head_dim // 2, 2, 2)
    cos, sin = rope_table(
        grid, head_dim, torch.device("cpu"), scale=HostModel.rope_scale(None, {"rope_options": given})
    )
    return max(gap(cos, wanted[..., 0, 0]), gap(sin, wanted[..., 1, 0]))


@check
def attention_override():
    high, _ = experts(NF4)
    calls = []

    def override(function, *arguments, **options):
        calls.append(options["heads"])
        return function(*arguments, **options)

    out = predict(high, options={"optimized_attention_override": override})
    return {"calls": len(calls), "gap": gap(out, predict(high))}


@check
def hooks_on_layers():
    """A forward hook, and a replaced forward, of another pack on one of our layers take part."""
    high, _ = experts(NF4)
    plain = predict(high)
    layer = high.model.diffusion_model.blocks[0].ffn[0]
    handle = layer.register_forward_hook(lambda module, arguments, out: out * 0)
    hooked = gap(predict(high), plain)
    handle.remove()
    original = layer.forward
    layer.forward = lambda x: original(x) * 0
    replaced = gap(predict(high), plain)
    del layer.forward
    return {"hooked": hooked, "replaced": replaced, "after": gap(predict(high), plain)}


@check
def memory():
    """Memory grows with rows and size, and is told in bytes."""
    high, _ = experts(NF4)
    small, large = (high.model.memory_required([2, 16, 3, 8, width]) for width in (12, 120))
    return {"small": small, "large": large}


report()
