"""The Triton kernels without a GPU: each is compiled for one, and computed by Triton's interpreter.

torch brings Triton only with CUDA; elsewhere `pip install triton` (280 MB) makes these tests run."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from lingbot_world.model.kernels import attention_hopper, convolution_hopper, hopper, nvrtc

SCRIPT = Path(__file__).parent / "kernel_scripts" / "kernels.py"


SOURCES = {
    **{str(dtype): (partial(attention_hopper.source, dtype), b"attend") for dtype in attention_hopper.KINDS},
    "convolution": (convolution_hopper.source, b"convolve"),
    "values across": (partial(hopper.source, "values_across.cu"), b"put_across"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_written_in_cudas_language_compiles(name):
    source, function = SOURCES[name]
    try:
        code = nvrtc.compiled(source(), hopper.ARCHITECTURE)
    except OSError:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    assert function in code
    with pytest.raises(RuntimeError, match="does not compile the kernel: .*unknown_type"):
        nvrtc.compiled("unknown_type x;", hopper.ARCHITECTURE)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.parametrize(("interpreted", "cases"), [("0", 35), ("1", 20)], ids=["compiled", "computed"])
def test_every_kernel(interpreted, cases):
    path = os.pathsep.join([str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TRITON_INTERPRET": interpreted}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["failed"] == {}
    assert found["cases"] >= cases
