"""A cache of prompt embeddings on the disk, in the folder that LINGBOT_WORLD_PROMPTS names."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model.choice.user_cache import cache_path
from ..outputs import written_whole

MAX_PROMPTS = 64
"""The maximum number of embeddings in the cache. The least recently used ones are deleted."""
VERSION = 1
"""The version of the method that computes embeddings. A new version makes earlier embeddings unusable."""
EMBEDDING = "embedding"


@dataclass(frozen=True)
class EmbeddingCache:
    """The cached embeddings of one text encoder with one tokenizer, dtype and device type.

    folder: None disables the cache.
    encoder_id: a text that identifies encoder, tokenizer, dtype and device type.
    """

    folder: Path | None
    encoder_id: str

    @classmethod
    def for_encoder(cls, encoder: Path, tokenizer: Path, dtype: torch.dtype, device: torch.device) -> EmbeddingCache:
        """Return the cache for a text encoder and a tokenizer, each a file or a folder. A change of their files
        invalidates earlier embeddings."""
        words = [VERSION, file_stamps(encoder), file_stamps(tokenizer), str(dtype), device.type]
        return cls(cache_path("LINGBOT_WORLD_PROMPTS", "prompts"), json.dumps(words))

    def has(self, text: str) -> bool:
        file = self._file(text)
        return file is not None and file.is_file()

    def find(self, text: str) -> Tensor | None:
        """Return a prompt's embedding, float32 [1, L, D] on the CPU, or None if the cache has none that can be read."""
        from safetensors.torch import load_file

        file = self._file(text)
        with suppress(Exception):  # after any error the prompt is encoded again, and the file is rewritten
            if file is not None:
                embedding = load_file(file)[EMBEDDING]
                if embedding.dtype == torch.float32 and embedding.ndim == 3 and embedding.isfinite().all():
                    os.utime(file)
                    return embedding
        return None

    def keep(self, text: str, embedding: Tensor) -> None:
        """Save a prompt's embedding, [1, L, D], in a file that only this user can read. Errors are ignored."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        file = self._file(text)
        if file is None:
            return
        with suppress(OSError, SafetensorError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as (part,):
                save_file({EMBEDDING: embedding.float().cpu().contiguous()}, part)
                part.chmod(0o600)
            for old in sorted(file.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[:-MAX_PROMPTS]:
                old.unlink()

    def _file(self, text: str) -> Path | None:
        name = hashlib.sha256(json.dumps([self.encoder_id, text]).encode()).hexdigest()
        return None if self.folder is None else self.folder / f"{name[:32]}.safetensors"


NO_CACHE = EmbeddingCache(None, "")


def file_stamps(path: Path) -> list[tuple[str, int, int]]:
    """Return (path, size in bytes, modification time in ns) of a file, or of each file below a folder."""
    path = path.resolve()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
