"""Every shipped workflow on a real ComfyUI: both formats say the same, the template browser has it, and it runs.

The toy package stands in for the real one under its name, at toy size and with few steps; the rest is as shipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from browser_runner import missing_program, run_script
from comfy_server import PACK_NAME, ComfyServer, RejectedPromptError
from release_cases import write_toy_shards
from safetensors.torch import load_file, save_file
from toy_prompt import (
    CANVAS_FILES,
    NAMES,
    TOY_FPS,
    TOY_FRAMES,
    TOY_HEIGHT,
    TOY_LENGTHS,
    TOY_SIZES,
    TOY_WIDTH,
    WORKFLOWS,
    ToyPrompt,
    as_toy,
    as_toy_canvas,
    shipped,
)
from workflow_files import write_enlargers, write_loras, write_paths, write_videos

pytestmark = pytest.mark.host

PACKAGE, API = "lingbot-world-base-cam-nf4", WORKFLOWS / "api"
CONVERT = """
import json, sys
from comfy_cli.workflow_to_api import convert_ui_to_api
info, *files = sys.argv[1:]
info = json.load(open(info, encoding="utf-8"))
print(json.dumps([convert_ui_to_api(json.load(open(file, encoding="utf-8")), info) for file in files]))
"""
VALIDATE = """
import json, sys
from typer.testing import CliRunner
from comfy_cli.cmdline import app
info, *files = sys.argv[1:]
words = ["--skip-prompt", "--json", "workflow", "validate", "--input", info, "--workflow"]
print(json.dumps([json.loads(CliRunner().invoke(app, [*words, file]).stdout) for file in files]))
"""


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with toys under the names of the files that the workflows want."""
    package = comfy_server.base / "models" / "lingbot_world"
    shutil.copytree(package / "toy", package / PACKAGE)
    small = write_toy_shards(package / "lingbot-world-v2-1.3b-causal-fast")
    write_loras(comfy_server.base / "models" / "loras")
    write_enlargers(comfy_server)
    write_paths(comfy_server.base / "input", package / "toy" / "example")
    write_videos(comfy_server.base / "input")
    encoder = comfy_server.base / "models" / "text_encoders" / "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
    encoder.parent.mkdir(exist_ok=True)
    save_file({"a": torch.zeros(1)}, encoder)
    yield comfy_server
    shutil.rmtree(package / PACKAGE)
    shutil.rmtree(small)


@pytest.mark.parametrize("name", NAMES if missing_program() else ["camera"])
def test_it_runs_and_gives_a_video(server, name):
    """From its API file; the others' are what the canvas queues (below), where each is run if there is a browser."""
    run = server.queue(as_toy(name))
    (path,) = (file for file in run.files(server.base / "output") if file.suffix == ".mp4")
    with av.open(str(path)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video.streams.video[0])]
    assert np.stack(frames).shape == (TOY_LENGTHS.get(name, TOY_FRAMES), *size_of(name)[::-1], 3)


def size_of(name: str) -> tuple[int, int]:
    return TOY_SIZES.get(name, (TOY_WIDTH, TOY_HEIGHT))


def test_own_sampler_gives_what_the_one_node_gives(server):
    """At toy size, over both experts: the same latent to the bit from the same seed and values, another from others."""
    pieces, whole = as_toy("own_sampler").set("RandomNoise", noise_seed=5), as_toy("camera")
    values = {**whole[whole.node_id("LingBotWorldSampler")]["inputs"], "latent": pieces.link("WanImageToVideo", 2)}
    values |= pieces[pieces.node_id("LingBotWorldGuider")]["inputs"]
    prompt = pieces.add("same", "LingBotWorldSampler", **values | {"seed": 5})
    prompt = prompt.add("other", "LingBotWorldSampler", **values | {"seed": 6})
    for name, latent in (
        ("pieces", pieces.link("SamplerCustomAdvanced")),
        ("same", ["same", 0]),
        ("other", ["other", 0]),
    ):
        prompt = prompt.add(f"save {name}", "SaveLatent", samples=latent, filename_prefix=name)
    server.queue(prompt)
    own, same, other = (saved_latent(server, name) for name in ("pieces", "same", "other"))
    assert torch.equal(own, same)
    assert not torch.equal(own, other)


def test_denoise_changes_a_video_as_the_separate_nodes_do(server):
    """From a video's latent: pieces and Sampler give the same bits; less of the video stays where denoise is more."""
    pieces, seed = as_toy("own_sampler"), {"seed": 5}
    values = {**as_toy("camera")[as_toy("camera").node_id("LingBotWorldSampler")]["inputs"], **seed}
    values |= pieces[pieces.node_id("LingBotWorldGuider")]["inputs"] | {"latent": pieces.link("WanImageToVideo", 2)}
    prompt = pieces.add("video", "LingBotWorldSampler", **values | {"seed": 4})
    values["latent"] = ["video", 0]
    prompt = prompt.set("RandomNoise", noise_seed=5).set("LingBotWorldSigmas", denoise=0.35)
    prompt = prompt.set("SamplerCustomAdvanced", latent_image=["video", 0])
    for denoise in (0.35, 0.8):
        prompt = prompt.add(f"at {denoise}", "LingBotWorldSampler", **values | {"denoise": denoise})
    kept = {
        "dpieces": pieces.link("SamplerCustomAdvanced"),
        "dvideo": ["video", 0],
        "dlittle": ["at 0.35", 0],
        "dmuch": ["at 0.8", 0],
    }
    for name, latent in kept.items():
        prompt = prompt.add(f"save {name}", "SaveLatent", samples=latent, filename_prefix=name)
    server.queue(prompt)
    own, video, little, much = (saved_latent(server, name) for name in kept)
    assert torch.equal(own, little)
    assert 0 < (little - video).abs().mean() < 0.85 * (much - video).abs().mean()


def test_loras_of_the_other_expert_and_sigmas_of_the_other_solver_are_said(server):
    words = "noise expert's LoRA by its name"
    right = as_toy("lora_four_steps")
    nodes = [key for key, node in right.items() if node["class_type"] == "LoraLoaderModelOnly"]
    names = [right[node]["inputs"]["lora_name"] for node in nodes]
    assert not any(words in text for _, text in server.queue(right).texts)
    crossed = as_toy("lora_four_steps")
    for node, name in zip(nodes, reversed(names), strict=True):
        crossed[node]["inputs"]["lora_name"] = name
    told = " ".join(text for _, text in server.queue(crossed).texts)
    assert all(f"{role}-{words}" in told for role in ("high", "low"))
    pieces = as_toy("own_sampler").set("LingBotWorldSolver", solver="dpmpp")
    assert any("as unipc's do, and the solver is dpmpp" in text for _, text in server.queue(pieces).texts)
    pieces = pieces.set("LingBotWorldSigmas", solver="dpmpp")
    assert not any("the solver is" in text for _, text in server.queue(pieces).texts)


def test_a_denoise_below_one_over_an_empty_latent_is_said(server):
    prompt = as_toy("camera").set("LingBotWorldSampler", denoise=0.5)
    run = server.queue(prompt)
    assert any("The latent is empty, and the run begins at noise level" in text for _, text in run.texts)


def saved_latent(server: ComfyServer, name: str) -> torch.Tensor:
    (path,) = (server.base / "output").glob(f"{name}_*.latent")
    return load_file(path)["latent_tensor"]


@pytest.fixture(scope="module")
def object_info(server, tmp_path_factory) -> Path:
    """/object_info as a file, for comfy-cli, which runs in a process of its own: it has modules of ComfyUI's names."""
    pytest.importorskip("comfy_cli")
    info = tmp_path_factory.mktemp("info") / "object_info.json"
    info.write_text(json.dumps(server.object_info()), encoding="utf-8")
    return info


def of_comfy_cli(script: str, info: Path, files: list[Path]) -> list[dict]:
    command = [sys.executable, "-c", script, str(info), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=info.parent, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_comfy_cli_converts_the_canvas_form_to_the_queue_form(object_info):
    """But for the values of 3D views: of a node with an object among its values, comfy-cli 1.23 reads LoRAs alone
    (`_absorb_dict_widget_values` of its workflow_to_api.py)."""
    for name, converted in zip(NAMES, of_comfy_cli(CONVERT, object_info, [*CANVAS_FILES.values()]), strict=True):
        expected = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
        for key in [key for key, node in expected.items() if node["class_type"] == "Load3DAdvanced"]:
            assert "viewport_state" not in converted[key]["inputs"], "comfy-cli reads it by now"
            converted[key] = expected[key]
        assert converted == expected, name


def test_comfy_cli_finds_no_fault_in_the_queue_form(object_info):
    reports = of_comfy_cli(VALIDATE, object_info, [API / f"{name}.json" for name in NAMES])
    assert [report for report in reports if not report["ok"]] == []
    assert len(reports) == len(NAMES)


def test_the_template_browser_lists_them_with_thumbnails(server):
    titles = [path.stem for path in CANVAS_FILES.values()]
    assert server.get("/workflow_templates")[PACK_NAME] == titles
    for title in map(urllib.parse.quote, titles):
        with urllib.request.urlopen(f"{server.url}/api/workflow_templates/{PACK_NAME}/{title}.jpg") as answer:
            assert answer.headers["Content-Type"] == "image/jpeg"


def runs_in(renderer: str) -> list[str]:
    """Return the workflows to run in a renderer: every other one, with LINGBOT_TESTS=all every one."""
    return NAMES if os.environ.get("LINGBOT_TESTS") == "all" else NAMES[renderer == "vue" :: 2]


@pytest.fixture(scope="module")
def seen_on_the_canvas(server, tmp_path_factory) -> dict[str, dict[str, dict]]:
    """What a browser sees of each workflow, in the classic renderer and in Nodes 2.0; `<name>-toy` is run, `<name>-api`
    is the API file, which the front-end reads the same way for both, and so only once, as it does `earlier`."""
    files, api = [CANVAS_FILES[name] for name in NAMES], [API / f"{name}.json" for name in NAMES]
    names = {str(path): name for name, path in CANVAS_FILES.items()} | {str(path): f"{path.stem}-api" for path in api}
    wishes, kinds = [], ("classic", "vue")
    for renderer in kinds:
        folder, run = tmp_path_factory.mktemp(renderer), runs_in(renderer)
        toys = {folder / f"{name}-toy.json": as_toy_canvas(name) for name in run}
        if renderer == "classic":
            toys[folder / "earlier.json"] = saved_earlier()
        for toy, made in toys.items():
            toy.write_text(json.dumps(made), encoding="utf-8")
        opened = files + (api if renderer == "classic" else []) + [*toys]
        wish = {"files": opened, "templates": files, "run": toys}
        wishes.append({"vue": renderer == "vue"} | {key: [*map(str, paths)] for key, paths in wish.items()})
    reports = run_script("check_workflows.mjs", server.url, json.dumps(wishes))
    by_name = [(report["vue"], names.get(report["file"], Path(report["file"]).stem), report) for report in reports]
    return {kind: {name: report for vue, name, report in by_name if vue is (kind == "vue")} for kind in kinds}


@pytest.fixture(scope="module", params=["classic", "vue"])
def canvas_reports(request, seen_on_the_canvas) -> dict[str, dict]:
    """Those of one renderer."""
    return seen_on_the_canvas[request.param]


def saved_earlier() -> dict:
    """A canvas as the first workflows of this pack were saved: experts by folder, no camera cache on the sampler."""
    ui = as_toy_canvas("first_last")
    for node in ui["nodes"]:
        if node["type"] == "LingBotWorldLoadExperts":
            node["widgets_values"] = [PACKAGE, f"{PACKAGE}/high_noise_model_bnb_nf4", "from the package", "default"]
        if node["type"] == "LingBotWorldSampler":
            node["widgets_values"].pop()
            node["inputs"] = [slot for slot in node["inputs"] if slot["name"] != "camera_cache"]
        node["properties"] = {"Node name for S&R": node["type"]}
    return ui


@pytest.mark.parametrize("name", NAMES)
def test_the_canvas_opens_it_without_a_missing_node_or_an_error(canvas_reports, name):
    assert canvas_reports[name]["missing"] == []
    assert canvas_reports[name]["errors"] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_canvas_would_queue_the_queue_form(canvas_reports, name):
    """Of the canvas file, and in the classic renderer of the API file, opened on the canvas and exported again.
    Front-end 1.58 then writes the ids of nodes in a subgraph, `4:110`, as `4_110`."""
    text = (API / f"{name}.json").read_text(encoding="utf-8")
    same_prompt(canvas_reports[name]["prompt"], json.loads(text))
    if not canvas_reports[name]["vue"]:
        shown = canvas_reports[f"{name}-api"]["prompt"]
        flat = json.loads(re.sub(r'"(\d+):(\d+)"', r'"\1_\2"', text))
        same_prompt(shown, flat if shown.keys() == flat.keys() else json.loads(text))


def same_prompt(shown: dict, expected: dict) -> None:
    assert shown.keys() == expected.keys()
    for key, node in expected.items():
        shown[key]["inputs"].pop("video-preview", None)  # core's Load Video sends it along
        if node["class_type"] == "Load3DAdvanced":
            keep_view(shown[key]["inputs"]["viewport_state"]["camera_info"], node)
            continue
        assert shown[key]["inputs"] == node["inputs"]


@pytest.mark.parametrize("name", NAMES)
def test_every_whole_number_lies_on_the_grid_of_its_field(server, name):
    """The canvas moves what an API file holds beside the grid: 81 frames to 80 where it steps by 4 from 0."""
    info = server.object_info()
    for node in shipped(name).values():
        fields = info[node["class_type"]]["input"]
        for key, (kind, *options) in {**fields.get("required", {}), **fields.get("optional", {})}.items():
            value, grid = node["inputs"].get(key), options[0] if options else {}
            if kind == "INT" and not isinstance(value, list | None):
                assert (value - grid.get("min", 0)) % grid.get("step", 1) == 0, (node["class_type"], key)


def keep_view(seen: dict, node: dict) -> None:
    """The 3D view on the canvas sends the camera as the file has it, with what follows from it."""
    wanted = node["inputs"]["viewport_state"]["camera_info"]
    for key in ("position", "target"):
        assert [seen[key][axis] for axis in "xyz"] == pytest.approx([wanted[key][axis] for axis in "xyz"], abs=1e-6)
    assert (seen["fov"], seen["zoom"], seen["cameraType"]) == (wanted["fov"], wanted["zoom"], wanted["cameraType"])


def test_run_shows_a_video_on_the_canvas(canvas_reports):
    reports = {name: canvas_reports[f"{name}-toy"] for name in NAMES if f"{name}-toy" in canvas_reports}
    assert len(reports) >= 7
    for name, report in reports.items():
        assert report["end"]["kind"] == "execution_success", (name, report["end"])
        assert (report["missing"], report["errors"]) == ([], []), name
        (video,) = report["videos"]
        assert (video["width"], video["height"]) == size_of(name), name
        seconds = TOY_LENGTHS.get(name, TOY_FRAMES) / TOY_FPS.get(name, 16)
        assert video["seconds"] == pytest.approx(seconds, abs=0.01), name


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_graph_is_readable_on_opening(canvas_reports, name):
    """At 1440x900 the text of 14 pixels has 8, below which ComfyUI draws none."""
    assert canvas_reports[name]["zoom"] * 14 > 8


@pytest.mark.parametrize("name", NAMES)
def test_a_note_fits_its_box(canvas_reports, name):
    """The front-ends differ in the space around headings: a note that outgrew its box would cover what is below."""
    for height, saved in canvas_reports[name]["notes"]:
        assert height <= saved + 4


@pytest.mark.parametrize("name", NAMES)
def test_nothing_covers_anything_on_opening(canvas_reports, name):
    assert covered(canvas_reports[name]["boxes"]) == []


def test_nothing_covers_anything_when_pictures_have_come(canvas_reports):
    """After a real run: drawings of the camera and the video are on their nodes, which grow in Nodes 2.0."""
    for name in NAMES:
        if report := canvas_reports.get(f"{name}-toy"):
            grown = [box["title"] for box in report["after"] if box not in report["boxes"]]
            assert not report["vue"] or any("Save Video" in title for title in grown), (name, "where is its video?")
            assert covered(report["after"]) == [], name


def covered(boxes: list[dict]) -> list[tuple[str, str]]:
    """Nodes that overlap by more than a pixel."""
    pairs = combinations(boxes, 2)
    return [(one["title"], other["title"]) for one, other in pairs if overlap(one["box"], other["box"])]


def overlap(one: list[float], other: list[float]) -> bool:
    (x, y, w, h), (ox, oy, ow, oh) = one, other
    return min(x + w, ox + ow) - max(x, ox) > 1 and min(y + h, oy + oh) - max(y, oy) > 1


def test_every_workflow_is_run_on_a_canvas():
    assert {*runs_in("classic"), *runs_in("vue")} == set(NAMES)


def test_a_workflow_that_was_saved_earlier_opens_and_runs(seen_on_the_canvas):
    report = seen_on_the_canvas["classic"]["earlier"]
    assert (report["missing"], report["errors"]) == ([], [])
    by_kind = {node["class_type"]: node["inputs"] for node in report["prompt"].values()}
    assert by_kind["LingBotWorldLoadExperts"]["high_noise_expert"] == f"{PACKAGE}/high_noise_model_bnb_nf4"
    assert by_kind["LingBotWorldLoadExperts"]["low_noise_expert"] == "from the package"
    assert by_kind["LingBotWorldSampler"]["camera_cache"] == "auto"
    assert by_kind["LingBotWorldSampler"]["solver"] == "unipc"
    assert report["end"]["kind"] == "execution_success", report["end"]


def second(prompt: ToyPrompt, **inputs) -> ToyPrompt:
    """The workflow with core's two samplers, with these inputs of the low-noise one."""
    node = [key for key, each in prompt.items() if each["class_type"] == "KSamplerAdvanced"][1]
    prompt[node]["inputs"].update(inputs)
    return prompt


def test_a_sampler_without_a_step_is_refused_before_the_run(server):
    with pytest.raises(RejectedPromptError, match="makes no step: lower its start_at_step"):
        server.queue(second(as_toy("core_nodes"), start_at_step=9000))
    prompt = as_toy("own_sampler").add("990", "ManualSigmas", sigmas="none")
    with pytest.raises(RejectedPromptError, match="ManualSigmas, holds no numbers"):
        server.queue(prompt.set("SamplerCustomAdvanced", sigmas=["990", 0]))


def test_noise_that_stays_is_said_where_no_sampler_goes_on(server):
    words = "the video still has that much noise"
    assert not any(words in text for _, text in server.queue(as_toy("core_nodes")).texts)
    early = second(as_toy("core_nodes"), end_at_step=3, return_with_leftover_noise="enable")
    assert any(words in text for _, text in server.queue(early).texts)


def test_a_range_without_a_step_is_said(server):
    prompt = as_toy("camera")
    layers = {"double_layers": "0, 1", "single_layers": "", "scale": 3.0, "rescaling_scale": 0.0}
    for start, said in ((0.01, True), (0.0, False)):
        node = prompt.add(
            "990",
            "SkipLayerGuidanceDiT",
            model=prompt.link("LingBotWorldLoadExperts", 1),
            start_percent=start,
            end_percent=start + 0.001 if said else 1.0,
            **layers,
        )
        texts = server.queue(node.set("LingBotWorldSampler", low_noise=["990", 0])).texts
        assert any("where this run has no step" in text for _, text in texts) is said
