"""Windows' rules, played on Linux, for a process of its own. `play()` first, then import what is tried.

A file that is open or mapped, here or below a folder that is renamed, can be neither replaced nor removed; names with
`:` `?` and the like, a trailing dot or of a device do not exist, nor do paths over 260 characters; what Unix alone has
is gone; text that this project reads or writes without an encoding is an error (with `-X warn_default_encoding`)."""

import builtins
import gc
import importlib
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import traceback
import warnings

LONGEST = 260
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
GONE = {
    os: "fork forkpty posix_fadvise preadv pwritev sched_getaffinity sched_setaffinity mkfifo getuid geteuid chown "
    "sysconf",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM setitimer alarm pthread_kill",
    socket: "AF_UNIX socketpair",
}
LIBRARIES = ["torch", "torch.distributed", "bitsandbytes", "comfy_kitchen.tensor", "av", "filelock", "tokenizers"]
LIBRARIES += ["safetensors.torch", "PIL.Image", "scipy.spatial", "tqdm", "ftfy", "einops", "asyncio", "tempfile"]
LIBRARIES += ["multiprocessing.resource_tracker"]
UNIX_MODULES = ("fcntl", "pwd", "grp", "resource", "termios")
_stat, _listdir, _readlink = os.stat, os.listdir, os.readlink


def _in_use() -> set[str]:
    """Paths that this process has open or mapped."""
    paths = set()
    for number in _listdir("/proc/self/fd"):
        try:
            paths.add(_readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the list's own
    with io.open_code("/proc/self/maps") as maps:  # this `open` is not patched
        for line in maps.read().decode(errors="replace").splitlines():
            paths.add(line.partition("/")[2] and "/" + line.partition("/")[2])
    return paths - {""}


def check_unused(path) -> None:
    """Raise PermissionError, as Windows does, for a file in use, or for a folder with one."""
    real = os.path.realpath(path)
    below = os.path.join(real, "")
    used = [each for each in _in_use() if each == real or each.startswith(below)]
    if used:
        raise PermissionError(13, "The process cannot access the file because another process is using it", real)


def check_name(path) -> None:
    """Raise OSError, as Windows does, for a path that cannot exist there."""
    if isinstance(path, int):
        return
    text = os.path.abspath(os.fspath(path) if not isinstance(path, bytes) else os.fsdecode(path))
    parts = [part for part in text.split("/") if part]
    bad = any(_FORBIDDEN.search(part) or part.endswith((".", " ")) or _RESERVED.match(part) for part in parts)
    if bad and not text.startswith(("/proc", "/dev")):
        raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", text)
    if len(text) > LONGEST:
        raise FileNotFoundError(2, "The system cannot find the path specified", text)


def _guarded(call, *, paths: int, checks):
    def guarded(*arguments, **options):
        for path in arguments[:paths]:
            if not isinstance(path, int):
                for check in checks:
                    check(path)
        return call(*arguments, **options)

    return guarded


def play() -> None:
    """Make this process live by the rules."""
    for name in LIBRARIES:  # they are Linux's, and take what it has as they are imported
        importlib.import_module(name)
    warnings.filterwarnings("error", category=EncodingWarning, module="lingbot_world")
    for name in ("replace", "rename"):
        call = getattr(os, name)
        setattr(os, name, _guarded(call, paths=2, checks=(check_name, check_unused)))
    for name in ("unlink", "remove", "rmdir"):
        setattr(os, name, _guarded(getattr(os, name), paths=1, checks=(check_unused,)))
    for name in ("mkdir", "open"):
        setattr(os, name, _guarded(getattr(os, name), paths=1, checks=(check_name,)))
    builtins.open = io.open = _guarded(io.open, paths=1, checks=(check_name,))
    shutil._use_fd_functions = False  # Windows has no file descriptors of folders
    for module, names in GONE.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in UNIX_MODULES:
        sys.modules[name] = None
    sys.modules["triton"] = None


if __name__ == "__main__":  # argument: a JSON list of commands; prints the exit code of each
    play()
    from lingbot_world.headless.command.cli import main

    gc.freeze()  # runs collect after each stage: scanning what is imported takes longer than a stage
    codes = []
    for command in json.loads(sys.argv[1]):
        gc.collect()  # views of a mapped file keep it in use, on Windows too
        try:
            codes.append(main(command))
        except BaseException:
            traceback.print_exc()
            codes.append(-1)
    print(json.dumps(codes))
