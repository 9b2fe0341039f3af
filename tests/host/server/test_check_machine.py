"""The node Check This Machine, in the queue of a real server."""

import pytest

pytestmark = pytest.mark.host


def test_the_machine_is_checked_on_the_canvas_anew_in_each_run(comfy_server):
    check = {"check": {"class_type": "LingBotWorldCheckMachine", "inputs": {}}}
    lines = {"class_type": "PreviewAny", "inputs": {"source": ["check", 1]}}
    for _ in range(2):
        run = comfy_server.queue({**check, "row": lines})
        (report,) = run.outputs["check"]["text"]
        assert "What computes what: each candidate, tried here" in report
        assert "  ComfyUI" in report
        assert "--cpu True" in report
        assert "norms           torch                  right" in report
        (row,) = run.outputs["row"]["text"]
        assert row.startswith("| ")
        assert row.count("|") == 6
