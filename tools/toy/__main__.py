"""Train and measure a part of the toy: `python -m lingbot_world.tools.toy OUT PART`.

PART is vae, denoiser (with the shipped VAE if OUT has none) or decoder. A part that OUT has is trained on."""

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...loaders import open_checkpoint
from ...toy import write_toy_world
from ...toy.experts import expert_weights
from ...toy.package import CAUSAL
from ...toy.world import VAE
from .coder import SHAPES, normalised, train_coder
from .decoder_training import measured_decoder, train_decoder, watched
from .denoiser import Given, Layout, Steps, begun, train_denoiser
from .fit import Log, Phase
from .parameters import Parameters, Weights, keep, load_weights, save_weights
from .pool import Pool, later_walks, settled, walks
from .prompts import embeddings
from .settings import TINY, Sizes

HELD_OUT = 987_654_321
WALK_SEED = 1_000_000
RENDERED = 0.4  # the share of the time for rendering: 5,120 walks were once memorized
ASKED, BATCHES = Layout(3, True, 0), 8  # the data with which the trained denoiser is measured
AT_ONCE = 512


def work(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1 if options.device == "cpu" else 4)
    log = Log(options.out / "log.jsonl", options.begun)
    noted = "part", "seed", "minutes", "rate", "hold", "adversary"
    log.write(**{name: getattr(options, name) for name in noted}, torch=torch.__version__)
    PARTS[options.part](options, TINY if options.tiny else Sizes(), torch.device(options.device), log)


def vae_part(options: argparse.Namespace, sizes: Sizes, device: torch.device, log: Log) -> None:
    """Train the VAE, and normalise its latents to Wan's."""
    start = Parameters.resumed(options.out, "vae", SHAPES, options.seed, device)
    trained = train_coder(start, _left(options), sizes, options.seed, log)
    trained = normalised(trained, sizes, options.seed + 50_000)
    save_weights(trained.stored(torch.float32), options.out / "vae.pt")


def denoiser_part(options: argparse.Namespace, sizes: Sizes, device: torch.device, log: Log) -> None:
    """Train the denoiser on walks that are rendered first."""
    take_shipped(options.out, options.shipped)
    vae, texts = load_weights(options.out / "vae.pt", device), embeddings().to(device)
    data = rendered(vae, texts, options, sizes, device)
    log.write(phase="walks", count=len(data.walks), later=len(data.later))
    start, kept = begun(options.out, options.seed, device), partial(keep, options.out / "denoiser.pt")
    trained = train_denoiser(start, _left(options), data, sizes, log, kept, options.seed, options.adversary)
    unseen = walks(vae, sizes.held_out, HELD_OUT, sizes, device)
    log.write(measured="denoiser", **measured_denoiser(trained, data, unseen, sizes))


def decoder_part(options: argparse.Namespace, sizes: Sizes, device: torch.device, log: Log) -> None:
    """Sharpen the VAE's decoder, on walks of half the length."""
    take_shipped(options.out, options.shipped)
    vae, denoiser = (load_weights(options.out / f"{name}.pt", device) for name in ("vae", "denoiser"))
    texts, seed = embeddings().to(device), 2 * WALK_SEED * options.seed
    sizes = replace(sizes, half=max(3, sizes.half // 2))
    data = watched(vae, denoiser, texts, options.walks or sizes.watched, seed, sizes)
    unseen = watched(vae, denoiser, texts, sizes.unwatched, HELD_OUT, sizes)
    log.write(phase="decoder", walks=len(data.pictures), before=measured_decoder(vae, unseen))
    phase = Phase(options.minutes, options.steps, options.hold, options.rate)
    trained = train_decoder(vae, data, phase, log, options.seed)
    save_weights(trained.stored(torch.float32), options.out / "vae.pt")
    log.write(measured="decoder", **measured_decoder(trained.named(), unseen))


PARTS = {"vae": vae_part, "denoiser": denoiser_part, "decoder": decoder_part}


@torch.no_grad()
def measured_denoiser(trained: Parameters, data: Given, unseen: Pool, sizes: Sizes) -> dict[str, float]:
    """Return the loss on training walks and on unseen ones, after true chunks and from pure noise."""
    found = {}
    for name, pool in (("seen", data.walks[: len(unseen)]), ("unseen", unseen)):
        random, losses = torch.Generator(trained.flat.device).manual_seed(HELD_OUT), []
        for _ in range(BATCHES):
            steps = Steps(trained, data._replace(walks=pool, later=pool), sizes, random, own=0.0)
            losses.append(steps.loss(ASKED, trained.named()).item())
        found[name] = round(sum(losses) / BATCHES, 4)
    return found


def take_shipped(folder: Path, denoiser: bool) -> None:
    """Copy the shipped VAE, and with `denoiser` the denoiser, into the folder if they are missing."""
    files = ["vae.pt", *(["denoiser.pt"] if denoiser else [])]
    if all((folder / file).exists() for file in files):
        return
    with tempfile.TemporaryDirectory() as name:
        package = write_toy_world(name)
        parts = {"vae.pt": load_weights(package / VAE)}
        if denoiser:
            weights = expert_weights(open_checkpoint(package / CAUSAL))
            parts["denoiser.pt"] = {key: weight.bfloat16() for key, weight in weights.items()}
    for file, tensors in parts.items():
        if not (folder / file).exists():
            save_weights(tensors, folder / file)


def rendered(vae: Weights, texts: Tensor, options: argparse.Namespace, sizes: Sizes, device: torch.device) -> Given:
    """Render walks for their share of the time, and add those that earlier runs left in the folder."""
    files = sorted(options.out.glob("walks-*.pt"))
    first = WALK_SEED * (options.seed + len(files))
    made: tuple[list[Pool], list[Pool]] = ([], [])
    phase, most = Phase(RENDERED * options.minutes, options.steps and 1), options.walks or sizes.walks
    at_once = min(AT_ONCE, most // 2)
    while not made[0] or (phase.progress(len(made[0])) < 1 and len(made[0]) * at_once * 2 < most):
        seed = first + 10 * len(made[0])
        for into, render_some in zip(made, (walks, later_walks), strict=True):
            into.append(render_some(vae, at_once, seed, sizes, device))
    own = [Pool.joined(part) for part in made]
    torch.save([vars(pool) for pool in own], options.out / f"walks-{len(files)}.pt")
    before = ([Pool(**part) for part in torch.load(file, device)] for file in files)
    pools = (Pool.joined(part) for part in zip(own, *before, strict=True))
    return Given(texts, settled(vae, sizes, device), *pools)


def _left(options: argparse.Namespace) -> Phase:
    """Return the phase that ends with the command's minutes."""
    minutes = max(0.01, options.minutes - (time.time() - options.begun) / 60)
    return Phase(minutes, options.steps, options.hold, options.rate)


def main() -> None:
    options = _parser().parse_args()
    options.begun = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    work(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toy", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for checkpoints and log")
    add("part", choices=tuple(PARTS))
    add("--minutes", type=float, default=9.0, help="for the whole part; of decoder for the steps alone")
    add("--rate", type=float, default=1.0, help="factor on the learning rates; smaller to go on with what is trained")
    add("--hold", type=float, default=0.0, help="share of the time at the full learning rate; then it falls")
    add("--shipped", action="store_true", help="with the shipped denoiser, where OUT has none")
    add("--adversary", type=float, default=0.0, help="the length of an adversary's gradient against the denoiser's own")
    add("--walks", type=int, help="to render at most, instead of the sizes' own")
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, help="so many steps instead of minutes; with --tiny a test on a CPU")
    add("--tiny", action="store_true", help="small pictures, short videos and small batches")
    return parser


if __name__ == "__main__":
    main()
