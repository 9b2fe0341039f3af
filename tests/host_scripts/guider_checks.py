"""Sampling over two experts inside ComfyUI: the golden runs, who is loaded when, and what other nodes do to it."""

from embed import embed

embed()

import gc  # noqa: E402

import comfy.model_management  # noqa: E402
import comfy.samplers  # noqa: E402
import guider_device_checks  # noqa: E402, F401  checks that are reported with those below
import guider_node_checks  # noqa: E402, F401  and these
import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import (  # noqa: E402
    GOLDEN,
    NF4,
    SIGMAS,
    check,
    engine_run,
    experts,
    gap,
    guider,
    refused,
    report,
    sample,
)
from lingbot_world import loaders  # noqa: E402
from lingbot_world.host.model.patcher import ExpertPatcher  # noqa: E402
from lingbot_world.host.sampling.guider import ExpertGuider  # noqa: E402
from lingbot_world.host.sampling.guider import _Switch as ExpertSwitch  # noqa: E402
from lingbot_world.host.sampling.sampler import FlowSolver, schedule_timesteps  # noqa: E402
from lingbot_world.options import PerExpert  # noqa: E402
from lingbot_world.sampling import StepReuse, flow_sigmas, flow_timesteps  # noqa: E402


def watch(high, low):
    """A list that fills with ("load", role) and ("step", role), and a function to stop watching."""
    events, load = [], ExpertPatcher.load
    roles = {id(high.model): "high", id(low.model): "low"}

    def watched(self, *arguments, **options):
        events.append(f"load {roles[id(self.model)]}")
        return load(self, *arguments, **options)

    ExpertPatcher.load = watched
    for patcher in (high, low):
        model = patcher.model

        def predict(*arguments, model=model, original=model.apply_model, **options):
            events.append(f"step {roles[id(model)]}")
            return original(*arguments, **options)

        model.apply_model = predict
    return events, lambda: setattr(ExpertPatcher, "load", load)


@check
def golden():
    """Every state of the official runs, with and without a camera, both solvers."""
    found = {}
    for name, solver, camera in (("unipc", "unipc", True), ("unipc_nocam", "unipc", False), ("dpmpp", "dpmpp", True)):
        states = []
        out = sample(
            guider(*experts(), camera=camera),
            FlowSolver(solver),
            flow_sigmas(6, 5.0, solver),
            lambda step, denoised, x, total: states.append(x.clone()),  # noqa: B023
        )
        want = torch.from_numpy(np.load(GOLDEN / "e2e" / f"{name}.npz")["latents_after_step"])
        found[name] = max(gap(state[0], step) for state, step in zip([*states[1:], out], want, strict=True))
    return found


@check
def against_the_engine():
    """NF4 experts, other steps, shift and boundary: the host against lingbot_world.pipeline.sample."""
    found = {}
    for solver in ("unipc", "dpmpp"):
        want = engine_run(steps=9, shift=3.0, boundary=0.9, solver=solver)
        out = sample(guider(*experts(NF4), boundary=0.9), FlowSolver(solver), flow_sigmas(9, 3.0, solver))
        found[solver] = gap(out, want)
    return found


@check
def steps_without_the_model():
    """The same latent and the same number of model calls as the engine's; with a mask and for one expert alone too."""
    steps, shift, boundary = 14, 3.0, 0.85
    reuse = StepReuse(1.0)
    want = engine_run(steps=steps, shift=shift, boundary=boundary, step_reuse=reuse)
    sigmas, found = flow_sigmas(steps, shift), {"engine": reuse.calls}

    def calls(name, part, mask=None):
        high, low = experts(NF4)
        events, stop = watch(high, low)
        out = sample(guider(high, low, boundary), FlowSolver("unipc", None, 1.0), part, mask=mask)
        stop()
        found[name] = sum(event.startswith("step") for event in events)
        return out

    found["gap"] = gap(calls("host", sigmas), want)
    mask = torch.ones(1, 1, *want.shape[2:])
    mask[..., : want.shape[-1] // 2] = 0
    kept = calls("masked", sigmas, mask)[mask.expand_as(want) == 0]
    found["kept"] = float(kept.abs().max())
    calls("low alone", sigmas[-8:])
    return found


@check
def timesteps():
    """Schedules whose integers come out of the float32 sigmas alone, of all tried; and of their last parts."""
    found = {}
    for solver in ("unipc", "dpmpp"):
        tried = wrong = 0
        for steps in (4, 5, 8, 20, 33, 40, 50, 70, 120):
            for shift in (1.0, 3.0, 4.5, 5.0, 7.25, 8.0, 10.0, 12.0):
                for cut in (0, steps // 3):
                    sigmas, want = flow_sigmas(steps, shift, solver)[cut:], flow_timesteps(steps, shift, solver)[cut:]
                    tried += 1
                    wrong += not torch.equal(schedule_timesteps(sigmas), want)
        found[solver] = {"tried": tried, "wrong": wrong}
    return found


@check
def load_order():
    high, low = experts()
    events, stop = watch(high, low)
    sample(guider(high, low), FlowSolver("unipc"), SIGMAS)
    stop()
    return events


@check
def read_ahead():
    """What comes before the low-noise expert is loaded, the reading of its file among it."""
    high, low = experts()
    events, stop = watch(high, low)
    warm, wanted = loaders.warm, low.model.checkpoint
    loaders.warm = lambda checkpoint: events.append(f"read low: {checkpoint is wanted}")
    try:
        sample(guider(high, low), FlowSolver("unipc"), flow_sigmas(20, 5.0))
    finally:
        loaders.warm = warm
        stop()
    return events[: events.index("load low")]


@check
def below_the_boundary():
    """A run that starts below the boundary never loads the high-noise expert, one that ends above it never the low, and
    one without sigmas is refused before either is loaded."""
    found, messages = {}, {}
    for name, sigmas in (("low only", SIGMAS[2:]), ("high only", SIGMAS[:2]), ("no steps", SIGMAS[:0])):
        high, low = experts()
        events, stop = watch(high, low)
        try:
            messages[name] = refused(sample, guider(high, low), FlowSolver("unipc"), sigmas)
        finally:
            stop()  # else every later check loads through this one's watch
        found[name] = events
    return found | {"refused": messages}


@check
def boundaries():
    """0 leaves everything to the high-noise expert, 1 to the low-noise one."""
    found = {}
    for boundary in (0.0, 1.0):
        high, low = experts()
        events, stop = watch(high, low)
        sample(guider(high, low, boundary=boundary), FlowSolver("unipc"), SIGMAS)
        stop()
        found[str(boundary)] = sorted(set(events))
    return found


@check
def refusals():
    high, low = experts()
    return {
        "one model twice": refused(ExpertGuider, PerExpert(high, high.clone()), 0.9),
        "boundary": refused(ExpertGuider, PerExpert(high, low), 1.5),
        "models": [model is expected for model, expected in zip(guider(high, low).get_models(), (high, low))],  # noqa: B905
    }


@check
def interrupted():
    """An interrupt between blocks and an error in the low expert's first step; the next run is as good as any."""
    high, low = experts()
    want = sample(guider(high, low), FlowSolver("unipc"), SIGMAS)
    found, ours = {}, guider(high, low)
    block = low.model.diffusion_model.blocks[1]

    def press_stop(module, arguments):
        comfy.model_management.interrupt_current_processing(True)

    hook, later = block.register_forward_pre_hook(press_stop), []
    count = low.model.diffusion_model.blocks[2].register_forward_pre_hook(lambda *_: later.append(1))
    try:
        sample(ours, FlowSolver("unipc"), SIGMAS)
    except comfy.model_management.InterruptProcessingException:
        found["stopped"] = not later  # not even the step's last block ran
    hook.remove()
    count.remove()
    found["left behind"] = [name for name in ("conds", "inner_model") if hasattr(ours, name) or hasattr(ours.low, name)]
    found["after interrupt"] = gap(sample(ours, FlowSolver("unipc"), SIGMAS), want)
    hook = block.register_forward_pre_hook(lambda module, arguments: 1 / 0)
    try:
        sample(ours, FlowSolver("unipc"), SIGMAS)
    except ZeroDivisionError:
        found["failed"] = True
    hook.remove()
    found["after error"] = gap(sample(ours, FlowSolver("unipc"), SIGMAS), want)
    return found


@check
def one_batch():
    """Prompt and negative prompt go through the model as one batch, with one camera for both."""
    high, low = experts()
    seen = []
    model = high.model.diffusion_model
    original = model._forward

    def spy(x, *arguments, **options):
        seen.append((x.shape[0], options["lingbot_camera"].shape[0]))
        return original(x, *arguments, **options)

    model._forward = spy
    sample(guider(high, low), FlowSolver("unipc"), SIGMAS)
    return sorted(set(seen))


@check
def left_behind():
    """What holds a run's conditioning, and with it memory of the GPU, until the garbage collector comes."""
    pair = experts()
    gc.collect()
    gc.disable()
    try:
        sample(guider(*pair), FlowSolver("unipc"), SIGMAS)
        kept = {type(o).__name__ for o in gc.get_objects() if isinstance(o, (ExpertSwitch, comfy.samplers.CFGGuider))}
        return sorted(kept)
    finally:
        gc.enable()


@check
def plain_wan_and_camera():
    """A camera for experts without camera layers, and one of another size: said before anything is sampled."""
    high, low = experts()
    config = high.model.diffusion_model.config
    object.__setattr__(config, "control", None)
    plain = refused(sample, guider(high, low), FlowSolver("unipc"), SIGMAS)
    high, low = experts()
    made = guider(high, low)
    for conds in (made.original_conds, made.low.original_conds):
        for cond in conds["positive"] + conds["negative"]:
            cond["lingbot_camera"] = cond["lingbot_camera"][:, :, :2]
    return {"plain": plain, "short": refused(sample, made, FlowSolver("unipc"), SIGMAS)}


report()
