"""A script that ComfyUI runs before it imports torch. If ComfyUI runs with `--cpu`, the script makes OpenMP's waiting
threads sleep.

By default each waiting thread spins for milliseconds, which slows its core. The script changes nothing if
OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME is already set.
"""

import os
import sys

if "--cpu" in sys.argv and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "passive"
