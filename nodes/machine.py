"""The node that tests the hardware and software of the machine before any model is loaded."""

from comfy_api.latest import io


class LingBotWorldCheckMachine(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCheckMachine",
            display_name="LingBot-World Check This Machine",
            category="LingBot-World",
            description="Reports what this machine can do: card, driver, versions, memory, a trial of each kernel, the "
            "expected seconds per chunk, and settings to use. Takes up to 30 s the first time.",
            search_aliases=["lingbot", "doctor", "benchmark", "gpu", "vram", "speed", "check", "machine"],
            is_output_node=True,
            inputs=[],
            outputs=[
                io.String.Output("report", tooltip="The report that this node shows."),
                io.String.Output("row", tooltip="A line for the table of cards, to send with an issue."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls) -> float:
        return float("nan")  # never cached: a machine changes

    @classmethod
    def execute(cls) -> io.NodeOutput:
        from ..host.machine import check_machine

        report, row = check_machine()
        return io.NodeOutput(report, row, ui={"text": [report]})
