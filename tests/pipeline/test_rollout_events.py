"""Events of `generate`: sentences that extend the prompt from a second on, as in a live session."""

import json

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless import run as run_module
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.live import Session
from lingbot_world.pipeline.state import load_state
from lingbot_world.text.events import changes_by_chunk, prompts_by_second, read_events
from live_cases import opened
from rollout_run_cases import words_of

pytestmark = pytest.mark.usefixtures("one_thread")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
EVENTS = [
    {"name": "rain", "text": "It begins to rain.", "start": 0.5, "end": 1},
    {"second": 0.75, "text": "A dog crosses."},
]
SPOKEN = (
    ("a castle", 2),
    ("a castle. It begins to rain.", 1),
    ("a castle. It begins to rain. A dog crosses.", 1),
    ("a castle. A dog crosses.", 2),
)


@pytest.fixture
def events(tmp_path):
    return written(tmp_path, EVENTS)


def written(folder, events):
    (folder / "events.json").write_text(json.dumps(events))
    return folder / "events.json"


def small(**changes):
    return {"window": 6, "sink": 2, "chunk": 1, "action_path": None, **changes}


@pytest.mark.parametrize(("device", "apart"), [("cpu", 0.0), pytest.param("cuda", 1e-2, marks=NEEDS_GPU)])
def test_events_make_the_frames_of_a_live_session(causal, toy_package, tmp_path, events, monkeypatch, device, apart):
    encoded, encode = [], run_module.encode_prompts
    monkeypatch.setattr(
        run_module, "encode_prompts", lambda texts, *rest: encoded.append(texts) or encode(texts, *rest)
    )
    run(make_plan(causal(events=events, save_state=tmp_path / "a.state", device=device, dtype="fp32", **small())))
    state = load_state(tmp_path / "a.state")
    assert tuple((prompt.text, prompt.chunks) for prompt in state.prompts) == SPOKEN
    assert encoded == [[text for text, _ in SPOKEN]], "all prompts are encoded at once"
    loaded = opened(toy_package, device=device, dtype="fp32")
    still = np.tile(np.eye(4), (21, 1, 1))
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, path=still, seed=1, events=events) as session:
        list(session)
        live = session.state()
    assert tuple((prompt.text, prompt.chunks) for prompt in live.prompts) == SPOKEN
    assert (live.latent - state.latent).abs().max() <= apart


def test_a_video_that_goes_on_has_the_events_of_its_own_seconds(causal, tmp_path, events):
    first, second = tmp_path / "a.state", tmp_path / "b.state"
    run(make_plan(causal(events=events, save_state=first, **small())))
    before = {"image": None, "width": None, "height": None, "continue_from": first, "prompt": "", "frame_num": 16}
    run(make_plan(causal(events=events, save_state=second, output=tmp_path / "b.mp4", **small(**before))))
    texts = [prompt.text for prompt in load_state(second).prompts]
    assert texts[:4] == [text for text, _ in SPOKEN]
    rain = "a castle. It begins to rain."
    assert texts[4:] == ["a castle.", rain, f"{rain} A dog crosses."], "the dog's second has not come yet"


def test_the_command_reads_them_and_tells_which_have_no_effect(causal, tmp_path, events, capsys):
    keyed = written(tmp_path, [*EVENTS, {"name": "snow", "text": "It snows.", "key": 1}])
    words = words_of(
        causal(), chunk=1, schedule="0", events=keyed, output=tmp_path / "a.mp4", save_state=tmp_path / "s"
    )
    assert main(words) == 0
    assert "--events: without a start, and so without effect: snow." in capsys.readouterr().out
    assert [prompt.chunks for prompt in load_state(tmp_path / "s").prompts] == [2, 1, 1, 2]
    assert main(["generate", "--like", str(tmp_path / "a.mp4"), "--output", str(tmp_path / "b.mp4")]) == 0
    assert (tmp_path / "a.mp4").stat().st_size == (tmp_path / "b.mp4").stat().st_size


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"text": "x", "second": -1}], "`start` is -1; expected seconds of the walk, from 0"),
        ([{"text": "x", "second": 1.5}], "'x' begins at 1.5 s, and the video ends at 1.5 s"),
        ([{"text": "x", "second": 0, "key": 1}, {"text": "y", "key": 1}], "two events have the key '1'"),
        ([{"text": "x", "key": 1}], "none has a start"),
        ([], "none has a start"),
        (
            [{"text": "x", "second": 1.4}],
            "ends at 1.5 s, its last chunk begins at 1.25 s",
        ),
        (
            [{"text": "x", "second": 0.3, "end": 0.4}],
            "begins at 0.3 s and ends at 0.4 s, and no chunk begins between",
        ),
        ([{"second": 1}], "`text` is None"),
        ([{"text": "x", "second": 1, "start": 1}], "expected an object of"),
    ],
)
def test_bad_events_are_refused_before_anything_is_loaded(causal, tmp_path, given, told):
    with pytest.raises(InputError, match=told):
        make_plan(causal(events=written(tmp_path, given), **small()))


def test_a_missing_file_and_the_base_model_are_refused(causal, toy_package, tmp_path, events):
    with pytest.raises(InputError, match="cannot be read"):
        make_plan(causal(events=tmp_path / "none.json"))
    with pytest.raises(InputError, match="`events`"):
        make_plan(causal(ckpt_dir=toy_package, events=events, schedule=None))


def test_a_prompt_ends_where_the_next_begins():
    events = read_events([{"text": "Rain.", "start": 0}, {"text": "Night.", "start": 1, "end": 2}])
    seconds = prompts_by_second(events, "A street.")
    assert seconds == [(0, "A street. Rain."), (1, "A street. Rain. Night."), (2, "A street. Rain.")]
    assert changes_by_chunk(seconds, 4, 0.75) == [(0, seconds[0][1]), (2, seconds[1][1]), (3, seconds[2][1])]
    assert changes_by_chunk(seconds, 2, 4.0) == [(0, seconds[0][1]), (1, seconds[2][1])], "no chunk begins at night"
