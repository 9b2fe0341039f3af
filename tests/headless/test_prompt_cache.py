"""Prompts of earlier runs, whose embeddings are in the user's cache."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.headless import prompt_cache, run, stages
from lingbot_world.headless.live.opening import LoadedModel, plan_live
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.prompt_cache import EmbeddingCache
from rollout_run_cases import frames_of
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """The folder in which embeddings are kept."""
    folder = tmp_path / "prompts"
    monkeypatch.setenv("LINGBOT_WORLD_PROMPTS", str(folder))
    return folder


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The prompts that a text encoder was asked for."""
    asked, encode = [], stages.encode

    def told(prompts, *arguments):
        asked.extend(prompts)
        return encode(prompts, *arguments)

    monkeypatch.setattr(stages, "encode", told)
    return asked


def test_a_prompt_of_before_needs_neither_encoder_nor_tokenizer(causal, kept, encoded, tmp_path, monkeypatch):
    run.run(make_plan(causal()))
    assert encoded == ["a castle"]
    monkeypatch.setattr("lingbot_world.headless.plan.load_tokenizer", None)
    run.run(make_plan(causal(output=tmp_path / "again" / "*.png")))
    assert encoded == ["a castle"]
    assert np.array_equal(frames_of(tmp_path / "again"), frames_of(tmp_path / "video"))
    monkeypatch.undo()
    assert len(list(kept.iterdir())) == 1


def test_what_is_kept_is_that_of_the_encoder_as_it_is_now(toy_package, causal, kept, encoded, tmp_path):
    """And of its arithmetic."""
    encoder = tmp_path / "encoder.pth"
    encoder.write_bytes((toy_package / "models_t5_umt5-xxl-enc-bf16.pth").read_bytes())
    for change, asked in (({}, 1), ({}, 1), ({"dtype": "fp32"}, 2), ({}, 2)):
        run.run(make_plan(causal(text_encoder=encoder, overwrite=True, **change)))
        assert len(encoded) == asked
    os.utime(encoder, (1, 1))
    run.run(make_plan(causal(text_encoder=encoder, overwrite=True)))
    assert len(encoded) == 3


def test_a_file_that_is_damaged_is_made_anew(causal, kept, encoded):
    run.run(make_plan(causal()))
    (file,) = kept.iterdir()
    good = file.read_bytes()
    for number, content in enumerate((b"", b"no embedding", None), 2):
        if content is None:
            save_file({"embedding": torch.full_like(load_file(file)["embedding"], torch.nan)}, file)
        else:
            file.write_bytes(content)
        run.run(make_plan(causal(overwrite=True)))
        assert encoded == number * ["a castle"]
        assert file.read_bytes() == good


def test_a_prompt_that_is_cut_is_told_of_each_time(causal, kept, caplog):
    for _ in range(2):
        caplog.clear()
        run.run(make_plan(causal(prompt="castle " * 600, overwrite=True)))
        assert "are cut off" in caplog.text
    assert not list(kept.glob("*"))


def test_the_prompts_used_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_cache, "MAX_PROMPTS", 2)
    cache = EmbeddingCache(tmp_path / "kept", "by me")
    for age, text in enumerate("abc"):
        cache.keep(text, torch.full((1, 2, 3), float(age)))
        os.utime(cache._file(text), (age, age))
    assert [cache.has(text) for text in "abc"] == [False, True, True]
    assert cache.find("b").tolist() == torch.full((1, 2, 3), 1.0).tolist()  # it is the newest now
    cache.keep("d", torch.zeros(1, 2, 3))
    assert [cache.has(text) for text in "abcd"] == [False, True, False, True]
    assert not list((tmp_path / "kept").glob("*.[0-9]*"))


def test_nothing_happens_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").touch()
    for folder in (None, tmp_path / "file"):
        cache = EmbeddingCache(folder, "")
        cache.keep("a", torch.zeros(1, 2, 3))
        assert not cache.has("a")
        assert cache.find("a") is None


def test_a_walk_that_begins_with_a_known_prompt_can_be_told_another(causal, kept, encoded):
    given = causal(frame_num=81, output="walks", action_path=None)
    for _ in range(2):
        opened = LoadedModel(plan_live(given))
    assert encoded == ["a castle"]
    assert isinstance(opened.plan.tokenizer, Path)
    first = opened.encode_prompt("a lake")
    assert encoded == ["a castle", "a lake"]
    assert torch.equal(LoadedModel(plan_live(given)).encode_prompt("a lake"), first)
    assert encoded == ["a castle", "a lake"]
