"""Run by ComfyUI before it imports torch. On a CPU, OpenMP's threads are set to sleep while they wait: by default each
thread spins for milliseconds and slows everything else on its core. A setting in the environment takes precedence."""

import os
import sys

if "--cpu" in sys.argv and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "passive"
