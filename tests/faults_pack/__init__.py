"""A custom node pack for the tests' ComfyUI: functions that fail when a test asks for it over HTTP.

POST /lingbot_fault {"module", "owner", "name", "error", "first", "last", "match"}: calls number first to last of
module.owner.name raise the error; with `match` only calls whose arguments show that text count. {} mends everything.
The error "reads" instead returns the open file that it returns, which cannot be read; "none" lets every call work, and
"slow" too, after three seconds.
GET /lingbot_fault tells the arguments of each call that was counted, as text.
A module that begins with a dot is one of the pack's.
"""

import errno
import importlib
import os
import sys
import time

import torch
from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}
PACK = "lingbot-world-comfyui"  # PACK_NAME of tests/comfy_server.py
MOST_TEXT = 2000
SLOW_SECONDS = 3
ERRORS = {
    "memory": lambda: torch.cuda.OutOfMemoryError("CUDA out of memory (played)"),
    "disk": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "full": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "rights": lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
}
changed = []
calls = []


class UnreadableFile:
    """An open file on a disk that fails."""

    def __init__(self, file):
        self.file, self.seek, self.fileno, self.close = file, file.seek, file.fileno, file.close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def readinto(self, buffer):
        raise ERRORS["disk"]()


def find_owner(module: str, owner: str):
    if module.startswith("."):
        module = next(name for name in sys.modules if name.endswith(PACK)) + module
    found = importlib.import_module(module)
    return getattr(found, owner) if owner else found


def break_it(module, name, error, owner="", first=1, last=sys.maxsize, match=""):
    holder = find_owner(module, owner)
    work = getattr(holder, name)

    def faulty(*arguments, **keywords):
        if match in repr(arguments):
            calls.append(repr(arguments)[:MOST_TEXT])
            if first <= len(calls) <= last and error == "reads":
                return UnreadableFile(work(*arguments, **keywords))
            if first <= len(calls) <= last and error == "slow":
                time.sleep(SLOW_SECONDS)
            elif first <= len(calls) <= last and error != "none":
                raise ERRORS[error]()
        return work(*arguments, **keywords)

    changed.append((holder, name, work))
    setattr(holder, name, faulty)


def mend():
    calls.clear()
    while changed:
        setattr(*changed.pop())


@PromptServer.instance.routes.post("/lingbot_fault")
async def fault(request):
    asked = await request.json()
    mend()
    if asked:
        break_it(**asked)
    return web.json_response({})


@PromptServer.instance.routes.get("/lingbot_fault")
async def counted(_request):
    return web.json_response(calls)
