"""Model folders for the tests of releases: of real sizes without contents, and tiny ones."""

import json
import math
from dataclasses import replace

from lingbot_world.toy.weights import EXPERT, expert_tensors
from safetensors.torch import save_file

SMALL_RELEASE = replace(
    EXPERT, dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096, text_len=512
)
"""The sizes of 2.0's 1.3B."""


def write_shards(folder, config, count=6, dtype=("F32", 4), index="model.safetensors.index.json", drop=()):
    """A model's shards and their index as `hf download` leaves them, with the right headers over holes: its 6.84 GB
    take no room on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = [(name, shape) for name, shape in config.parameter_shapes().items() if not name.startswith(drop or "-")]
    per_file, places = -(-len(shapes) // count), {}
    for number in range(count):
        file = folder / f"{index.split('.')[0]}-{number + 1:05d}-of-{count:05d}.safetensors"
        header, end = {}, 0
        for name, shape in shapes[number * per_file : (number + 1) * per_file]:
            begin, end = end, end + math.prod(shape) * dtype[1]
            header[name] = {"dtype": dtype[0], "shape": list(shape), "data_offsets": [begin, end]}
            places[name] = file.name
        text = json.dumps(header).encode()
        with file.open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            opened.truncate(8 + len(text) + end)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write_toy_shards(folder, seed=4):
    """A toy as the 1.3B is downloaded: two shards in fp32 and their index, nothing else."""
    folder.mkdir(parents=True)
    tensors, places = dict(expert_tensors(seed)), {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        part = {name: tensor for name, tensor in tensors.items() if ("blocks" in name) == (number == 1)}
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder
