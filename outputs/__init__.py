"""Output files: locked against other runs, and renamed to their final name when they are complete."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from filelock import BaseFileLock

PART, LOCK = ".part", ".lock"


def part_of(file: Path) -> Path:
    """Return the path of this process's temporary file for `file`, which `name_whole` renames to `file`."""
    file = _resolved(file)
    return file.with_name(f"{file.name}.{_own_name(os.getpid())}{PART}")


def name_whole(file: Path) -> None:
    """Rename the finished temporary file `part_of(file)` to the output's path `file`. Raises OSError if `file` is a
    device or a pipe."""
    target = _resolved(file)
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(errno.EINVAL, "a device or a pipe, expected a file", str(file))
    os.replace(part_of(file), target)


@contextmanager
def written_whole(*files: Path) -> Iterator[list[Path]]:
    """A context that yields a temporary path for each of `files`. The temporary files are renamed to `files`, or
    removed after an error."""
    parts = [part_of(file) for file in files]
    try:
        yield parts
        for file in files:
            name_whole(file)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


@contextmanager
def lock_output(file: Path, parts: str = "") -> Iterator[None]:
    """A context that locks an output file against other runs and removes old temporary files. Raises InputError if
    another run has the lock or the folder cannot be written.

    parts: a glob pattern for names of outputs in the file's folder. Their old temporary files are removed; "": only
    those of `file`.
    """
    file = _resolved(file)
    made = _make_folders(file.parent)
    lock_file = file.with_name(file.name + LOCK)
    try:
        lock = _acquire(lock_file, file)
        try:
            for part in file.parent.glob(f"{parts or escape(file.name)}.*{PART}"):
                with suppress(OSError):
                    part.unlink()
            yield
        finally:
            _release(lock, lock_file)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def is_locked(file: Path) -> bool:
    """Return whether a run holds the lock of an output file. The result is False on a drive without locks."""
    from filelock import FileLock, Timeout

    lock_file = file.with_name(file.name + LOCK)
    if not lock_file.exists():
        return False
    try:
        with FileLock(lock_file, timeout=0):
            return False
    except (Timeout, PermissionError):
        return True
    except (OSError, NotImplementedError):
        return False


def _resolved(file: Path) -> Path:
    """Return the target of a symbolic link, or `file` itself. Raises InputError for a link that leads to itself."""
    if not file.is_symlink():
        return file
    followed = Path(os.path.realpath(file))
    if followed.is_symlink():
        raise InputError(f"{file}: a symbolic link that leads back to itself; remove it, or write elsewhere")
    return followed


@cache
def _own_name(_process: int) -> str:
    """Return a random name, always the same for one process id. A forked process gets a new name."""
    return secrets.token_hex(4)


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder and its parents, and return the new folders, the deepest first."""
    folder = _resolved(folder)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be made ({error.strerror}); write elsewhere") from error
    return missing


def _acquire(lock_file: Path, file: Path) -> "BaseFileLock":
    from filelock import FileLock, Timeout

    while True:
        lock = FileLock(lock_file, timeout=0, thread_local=False)  # any thread may release the lock
        try:
            lock.acquire()
            if _still_holds(lock, lock_file):
                return lock
        except Timeout:
            raise InputError(f"{file}: another run is writing it; wait for its end, or write elsewhere") from None
        except OSError as error:
            remedy = (
                f"remove {lock_file} if another user's run has left it" if lock_file.exists() else "name it otherwise"
            )
            raise InputError(f"{file}: cannot be written ({error.strerror}); {remedy}, or write elsewhere") from error
        lock.release()


def _still_holds(lock: "BaseFileLock", lock_file: Path) -> bool:
    """Return whether `lock_file` is still the file that `lock` has locked. Another run may have replaced the file."""
    opened = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    try:
        return opened is None or os.fstat(opened).st_ino == lock_file.stat().st_ino
    except FileNotFoundError:
        return False


def _release(lock: "BaseFileLock", lock_file: Path) -> None:
    """Remove a lock's file and release the lock, on Windows in the other order."""
    try:
        lock_file.unlink()
        lock.release()
    except OSError:
        lock.release()
        with suppress(OSError):
            lock_file.unlink()
