"""Embeddings of the last prompts, in the user's cache: a run with a prompt of before reads nothing of the text encoder,
11 GB of umt5-xxl. They lie in the folder that LINGBOT_WORLD_PROMPTS names; nowhere if this is empty."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model.choice.kept import in_user_cache

MOST = 64
"""Embeddings that are kept, those used last: some 60 MB."""
WAY = 1
"""Of making an embedding of text, encoder and tokenizer: another one's are not taken."""
EMBEDDING = "embedding"


@dataclass(frozen=True)
class KnownPrompts:
    """Embeddings by the same files, in the same arithmetic."""

    folder: Path | None
    maker: str

    @classmethod
    def made_by(cls, encoder: Path, tokenizer: Path, dtype: torch.dtype, device: torch.device) -> KnownPrompts:
        """Those of files or folders as they are now: of the same names, sizes and times of change."""
        words = [WAY, _written(encoder), _written(tokenizer), str(dtype), device.type]
        return cls(in_user_cache("LINGBOT_WORLD_PROMPTS", "prompts"), json.dumps(words))

    def has(self, text: str) -> bool:
        file = self._file(text)
        return file is not None and file.is_file()

    def find(self, text: str) -> Tensor | None:
        """The embedding float32 [1, L, D] on the CPU; None for a prompt that is not known, or cannot be read."""
        from safetensors.torch import load_file

        file = self._file(text)
        with suppress(Exception):  # whatever it is, the prompt is encoded anew, and the file written again
            if file is not None:
                embedding = load_file(file)[EMBEDDING]
                if embedding.dtype == torch.float32 and embedding.ndim == 3 and embedding.isfinite().all():
                    os.utime(file)
                    return embedding
        return None

    def keep(self, text: str, embedding: Tensor) -> None:
        """For later runs, readable by this user alone. Where it cannot be written, nothing happens."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        file = self._file(text)
        if file is None:
            return
        part = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError, SafetensorError):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({EMBEDDING: embedding.float().cpu().contiguous()}, part)
            part.chmod(0o600)
            os.replace(part, file)
            for old in sorted(file.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[:-MOST]:
                old.unlink()
        with suppress(OSError):
            part.unlink()

    def _file(self, text: str) -> Path | None:
        name = hashlib.sha256(json.dumps([self.maker, text]).encode()).hexdigest()
        return None if self.folder is None else self.folder / f"{name[:32]}.safetensors"


NOT_KEPT = KnownPrompts(None, "")
"""No prompt is known, and none is kept."""


def _written(path: Path) -> list[tuple[str, int, int]]:
    """What tells files of now from others of the same names."""
    path = path.resolve()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
