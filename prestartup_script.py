"""Run by ComfyUI before it imports torch. On a CPU it has OpenMP's threads sleep while they wait: by default each one
spins for milliseconds, at the cost of whatever else runs on its core. A choice that the environment makes stays."""

import os
import sys

if "--cpu" in sys.argv and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "passive"
