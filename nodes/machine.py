"""LingBotWorldCheckMachine: a checkup of the machine before models are loaded."""

from comfy_api.latest import io

from .inputs import CATEGORY


class LingBotWorldCheckMachine(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCheckMachine",
            display_name="LingBot-World Check This Machine",
            category=CATEGORY,
            description="Says what this machine can do: card, driver and versions, memory, each kernel's trial, and "
            "from the card's rates the seconds of a chunk and a setting to take. Takes up to 30 s the first time.",
            search_aliases=["lingbot", "doctor", "benchmark", "gpu", "vram", "speed", "check", "machine"],
            is_output_node=True,
            inputs=[],
            outputs=[
                io.String.Output("report", tooltip="The page that is shown here."),
                io.String.Output("row", tooltip="A line for the table of cards, to send with an issue."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls) -> float:
        return float("nan")  # never cached: a machine changes

    @classmethod
    def execute(cls) -> io.NodeOutput:
        from ..host.checks.machine import check_machine

        report, row = check_machine()
        return io.NodeOutput(report, row, ui={"text": [report]})
