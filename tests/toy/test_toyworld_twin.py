"""What is trained is what the engine runs: the training's forwards against the engine's."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv.cache import KeyValueCache
from lingbot_world.options import Window
from lingbot_world.tools.toyworld.camera_map import camera_patches, ray_patches
from lingbot_world.tools.toyworld.coder import decode, encode
from lingbot_world.tools.toyworld.parameters import Parameters
from lingbot_world.tools.toyworld.paths import random_paths
from lingbot_world.tools.toyworld.render import LENS
from lingbot_world.tools.toyworld.twin import causal_velocity, velocity
from lingbot_world.vae import encode_first_frame, load_vae
from lingbot_world.vae.network import Decoder
from lingbot_world.vae.weights import vae_shapes

CONFIG = ModelConfig(dim=96, ffn_dim=128, num_heads=2, num_layers=2, freq_dim=64, text_dim=32)


def random_parameters(shapes, seed=0):
    parameters = Parameters.random(shapes, seed, torch.device("cpu"))
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(seed))
    return parameters


@pytest.mark.parametrize(("dtype", "words"), [(torch.float32, 7), (torch.float32, 12), (torch.bfloat16, 7)])
def test_the_velocity_is_the_engines(dtype, words):
    weights = random_parameters(CONFIG.parameter_shapes()).named()
    model = LingBotWorldModel(CONFIG, dtype=torch.float32)
    model.load_state_dict(weights)
    model.compute_dtype = dtype
    random = torch.Generator().manual_seed(2)
    x, context = torch.randn(2, 36, 3, 4, 6, generator=random), torch.randn(2, words, 32, generator=random)
    camera = torch.randn(2, 384, 3, 4, 6, generator=random)
    timestep = torch.tensor([37.0, 951.0])
    patches = camera.view(2, 384, 3, 2, 2, 3, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(2, 18, 1536)
    wanted = model(x, timestep, context, camera)
    got = velocity(weights, CONFIG, x, timestep, context, patches, dtype)
    assert wanted.std() > 0.1
    assert (got - wanted).abs().max() < (1e-4 if dtype == torch.float32 else 0.05) * wanted.abs().max()


def test_the_causal_velocity_is_that_of_the_engines_rollout():
    """The engine goes chunk by chunk, with a forward of each clean chunk in between; the training goes at once."""
    config = replace(CONFIG, causal=True)
    weights = random_parameters(config.parameter_shapes()).named()
    model = LingBotWorldModel(config, dtype=torch.float32)
    model.load_state_dict(weights)
    random = torch.Generator().manual_seed(3)
    clean, noisy = torch.randn(2, 1, 36, 9, 4, 6, generator=random)
    context, camera = torch.randn(1, 7, 32, generator=random), torch.randn(1, 384, 9, 4, 6, generator=random)
    patches = camera.view(1, 384, 9, 2, 2, 3, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(1, 54, 1536)
    timesteps = torch.tensor([[900.0] * 3 + [500.0] * 3 + [20.0] * 3])
    got = causal_velocity(weights, config, clean[:, :, :6], noisy, timesteps, context, patches)
    last = causal_velocity(weights, config, clean[:, :, :6], noisy[:, :, 6:], timesteps[:, 6:], context, patches)
    torch.testing.assert_close(last, got[:, :, 6:], atol=1e-5, rtol=1e-5)
    history = KeyValueCache(config, 6, Window(9), device=torch.device("cpu"), dtype=torch.float32)
    for chunk in range(3):
        part = slice(3 * chunk, 3 * chunk + 3)
        history.begin()
        options = {"kv_cache": history}
        wanted = model(noisy[:, :, part], timesteps[:, 3 * chunk], context, camera[:, :, part], options)
        assert (got[:, :, part] - wanted).abs().max() < 1e-4 * wanted.abs().max()
        history.keep = True
        model(clean[:, :, part], torch.zeros(1), context, camera[:, :, part], options)
        history.keep = False


def test_gradients_reach_every_parameter():
    parameters = random_parameters(replace(CONFIG, num_layers=1).parameter_shapes())
    parameters.flat.requires_grad_()
    x, patches = torch.randn(1, 36, 2, 2, 2), torch.randn(1, 2, 1536)
    velocity(
        parameters.named(), replace(CONFIG, num_layers=1), x, torch.tensor([500.0]), torch.randn(1, 3, 32), patches
    ).square().mean().backward()
    cut = Parameters(parameters.shapes, parameters.flat.grad).named()
    assert {name for name, gradient in cut.items() if not gradient.any()} == set()


def test_the_camera_is_the_engines():
    paths = random_paths(12, torch.Generator().manual_seed(4), frames=9)
    got = camera_patches(paths[:, ::4], ray_patches(32, 48))
    for path, patches in zip(paths, got, strict=True):
        wanted = camera_embedding(path.double().numpy(), LENS, frames=9, height=32, width=48)
        wanted = wanted.view(384, 3, 2, 2, 3, 2).permute(1, 2, 4, 0, 3, 5).reshape(18, 1536)
        torch.testing.assert_close(patches, wanted, atol=2e-5, rtol=0)


def test_the_coder_is_the_engines_vae():
    weights = {name: tensor.detach() for name, tensor in random_parameters(vae_shapes(4), 3).named().items()}
    vae, frames = load_vae(weights), 13
    image = torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(1))
    video = torch.zeros(1, frames, 16, 24, 3)
    video[0, 0] = image.permute(1, 2, 0)
    latent = encode(weights, video)[..., :16]
    normalised = torch.stack([vae.normalized(frame.permute(0, 3, 1, 2)) for frame in latent.unbind(1)], 2)
    torch.testing.assert_close(normalised, encode_first_frame(vae, image, frames), atol=1e-4, rtol=1e-4)
    decoder, wanted = Decoder(vae.weights), []
    for frame in latent.unbind(1):
        wanted += decoder.decode(frame.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last))
    got = decode(weights, latent).permute(0, 1, 4, 2, 3)[0]
    torch.testing.assert_close(got, torch.cat(wanted), atol=1e-4, rtol=1e-4)
