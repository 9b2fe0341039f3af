"""The official implementation's causal runs, and ways to make them again: what the tests of rollouts share."""

import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv.place import ON_DEVICE, KeyValuePlace
from lingbot_world.options import Window
from lingbot_world.pipeline import World, rollout, rollout_guided
from lingbot_world.pipeline.world import WorldMemory
from lingbot_world.sampling import GuidedSchedule, few_step_schedule
from safetensors.torch import load_file

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Case:
    """An official run. `window`: None for all frames. `frames`: that were asked for. `atol`: of its latents."""

    name: str
    file: Path
    frames: int
    chunk: int
    window: int | None
    sink: int
    shift: float
    indices: tuple[int, ...]
    atol: float

    def __str__(self) -> str:
        return self.name


def _case(folder: str, row: dict) -> Case:
    window = row["window"] if "window" in row else row["local_attn_size"]
    sink = row["sink"] if "sink" in row else row["sink_size"]
    return Case(
        row["name"],
        GOLDEN / folder / row["file"],
        row["frame_num"],
        row.get("chunk", 3),
        None if window < 0 else window,
        max(0, sink),
        row["shift"],
        tuple(row["timesteps_index"]),
        row["recommended_atol_latent_fp32"],
    )


CASES = [
    _case(folder, row)
    for folder in ("causal", "releases")
    for row in json.loads((GOLDEN / folder / "manifest.json").read_text())
]
GLOBAL, WINDOW, STRETCHED, CHUNKS_OF_4, CHUNKS_OF_1, GUIDED, ACTIONS = CASES
FEW_STEPS = [case for case in CASES if case is not GUIDED]

PLACES = {
    "device": ON_DEVICE,
    "host": KeyValuePlace(on_host=True),
    "host and device": KeyValuePlace(on_host=True, device_blocks=1),
    "8bit": KeyValuePlace(int8=True),
    "host8bit": KeyValuePlace(int8=True, on_host=True),
    "host8bit and device": KeyValuePlace(int8=True, on_host=True, device_blocks=2),
    "host8bit but on the device": KeyValuePlace(int8=True, on_host=True, device_blocks=3),
}


def model_of(case=GLOBAL):
    """The tiny causal model in float32; the one that takes keys besides the camera has another first camera layer."""
    return _model(case is ACTIONS)


@cache
def _model(actions):
    weights = load_file(GOLDEN / "causal/model/diffusion_pytorch_model.safetensors")
    if actions:
        name = "patch_embedding_wancamctrl.weight"
        weights[name] = torch.from_numpy(np.load(ACTIONS.file)[name])
    shapes = {name: weight.shape for name, weight in weights.items()}
    model = LingBotWorldModel(ModelConfig.from_shapes(shapes, 32, 2, causal=True), device="meta", dtype=torch.float32)
    model.load_state_dict(weights, assign=True)
    return model


def arrays(case) -> dict[str, torch.Tensor]:
    """What the official code was given and made. All that a model takes is a batch of one."""
    given = {name: torch.from_numpy(array) for name, array in np.load(case.file).items()}
    alone = given.keys() & {"noise", "y", "latent", "context", "context_null"}
    return given | {name: given[name][None] for name in alone}


def schedule_of(case, steps=40):
    if case is GUIDED:
        return GuidedSchedule(steps, case.shift)
    return few_step_schedule(case.indices, case.shift)


def draws(values):
    """The official run's re-noising draws, in order."""
    left = iter(values)
    return lambda shape: next(left)[None]


def run(case, given=None, model=None, **changes):
    """The latent [1, 16, f, h, w] that the engine makes of a case."""
    model, given = model or model_of(case), given or arrays(case)
    common = {"window": case.window, "sink": case.sink, "chunk": case.chunk} | changes
    inputs = given["noise"], given["y"], given["context"]
    if case is GUIDED:
        chunks = rollout_guided(model, *inputs, given["context_null"], given["plucker"], shift=case.shift, **common)
    else:
        chunks = rollout(
            model,
            *inputs,
            given["plucker"],
            renoise=draws(given["renoise"]),
            **{"schedule": schedule_of(case)} | common,
        )
    return torch.cat(list(chunks), dim=2)


@cache
def plain(case):
    """What a rollout makes of a case with nothing special; each is made once."""
    return run(case)


def world_of(case, given, model=None, place=ON_DEVICE, device="cpu", window=None, **memory):
    """A World that can make a case's first chunk."""
    window = window or case.window or given["noise"].shape[2]
    world = World(
        model or model_of(case),
        given["noise"].shape[-2:],
        Window(window, case.sink),
        chunk=case.chunk,
        guided=case is GUIDED,
        device=device,
        memory=WorldMemory(place, **memory),
    )
    world.prompt = given["context"]
    if case is GUIDED:
        world.negative = given["context_null"]
    return world


def part(case, given, number):
    """Noise, y and camera of a chunk."""
    return [given[name][:, :, _frames(case, number)] for name in ("noise", "y", "plucker")]


def made_part(case, given, number, latent):
    """Latent, y and camera of a chunk that was made before."""
    return [latent[:, :, _frames(case, number)], *part(case, given, number)[1:]]


def _frames(case, number):
    return slice(case.chunk * number, case.chunk * (number + 1))


def by_chunk(case, given=None, model=None, place=ON_DEVICE, steps=40, **options):
    """The latent as `run` gives it, made by a World, whose keys and values may lie elsewhere."""
    given = given or arrays(case)
    world = world_of(case, given, model, place, **options)
    make = partial(world.chunk, schedule=schedule_of(case, steps), renoise=draws(given.get("renoise", ())))
    chunks = given["noise"].shape[2] // case.chunk
    return torch.cat([make(*part(case, given, number)) for number in range(chunks)], dim=2)
