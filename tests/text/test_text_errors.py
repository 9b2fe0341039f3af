"""Each thing that can be wrong with a text encoder or tokenizer gives one error that says what."""

import json
import shutil

import pytest
import torch
from lingbot_world.errors import CheckpointError, DependencyError, TextError, require
from lingbot_world.text import encode, load_tokenizer
from safetensors.torch import load_file, save_file


class Malicious:
    def __reduce__(self):
        return print, ("ran",)


@pytest.fixture
def t5(golden):
    return golden / "t5"


@pytest.fixture
def tensors(t5):
    return load_file(t5 / "t5_encoder_fp32.safetensors")


@pytest.fixture
def refuses(t5):
    def check(path, *words, error=TextError):
        with pytest.raises(error) as caught:
            encode("a castle", path, t5 / "tokenizer")
        for word in (*words, str(path)):
            assert word in str(caught.value)

    return check


def test_missing_file(refuses, tmp_path):
    refuses(tmp_path / "nothing.pth", "no such file", error=CheckpointError)


@pytest.mark.parametrize("name", ["t5_encoder_fp32.safetensors", "t5_encoder_fp32.pth"])
def test_truncated_file(refuses, t5, tmp_path, name):
    data = (t5 / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    refuses(tmp_path / name, "truncated or corrupt", "download it again", error=CheckpointError)


def test_header_that_lies_about_its_size(refuses, t5, tmp_path):
    data = bytearray((t5 / "t5_encoder_fp32.safetensors").read_bytes())
    data[:8] = (2**40).to_bytes(8, "little")
    (tmp_path / "lie.safetensors").write_bytes(data)
    refuses(tmp_path / "lie.safetensors", "truncated or corrupt", error=CheckpointError)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF\x03\0\0\0" + bytes(64), "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (b"", "empty"),
        (b"<html><body>404", "web page"),
    ],
)
def test_other_formats(refuses, tmp_path, data, words):
    (tmp_path / "t5.safetensors").write_bytes(data)
    refuses(tmp_path / "t5.safetensors", words, error=CheckpointError)


def test_malicious_pickle(refuses, tensors, tmp_path, capsys):
    torch.save({**tensors, "extra": Malicious()}, tmp_path / "t5.pth")
    refuses(tmp_path / "t5.pth", "would run print", error=CheckpointError)
    assert "ran" not in capsys.readouterr().out


def test_old_pickle_format(refuses, tensors, tmp_path):
    torch.save(tensors, tmp_path / "t5.pth", _use_new_zipfile_serialization=False)
    refuses(tmp_path / "t5.pth", "zip format", "save it again", error=CheckpointError)


def test_a_pth_without_tensors(refuses, tmp_path):
    torch.save({"epoch": 3}, tmp_path / "t5.pth")
    refuses(tmp_path / "t5.pth", "dictionary of tensors", error=CheckpointError)


def test_an_expert_and_a_vae(refuses, golden, tmp_path):
    refuses(golden / "model" / "high_noise_model_fp32.safetensors", "video model")
    save_file(
        {"encoder.conv1.weight": torch.zeros(1), "decoder.conv1.weight": torch.zeros(1)}, tmp_path / "vae.safetensors"
    )
    refuses(tmp_path / "vae.safetensors", "VAE")
    save_file({"some.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    refuses(tmp_path / "other.safetensors", "some.weight")


def test_all_faults_in_one_message(refuses, tensors, tmp_path):
    del tensors["blocks.1.attn.q.weight"], tensors["norm.weight"]
    tensors["blocks.2.ffn.fc2.weight"] = torch.zeros(64, 100)
    save_file(tensors, tmp_path / "t5.safetensors")
    refuses(
        tmp_path / "t5.safetensors",
        "2 missing: blocks.1.attn.q.weight, norm.weight",
        "1 of another shape: blocks.2.ffn.fc2.weight [64, 100] (expected [64, 128])",
    )


def test_no_embedding_or_first_block(refuses, tensors, tmp_path):
    del tensors["token_embedding.weight"], tensors["blocks.0.attn.q.weight"]
    save_file(tensors, tmp_path / "t5.safetensors")
    refuses(tmp_path / "t5.safetensors", "token_embedding.weight", "blocks.0.attn.q.weight")


def test_a_plain_t5_with_one_position_bias(refuses, tensors, tmp_path):
    shared = {k: v for k, v in tensors.items() if "pos_embedding" not in k or k.startswith("blocks.0.")}
    save_file(shared, tmp_path / "t5.safetensors")
    refuses(tmp_path / "t5.safetensors", "plain T5 has one for all")


def test_shards(refuses, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm.weight": "gone.safetensors"}}))
    refuses(tmp_path, "gone.safetensors", error=CheckpointError)
    index.write_text("{")
    refuses(tmp_path, "not valid JSON", error=CheckpointError)
    index.unlink()
    refuses(tmp_path, "no weights in this folder", error=CheckpointError)


def test_tokenizer_larger_than_the_embedding(refuses, tensors, tmp_path):
    tensors["token_embedding.weight"] = tensors["token_embedding.weight"][:299]
    save_file(tensors, tmp_path / "t5.safetensors")
    refuses(tmp_path / "t5.safetensors", "300", "299")


def test_tokenizer_of_another_vocabulary(refuses, t5, tensors, tmp_path):
    """T5's and mT5's have fewer tokens than umt5's; an embedding's spare rows, however, are no fault."""
    rows = tensors["token_embedding.weight"]
    tensors["token_embedding.weight"] = rows.repeat(2, 1)
    save_file(tensors, tmp_path / "t5.safetensors")
    assert encode("a", tmp_path / "t5.safetensors", t5 / "tokenizer")
    tensors["token_embedding.weight"] = rows.repeat(5, 1)
    save_file(tensors, tmp_path / "t5.safetensors")
    refuses(tmp_path / "t5.safetensors", "300 tokens", "1500 rows", "do not belong together")


def test_tokenizer_not_found_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(TextError) as caught:
        load_tokenizer(tmp_path)
    for name in ("tokenizer.json", "spiece.model"):
        assert str(tmp_path / name) in str(caught.value)
        assert str(tmp_path / "google" / "umt5-xxl" / name) in str(caught.value)
    with pytest.raises(TextError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_corrupt_tokenizer(tmp_path, name):
    (tmp_path / name).write_bytes(b"{ nonsense")
    with pytest.raises(TextError, match=name):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_eos(t5, tmp_path):
    shutil.copy(t5 / "tokenizer" / "tokenizer.json", tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace("</s>", "</x>"), "utf-8")
    with pytest.raises(TextError, match="no </s>"):
        load_tokenizer(tmp_path)


def test_a_safetensors_file_without_a_tokenizer(t5):
    with pytest.raises(TextError, match="spiece_model"):
        load_tokenizer(t5 / "t5_encoder_fp32.safetensors")


def test_an_encoder_that_cannot_hold_a_tokenizer_is_not_read_as_one(t5):
    with pytest.raises(TextError, match="holds no tokenizer"):
        load_tokenizer(t5 / "t5_encoder_fp32.pth")


def test_a_missing_package_names_the_interpreter():
    with pytest.raises(DependencyError, match="-m pip install --upgrade no_such_package"):
        require("no_such_package")
