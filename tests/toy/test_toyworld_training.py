"""The training of the toy at its tiniest: what each part is to do, and one whole run on the CPU."""

import argparse
import json
import runpy
import sys
import tarfile
from itertools import pairwise

import pytest
import torch
from lingbot_world.loaders import find_package, open_checkpoint
from lingbot_world.loaders.lora import read_loras
from lingbot_world.options import BOUNDARY, LoraFile
from lingbot_world.text import load_tokenizer
from lingbot_world.tools.toyworld import causal, causal_training, evaluate, lora, pack
from lingbot_world.tools.toyworld.coder import decode, latent_mean
from lingbot_world.tools.toyworld.coder_training import DECODER_SHAPES, SHAPES, normalised, train_decoder, videos
from lingbot_world.tools.toyworld.expert_training import noise_levels
from lingbot_world.tools.toyworld.fit import Log, Phase, learning_rate
from lingbot_world.tools.toyworld.pack import LORAS, compressed, quantized_package
from lingbot_world.tools.toyworld.parameters import Parameters, load_weights, save_weights
from lingbot_world.tools.toyworld.pool import normal
from lingbot_world.tools.toyworld.prompts import EMPTY, NEGATIVE, TEXT_TOKENS, draw, prompts, write_text_files
from lingbot_world.tools.toyworld.rooms import CAPTIONS
from lingbot_world.tools.toyworld.settings import CONFIG, EXPERTS, MODELS, TINY
from lingbot_world.tools.toyworld.shipped import shipped, write_checkpoints
from lingbot_world.tools.toyworld.team import Team
from lingbot_world.toy import world
from lingbot_world.toy.causal import expert_weights

CPU = torch.device("cpu")


def test_a_normalised_coder_has_the_same_pictures_and_latents_of_mean_0_and_deviation_1():
    before = Parameters.random(SHAPES, 1, CPU)
    after = normalised(before, Team(CPU, (0,), 0), TINY, seed=5)
    clips = videos(TINY.videos, 5, TINY, CPU).float() / 127.5 - 1
    old, new = latent_mean(before.named(), clips), latent_mean(after.named(), clips)
    channels = normal(new).movedim(1, 0).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(16), atol=1e-3, rtol=0)
    torch.testing.assert_close(channels.std(1), torch.ones(16), atol=1e-2, rtol=0)
    torch.testing.assert_close(decode(after.named(), new), decode(before.named(), old), atol=1e-3, rtol=1e-3)


def test_a_decoder_that_is_trained_on_leaves_the_latents_as_they_are():
    start = Parameters.random(SHAPES, 1, CPU)
    before = {name: tensor.detach().clone() for name, tensor in start.named().items()}
    after = train_decoder(start, Team(CPU, (0,), 0), Phase(1, 2), TINY, 3, 1.0, Log(None, 0.0)).named()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed
    assert changed <= set(DECODER_SHAPES)
    clips = videos(1, 5, TINY, CPU).float() / 127.5 - 1
    assert torch.equal(latent_mean(after, clips), latent_mean(before, clips))


def test_each_expert_learns_the_noise_levels_at_which_it_is_asked():
    share = torch.linspace(0, 1, 101)
    high, low = noise_levels(True, share), noise_levels(False, share)
    assert high.min() == pytest.approx(BOUNDARY)
    assert low.max() == pytest.approx(BOUNDARY)
    assert high.max() == pytest.approx(1)
    assert low.min() == 0


def test_the_prompts_are_known_to_the_tokenizer_and_drawn_as_said(tmp_path):
    write_text_files(tmp_path)
    tokenizer, known = load_tokenizer(tmp_path), prompts()
    for prompt in (known[NEGATIVE], known[EMPTY], known[0], known[-1]):
        assert [*tokenizer.to_ids(prompt), tokenizer.eos] == tokenizer.encode(prompt)
    assert max(len(tokenizer.to_ids(prompt)) + 1 for prompt in known) < TEXT_TOKENS
    drawn = draw(torch.full((4000,), 7))
    assert 0.7 < ((drawn < NEGATIVE).float().mean()) < 0.8
    assert {known[index] for index in drawn[drawn < NEGATIVE].tolist()} >= {CAPTIONS[7]}
    assert 0.07 < (drawn == NEGATIVE).float().mean() < 0.13


def test_the_learning_rate_rises_is_held_and_falls():
    shares = [learning_rate(step, step / 1000, 0.5) for step in range(1001)]
    assert shares[0] == pytest.approx(0.01)
    assert shares[100:501] == [1.0] * 401
    assert all(later < before for before, later in pairwise(shares[501:]))
    assert shares[-1] == pytest.approx(0.02)
    assert learning_rate(500, 0.5, 0.0) == pytest.approx(0.51)


def test_a_checkpoint_that_is_being_written_leaves_the_one_before(tmp_path, monkeypatch):
    file = tmp_path / "low.pt"
    save_weights({"a": torch.ones(2)}, file)

    def stopped(_tensors, path):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_weights({"a": torch.zeros(2)}, file)
    assert torch.equal(load_weights(file)["a"], torch.ones(2))


def test_what_is_shipped_can_be_trained_on(tmp_path):
    write_checkpoints(tmp_path)
    low, high, vae = shipped(CPU)
    for name, weights in (("low", low), ("high", high), ("vae", vae)):
        written, dtype = load_weights(tmp_path / f"{name}.pt"), torch.float if name == "vae" else torch.bfloat16
        assert all(torch.equal(written[key], weight.to(dtype).float()) for key, weight in weights.items())
    assert all(file.stat().st_size < 16e6 for file in tmp_path.iterdir())
    Parameters.of(load_weights(tmp_path / "low.pt"), CONFIG.parameter_shapes(), CPU)
    Parameters.of(load_weights(tmp_path / "vae.pt"), SHAPES, CPU)
    Parameters.of(load_weights(tmp_path / "causal.pt"), causal_training.SHAPES, CPU)


def training():
    """`python -m lingbot_world.tools.toyworld`, with torch imported."""
    runpy.run_module("lingbot_world.tools.toyworld", run_name="__main__")


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (training, ["--resume", "absent"], "--resume absent: none of vae.pt, high.pt, low.pt in it"),
        (training, ["--vae_minutes", "0"], "--vae_minutes 0: vae.pt is taken from --resume"),
        (training, ["--expert_minutes", "0"], "--expert_minutes 0: high.pt and low.pt"),
        (causal.main, ["--resume", "absent"], "--resume absent: no causal.pt in it"),
        (causal.main, ["--package", "absent"], "--package absent: no such folder"),
        (causal.main, ["--package", "."], ".: no low_noise_model_bnb_nf4 and no high_noise_model_bnb_nf4"),
        (pack.main, ["dest"], "out: no such folder"),
        (pack.main, ["dest", "--bf16", "--shipped"], "--shipped: not allowed with argument --bf16"),
        (evaluate.main, [], "out: no such folder"),
        (evaluate.main, ["--only", "blah"], "invalid choice: 'blah' (choose from"),
        (lora.main, [], "out: no such folder"),
    ],
)
def test_what_is_to_be_taken_and_is_not_there_is_said_first(tmp_path, monkeypatch, capsys, main, words, message):
    monkeypatch.setattr(sys, "argv", ["toyworld", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("main", "words"), [(pack.main, ["dest"]), (evaluate.main, []), (lora.main, [])])
def test_what_a_folder_of_checkpoints_lacks_is_said(tmp_path, monkeypatch, capsys, main, words):
    save_weights({}, tmp_path / "vae.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["toyworld", ".", *words])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith(".: no high.pt and no low.pt in it\n")
    assert [file.name for file in tmp_path.iterdir()] == ["vae.pt"]


def test_a_package_that_is_there_already_stays(tmp_path, monkeypatch, capsys):
    for name in MODELS:
        save_weights({}, tmp_path / f"{name}.pt")
    monkeypatch.setattr(sys, "argv", ["toyworld", str(tmp_path), str(tmp_path)])
    with pytest.raises(SystemExit):
        pack.main()
    assert f"{tmp_path} exists already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_experts_that_are_taken_as_they_are_come_from_resume_and_not_from_an_earlier_run(tmp_path, monkeypatch):
    start, out = tmp_path / "start", tmp_path / "out"
    for folder, seed in ((start, 1), (out, 2)):
        folder.mkdir()
        for name, shapes in (("vae", SHAPES), ("high", CONFIG.parameter_shapes()), ("low", CONFIG.parameter_shapes())):
            save_weights(Parameters.random(shapes, seed, CPU).stored(torch.bfloat16), folder / f"{name}.pt")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "toyworld",
            str(out),
            "--resume",
            str(start),
            "--vae_minutes",
            "0",
            "--expert_minutes",
            "0",
            "--decoder_minutes",
            "1",
            "--tiny",
            "--steps",
            "1",
            "--device",
            "cpu",
            "--held_out",
            "0",
            "--processes",
            "1",
        ],
    )
    training()
    with tarfile.open(out / "package.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    for name in EXPERTS:
        given, taken = (load_weights(folder / f"{name}.pt") for folder in (start, out))
        packed = expert_weights(open_checkpoint(tmp_path / "package" / f"{name}_noise_model_bnb_nf4"))
        assert all(torch.equal(taken[key], weight) for key, weight in given.items())
        assert torch.equal(packed["head.modulation"], given["head.modulation"])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_whole_training_writes_a_package_that_the_engine_opens(tmp_path, monkeypatch):
    options = ["--device", "cpu", "--steps", "1", "--tiny", "--held_out", "1", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", ["toyworld", str(tmp_path), *options])
    training()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {line["measured"] for line in lines if "measured" in line} >= {"both experts", "nf4", "another's camera"}
    assert all((tmp_path / name).stat().st_size < 16e6 for name in ("vae.pt", "high.pt", "low.pt", "package.tar.gz"))
    with tarfile.open(tmp_path / "package.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    package = find_package(tmp_path / "package")
    assert package.experts is not None
    assert open_checkpoint(package.experts.high).config.num_heads == 4
    _train_on(tmp_path)


def _train_on(checkpoints):
    """The LoRAs, from the checkpoints of a whole training, and the package that is shipped."""
    options = argparse.Namespace(
        checkpoints=checkpoints, minutes=1, steps=1, seed=1, tiny=True, device="cpu", experts=("high", "low")
    )
    lora.work(options)
    for name in ("high", "low"):
        loras = read_loras([LoraFile(checkpoints / f"night_{name}.safetensors")], CONFIG.parameter_shapes())
        assert len(loras) == len(lora.LAYERS)
    torch.save(Parameters.random(causal_training.SHAPES, 1, CPU).stored(torch.bfloat16), checkpoints / "causal.pt")
    quantized_package(checkpoints, checkpoints / "shipped")
    assert find_package(checkpoints / "shipped").experts is not None
    assert len(list((checkpoints / "shipped" / LORAS).iterdir())) == 2
    _ship(checkpoints / "shipped", checkpoints / "compressed")


def _ship(package, compressed_one):
    """Compressed, and unpacked by what a user calls: the same files and a causal model."""
    compressed(package, compressed_one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "TRAINED", compressed_one)
        written = world.write_toy_world(compressed_one.with_name("written"))
    for file in (path for path in package.rglob("*") if path.is_file()):
        assert (written / file.relative_to(package)).read_bytes() == file.read_bytes()
    assert find_package(written / "lingbot_world_fast").causal is not None
