"""Nothing wrong without a word: every node of ComfyUI that makes a CONDITIONING or changes a MODEL, before our nodes and
before ComfyUI's KSampler, is used, said, or refused in a sentence. So are things that are wrong together only."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host

FRONTS = ("sampler", "guider", "ksampler", "rollout")
LETTERS = {"U": "used", "T": "told", "R": "refused", "I": "idle", "F": "fails", "-": "not run"}
ROWS = {
    "UUUU": """APG CLIPTextEncode""",
}
