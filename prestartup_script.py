"""A script that ComfyUI runs before it imports torch. With `--cpu` it makes OpenMP's waiting threads sleep. By default
they spin for milliseconds, which slows other work on their cores. The script changes nothing if OMP_WAIT_POLICY,
GOMP_SPINCOUNT or KMP_BLOCKTIME is set."""

import os
import sys

if "--cpu" in sys.argv and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "passive"
