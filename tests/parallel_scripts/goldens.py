"""goldens.py FOLDER N [N ...]: every golden computed by N processes together, and by one alone.

FOLDER/N.json has for each case the largest difference between the two, or from the official result where there is one,
and whether every process has the same bits: each goes on with its own copy of the result. Then, of decoded frames, the
largest difference of a byte and the mean; and of divided weights, the bytes that this process keeps and those of all.
"""

import gc
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))

import numpy as np
import torch
from lingbot_world.headless.process.decoding import join_stripes, stripe_decoder
from lingbot_world.headless.process.processes import Processes
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.loaders.chunks import buffer_bytes
from lingbot_world.loaders.offload import SharedBlocks, streamed_weights
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv.place import KeyValuePlace
from lingbot_world.model.parallel import SequenceParallel
from lingbot_world.options import Window
from lingbot_world.pipeline import World
from lingbot_world.pipeline.two_experts import sample
from lingbot_world.pipeline.world import WorldMemory
from lingbot_world.sampling import StepReuse, few_step_schedule
from lingbot_world.toy.experts import write_expert
from lingbot_world.vae import decode_latent, load_vae
from model_cases import SMALL, golden_inputs, golden_model, random_inputs, random_state, with_state
from rollout_cases import FEW_STEPS, GUIDED, PLACES, arrays, run
from test_pipeline import RUNS, SETTINGS
from torch import distributed
from torch.multiprocessing import start_processes

GOLDEN = Path(__file__).parent.parent / "golden"
FOUR_HEADS = replace(SMALL, num_heads=4)
FORK = "fork" if sys.platform == "linux" else "spawn"
GRIDS = {"even": (4, 4, 4), "odd": (3, 6, 10), "fewer tokens than processes": (1, 2, 2)}


class Cases:
    def __init__(self) -> None:
        self.found: dict[str, dict] = {}
        self.bytes: dict[str, dict] = {}
        self.held: dict[str, int] = {}

    def compare(self, name: str, compute, options: dict, official=None) -> None:
        """Notes how far `compute(**options)`, by all processes, is from the official result, or from `compute()`."""
        together = compute(**options)
        copies = [torch.empty_like(together) for _ in range(distributed.get_world_size())]
        distributed.all_gather(copies, together.contiguous())
        if distributed.get_rank():
            return
        alone = compute() if official is None else torch.as_tensor(official)
        self.found[name] = {
            "official": official is not None,
            "difference": float((alone - together).abs().max()),
            "scale": float(alone.abs().max()),
            "same everywhere": all(torch.equal(copy, together) for copy in copies),
        }


def forwards(cases: Cases, sequence: SequenceParallel) -> None:
    """One forward: the golden experts, and a model of four heads on grids that divide and that do not."""
    options = {"options": {"sequence_parallel": sequence}}
    if sequence.size == 2:
        given = golden_inputs(GOLDEN)
        for expert in ("high", "low"):
            model = golden_model(GOLDEN, expert)
            for camera in (given["plucker"], None):
                compute = partial(model, given["latent"], torch.tensor([900.0]), given["context"][None], camera)
                cases.compare(f"forward {expert} {'no ' * (camera is None)}camera", compute, options)
    model = with_state(FOUR_HEADS, random_state(FOUR_HEADS))
    for name, grid in GRIDS.items():
        given = random_inputs(FOUR_HEADS, 2, grid)
        compute = partial(model, given["x"], given["timestep"], given["context"], given["camera"])
        cases.compare(f"grid {name}", compute, options)
    model.set_attention("8bit")
    cases.compare("attention in 8 bits", compute, options)


def runs(cases: Cases, sequence: SequenceParallel | None, guidance) -> None:
    """Both experts over all steps."""
    given = np.load(GOLDEN / "e2e/inputs.npz")
    tensors = [torch.from_numpy(given[name])[None] for name in ("noise", "y", "context", "context_null")]
    experts = [golden_model(GOLDEN, expert) for expert in ("high", "low")]
    for golden in RUNS:
        expected = np.load(GOLDEN / golden["file"])["latents_after_step"][-1]
        camera = torch.from_numpy(given["plucker"]) if golden["camera"] else None
        settings = SETTINGS | {"solver": {"unipc": "unipc", "dpm++": "dpmpp"}[golden["solver"]]}
        options = {"sequence_parallel": sequence, "guidance_group": guidance, "camera_cache_bytes": 2**30}
        kind = "guidance" if sequence is None else "sequence" if guidance is None else "guidance and sequence"
        compute = partial(sample, *experts, *tensors, camera, **settings)
        cases.compare(f"run {golden['file']} {kind}", compute, options, expected)
    settings = SETTINGS | {"steps": 12, "shift": 3.0, "boundary": 0.85}
    cases.compare(
        f"steps without the model, {kind}",
        lambda **options: sample(
            *experts, *tensors, torch.from_numpy(given["plucker"]), **settings, step_reuse=StepReuse(1.0), **options
        ),
        options,
    )


def rollouts(cases: Cases, sequence: SequenceParallel) -> None:
    """Causal models, whose keys and values each process keeps for its own heads."""
    if sequence.size == 2:
        for case in FEW_STEPS:
            compute = partial(run, case)
            cases.compare(f"rollout {case.name}", compute, {"sequence_parallel": sequence}, arrays(case)["latent"])
        guided = partial(run, GUIDED, steps=6)  # of 40, which one process alone makes as officially in test_rollout.py
        cases.compare(f"rollout {GUIDED.name}", guided, {"sequence_parallel": sequence})
    config = replace(FOUR_HEADS, causal=True)
    model = with_state(config, random_state(config))
    for place, chunk in (("device", 3), ("8bit", 3), ("host", 3), ("host", 1), ("host8bit", 4)):
        compute = partial(three_chunks, model, PLACES[place], chunk)
        cases.compare(f"three chunks of {chunk}, keys and values {place}", compute, {"sequence": sequence})


def three_chunks(
    model: LingBotWorldModel, place: KeyValuePlace, chunk: int, sequence: SequenceParallel | None = None
) -> torch.Tensor:
    memory = WorldMemory(place)
    world = World(model, (6, 10), Window(6, 2), chunk=chunk, device="cpu", memory=memory, sequence_parallel=sequence)
    generator = torch.Generator().manual_seed(3)
    world.prompt = torch.randn(1, 20, model.config.text_dim, generator=generator)
    schedule = few_step_schedule((0, 500), 10.0)

    def draw(channels: int, *_: int) -> torch.Tensor:
        return torch.randn(1, channels, chunk, 6, 10, generator=generator)

    return torch.cat([world.chunk(draw(16), draw(20), draw(384), schedule, lambda _: draw(16)) for _ in range(3)], 2)


def shared_weights(cases: Cases, sequence: SequenceParallel, folder: Path) -> None:
    """An expert of whose blocks each process keeps a piece, over several forwards; and the bytes that it keeps."""
    config = replace(FOUR_HEADS, num_layers=5)
    path = folder / "model.safetensors"
    if sequence.rank == 0:
        (folder / "config.json").write_text('{"text_len": 24, "num_heads": 4}')
        write_expert(path, config, random_state(config).items(), quant_type="nf4")
    distributed.barrier()
    whole = load_expert(path, dtype=torch.float32)
    shared = load_expert(path, dtype=torch.float32, resident_blocks=0, shared_by=sequence.group)

    def compute(model=whole, **options) -> torch.Tensor:
        given = [random_inputs(config, 2, GRIDS["odd"], seed) for seed in range(3)]
        return torch.stack(
            [model(each["x"], each["timestep"], each["context"], each["camera"], **options) for each in given]
        )

    cases.compare("divided weights", compute, {"model": shared})
    options = {"sequence_parallel": sequence}
    cases.compare("divided weights and tokens", compute, {"model": shared, "options": options})
    kept = [each for each in gc.get_objects() if type(each) is SharedBlocks]
    names = streamed_weights(open_checkpoint(path), 0).values()
    cases.held = {
        "kept": sum(piece.untyped_storage().nbytes() for each in kept for _, piece in each._blocks.values()),
        "whole": sum(buffer_bytes(open_checkpoint(path).entries(each)) for each in names),
    }


def decoding(cases: Cases) -> None:
    """Frames that are decoded in stripes, part by part: wide ones, and high ones of which a part is empty."""
    vae = load_vae(GOLDEN / "vae/Wan2.1_VAE_tiny.safetensors")
    processes = Processes(distributed.get_rank(), distributed.get_world_size())
    for size in (3, 40), (5, 2):
        latent = torch.randn(1, 16, 4, *size, generator=torch.Generator().manual_seed(4))
        decoder = stripe_decoder(vae, size, processes)
        parts = [join_stripes(decoder.decode(part), size, processes) for part in latent.split([1, 3], dim=2)]
        if processes.first:
            whole = decode_latent(vae, latent).float()
            difference = (torch.cat(parts) - whole).abs()
            cases.bytes[f"{size}"] = {"largest": float(difference.max()), "share": float(difference.mean())}


def compare_all(rank: int, size: int, folder: Path) -> None:
    """What one of `size` processes does; the first one writes what was found."""
    store = f"file://{folder}/store of {size}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    cases = Cases()
    with torch.no_grad():
        whole = SequenceParallel(distributed.group.WORLD)
        forwards(cases, whole)
        rollouts(cases, whole)
        decoding(cases)
        shared_weights(cases, whole, folder)
        half = size // 2
        rows = [distributed.new_group(range(row * half, (row + 1) * half)) for row in range(2)]
        pairs = [distributed.new_group([index, index + half]) for index in range(half)]
        sequence = SequenceParallel(rows[rank // half]) if half > 1 else None
        runs(cases, sequence, pairs[rank % half])
        if size == 2:
            runs(cases, whole, None)
    if rank == 0:
        (folder / f"{size}.json").write_text(json.dumps([cases.found, cases.bytes, cases.held]))
    distributed.destroy_process_group()


def main(folder: Path, sizes: list[int]) -> None:
    """Forks the processes, which so share what this one has imported. It has no threads, which a fork would lose."""
    torch.set_num_threads(1)
    gc.freeze()  # what is imported: collections in the processes pass over it
    for size in sizes:
        start_processes(compare_all, (size, folder), nprocs=size, start_method=FORK)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
