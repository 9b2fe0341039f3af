"""Writing of output files. An output file is locked against other runs. It gets its final name only when it is
complete."""

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
    """Return the path of the temporary file for `file`. This process writes the content there, and `name_whole` then
    renames it to `file`. Other processes use other paths. If `file` is a symbolic link, the temporary file is next to
    the link's target."""
    file = _followed(file)
    return file.with_name(f"{file.name}.{_own_name(os.getpid())}{PART}")


def name_whole(file: Path) -> None:
    """Rename the finished temporary file (see `part_of`) to `file`, replacing an existing one. Raises OSError for a
    device or a pipe, which a rename would replace by a file."""
    target = _followed(file)
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(errno.EINVAL, "a device or a pipe, expected a file", str(file))
    os.replace(part_of(file), target)


@contextmanager
def written_whole(*files: Path) -> Iterator[list[Path]]:
    """A context that yields a list of temporary paths, one for each of `files`; the caller writes the files there. If
    the context ends without an error, the temporary files are renamed to `files`; otherwise they are removed."""
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
    """A context that locks an output file against other runs.

    parts: a glob pattern if the output is a series of files, such as numbered frames.

    - The lock is a file next to `file`. The operating system releases it if the process dies.
    - Missing folders are created, and removed at the end if they are empty.
    - At the beginning, temporary files that dead runs left for `file` are deleted, or with `parts` those for all files
    that match the pattern.

    Raises InputError if another run has the lock or the folder cannot be written.
    """
    file = _followed(file)
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
    """Return whether a run, of this process or of another one, holds the lock of an output file (see `lock_output`).
    The result is True for another user's lock file, and False on a drive without locks."""
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


def _followed(file: Path) -> Path:
    """Return the target of a symbolic link, or `file` itself. Raises InputError for a link that leads to itself."""
    if not file.is_symlink():
        return file
    followed = Path(os.path.realpath(file))
    if followed.is_symlink():
        raise InputError(f"{file}: a symbolic link that leads back to itself; remove it, or write elsewhere")
    return followed


@cache
def _own_name(_process: int) -> str:
    """Return a random name for this process, unique even if machines or containers have equal process ids. The result
    is cached by process id, so that a forked process gets a new name."""
    return secrets.token_hex(4)


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder and its parents, and return the folders that did not exist before, the deepest first."""
    folder = _followed(folder)
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
            if _is_of(lock, lock_file):
                return lock
        except Timeout:
            raise InputError(f"{file}: another run is writing it; wait for its end, or write elsewhere") from None
        except OSError as error:
            remedy = (
                f"remove {lock_file} if another user's run has left it" if lock_file.exists() else "name it otherwise"
            )
            raise InputError(f"{file}: cannot be written ({error.strerror}); {remedy}, or write elsewhere") from error
        lock.release()


def _is_of(lock: "BaseFileLock", lock_file: Path) -> bool:
    """Return whether `lock_file` is still the file that `lock` holds. The lock's previous owner may have removed
    that file and another run may have made a new one."""
    opened = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    try:
        return opened is None or os.fstat(opened).st_ino == lock_file.stat().st_ino
    except FileNotFoundError:
        return False


def _release(lock: "BaseFileLock", lock_file: Path) -> None:
    """Release a lock and remove its file. The file is removed first, so that no other process can lock it in between.
    Windows cannot remove an open file, so on Windows the file is removed afterwards."""
    try:
        lock_file.unlink()
        lock.release()
    except OSError:
        lock.release()
        with suppress(OSError):
            lock_file.unlink()
