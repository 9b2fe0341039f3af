"""LingBot-World Live through ComfyUI's queue: along a recorded path, and steered by a client of its websocket."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import websocket
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError, Run
from lingbot_world import toy
from lingbot_world.pipeline.state import load_state
from live_cases import wait_for
from safetensors.torch import load_file, save_file
from tiny_cases import tiny_weights
from toy_prompt import ToyPrompt, as_toy

pytestmark = pytest.mark.host

LIVE, ROLLOUT, PRESET = "LingBotWorldLive", "LingBotWorldRollout", "LingBotWorldCameraPreset"
SECONDS = 120


@pytest.fixture
def walk() -> ToyPrompt:
    """A walk on the toy at its smallest, by itself along a dolly's path; its latent and its state are saved."""
    fast = as_toy("fast").set("LingBotWorldLoadCausal", model_name="toy/lingbot_world_fast")
    fast = fast.set("LingBotWorldLoadVAE", vae_name="toy/Wan2.1_VAE.pth").set(PRESET, frames=17)
    fast = fast.set("LingBotWorldTextEncode", text_encoder="toy/models_t5_umt5-xxl-enc-bf16.pth")
    fast = fast.set("LingBotWorldPrepareImage", width=64, height=48).set(ROLLOUT, seed=random.randrange(2**32))
    given = fast[fast.node_id(ROLLOUT)]["inputs"]
    values = {name: given[name] for name in ("model", "vae", "positive", "start_image", "camera", "seed")}
    kinds = {"LingBotWorldCameraPreview", "CreateVideo", "SaveVideo", ROLLOUT}
    prompt = ToyPrompt({key: node for key, node in fast.items() if node["class_type"] not in kinds})
    prompt = prompt.add(
        "live",
        LIVE,
        **values,
        prompt="",
        frames=61,
        chunk="1",
        window=6,
        sink=2,
        kv_cache="auto",
        wait=SECONDS,
        walked_by="the recorded path",
    )
    prompt = prompt.add("latent", "SaveLatent", samples=["live", 1], filename_prefix="live")
    return prompt.add("saved", "LingBotWorldSaveState", state=["live", 2], filename_prefix="states/live")


@pytest.fixture
def steered(walk) -> ToyPrompt:
    del walk["live"]["inputs"]["camera"]
    return walk


def latent(server: ComfyServer, run: Run, node: str) -> torch.Tensor:
    (path,) = Run(run.prompt_id, {node: run.outputs[node]}).files(server.base / "output")
    return load_file(path)["latent_tensor"]


def said(run: Run) -> str:
    return " ".join(text for _, text in run.texts)


class Walker:
    """A client of the view's websocket: JSON, and frames behind their headers."""

    def __init__(self, server: ComfyServer, node: str = "live", **options):
        wait_for(lambda: server.get("/lingbot_world/live/walks")["walks"])  # models load before
        address = f"ws://127.0.0.1:{server.port}/lingbot_world/live?node={node}"
        options.setdefault("suppress_origin", "origin" not in options)
        self.socket = websocket.create_connection(address, timeout=SECONDS, **options)
        self.told, self.frames = [], 0
        moving = {"lingbot_world": True, "lingbot_moving": True}
        self.send({"type": "init", **moving, "realtime_output_format": "jpeg"})

    def send(self, message: dict) -> None:
        self.socket.send(json.dumps(message))

    def event(self, kind: str, payload=None, event_id: int | None = None) -> None:
        self.send({"type": "event", "kind": kind, "payload": payload, "event_id": event_id})

    def until(self, wanted) -> dict:
        while True:
            data = self.socket.recv()
            assert data, self.told
            message = json.loads(data)
            self.told.append(message)
            if message["type"] == "frame_batch_header":
                assert len(self.socket.recv()) == message["total_size"]
                self.frames += message["num_frames"]
            if wanted(message):
                return message

    def status(self, content: str) -> dict:
        return self.until(lambda message: message.get("content") == content)

    def chunk(self, number: int) -> dict:
        return self.until(lambda message: message.get("chunk_index", -1) >= number and message["type"] == "chunk_stats")

    def hold(self, *keys: str, event: int = 1) -> None:
        self.event("camera_actions", {"mode": "state", "transitions": [{"actions": list(keys)}]}, event)

    def stop(self) -> None:
        self.socket.close(status=1000, timeout=5)


@contextmanager
def queued(server: ComfyServer, prompt: ToyPrompt) -> Iterator[dict]:
    """The prompt runs meanwhile; afterwards the dict has its run, or what it raised."""
    became: dict = {}

    def work() -> None:
        try:
            became["run"] = server.queue(prompt)
        except FailedPromptError as error:
            became["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield became
    finally:
        thread.join(SECONDS)
        if thread.is_alive():
            server.interrupt()
            thread.join()


def test_a_recorded_path_is_walked_as_a_rollout_makes_it(comfy_server, walk):
    """To the bit, by itself; and what goes on from its state goes on from the Rollout's."""
    given = walk["live"]["inputs"]
    shared = {name: given[name] for name in ("model", "vae", "positive", "seed", "kv_cache")}
    rollout = {
        **shared,
        "steps": "as the model was trained",
        "shift": 0.0,
        "indices": "0",
        "window": 6,
        "sink": 2,
        "chunk": "1",
        "frames": 17,
    }
    prompt = walk.add("rollout", ROLLOUT, **rollout, camera=given["camera"], start_image=given["start_image"])
    for name in ("live", "rollout"):
        prompt = prompt.add(f"{name} on", ROLLOUT, **rollout | {"frames": 9}, state=[name, 2])
    for name, slot in (("rollout", 0), ("live on", 0), ("rollout on", 0)):
        prompt = prompt.add(f"latent of {name}", "SaveLatent", samples=[name, slot], filename_prefix="live")
    for name, images in (("live", ["live", 0]), ("rollout", ["rollout", 1])):
        prompt = prompt.add(f"pictures of {name}", "SaveImage", images=images, filename_prefix=name)
    run = comfy_server.queue(prompt)
    made = {name: latent(comfy_server, run, f"latent of {name}") for name in ("rollout", "live on", "rollout on")}
    assert torch.equal(latent(comfy_server, run, "latent"), made["rollout"])
    assert torch.equal(made["live on"], made["rollout on"])
    frames = {name: pictures(comfy_server, run, f"pictures of {name}") for name in ("live", "rollout")}
    assert frames["live"].shape == (17, 48, 64, 3)
    assert np.abs(frames["live"].astype(int) - frames["rollout"]).max() <= 1  # one is cut to 8 bits before


def test_a_walk_shown_by_the_tiny_decoder_leaves_the_vaes_pictures(comfy_server, walk, golden):
    file = comfy_server.base / "models/vae_approx/taew2_1.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tiny_weights(golden, "f5_4x6"), file)
    prompt = walk.set(LIVE, decoder=file.name)
    prompt = prompt.add("by the VAE", LIVE, **{**walk["live"]["inputs"], "decoder": "the VAE"})
    for name in ("live", "by the VAE"):
        prompt = prompt.add(f"pictures of {name}", "SaveImage", images=[name, 0], filename_prefix="tiny")
    run = comfy_server.queue(prompt)
    shown, made = (pictures(comfy_server, run, f"pictures of {name}") for name in ("live", "by the VAE"))
    assert shown.shape == (17, 48, 64, 3)
    assert np.array_equal(shown, made)


def pictures(server: ComfyServer, run: Run, node: str) -> np.ndarray:
    from PIL import Image

    files = Run(run.prompt_id, {node: run.outputs[node]}).files(server.base / "output")
    return np.stack([np.array(Image.open(file)) for file in files])


def test_a_client_walks_and_stops_while_another_prompt_waits(comfy_server, steered):
    """W goes straight ahead; the outputs are what was walked; the second prompt runs when the walk is over."""
    steered = steered.set(LIVE, seed=random.randrange(2**32))
    with queued(comfy_server, steered) as became:
        walker = Walker(comfy_server)
        facts = walker.status("started")
        assert (facts["width"], facts["height"], facts["steered"], facts["prompts"]) == (64, 48, True, False)
        waiting = {"1": {"class_type": "PreviewAny", "inputs": {"source": "after the walk"}}}
        second = comfy_server.post("/prompt", {"prompt": waiting})["prompt_id"]
        walker.hold("w")
        made = walker.chunk(5)
        assert made["event_id"] == 1
        assert second not in comfy_server.get("/history")
        walker.stop()
    run = became["run"]
    state = saved_state(comfy_server, run)
    assert state.frames == 4 * state.latent.shape[2] - 3 >= walker.frames
    assert 0 < state.last_pose[2, 3] < 0.05 * state.frames
    assert not state.last_pose[:2, 3].any()
    assert latent(comfy_server, run, "latent").shape[2] == state.latent.shape[2]
    comfy_server.queue(waiting)
    assert second in comfy_server.get("/history")


def saved_state(server: ComfyServer, run: Run):
    (text,) = run.outputs["saved"]["text"]
    return load_state(text.split(": ", 1)[1].split(". Press R")[0])


def test_who_comes_back_walks_on_and_nobody_else_may_steer(comfy_server, steered):
    """A connection that breaks pauses the walk; a page of another origin is refused; nonsense is told."""
    with queued(comfy_server, steered.set(LIVE, seed=random.randrange(2**32))) as became:
        first = Walker(comfy_server)
        first.status("started")
        first.chunk(0)
        first.socket.sock.shutdown(2)
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            Walker(comfy_server, origin="http://elsewhere.example")
        assert comfy_server.get("/lingbot_world/live/running?client=another") == []
        second = Walker(comfy_server)
        assert second.status("started")["resume"]
        second.socket.send("[" * 9000)
        assert "not a message" in second.until(lambda message: message["type"] == "error")["content"]
        second.event("prompt", "a castle")
        assert "connect a clip" in second.until(lambda message: message.get("content") == "failed")["reason"]
        second.hold("a")
        second.chunk(second.told[-1].get("chunk_index", 1) + 1)
        second.stop()
    assert "run" in became


def test_who_had_paused_comes_back_to_a_pause(comfy_server, steered):
    with queued(comfy_server, steered.set(LIVE, seed=random.randrange(2**32))) as became:
        first = Walker(comfy_server)
        first.chunk(0)
        first.event("pause")
        first.status("paused")
        second = Walker(comfy_server)  # before the server has noticed that the first is gone
        second.status("paused")
        second.status("figures")
        assert second.told[-1]["paused"]
        second.hold("a")
        second.chunk(second.told[-1].get("chunk_index", 1) + 1)
        second.stop()
    assert "run" in became


def test_the_prompt_changes_by_a_clip_and_the_walk_ends_at_its_longest(comfy_server, steered):
    steered = steered.add("clip", "LingBotWorldLoadTextEncoder", text_encoder="toy/models_t5_umt5-xxl-enc-bf16.pth")
    del steered["live"]["inputs"]["positive"]
    steered = steered.set(LIVE, clip=["clip", 0], prompt="a castle", frames=33, seed=random.randrange(2**32))
    with queued(comfy_server, steered) as became:
        walker = Walker(comfy_server)
        assert walker.status("started")["prompt"] == "a castle"
        walker.event("prompt", {"text": "a lake", "refresh": True})
        walker.status("prompt")
        walker.status("ended")
    state = saved_state(comfy_server, became["run"])
    assert [prompt.text for prompt in state.prompts] == ["a castle", "a lake"]
    assert state.frames == 33


def test_a_world_with_a_map_has_walls_and_a_world_with_events_has_their_buttons(comfy_server, steered):
    """The files stand in the package's example folder: to the left a wall is 1.98 units away."""
    example, maze = comfy_server.base / "models/lingbot_world/toy/example", Path(toy.__file__).parent / "maze/example"
    shutil.copy(maze / "image.png", comfy_server.base / "input/maze.png")
    steered = steered.add("clip", "LingBotWorldLoadTextEncoder", text_encoder="toy/models_t5_umt5-xxl-enc-bf16.pth")
    del steered["live"]["inputs"]["positive"]
    steered = steered.set("LoadImage", image="maze.png").set(
        LIVE, clip=["clip", 0], prompt="a maze", frames=961, seed=7
    )
    for name in ("map.json", "events.json"):
        shutil.copy(maze / name, example)
    try:
        with queued(comfy_server, steered) as became:
            walker = Walker(comfy_server)
            facts = walker.status("started")
            assert (facts["map"]["at"][:3], facts["map"]["found"]) == ([2.4, -0.9, 1.2], False)
            assert [event["name"] for event in facts["events"]] == ["night", "snow", "fog"]
            walker.event("event", "snow")
            assert walker.status("prompt")["events"] == ["snow"]
            walker.event("restart", {})
            walker.status("restarted")
            assert walker.told[-2] == {"type": "status", "content": "events", "events": ["snow"]}
            walker.hold("a", "shift")
            walker.chunk(14)
            walker.stop()
    finally:
        for name in ("map.json", "events.json"):
            (example / name).unlink()
    state = saved_state(comfy_server, became["run"])
    assert -2.0 < state.last_pose[0, 3] < -1.9
    assert [prompt.text for prompt in state.prompts] == ["a maze. It is in the snow."]


@pytest.fixture
def faulty(comfy_server) -> Iterator[Callable[..., None]]:
    """`faulty(...)` plays a fault in the server (faults_pack)."""
    yield lambda **fault: comfy_server.post("/lingbot_fault", fault)
    comfy_server.post("/lingbot_fault", {})


def test_a_disk_that_becomes_full_cuts_all_that_is_handed_out_and_the_node_says_so(comfy_server, walk, faulty):
    """Three chunks of five are kept."""
    walk = walk.add("pictures", "SaveImage", images=["live", 0], filename_prefix="full")
    walk = walk.add("poses", "PreviewAny", source=["live", 4])
    faulty(module=".live.store", owner="WalkStore", name="_append", error="full", first=4)
    run = comfy_server.queue(walk)
    assert len(pictures(comfy_server, run, "pictures")) == 9
    assert run.outputs["poses"]["text"] == ["9"]
    assert latent(comfy_server, run, "latent").shape[2] == saved_state(comfy_server, run).latent.shape[2] == 3
    assert re.search(r"Of 17 frames the first 9 are output: .*\(No space left on device\)", said(run))


def test_a_camera_path_that_cannot_be_written_at_the_end_is_said_on_the_node(comfy_server, walk, faulty):
    """What the node hands out is whole."""
    faulty(module="numpy", name="save", error="full", match="poses.npy")
    run = comfy_server.queue(walk)
    assert saved_state(comfy_server, run).frames == 17
    assert re.search(r"is not kept: the camera path cannot be written to .*camera: No space left", said(run))


def test_a_walk_of_which_nothing_is_kept_ends_at_once_with_the_reason(comfy_server, steered, faulty):
    faulty(module=".live.store", owner="WalkStore", name="_append", error="full")
    with queued(comfy_server, steered.set(LIVE, seed=random.randrange(2**32), frames=401)) as became:
        walker = Walker(comfy_server)
        walker.status("ended")
        assert walker.frames == 1
    assert re.search(r"nothing to hand out: .*\(No space left on device\)", str(became["error"]))


@pytest.mark.parametrize(
    ("module", "owner", "name"), [(".live.walk", "Walk", "__init__"), (".live.session", "Session", "_load_events")]
)
def test_who_comes_back_while_the_walk_is_begun_anew_walks_on(comfy_server, steered, faulty, module, owner, name):
    """There is no walk for a while then, and none to tell of; then there is one, without a frame of the last one."""
    with queued(comfy_server, steered.set(LIVE, seed=random.randrange(2**32))) as became:
        first = Walker(comfy_server)
        first.chunk(0)
        faulty(module=module, owner=owner, name=name, error="slow")
        first.event("restart", {})
        wait_for(lambda: comfy_server.get("/lingbot_fault"))
        first.socket.sock.shutdown(2)
        second = Walker(comfy_server)
        second.status("started")
        second.chunk(0)
        second.stop()
    assert "run" in became, became
    assert saved_state(comfy_server, became["run"]).frames >= 1


@pytest.mark.parametrize("said", ["", "a sea"])
def test_a_walk_that_goes_on_and_is_begun_anew_has_the_prompt_that_the_view_shows(comfy_server, walk, said):
    """The node's, or what was said last, and not the last prompt of the state that it goes on from."""
    inputs = {
        name: value
        for name, value in walk["live"]["inputs"].items()
        if name not in ("positive", "start_image", "camera")
    }
    on = walk.add("clip", "LingBotWorldLoadTextEncoder", text_encoder="toy/models_t5_umt5-xxl-enc-bf16.pth")
    on = on.add("on", LIVE, **inputs | {"state": ["live", 2], "clip": ["clip", 0], "prompt": "a lake", "frames": 961})
    on["saved"]["inputs"]["state"] = ["on", 2]
    with queued(comfy_server, on.set(LIVE, seed=random.randrange(2**32))) as became:
        walker = Walker(comfy_server, "on")
        assert walker.status("started")["prompt"] == "a lake"
        if said:
            walker.event("prompt", said)
            walker.status("prompt")
        walker.chunk(1)
        walker.event("restart", {})
        walker.status("restarted")
        walker.chunk(0)
        walker.stop()
    before, *after = saved_state(comfy_server, became["run"]).prompts
    assert before.text != "a lake"
    assert [prompt.text for prompt in after] == [said or "a lake"]


def test_an_interrupt_ends_the_walk_and_leaves_it_on_disk(comfy_server, steered):
    walks = comfy_server.base / "output" / "walks"
    before = set(walks.glob("*"))
    with queued(comfy_server, steered.set(LIVE, seed=random.randrange(2**32))) as became:
        walker = Walker(comfy_server)
        walker.chunk(1)
        comfy_server.interrupt()
        walker.status("ended")
    assert became["run"].interrupted
    (folder,) = set(walks.glob("*")) - before
    assert load_state(folder / "walk.state").frames >= 5
    assert len(np.load(folder / "camera" / "poses.npy")) >= 5
    assert f"walks/{folder.name}/walk.state [output]" in str(comfy_server.object_info("LingBotWorldLoadState"))


def test_where_nobody_comes_the_recorded_path_is_walked(comfy_server, walk):
    """The seed's walk is the same whoever might have steered, and whatever prompt stands beside a connected one."""
    runs = [
        comfy_server.queue(walk.set(LIVE, walked_by=who, wait=1, prompt="a lake"))
        for who in ("me, or else the recorded path", "the recorded path")
    ]
    first, second = (latent(comfy_server, run, "latent") for run in runs)
    assert first.shape[2] == 5
    assert torch.equal(first, second)
    assert "The node's prompt has no effect: positive is connected." in said(runs[0])


def test_where_nobody_comes_and_there_is_no_path_the_run_ends_with_a_sentence(comfy_server, steered):
    with pytest.raises(FailedPromptError, match="nobody opened the live view within 1 s: .*recorded path"):
        comfy_server.queue(steered.set(LIVE, wait=1))


@pytest.mark.parametrize(
    ("values", "words"), [({"window": 3, "sink": 3}, "a window holds its sink"), ({"frames": 5}, "smaller than min")]
)
def test_what_makes_no_sense_is_refused_before_anything_runs(comfy_server, steered, values, words):
    with pytest.raises(RejectedPromptError, match=words):
        comfy_server.queue(steered.set(LIVE, **values))
