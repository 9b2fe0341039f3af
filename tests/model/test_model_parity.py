"""The model against the official implementation's outputs."""

import numpy as np
import pytest
import torch
from lingbot_world.model.layers.rope import rope_table
from model_cases import golden_inputs, golden_model

ATOL = 3e-5
CASES = [
    (f"{expert}/t{step}/{name}", expert, step, camera, context)
    for expert in ("high", "low")
    for step in (999, 413)
    for name, camera, context in [("out_cam", True, "context"), ("out_nocam", False, "context")]
] + [
    (f"{expert}/t999/out_cam_{short}", expert, 999, True, context)
    for expert in ("high", "low")
    for short, context in [("fullctx", "context_full"), ("onectx", "context_one")]
]


@pytest.fixture(scope="module")
def models(golden):
    return {expert: golden_model(golden, expert) for expert in ("high", "low")}


@pytest.fixture(scope="module")
def inputs(golden):
    return golden_inputs(golden)


@pytest.fixture(scope="module")
def expected(golden):
    return np.load(golden / "model" / "expected.npz")


def close(actual, expected, atol=ATOL):
    np.testing.assert_allclose(actual.detach().numpy(), expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("key", "expert", "step", "camera", "context"), CASES, ids=[case[0] for case in CASES])
def test_velocity(models, inputs, expected, key, expert, step, camera, context):
    plucker = inputs["plucker"] if camera else None
    out = models[expert](inputs["latent"], torch.tensor([step]), inputs[context][None], plucker)
    close(out[0], expected[key])


@pytest.mark.parametrize("expert", ["high", "low"])
@pytest.mark.parametrize("step", [999, 413])
def test_first_block(models, inputs, expected, expert, step):
    model = models[expert]
    _, e0 = model.embed_time(torch.tensor([step]))
    context = model.embed_text(inputs["context"][None])
    camera = model.embed_camera(inputs["plucker"])
    rope = rope_table((3, 3, 4), model.config.head_dim, torch.device("cpu"))
    x = model.embed_patches(inputs["latent"])
    before = x.clone()
    out = model.blocks[0](x, e0, context, camera, rope, {})
    close(out, expected[f"{expert}/t{step}/block0_cam"])
    assert torch.equal(x, before), "a block called without inplace must leave its input alone"
    assert torch.equal(model.run_block(0, model.blocks[0], x, e0, context, camera, rope, {}), out)


def test_embeddings(models, inputs, expected):
    model = models["high"]
    e, e0 = model.embed_time(torch.tensor([999]))
    close(e.expand(36, -1)[None], expected["high/t999/dbg_e"])
    close(e0.flatten(1).expand(36, -1)[None], expected["high/t999/dbg_e0"])
    close(model.embed_text(inputs["context"][None]), expected["high/t999/dbg_ctx"])
    close(model.embed_camera(inputs["plucker"]).tokens, expected["high/t999/dbg_cam_emb"])
    patches = expected["high/t999/dbg_patch"].reshape(1, 64, -1).transpose(0, 2, 1)
    close(model.embed_patches(inputs["latent"]), patches)


def test_fp64_agrees_with_the_fp32_goldens_to_their_own_error(golden, expected):
    model, inputs = golden_model(golden, "low", torch.float64), golden_inputs(golden, torch.float64)
    out = model(inputs["latent"], torch.tensor([413]), inputs["context"][None], inputs["plucker"])
    assert out.dtype == torch.float64
    close(out[0], expected["low/t413/out_cam"], atol=3e-6)


@pytest.mark.parametrize("expert", ["high", "low"])
def test_bf16_is_as_close_as_the_official_autocast(golden, expected, expert):
    model, inputs = golden_model(golden, expert, torch.bfloat16), golden_inputs(golden)
    out = model(inputs["latent"], torch.tensor([999]), inputs["context"][None], inputs["plucker"])
    want = torch.from_numpy(expected[f"{expert}/t999/out_cam"])
    assert out.dtype == torch.float32
    error = (out[0] - want).square().mean().sqrt() / want.square().mean().sqrt()
    assert error < 7e-3
