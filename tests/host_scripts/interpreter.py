"""Runs scripts of this folder, each in a fork of this process, which has imported ComfyUI and this pack: that takes
longer than most of them. A line of JSON in: script, file for its output, file for its errors, arguments. A line out:
its exit code."""

import gc
import json
import os
import runpy
import sys
import traceback

from embed import embed

embed()

import common  # noqa: E402, F401  what the scripts import too

gc.freeze()  # ComfyUI collects before it loads models: walking what is imported takes 0.2 s each time


def run(script: str, output: str, errors: str, *arguments: str) -> int:
    """The exit code of a script in this process."""
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # SystemExit too: no script ends so
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    if (child := os.fork()) == 0:
        os._exit(run(*json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
