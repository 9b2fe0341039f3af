"""The node that converts official weights to a folder of 4-bit models, without a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comfy_api.latest import io, ui

from ..errors import InputError
from ..host.files import quantize as host
from ..host.files.search import resolve
from ..host.prompt.notice import show_text
from ..host.prompt.queue import known_inputs
from ..options import LoraFile
from .inputs import choice_input, float_input
from .validation import NamesToCheck, validate

if TYPE_CHECKING:
    from ..quantize.package import QuantizePlan

NOTHING = "nothing to quantize (see the tooltip)"
NO_LORA = "none"


class LingBotWorldQuantize(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        sources = host.source_choices() or [NOTHING]
        return io.Schema(
            node_id="LingBotWorldQuantize",
            display_name="Quantize LingBot-World",
            category="LingBot-World",
            description="Makes a 4-bit package for cards of 8 to 24 GB from official weights or your own. Takes "
            "about a minute per model on a GPU. A stopped run continues when queued again.",
            search_aliases=["lingbot", "quantize", "nf4", "4-bit", "convert model", "shrink model", "merge lora"],
            is_output_node=True,
            inputs=[
                choice_input(
                    "source",
                    sources,
                    "Weights in bf16, fp16, fp32, fp8, int8, nvfp4, mxfp8 or GGUF: a package or a causal model of "
                    "models/lingbot_world, a model of models/diffusion_models, a T5 of models/text_encoders. Press R "
                    "after adding one.",
                ),
                io.String.Input(
                    "name",
                    default="my-lingbot-world-nf4",
                    tooltip="The folder to make in models/lingbot_world. It must not exist yet.",
                ),
                io.Boolean.Input(
                    "search",
                    default=False,
                    tooltip="Searches for the scales with the least error: 9 % less error at the same format and "
                    "size, in several times the time.",
                ),
                io.Boolean.Input(
                    "t5",
                    default=False,
                    tooltip="Quantizes a package's text encoder as well: 11.4 GB become 3.2 GB. Otherwise it "
                    "is copied unchanged.",
                ),
                choice_input(
                    "lora",
                    NamesToCheck([NO_LORA, *host.lora_choices()]),
                    "A LoRA of models/loras to merge into the weights first; in a package of two experts, into both.",
                    optional=True,
                    advanced=True,
                ),
                float_input(
                    "lora_strength",
                    (-10.0, 1.0, 10.0),
                    "How strongly the LoRA is merged.",
                    step=0.05,
                    optional=True,
                    advanced=True,
                ),
            ],
            outputs=[io.String.Output("report", tooltip="Where the result is, and the layers that lost most.")],
        )

    @classmethod
    def validate_inputs(cls, source):
        known = known_inputs()
        switches = known.get("search", False), known.get("t5", False)
        lora = known.get("lora", NO_LORA), known.get("lora_strength", 1.0)
        return validate(_plan, source, known.get("name"), *switches, *lora)

    @classmethod
    def fingerprint_inputs(cls, **_):
        return float("nan")  # never cached: the package may have been deleted

    @classmethod
    def execute(cls, source, name, search, t5, lora=NO_LORA, lora_strength=1.0) -> io.NodeOutput:
        from ..quantize import quantize, report

        plan = _plan(source, name, search, t5, lora, lora_strength)
        show_text(f"Writing to {plan.unfinished}. Stopped, it goes on there when it is queued again.")
        metas = quantize(plan, host.show_stage)
        ready = f"{plan.destination} is ready. Press R, and the loaders list it."
        words = "\n\n".join((ready, *plan.notes, *(report(file, meta) for file, meta in metas.items())))
        show_text(words)
        return io.NodeOutput(words, ui=ui.PreviewText(words))


def _plan(source: str, name: str, search: bool, t5: bool, lora: str, lora_strength: float) -> QuantizePlan:
    from ..quantize import QuantizeOptions, plan_quantize

    if source == NOTHING:
        raise InputError(
            "there is nothing to quantize yet: put official weights at models/lingbot_world/<folder>, as "
            "`hf download` leaves them, and press R"
        )
    loras: tuple[LoraFile, ...] = ()
    if lora != NO_LORA:
        loras = (LoraFile(resolve(lora, ("loras",), "LoRA", Path.is_file), lora_strength),)
    options = QuantizeOptions(search=search, t5=t5, loras=loras, device=host.device())
    return plan_quantize(host.resolve_source(source), host.new_package(name), options)
