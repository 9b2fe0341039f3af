"""The doctor: its arithmetic against figures that were measured, its page, and its command."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from lingbot_world.doctor import checkup, machine
from lingbot_world.doctor.estimate import (
    MODELS,
    Rates,
    Setting,
    estimate_base,
    estimate_chunk,
    estimate_releases,
    place_model,
    recommended,
)
from lingbot_world.doctor.page import card_page, format_checkup, table_row
from lingbot_world.doctor.published import CARDS, rates_of
from lingbot_world.headless.command.cli import main
from lingbot_world.model.choice.rates import Rate
from lingbot_world.model.choice.trials import Trial
from lingbot_world.tools.cards.tables import OTHERS, filled
from played_card import CUDA, PlayedCard, forget

ROOT = Path(__file__).parents[2]
SMALL = MODELS["1.3B"][1]
ONE = Rates(1, 1, 1, 1, 1, 1, 1, 32e9)
"""A card of 1 TFLOP/s: seconds are TFLOP."""


def test_the_operations_of_a_chunk_are_those_that_were_counted_on_a_card():
    """151 TFLOP of attention and 79 of products: reference figures of a chunk of four at 464x832. The VAE has 52 in the
    reference; with kernels of 2x2, which double an image, 49.7."""
    made = estimate_chunk(SMALL, Setting((464, 832)), ONE._replace(bandwidth=1e9))
    assert made.attention == pytest.approx(151, abs=0.5)
    assert made.products == pytest.approx(79, abs=1)
    assert made.vae == pytest.approx(49.7, abs=0.1)


def test_the_passes_of_a_block_are_those_of_its_kernels():
    """In 8 bits comfy-kitchen quantizes six inputs, of which one has the feed-forward's width."""
    exact, eight = (estimate_chunk(SMALL, Setting((464, 832), eight_bit=each), ONE) for each in (False, True))
    row, weights = 2 * 6032 * 1536 / 1e9, 6 * 1536**2 + 2 * 1536 * 8960
    passes = [(made.memory / 150 - weights * size / 1e9) / row for made, size in ((exact, 2), (eight, 1))]
    assert passes == pytest.approx([28, 30 + 1.75 * (5 + 8960 / 1536)])
    assert exact.vae - 49.7 == pytest.approx(26.06, abs=0.1)


def test_the_arithmetic_is_within_a_fifth_of_kernels_that_were_built_for_the_card():
    checked = [each for each in OTHERS if each[1] not in ("official", "official, laptop")]
    assert len(checked) == 3
    for card, code, model, _, setting in checked:
        made = estimate_chunk(SMALL, setting, rates_of(CARDS[card]))
        assert 0.8 < made.model / model < 1.05, (card, code)


@pytest.mark.parametrize("card", ["RTX 4060 8 GB", "RTX 5060 8 GB"])
def test_a_card_of_8_gb_walks_at_six_frames_a_second(card):
    rates = rates_of(CARDS[card])
    best = recommended(estimate_releases(rates), "1.3B")
    assert best.frames_a_second > 6
    assert best.setting.eight_bit
    small = Setting((304, 528), eight_bit=True)
    assert place_model(SMALL, 2.0, small, rates.memory).where == "all on the card"


def test_more_memory_never_fits_less_and_streaming_costs_the_bus():
    config, weight = MODELS["14B"][1], MODELS["14B"][2]
    found = [place_model(config, weight, Setting((384, 640)), memory * 1e9) for memory in (2, 8, 16, 24, 48)]
    assert found[0] is None
    fetched = [each.fetched for each in found if each is not None]
    assert fetched == sorted(fetched, reverse=True)
    assert fetched[-1] == 0 < fetched[0]
    slow = estimate_chunk(config, Setting((384, 640)), rates_of(CARDS["RTX 5090"]), int(100e9))
    assert slow.model == pytest.approx(5 * 100 / 50)


def test_recorded_forwards_and_8_bits_are_faster():
    rates = rates_of(CARDS["RTX 5090"])
    exact, eight = (estimate_chunk(SMALL, Setting((464, 832), eight_bit=each), rates) for each in (False, True))
    assert eight.total < exact.total
    assert estimate_chunk(SMALL, Setting((304, 528)), rates._replace(recorded=False)).launches > exact.launches


def test_each_model_is_worked_out_by_the_rates_at_its_own_sizes():
    """An H100 multiplies the 14B's matrices faster than the 1.3B's, by a sixth in bf16 and by a half in fp8."""
    small = Rates(680, 770, 690, 690, 480, 2600, 55, 80e9)
    large = small._replace(linear=790, linear_8bit=1130)
    same, own = ({row.model: row.seconds for row in estimate_releases(*rates)} for rates in ((small,), (small, large)))
    assert own["1.3B"] == same["1.3B"]
    assert own["14B"].products < 0.7 * same["14B"].products


def test_a_checkup_of_a_gpu_uses_the_rates_of_both_models(monkeypatch):
    PlayedCard(monkeypatch, 8, 9, why=None, seconds={"torch": 0.001})
    asked = []

    def rates(_device, sizes):
        asked.append(sizes)
        if sizes["linear"].dim == 5120:
            raise torch.OutOfMemoryError
        return {"linear": Rate("torch", 50.0)}

    monkeypatch.setattr(checkup, "rates", rates)
    monkeypatch.setattr(checkup, "measure_bandwidth", lambda _device: 500.0)
    monkeypatch.setattr(checkup, "measure_bus", lambda _device: 20.0)
    rows, _base = checkup._estimate(CUDA, rates(CUDA, checkup.SIZES), {"memory_total": 24e9})
    assert [sizes["linear"].dim for sizes in asked] == [1536, 5120]
    assert {row.model for row in rows if row.seconds is not None} == {"1.3B", "14B"}
    assert rows[0].seconds.products == pytest.approx(79 / 50, rel=0.02)
    forget()


def test_a_video_of_base_is_worked_out():
    """An H200 takes 5.45 s a guided step: 218 s of model, and 137 s in 8 bits."""
    h200 = Rates(700, 1300, 650, 950, 700, 4000, 55, 141e9)
    exact, eight = estimate_base(h200)
    assert exact.place.fetched == 0
    assert exact.seconds.model == pytest.approx(218, rel=0.1)
    assert eight.seconds.model == pytest.approx(137, rel=0.15)
    small = estimate_base(rates_of(CARDS["RTX 4060 8 GB"]))[0]
    assert small.place.where == "some blocks in host memory"
    assert 5e9 < small.place.fetched < 10e9
    assert estimate_base(h200._replace(memory=4e9))[0].seconds is None


def test_a_processor_is_checked_and_printed_as_page_row_and_json(capsys, tmp_path):
    assert main(["doctor", "--device", "cpu", "--disk", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "the CPU only" in said or "built for" in said
    assert f"folder {tmp_path}" in said
    assert "HIP none" not in said
    assert "linear          torch                  right" in said
    assert main(["doctor", "--device", "cpu", "--disk", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["machine"]["torch"].startswith(torch.__version__)
    assert values["rates"]["linear"]["tflops"] > 0
    assert {trial["name"] for trial in values["trials"]["norms"]} == {"torch"}
    assert main(["doctor", "--device", "cpu", "--row"]) == 0
    assert capsys.readouterr().out.count("|") == 6
    assert not list(tmp_path.iterdir())


def test_published_cards_are_worked_out_and_others_refused(capsys):
    assert main(["doctor", "--card", "list"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == list(CARDS)
    assert main(["doctor", "--card", "RTX 4060 8 GB"]) == 0
    said = capsys.readouterr().out
    assert "LingBot-World 2.0 1.3B" in said
    for name in ("4060", "rtx4060", "NVIDIA GeForce RTX 4060", "RTX-4060 8GB"):
        assert main(["doctor", "--card", name]) == 0
        assert capsys.readouterr().out == said
    for name in ("Voodoo 2", "RTX", "RTX 4060 Ti", "GeForce", ""):
        assert main(["doctor", "--card", name]) == 2
    said = capsys.readouterr().err
    assert "--card Voodoo 2: no published figures are known; expected one of RTX 3060" in said
    assert "--card RTX: this is part of several names; expected one of RTX 3060" in said
    assert main(["doctor", "--device", "cuda:77"]) == 2


@pytest.fixture
def played():
    """A checkup as a GPU would give it."""
    facts = {"card": "A Card (compute capability 8.6)", "torch": "2.11", "driver": "1", "memory_total": int(8e9)}
    trials = {"int8": (Trial("comfy-kitchen", 0.009, 0.001), Trial("torch", 0.9, None, "it is wrong here"))}
    rates = {"linear": Rate("torch", 50.0), "convolution": Rate("torch", 1.0), "attention": Rate("flash", 40.0)}
    rows = estimate_releases(rates_of(CARDS["RTX 3090"]))
    said = checkup.advice({**facts, "memory_held_elsewhere": int(3e9)}, trials, rates, torch.device("cuda"))
    return checkup.Checkup(facts, trials, rates, rows, said, estimate_base(rates_of(CARDS["RTX 3090"])))


def test_the_page_of_a_gpu_says_what_to_take_and_what_to_do(played):
    said = format_checkup(played)
    assert "comfy-kitchen          right, error 0.009, 1 ms" in said
    assert "it is wrong here" in said
    assert "Worked out from these" in said
    assert "--width 832 --height 464 --window 18 --sink 6 --arithmetic 8bit --attention 8bit" in said
    assert re.search(r"exact   \d\d min, an expert on the card\n  8 bits  \d\d min", said)
    assert "3.0 GB of the card are held by other programs" in said
    assert "MIOpen's naive kernel" in said
    assert "torch computes int8 wrongly" in said
    line = table_row(played)
    assert line.startswith("| A Card (compute capability 8.6) | 2.11; driver 1 | 50 / 1 / 40 | 1.3B 832x464")
    json.dumps(played.as_values())


def test_apples_gpus_are_marked_as_never_tried():
    (said,) = checkup.advice({}, {}, {}, torch.device("mps"))
    assert "Nobody has tried it" in said


def test_switches_of_comfyui_are_named(monkeypatch):
    class Module:
        class args:  # noqa: N801
            lowvram, use_sage_attention, reserve_vram, novram = True, True, 2.0, False

    monkeypatch.setitem(sys.modules, "comfy.cli_args", Module)
    monkeypatch.setattr(Module, "args", type("Args", (), {})())
    vars(Module.args).update(lowvram=True, use_sage_attention=True, reserve_vram=2.0, novram=False)
    assert machine.comfyui_switches() == ["--lowvram True", "--use-sage-attention True", "--reserve-vram 2.0"]
    monkeypatch.delitem(sys.modules, "comfy.cli_args")
    assert machine.comfyui_switches() is None


def test_a_disk_that_is_not_there_is_refused_and_not_made(tmp_path, capsys):
    assert main(["doctor", "--device", "cpu", "--disk", str(tmp_path / "typo")]) == 2
    assert "--disk" in (said := capsys.readouterr().err)
    assert "no such folder" in said
    assert not [*tmp_path.iterdir()]


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    file = tmp_path / "a file"
    file.touch()
    assert "reason" in machine.disk_speed(file / "folder")
    speed = machine.disk_speed(tmp_path)
    assert speed["write_mb_s"] > 0


def test_the_tables_of_the_docs_are_those_of_the_arithmetic():
    text = (ROOT / "docs" / "cards.md").read_text(encoding="utf-8")
    assert filled(text) == text, "run python tools/cards/tables.py"
    assert all(f"| {name} |" in text for name in CARDS)
    assert "does not fit" not in card_page("RTX 5090").split("\n")[1]
