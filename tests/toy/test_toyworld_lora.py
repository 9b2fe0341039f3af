"""The toy's LoRA for night changes the look by its strength: merged and quantized, and by ComfyUI on 4 bits."""

import json
import shutil

import numpy as np
import pytest
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.loaders.lora import read_loras
from lingbot_world.loaders.package import open_experts
from lingbot_world.options import LoraFile, PerExpert
from lingbot_world.pipeline import sample
from lingbot_world.pipeline.geometry import image_conditioning
from lingbot_world.quantize.writer import config_json, write_json
from lingbot_world.text import encode
from lingbot_world.tools.toyworld.lora import LORA_SHAPES, with_lora
from lingbot_world.tools.toyworld.render import HEIGHT, LENS, WIDTH, night, render
from lingbot_world.tools.toyworld.rooms import random_scenes
from lingbot_world.toy import write_toy_world
from lingbot_world.toy.experts import write_expert
from lingbot_world.vae import decode_latent, encode_first_frame, load_vae
from PIL import Image
from quantize_cases import run
from toy_prompt import ToyPrompt, toy_prompt

FRAMES, STEPS = 9, 8


def test_half_a_night_is_half_way_and_a_whole_one_dark_and_blue():
    day = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert torch.allclose(night(day, 0.0), day, atol=1e-6)
    assert torch.allclose(night(day, 0.5), (day + night(day)) / 2, atol=1e-6)
    red, green, blue = ((night(torch.full((3, 1, 1), 0.0)) + 1) / 2).flatten().tolist()
    assert red < green < blue < 0.4


def test_what_is_trained_is_what_the_quantizer_merges(tmp_path):
    folder = write_toy_world(tmp_path)
    checkpoint = open_checkpoint(folder / "high_noise_model_bnb_nf4")
    changes = read_loras([LoraFile(folder / "loras/night/night_high.safetensors", 0.5)], checkpoint.shapes)
    assert {f"{name.removesuffix('.weight')}.lora_A.weight" for name in changes} <= set(LORA_SHAPES)
    halves = {key: torch.randn(shape) for key, shape in LORA_SHAPES.items()}
    weights = {name: torch.zeros(shape) for name, shape in checkpoint.shapes.items()}
    assert {name for name, weight in with_lora(weights, halves, 0.5).items() if weight.any()} == set(changes)


def assert_night(day, dusk, dark):
    """Mean colours [3], 0 to 1: `dark` is three fifths or more of the way from `day` to night, and `dusk` is half-way
    between the two."""
    wanted = (night(day.float()[:, None, None] * 2 - 1) + 1).flatten() / 2
    assert (day - wanted).min() > 0.1, "day is far from night"
    share = (day - dark) / (day - wanted)
    assert ((share > 0.6) & (share < 1.3)).all(), (day, dark, wanted)
    assert (dusk - (day + dark) / 2).abs().max() < 0.04, (dusk, day, dark)


class World:
    """The package with its experts in bf16, as the quantizer takes them, and a scene by day."""

    def __init__(self, folder):
        self.folder = write_toy_world(folder / "toy")
        self.plain = folder / "plain"
        for name in ("high", "low"):
            plain_expert(self.folder / f"{name}_noise_model_bnb_nf4", self.plain / f"{name}_noise_model")
        self.vae = load_vae(self.folder / "Wan2.1_VAE.pth")
        self.path = preset_path("truck_right", frames=FRAMES, amount=0.4).c2w
        scene = random_scenes(1, 2_000_000_033)
        self.image = render(scene.rooms, scene.c2w[:, :1])[0, 0]
        text = self.folder / "models_t5_umt5-xxl-enc-bf16.pth"
        self.prompt = encode(scene.rooms.captions(), text, self.folder)[0][None]

    def loras(self, strength):
        files = ((name, self.folder / f"loras/night/night_{name}.safetensors") for name in ("high", "low"))
        return tuple(LoraFile(file, strength, name) for name, file in files)

    def mean_colour(self, package, loras=()):
        """Of all frames of a package's video, red, green and blue from 0 to 1."""
        paths = PerExpert(*(package / f"{name}_noise_model_bnb_nf4" for name in ("high", "low")))
        experts = (load_expert(expert, dtype=torch.float32) for expert in open_experts(paths, loras))
        latent = encode_first_frame(self.vae, self.image, FRAMES)
        camera = camera_embedding(self.path, LENS, frames=FRAMES, height=HEIGHT, width=WIDTH)
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(1))
        made = sample(
            *experts,
            noise,
            image_conditioning(latent),
            self.prompt,
            None,
            camera,
            steps=STEPS,
            shift=5.0,
            guide_scale=1.0,
        )
        return decode_latent(self.vae, made).float().mean((0, 1, 2)) / 255


def plain_expert(source, folder):
    """A 4-bit expert's folder with the same weights in bf16."""
    config = open_checkpoint(source).config
    model = load_expert(source, dtype=torch.float32)
    for layer in model.modules():
        if hasattr(getattr(layer, "weight", None), "decode"):
            layer.weight = torch.nn.Parameter(layer.weight.decode(torch.float32), requires_grad=False)
    tensors = dict(model.named_parameters())
    folder.mkdir(parents=True)
    write_expert(folder / "diffusion_pytorch_model.safetensors", config, tensors.items(), quant_type=None)
    write_json(folder / "config.json", config_json(config))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield World(tmp_path_factory.mktemp("night"))
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_quantized_with_the_lora_the_toy_makes_night_at_1_and_half_of_it_at_a_half(world, tmp_path):
    run(world.plain, tmp_path / "none")
    colours = {}
    for strength in (0.0, 0.5, 1.0):
        run(world.plain, tmp_path / str(strength), loras=world.loras(strength))
        colours[strength] = world.mean_colour(tmp_path / str(strength))
    for name in ("high", "low"):
        files = (tmp_path / made / f"{name}_noise_model_bnb_nf4/model.safetensors" for made in ("none", "0.0"))
        assert len({file.read_bytes() for file in files}) == 1, "strength 0 is no LoRA, to the byte"
    assert_night(*colours.values())


@pytest.mark.slow
def test_on_4_bit_weights_the_lora_makes_night_as_it_does_merged(world):
    assert_night(*(world.mean_colour(world.folder, world.loras(strength)) for strength in (0.0, 0.5, 1.0)))


def room_prompt(strength):
    """The toy workflow on the trained package `rooms`, with the LoRAs behind its experts; it saves its frames."""
    text = json.dumps(toy_prompt()).replace("toy/", "rooms/").replace('"toy"', '"rooms"')
    prompt = ToyPrompt(json.loads(text)).set("LoadImage", image="room.png")
    prompt = prompt.set("LingBotWorldPrepareImage", width=WIDTH, height=HEIGHT)
    for slot, side in enumerate(("high_noise", "low_noise")):
        name = f"night_{side.removesuffix('_noise')}.safetensors"
        prompt = prompt.add(
            side,
            "LoraLoaderModelOnly",
            model=prompt.link("LingBotWorldLoadExperts", slot),
            lora_name=name,
            strength_model=strength,
        )
        prompt = prompt.set("LingBotWorldSampler", **{side: [side, 0]})
    return prompt.add("frames", "SaveImage", images=prompt.link("VAEDecode"), filename_prefix="night/frame")


@pytest.mark.host
@pytest.mark.slow
def test_comfyuis_lora_loader_makes_night_of_the_4_bit_toy(comfy_server):
    models = comfy_server.base / "models"
    rooms = write_toy_world(models / "lingbot_world" / "rooms")
    listed = models / "lingbot_world/toy/loras/night"  # by ComfyUI's own loader, though the toy is no folder of LoRAs
    shutil.copytree(rooms / "loras/night", listed, dirs_exist_ok=True)
    shutil.copy(rooms / "example/image.png", comfy_server.base / "input" / "room.png")
    colours = {}
    for strength in (0.0, 0.5, 1.0):
        queued = comfy_server.queue(room_prompt(strength), timeout=600)
        files = [path for path in queued.files(comfy_server.base / "output") if path.suffix == ".png"]
        assert len(files) == FRAMES
        colours[strength] = np.mean([np.asarray(Image.open(file)) / 255 for file in files], (0, 1, 2))
    assert_night(*map(torch.from_numpy, colours.values()))
