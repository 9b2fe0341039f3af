"""Mutations of a file's bytes, each read under a limit of time and memory.

The suite tries a few; LINGBOT_FUZZ=20000 tries as many of each kind."""

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest
from lingbot_world.errors import LingBotError

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
EXAMPLES = int(os.environ.get("LINGBOT_FUZZ", 40))
MEMORY, SECONDS = 512 << 20, 2
TOKENS = [b"0", b"-1", b"1e400", b"NaN", b"null", b"[]", b"{}", b'""', b"true", b"9" * 30, b"[" * 3000, b'"\\ud800"']
TOKENS += [b"\x00", b"\xff\xfe", b"'", b"(", b",", b":", b"}", b"shape", b"__class__"]

edit = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(1, 255)),
    st.tuples(st.just("put"), st.integers(0, 1 << 20), st.sampled_from(TOKENS)),
    st.tuples(st.just("replace"), st.integers(0, 1 << 20), st.sampled_from(TOKENS)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.integers(1, 4000)),
    st.tuples(st.just("repeat"), st.integers(0, 1 << 20), st.integers(1, 500)),
    st.tuples(st.just("end"), st.integers(0, 1 << 20), st.just(0)),
)


def mutated(content: bytes, edits, head: int) -> bytes:
    """The content with each edit made; three of four fall into the first `head` bytes, where headers are."""
    for kind, where, what in edits:
        if not content:
            break
        at = where % (min(head, len(content)) if where % 4 else len(content))
        before, after = content[:at], content[at:]
        if kind == "flip":
            content = before + bytes([after[0] ^ what]) + after[1:]
        elif kind == "end":
            content = before
        elif kind == "cut":
            content = before + after[what:]
        elif kind == "repeat":
            content = before + after[:what] * 2 + after[what:]
        else:
            content = before + what + after[len(what) * (kind == "replace") :]
    return content


def fuzz(read, content: bytes, target: Path, head: int = 1500) -> None:
    """Write mutations of `content` to `target` and `read` them."""

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES <= 40,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(edit, min_size=1, max_size=3))
    def attempt(edits):
        target.write_bytes(mutated(content, edits, head))
        begin = time.process_time()
        with limited_memory(), contextlib.suppress(LingBotError):
            read()
        assert time.process_time() - begin < SECONDS

    target.write_bytes(content)
    read()  # whatever is imported late is imported now
    attempt()


class limited_memory:  # noqa: N801
    """512 MB of address space more than now; Linux only."""

    def __enter__(self):
        if sys.platform == "linux":
            import resource

            self._before = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, self._before[1]))

    def __exit__(self, *_):
        if sys.platform == "linux":
            import resource

            resource.setrlimit(resource.RLIMIT_AS, self._before)
