"""A script that ComfyUI runs before it imports torch. If ComfyUI was started with `--cpu`, it sets OpenMP's waiting
threads to sleep.

By default each waiting thread spins for milliseconds, which slows its core. The environment takes precedence.
"""

import os
import sys

if "--cpu" in sys.argv and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "passive"
