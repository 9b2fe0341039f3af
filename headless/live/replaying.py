"""The command `lingbot-world live --replay`: repeat a saved walk and compare both results."""

from pathlib import Path

import torch

from ...errors import InputError
from ...live import Session, load_walk
from .opening import LoadedModel


def replay(loaded: LoadedModel, walk: Path, folder: Path) -> str:
    """Repeat the saved walk in the folder `walk`, and save the repetition in a new folder in `folder`. Return a message
    that says whether the latents of both walks are equal."""
    engine = loaded.engine_of(walk)
    with Session.replay(engine, walk, folder=folder, fps=0) as session:
        for _ in session:
            pass
        made, again = session.walk.store.folder, session.state().latent
    before = load_walk(walk).latent
    if again.shape != before.shape:
        raise InputError(f"{made} has {again.shape[2]} latent frames, {walk} has {before.shape[2]}: the disk is full")
    far = float((again - before).abs().max())
    same = "the same bits" if torch.equal(again, before) else f"not the same bits: latents differ by up to {far:.3g}"
    return f"{walk}, made again in {made}: {again.shape[2]} latent frames, {same}"
