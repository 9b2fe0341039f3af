"""Weights in every dtype that safetensors knows: loaded, quantized and verified right, or refused in one line."""

import json
import math
import shutil

import pytest
import torch
from lingbot_world.errors import LingBotError
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.options import LoraFile
from lingbot_world.quantize import verify
from lingbot_world.text import encode
from lingbot_world.vae import decode_latent, load_vae, read_vae
from quantize_cases import run, silent
from safetensors.torch import load_file

pytestmark = pytest.mark.usefixtures("one_thread")
BITS = {4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ"}
BITS |= {16: "I16 U16 F16 BF16", 32: "I32 U32 F32", 64: "C64 F64 I64 U64"}
BITS = {name: bits for bits, names in BITS.items() for name in names.split()}
"""Every dtype of safetensors' format, and its bits."""
TORCH = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Those that weights may have."""
EVERY = pytest.mark.parametrize("dtype", BITS)


def save(file, tensors, dtype, fits=lambda _name, _tensor: True):
    """Write a safetensors file whose tensors that fit have that dtype; others stay float32."""
    header, data = {}, bytearray()
    for name, tensor in tensors.items():
        kind = dtype if fits(name, tensor) else "F32"
        values = tensor.float().contiguous()
        content = bytes(math.ceil(values.numel() * BITS[kind] / 8))
        if kind in TORCH:
            content = values.to(TORCH[kind]).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def attempt(dtype, do):
    """Its result for dtypes that weights may have; for others one line that names the file and says what to do."""
    if dtype in TORCH:
        return do()
    with pytest.raises(LingBotError) as caught:
        do()
    message = str(caught.value)
    assert "\n" not in message
    assert any(word in message for word in ("expected", "use ", "download", "give "))
    assert any(name in message for name in ("x.safetensors", "t5.safetensors", "vae.safetensors", "lora.safetensors"))
    return None


def near(got, want, dtype):
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < (0.35 if "F8" in dtype else 0.02)


@EVERY
@pytest.mark.parametrize("matrices", [False, True])
def test_an_expert(golden, tmp_path, dtype, matrices):
    plain = load_file(golden / "model/high_noise_model_fp32.safetensors")
    shutil.copy(golden / "model/config.json", tmp_path)
    file = save(tmp_path / "x.safetensors", plain, dtype, lambda _name, tensor: not matrices or tensor.ndim == 2)
    loaded = attempt(dtype, lambda: dict(load_expert(file, dtype=torch.float32).named_parameters()))
    attempt(dtype, lambda: verify(file, silent))
    attempt(dtype, lambda: run(file, tmp_path / "made"))
    if loaded is not None:
        made = dict(load_expert(tmp_path / "made", dtype=torch.float32).named_parameters())
        for name, tensor in plain.items():
            for found, error in ((loaded, 0.0), (made, 0.11)):
                value = found[name].decode(torch.float32) if hasattr(found[name], "decode") else found[name]
                want = tensor.to(TORCH[dtype]).float() if not matrices or tensor.ndim == 2 else tensor
                assert (value - want).norm() <= error * want.norm() + 4e-3 * want.norm() * bool(error), name


@EVERY
def test_a_lora(golden, tmp_path, dtype):
    plain = golden / "model/high_noise_model_fp32.safetensors"
    layer, generator = "blocks.1.ffn.0", torch.Generator().manual_seed(0)
    factors = {
        f"{layer}.lora_A.weight": torch.randn(4, 64, generator=generator),
        f"{layer}.lora_B.weight": torch.randn(128, 4, generator=generator),
    }
    file = save(tmp_path / "lora.safetensors", factors | {f"{layer}.diff_b": torch.ones(128)}, dtype)
    lora = LoraFile(file)
    model = attempt(dtype, lambda: load_expert(open_checkpoint(plain, [lora]), dtype=torch.float32))
    attempt(dtype, lambda: run(plain, tmp_path / "made", loras=(lora,)))
    if model is not None:
        wide = {name: tensor.to(TORCH[dtype]).float() for name, tensor in factors.items()}
        added = wide[f"{layer}.lora_B.weight"] @ wide[f"{layer}.lora_A.weight"]
        want = load_file(plain)[f"{layer}.weight"] + added
        made = load_expert(tmp_path / "made", dtype=torch.float32).get_parameter(f"{layer}.weight")
        assert torch.allclose(model.get_submodule(layer).changed_weight(torch.empty(0)), want, atol=1e-4)
        assert (made.decode(torch.float32) - want).norm() < 0.11 * want.norm()


@EVERY
@pytest.mark.parametrize("matrices", [False, True])
def test_a_text_encoder(golden, tmp_path, dtype, matrices):
    plain = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    file = save(tmp_path / "t5.safetensors", plain, dtype, lambda _name, tensor: not matrices or tensor.ndim == 2)

    def embed(path):
        return encode("A castle.", path, golden / "t5/tokenizer", dtype=torch.float32)[0]

    got = attempt(dtype, lambda: embed(file))
    attempt(dtype, lambda: verify(file, silent))
    attempt(dtype, lambda: run(file, tmp_path / "made"))
    if got is not None:
        near(got, embed(golden / "t5/t5_encoder_fp32.safetensors"), dtype)
        made = embed(tmp_path / "made/models_t5_umt5-xxl-enc-bnb_nf4.safetensors")
        assert torch.cosine_similarity(made, got, dim=1).mean() > 0.85


@EVERY
def test_a_vae(tmp_path, toy_package, dtype):
    plain = {name: tensor.float() for name, tensor in read_vae(toy_package / "Wan2.1_VAE.pth").items()}
    file = save(tmp_path / "vae.safetensors", plain, dtype)
    found = attempt(dtype, lambda: load_vae(file))
    if found is not None:
        latent = torch.randn(1, 16, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        want = decode_latent(load_vae({name: each.to(TORCH[dtype]).float() for name, each in plain.items()}), latent)
        assert torch.equal(decode_latent(found, latent), want)
