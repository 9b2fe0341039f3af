"""A record of the parameters already written to a file, so that an interrupted quantization can resume."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple


class WrittenParameter(NamedTuple):
    """A parameter that is already in the output file.

    sha256: the SHA-256 of each stored tensor by key.
    states: the JSON texts of bitsandbytes' quant_states by key; empty for other formats.
    error: the relative RMS quantization error; None for an unquantized parameter.
    """

    sha256: dict[str, str]
    states: dict[str, str]
    error: float | None


class Journal(AbstractContextManager["Journal"]):
    """A file that lists the parameters already written. Opening it drops an incomplete last line, and all records if
    they have another `resume_key`."""

    def __init__(self, path: Path, resume_key: dict) -> None:
        self.written = _read(path, resume_key)
        self._file = path.open("w", encoding="utf-8")
        self._put(resume_key)
        for name, item in self.written.items():
            self.add(name, item)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, name: str, item: WrittenParameter) -> None:
        self.written[name] = item
        self._put([name, *item])

    def _put(self, line: list | dict) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _read(path: Path, resume_key: dict) -> dict[str, WrittenParameter]:
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        if json.loads(first) != json.loads(json.dumps(resume_key)):
            return {}
    except (OSError, ValueError):
        return {}
    written = {}
    for line in lines:
        try:
            name, *item = json.loads(line)
        except ValueError:
            break
        written[name] = WrittenParameter(*item)
    return written
