"""Files as other programs write them inside ComfyUI. Argument: a base directory laid out by the test."""

import sys
from pathlib import Path

from embed import embed

BASE = Path(sys.argv[1])
embed(base=str(BASE))

import asyncio  # noqa: E402

from lingbot_world import comfy_entrypoint  # noqa: E402

asyncio.run(asyncio.run(comfy_entrypoint()).get_node_list())

import torch  # noqa: E402
from common import check, report  # noqa: E402
from lingbot_world.host import folders  # noqa: E402
from lingbot_world.host.quantize import source_choices  # noqa: E402
from lingbot_world.nodes.load_models import LingBotWorldLoadCausal, LingBotWorldLoadVAE  # noqa: E402
from lingbot_world.nodes.text import LingBotWorldLoadTextEncoder, LingBotWorldTextEncode  # noqa: E402

OFFICIAL, DIFFUSERS = "official", "lingbot-world-fast-diffusers"
torch.set_num_threads(1)


@check
def choices():
    return {
        "causal": folders.causal_choices(), "experts": folders.expert_choices(), "vaes": folders.vae_choices(),
        "text encoders": folders.text_encoder_choices(), "tokenizers": folders.tokenizer_choices(),
        "sources": source_choices(),
    }  # fmt: skip


@check
def diffusers_model():
    """Whether the loader gives the official model's bits."""
    names = (f"{OFFICIAL}/lingbot_world_fast", f"{DIFFUSERS}/transformer")
    assert all(LingBotWorldLoadCausal.validate_inputs(name) is True for name in names)
    wanted, got = (LingBotWorldLoadCausal.execute(name, "fp32").result[0].model.diffusion_model.state_dict()
                   for name in names)  # fmt: skip
    return got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)


@check
def diffusers_text_encoder():
    """Whether both text nodes give the official embeddings' bits."""
    names = (f"{OFFICIAL}/models_t5_umt5-xxl-enc-bf16.pth", f"{DIFFUSERS}/text_encoder")
    assert all(LingBotWorldTextEncode.validate_inputs(name) is True for name in names)
    wanted, got = (LingBotWorldTextEncode.execute(name, "a castle", "").result[0][0][0] for name in names)
    clips = [LingBotWorldLoadTextEncoder.execute(name).result[0] for name in names]
    kept, same = (clip.encode_from_tokens(clip.tokenize("a castle")) for clip in clips)
    return torch.equal(got, wanted), torch.equal(kept, same)


@check
def diffusers_vae():
    names = (f"{OFFICIAL}/Wan2.1_VAE.pth", f"{DIFFUSERS}/vae")
    assert all(LingBotWorldLoadVAE.validate_inputs(name) is True for name in names)
    latent = torch.randn(1, 16, 2, 4, 6, generator=torch.manual_seed(0))
    wanted, got = (LingBotWorldLoadVAE.execute(name).result[0].decode(latent) for name in names)
    return torch.equal(got, wanted)


report()
