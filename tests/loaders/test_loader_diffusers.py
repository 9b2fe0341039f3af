"""Packages in diffusers' layout: the same weights as in the official one, to the bit, and every command takes them."""

import json
import shutil

import numpy as np
import pytest
import torch
from diffusers_cases import tensors_of, transformer_name, vae_name, write_diffusers, write_official
from lingbot_world.errors import CheckpointError
from lingbot_world.headless.command.inspection import describe_model
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.loaders import find_package, load_expert, open_checkpoint
from lingbot_world.quantize import verify
from lingbot_world.text import encode
from lingbot_world.vae import decode_latent, load_vae, read_vae
from PIL import Image
from quantize_cases import run as run_quantize
from quantize_cases import silent
from rollout_run_cases import small_options
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def official(toy_package, tmp_path_factory):
    return write_official(tmp_path_factory.mktemp("official") / "lingbot_world_fast", toy_package)


@pytest.fixture(scope="module", params=["diffusers' names", "official names"])
def package(request, official, tmp_path_factory):
    root = tmp_path_factory.mktemp("diffusers") / "lingbot-world-fast-diffusers"
    return write_diffusers(root, official, renamed=request.param == "diffusers' names")


def test_every_part_is_found(package):
    for folder in (package, package / "transformer"):
        found = find_package(folder)
        assert (found.causal, found.experts) == (package / "transformer", None)
        assert (found.text_encoder, found.tokenizer, found.vae) == tuple(
            package / part for part in ("text_encoder", "tokenizer", "vae")
        )


def test_the_model_is_the_official_one_to_the_bit(package, official):
    ours, theirs = open_checkpoint(official.causal), open_checkpoint(package / "transformer")
    assert (theirs.config, theirs.shapes) == (ours.config, {name: theirs.shapes[name] for name in ours.shapes})
    assert len(theirs.files) == 3
    wanted = load_expert(ours, dtype=torch.float32).state_dict()
    got = load_expert(theirs, dtype=torch.float32).state_dict()
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_no_weight_is_copied(package):
    checkpoint = open_checkpoint(package / "transformer")
    state = load_expert(checkpoint, dtype=torch.bfloat16).state_dict()
    assert all(
        state[name].data_ptr() == entry.view().data_ptr()
        for name, entry in checkpoint.plain.items()
        if entry.dtype == torch.bfloat16
    )


def test_embeddings_are_the_official_ones_to_the_bit(package, official):
    prompts = ["a castle by the sea", ""]
    wanted = encode(prompts, official.text_encoder, official.tokenizer)
    got = encode(prompts, package / "text_encoder", package / "tokenizer")
    assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


def test_the_vae_is_the_official_one_to_the_bit(package, official):
    latent = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    assert read_vae(package / "vae").keys() == read_vae(official.vae).keys()
    wanted, got = (decode_latent(load_vae(path), latent) for path in (official.vae, package / "vae"))
    assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


def test_generate_makes_the_same_frames(package, toy_package, official, tmp_path):
    made, parts = [], {part: getattr(official, part) for part in ("text_encoder", "tokenizer", "vae")}
    for folder, given in ((official.causal, parts), (package, {})):
        output = tmp_path / folder.name / "*.png"
        options = small_options(toy_package, tmp_path, ckpt_dir=folder, frame_num=9, output=output, **given)
        run(make_plan(options))
        files = sorted((tmp_path / folder.name).glob("*.png"))
        made.append(np.stack([np.asarray(Image.open(file)) for file in files]))
    assert np.array_equal(*made)


def test_inspect_tells_every_part(package):
    told = describe_model(package, (48, 32), 9)
    assert "missing" not in told
    words = ("LingBot-World Fast", "1-of-00003.safetensors and 2 more", "text encoder: umt5", "VAE: Wan 2.1")
    assert all(word in told for word in words)


def test_quantize_makes_a_package_of_it(package, official, tmp_path):
    for t5 in (False, True):
        made = tmp_path / f"nf4-{t5}"
        run_quantize(package, made, t5=t5)
        found = find_package(made)
        assert (found.causal, found.vae, found.tokenizer) == (made, made / "vae", made / "tokenizer")
        assert (found.text_encoder.name == "text_encoder") is not t5
        checkpoint = open_checkpoint(made)
        assert (checkpoint.quantization, checkpoint.config.causal) == ("nf4", True)
        assert checkpoint.source == "lingbot-world-fast-diffusers"
        assert len(verify(made, silent)) == 3
    run_quantize(official.causal, tmp_path / "same")
    wanted = load_file(tmp_path / "same/model.safetensors")
    got = load_file(made / "model.safetensors")
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_a_text_encoder_in_shards_is_quantized_by_itself(package, tmp_path):
    run_quantize(package / "text_encoder", tmp_path / "t5")
    assert verify(tmp_path / "t5", silent)[0].kind == "umt5 text encoder, nf4, made from lingbot-world-fast-diffusers"


def test_a_shift_that_is_not_the_releases_is_said_and_not_taken(package, tmp_path):
    folder = shutil.copytree(package, tmp_path / package.name)
    told = (
        "The scheduler's config next to it has shift 3; taken is LingBot-World Fast's 10, unless `shift` names another."
    )
    for shift, lines in ((None, []), (10.0, []), ("x", []), (3, [told])):
        (folder / "scheduler/scheduler_config.json").write_text(json.dumps({"flow_shift": shift, "shift": 5}))
        assert open_checkpoint(folder / "transformer").release_lines[1:] == tuple(lines)


def test_a_config_of_other_sizes_is_named(package, tmp_path):
    (tmp_path / "transformer").mkdir()
    for file in (package / "transformer").iterdir():
        (tmp_path / "transformer" / file.name).write_bytes(file.read_bytes())
    config = json.loads((package / "transformer/config.json").read_text())
    for key, words in {"in_channels": "in_dim 16", "attention_head_dim": "dim "}.items():
        (tmp_path / "transformer/config.json").write_text(json.dumps(config | {key: 16}))
        with pytest.raises(CheckpointError, match=f"belongs to another model: .*{words}"):
            open_checkpoint(tmp_path / "transformer")


def test_another_models_transformer_is_named(official, tmp_path):
    tensors = {transformer_name(name): tensor for name, tensor in tensors_of(official.causal).items()}
    tensors["blocks.0.attn2.add_k_proj.weight"] = torch.zeros(4, 4)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="Wan 2.1 image-to-video"):
        open_checkpoint(tmp_path / "x.safetensors")


def test_a_vae_that_lacks_a_tensor_is_named(official, tmp_path):
    tensors = {vae_name(name): tensor.contiguous() for name, tensor in tensors_of(official.vae).items()}
    del tensors["decoder.up_blocks.1.resnets.0.conv_shortcut.bias"]
    save_file(tensors, tmp_path / "vae.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing: decoder.upsamples.4.shortcut.bias"):
        read_vae(tmp_path / "vae.safetensors")
