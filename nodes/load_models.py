"""The nodes that load the experts of the base model, a causal model, and a VAE."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import comfy.utils
from comfy_api.latest import io

from ..errors import InputError
from ..host.files import folders
from ..host.files.search import fingerprint
from ..host.prompt.queue import known_inputs
from ..options import ARITHMETICS, ATTENTION_MODES, DTYPE_NAMES, PerExpert
from ..weights.files import read_tensors
from .inputs import choice_input
from .validation import NamesToCheck, fingerprint_of, validate

NO_CAUSAL = "none (see the tooltip)"
NO_PACKAGE = "none (choose both experts)"
FROM_PACKAGE = "from the package"
CATEGORY = "LingBot-World"
TINY_VAE_KEY = "decoder.22.bias"


def _expert_input(name: str, choices: list[str], task: str) -> io.Combo.Input:
    return choice_input(
        name,
        NamesToCheck([FROM_PACKAGE, *choices]),
        f"{task} Choose '{FROM_PACKAGE}', or a file of models/diffusion_models or of a folder in "
        "models/lingbot_world to use instead.",
        display_name=name.replace("_noise_", " "),
    )


def _precision_inputs() -> list[io.Combo.Input]:
    weight_dtype = choice_input(
        "weight_dtype",
        ["default", *DTYPE_NAMES],
        "The dtype that the model computes in. 4-bit weights are decoded to this dtype where they are used. "
        "default: bf16, or the dtype that suits your device.",
        advanced=True,
    )
    arithmetic = choice_input(
        "arithmetic",
        ARITHMETICS,
        "How the large matrix products are computed. auto and bf16: in the weight dtype. 8bit: fp8 on H100 and H200, "
        "int8 on GeForce and Radeon; a little less exact, and faster except on Radeon. int8 needs a 20 series or "
        "later, fp8 a 40 series or later. Weights with a LoRA stay in the weight dtype.",
        optional=True,  # prompts and workflows of earlier versions lack it
        advanced=True,
    )
    attention = choice_input(
        "attention",
        ATTENTION_MODES,
        "How attention among the video's tokens is computed. auto and exact: in the weight dtype. 8bit is faster and "
        "less exact. 30 to 50 series, H100 and H200 need nothing more for it; a B200 needs the package "
        "nvidia-cudnn-frontend. On Radeon leave auto.",
        optional=True,  # prompts and workflows of earlier versions lack it
        advanced=True,
    )
    return [weight_dtype, arithmetic, attention]


class LingBotWorldLoadExperts(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        packages = [*folders.package_choices(), NO_PACKAGE]
        experts = folders.expert_choices()
        return io.Schema(
            node_id="LingBotWorldLoadExperts",
            display_name="Load LingBot-World Experts",
            category=CATEGORY,
            description="Opens the high-noise and the low-noise expert. Files are only mapped here: weights reach the "
            "GPU when sampling needs them, so this takes about a second.",
            search_aliases=["lingbot", "load model", "load checkpoint", "nf4", "wan 2.2", "unet loader", "world model"],
            inputs=[
                choice_input(
                    "package",
                    packages,
                    "A folder of models/lingbot_world, exactly as `hf download` leaves it. Choose "
                    f"'{NO_PACKAGE}' to name two files below.",
                ),
                _expert_input("high_noise_expert", experts, "Predicts the first steps, where the noise is strong."),
                _expert_input("low_noise_expert", experts, "Predicts the last steps, below the boundary."),
                *_precision_inputs(),
            ],
            outputs=[
                io.Model.Output(
                    "high", display_name="high noise", tooltip="The high-noise expert. LoRA loaders work on it."
                ),
                io.Model.Output(
                    "low", display_name="low noise", tooltip="The low-noise expert. LoRA loaders work on it."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, package):
        from ..host.checks.graph import check_steps

        known = known_inputs()
        experts = known.get("high_noise_expert"), known.get("low_noise_expert")
        found = validate(_check, _expert_paths, *_modes(known), package, *experts)
        return validate(check_steps) if found is True else found

    @classmethod
    def fingerprint_inputs(cls, package, high_noise_expert, low_noise_expert, **precision):
        return fingerprint_of(_expert_paths, package, high_noise_expert, low_noise_expert) + repr(precision)

    @classmethod
    def execute(
        cls, package, high_noise_expert, low_noise_expert, weight_dtype, arithmetic="auto", attention="auto"
    ) -> io.NodeOutput:
        from ..host.loading import load_experts

        bar = comfy.utils.ProgressBar(2)
        paths = _expert_paths(package, high_noise_expert, low_noise_expert)
        return io.NodeOutput(*load_experts(paths, weight_dtype, bar.update_absolute, arithmetic, attention))


class LingBotWorldLoadCausal(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        choices = folders.causal_choices() or [NO_CAUSAL]
        return io.Schema(
            node_id="LingBotWorldLoadCausal",
            display_name="Load LingBot-World Causal Model",
            category=CATEGORY,
            description="Opens LingBot-World Fast or 2.0, for LingBot-World Rollout. The file is only mapped here. "
            "LingBot-World 2.0 is licensed CC BY-NC-SA 4.0, for non-commercial use; Fast is Apache-2.0.",
            search_aliases=["lingbot", "fast", "causal", "v2", "autoregressive", "load model", "load checkpoint"],
            inputs=[
                choice_input(
                    "model_name",
                    choices,
                    "A causal model's folder under its released name: in models/diffusion_models, a package of "
                    "models/lingbot_world, or a folder inside a package (lingbot_world_fast, or transformer in "
                    "diffusers' layout).",
                    display_name="model",
                ),
                *_precision_inputs(),
            ],
            outputs=[
                io.Model.Output("model", display_name="model", tooltip="For LingBot-World Rollout. LoRA loaders work.")
            ],
        )

    @classmethod
    def validate_inputs(cls, model_name):
        return validate(_check, _causal_path, *_modes(known_inputs()), model_name)

    @classmethod
    def fingerprint_inputs(cls, model_name, **precision):
        return fingerprint_of(_causal_path, model_name) + repr(precision)

    @classmethod
    def execute(cls, model_name, weight_dtype, arithmetic="auto", attention="auto") -> io.NodeOutput:
        from ..host.loading import load_causal

        return io.NodeOutput(load_causal(_causal_path(model_name), weight_dtype, arithmetic, attention))


class LingBotWorldLoadVAE(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        choices = folders.vae_choices() or ["Wan2.1_VAE.pth"]
        return io.Schema(
            node_id="LingBotWorldLoadVAE",
            display_name="Load LingBot-World VAE",
            category=CATEGORY,
            description="Loads the VAE of a package in models/lingbot_world, or one of models/vae as Load VAE does.",
            search_aliases=["lingbot", "vae loader", "wan vae"],
            inputs=[
                choice_input(
                    "vae_name",
                    choices,
                    "Wan2.1_VAE.pth of a package, the vae folder of one in diffusers' layout, or any Wan 2.1 "
                    "VAE of models/vae.",
                    display_name="vae",
                )
            ],
            outputs=[io.Vae.Output("vae", display_name="vae", tooltip="For WanImageToVideo and VAE Decode.")],
        )

    @classmethod
    def validate_inputs(cls, vae_name):
        return validate(_check_vae, vae_name)

    @classmethod
    def fingerprint_inputs(cls, vae_name):
        return fingerprint_of(folders.resolve_vae, vae_name)

    @classmethod
    def execute(cls, vae_name) -> io.NodeOutput:
        from ..host.model.vae import open_vae

        return io.NodeOutput(open_vae(folders.resolve_vae(vae_name)))


def _causal_path(name: str) -> Path:
    if name == NO_CAUSAL:
        raise InputError(
            "there is no causal model yet: put LingBot-World Fast or 2.0 at models/lingbot_world/<package>, under the "
            "name that it was released with, and press R"
        )
    return folders.resolve_causal(name)


def _check_vae(name: str) -> None:
    """Raise an error for a missing or invalid VAE. A tiny VAE passes, because ComfyUI can read it."""
    from ..vae import read_vae

    path = folders.resolve_vae(name)
    if TINY_VAE_KEY not in read_tensors(path):
        read_vae(path)


def _modes(known: Mapping[str, Any]) -> tuple[str, str]:
    return known.get("arithmetic", "auto"), known.get("attention", "auto")


def _check(find: Callable[..., PerExpert[Path] | Path], arithmetic: str, attention: str, *names: str) -> None:
    """Raise LingBotError if a header of the files `find(*names)` is wrong, or the device does not support `arithmetic`
    or `attention`."""
    paths = find(*names)
    version = fingerprint([paths] if isinstance(paths, Path) else paths)
    _check_headers(paths, version, arithmetic, attention)


@lru_cache(maxsize=8)
def _check_headers(paths: PerExpert[Path] | Path, version: str, *modes: str) -> None:
    from ..host.loading import check_8_bits
    from ..loaders import open_checkpoint
    from ..loaders.package import open_experts

    checkpoint = open_checkpoint(paths) if isinstance(paths, Path) else open_experts(paths).high
    check_8_bits(checkpoint, *modes)


def _find_experts(names: dict[str, str]) -> dict[str, Path]:
    found, missing = {}, []
    for role, name in names.items():
        if name != FROM_PACKAGE:
            try:
                found[role] = folders.resolve_expert(name, f"{role}-noise expert")
            except InputError as error:
                missing.append(str(error))
    if missing:
        raise InputError("; ".join(missing))
    return found


def _expert_paths(package: str, high: str, low: str) -> PerExpert[Path]:
    from ..loaders import find_package

    chosen = _find_experts({"high": high, "low": low})
    if package == NO_PACKAGE and len(chosen) < 2:
        raise InputError(
            "no package is chosen: put one at models/lingbot_world/<package>, press R and choose it, or choose both "
            "experts"
        )
    if len(chosen) == 2:
        return PerExpert(**chosen)
    experts = find_package(folders.resolve_package(package), **chosen).experts
    if experts is None:
        raise InputError(
            f"{package} holds a causal model, not two experts; open it with Load LingBot-World "
            "Causal Model, or choose another package"
        )
    return experts
