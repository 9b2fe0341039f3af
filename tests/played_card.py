"""A GPU that tests pretend: what torch says of it, and what its trials find."""

import torch
from lingbot_world.model.attention.choose_8bit import find_kernel
from lingbot_world.model.choice import trials
from lingbot_world.model.choice.trials import Trial

CUDA = torch.device("cuda", 0)


class PlayedCard:
    """A card of a compute capability. `found` gives the reason against a candidate by its name, or None for a right
    one; `why` stands for all others. `tried` counts the trials."""

    def __init__(self, monkeypatch, *capability, why="not installed", found=None, seconds=None):
        self.found, self.why, self.seconds, self.tried = found or {}, why, seconds or {}, 0
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A Card")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(trials, "missing", lambda name, card: None)
        monkeypatch.setattr(trials, "try_all", self.try_all)
        forget()

    def try_all(self, found, device, size, *, timed):
        self.tried += 1
        reasons = {each.name: self.found.get(each.name, self.why) for each in found}
        return [Trial(name, 0.01, self.seconds.get(name) if timed else None, why) for name, why in reasons.items()]


def forget():
    """Forget what a played card was found to do."""
    trials.forget()
    find_kernel.cache_clear()
