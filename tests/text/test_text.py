"""The umt5 encoder against the official implementation, its key names and file formats."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.text import NEGATIVE_PROMPT, Tokenizer, clean_prompt, encode, load_tokenizer
from lingbot_world.text.encoder import encode_ids
from lingbot_world.text.umt5 import bucket_of
from lingbot_world.text.weights import huggingface_key, open_weights, wan_key
from safetensors.torch import load_file, save_file

ATOL = 5e-5


@pytest.fixture(scope="module")
def t5(golden):
    return golden / "t5"


@pytest.fixture(scope="module")
def expected(t5):
    return np.load(t5 / "expected.npz")


@pytest.fixture(scope="module")
def prompts(t5):
    return json.loads((t5 / "tokenizer_golden.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tensors(t5):
    return load_file(t5 / "t5_encoder_fp32.safetensors")


def huggingface_names(tensors, prefix="encoder."):
    table = {
        "norm1.": "layer.0.layer_norm.",
        "attn.": "layer.0.SelfAttention.",
        "pos_embedding.embedding.": "layer.0.SelfAttention.relative_attention_bias.",
        "norm2.": "layer.1.layer_norm.",
        "ffn.gate.0.": "layer.1.DenseReluDense.wi_0.",
        "ffn.fc1.": "layer.1.DenseReluDense.wi_1.",
        "ffn.fc2.": "layer.1.DenseReluDense.wo.",
    }
    named = {"shared.weight": tensors["token_embedding.weight"]}
    named[prefix + "final_layer_norm.weight"] = tensors["norm.weight"]
    for key, tensor in tensors.items():
        if key.startswith("blocks."):
            _, number, rest = key.split(".", 2)
            ours = next(ours for ours in table if rest.startswith(ours))
            named[f"{prefix}block.{number}.{table[ours]}{rest.removeprefix(ours)}"] = tensor
    return named


def close(actual, wanted, atol=ATOL):
    torch.testing.assert_close(actual, torch.as_tensor(wanted), rtol=0, atol=atol)


def test_cleaning_and_ids_are_the_official_ones(t5, prompts):
    tokenizer = load_tokenizer(t5 / "tokenizer")
    for case in prompts:
        assert clean_prompt(case["text"]) == case["cleaned"]
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert len(tokenizer.to_ids(clean_prompt(case["text"]))) + 1 == case["untruncated_length"]


def test_sentencepiece_gives_the_same_ids_but_for_special_literals(t5, prompts, caplog):
    caplog.set_level("INFO")
    tokenizer = load_tokenizer(t5 / "tokenizer" / "spiece.model")
    assert "may differ" in caplog.text
    for case in prompts:
        assert (tokenizer.encode(case["text"]) == case["ids"]) is case["raw_sentencepiece_gives_same_ids"]


def test_a_long_prompt_is_cut_with_a_warning_that_counts(t5, prompts, caplog):
    case = next(case for case in prompts if case["untruncated_length"] > 512)
    ids = load_tokenizer(t5 / "tokenizer").encode(case["text"])
    assert len(ids) == 512
    assert ids[-1] == 1
    assert str(case["untruncated_length"]) in caplog.text


def test_512_tokens_with_the_eos_fit_and_513_do_not(caplog):
    tokenizer = Tokenizer("letters", lambda text: [ord(letter) for letter in text], eos=1, vocab_size=128)
    assert tokenizer.encode("a" * 511) == [97] * 511 + [1]
    assert not caplog.records
    assert tokenizer.encode("a" * 512) == [97] * 511 + [1]
    assert "513 tokens" in caplog.text


def test_position_buckets(expected):
    relative = torch.as_tensor(expected["relative_position"])
    assert torch.equal(bucket_of(relative, 32), torch.as_tensor(expected["relative_position_bucket"]).long())


@pytest.mark.parametrize("name", ["t5_encoder_fp32.safetensors", "t5_encoder_fp32.pth"])
def test_padded_official_rows_from_real_tokens_only(t5, expected, name):
    ids = [
        row[mask.astype(bool)].tolist() for row, mask in zip(expected["short/ids"], expected["short/mask"], strict=True)
    ]
    weights = open_weights(t5 / name)
    for i, out in enumerate(encode_ids(ids, weights, dtype=torch.float32)):
        close(out, expected[f"short/out_{i}"])
    (out,) = encode_ids(expected["long/ids"].tolist(), weights, dtype=torch.float32)
    close(out, expected["long/out_0"])


def test_prompts_to_embeddings(t5, expected, prompts):
    texts = [case["text"] for case in prompts]
    outs = encode(texts, t5 / "t5_encoder_fp32.pth", t5 / "tokenizer", dtype=torch.float32)
    for i, out in enumerate(outs):
        close(out, expected[f"prompt/{i}"])


def test_an_encoder_and_a_tokenizer_that_are_open_serve_again(t5, expected, prompts):
    weights, tokenizer = open_weights(t5 / "t5_encoder_fp32.safetensors"), load_tokenizer(t5 / "tokenizer")
    for case in range(2):
        (out,) = encode(prompts[case]["text"], weights, tokenizer, dtype=torch.float32)
        close(out, expected[f"prompt/{case}"])


def test_of_several_files_in_a_folder_the_t5_is_taken(t5, expected, prompts, tmp_path):
    (tmp_path / "models_t5.pth").write_bytes((t5 / "t5_encoder_fp32.pth").read_bytes())
    save_file({"other": torch.zeros(1)}, tmp_path / "vae.safetensors")
    (out,) = encode(prompts[0]["text"], tmp_path, t5 / "tokenizer", dtype=torch.float32)
    close(out, expected["prompt/0"])


def test_an_empty_prompt_is_one_eos(t5):
    (out,) = encode("", t5 / "t5_encoder_fp32.safetensors", t5 / "tokenizer")
    assert out.shape == (1, 64)


def test_prompts_do_not_see_each_other(t5):
    encoder, tokenizer = t5 / "t5_encoder_fp32.safetensors", load_tokenizer(t5 / "tokenizer")
    both = encode(["a castle", NEGATIVE_PROMPT], encoder, tokenizer, dtype=torch.float32)
    (alone,) = encode(["a castle"], encoder, tokenizer, dtype=torch.float32)
    assert torch.equal(both[0], alone)


@pytest.mark.parametrize("prefix", ["encoder.", ""])
def test_hugging_face_names(t5, expected, prompts, tensors, tmp_path, prefix):
    named = huggingface_names(tensors, prefix)
    spiece = torch.frombuffer(bytearray((t5 / "tokenizer" / "spiece.model").read_bytes()), dtype=torch.uint8)
    file = tmp_path / "umt5.safetensors"
    save_file({**named, "spiece_model": spiece, "decoder.block.0.layer.0.layer_norm.weight": torch.ones(64)}, file)
    (out,) = encode(prompts[0]["text"], file, file, dtype=torch.float32)
    close(out, expected["prompt/0"])


def test_a_sharded_folder(t5, expected, prompts, tensors, tmp_path):
    names = sorted(named := huggingface_names(tensors))
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, keys in shards.items():
        save_file({key: named[key] for key in keys}, tmp_path / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (out,) = encode(prompts[0]["text"], tmp_path, t5 / "tokenizer", dtype=torch.float32)
    close(out, expected["prompt/0"])


@pytest.mark.parametrize("suffix", [".scale_weight", ".weight_scale"])
def test_scaled_fp8_weights(t5, tensors, tmp_path, suffix):
    """Equal to the encoder whose weights were rounded to fp8 beforehand."""
    scaled, rounded = {"scaled_fp8": torch.empty(2, dtype=torch.float8_e4m3fn)}, {}
    for key, tensor in tensors.items():
        if ".attn." in key or ".ffn." in key:
            scale = tensor.abs().max() / 448
            scaled[key] = (tensor / scale).to(torch.float8_e4m3fn)
            scaled[key.replace(".weight", suffix)] = scale
            rounded[key] = scaled[key].float() * scale
    save_file({**tensors, **scaled}, tmp_path / "fp8.safetensors")
    save_file({**tensors, **rounded}, tmp_path / "rounded.safetensors")
    outs = [
        encode("a castle", tmp_path / name, t5 / "tokenizer", dtype=torch.float32)[0]
        for name in ("fp8.safetensors", "rounded.safetensors")
    ]
    close(*outs, atol=1e-5)


def test_bf16_stays_near_fp32(t5):
    encoder, tokenizer = t5 / "t5_encoder_fp32.safetensors", t5 / "tokenizer"
    (exact,) = encode("a castle on a hill", encoder, tokenizer, dtype=torch.float32)
    (rough,) = encode("a castle on a hill", encoder, tokenizer, dtype=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert ((rough - exact).norm() / exact.norm()).item() < 1e-2


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_grad_modes(t5, mode):
    with mode():
        (out,) = encode("a castle", t5 / "t5_encoder_fp32.safetensors", t5 / "tokenizer")
    assert not out.requires_grad


def test_progress_counts_blocks_and_its_exception_stops_at_once(t5):
    calls = []
    encode("a castle", t5 / "t5_encoder_fp32.safetensors", t5 / "tokenizer", progress=lambda *call: calls.append(call))
    assert calls == [(1, 3), (2, 3), (3, 3)]

    def interrupt(done, total):
        calls.append(done)
        raise KeyboardInterrupt

    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        encode("a castle", t5 / "t5_encoder_fp32.safetensors", t5 / "tokenizer", progress=interrupt)
    assert calls == [1]


def test_block_tensors_are_views_of_the_mapped_file(t5):
    weights = open_weights(t5 / "t5_encoder_fp32.safetensors")
    views = [entry.view() for entry in weights.block(1)]
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("reads /proc")
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in maps.read_text().splitlines()
        if "t5_encoder_fp32.safetensors" in line
    ]
    for view in views:
        assert any(low <= view.data_ptr() < high for low, high in ranges)


def test_key_names():
    assert wan_key("encoder.block.7.layer.1.DenseReluDense.wi_0.weight") == "blocks.7.ffn.gate.0.weight"
    assert wan_key("encoder.block.7.layer.0.SelfAttention.q.weight_scale") == "blocks.7.attn.q.weight_scale"
    assert wan_key("decoder.block.7.layer.0.SelfAttention.q.weight") is None
    assert wan_key("lm_head.weight") is None


def test_key_names_go_both_ways(tensors):
    named = huggingface_names(tensors)
    assert {huggingface_key(key) for key in tensors} == set(named)
    assert {huggingface_key(key) for key in named} == set(named)
    assert huggingface_key("scaled_fp8") == "scaled_fp8"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_equals_the_cpu(t5, prompts):
    args = ([case["text"] for case in prompts[:3]], t5 / "t5_encoder_fp32.pth", t5 / "tokenizer")
    for gpu, cpu in zip(
        encode(*args, device="cuda", dtype=torch.float32), encode(*args, dtype=torch.float32), strict=True
    ):
        close(gpu.cpu(), cpu)
