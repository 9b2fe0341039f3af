"""A custom node pack for tests: gives empty conditioning and 3D views, saves the camera of a conditioning, and
loads two LoRAs at once."""

import json
import os

import folder_paths
import torch

from nodes import LoraLoaderModelOnly


class Conditioning:
    INPUT_TYPES = classmethod(lambda cls: {"required": {}})
    RETURN_TYPES, FUNCTION = ("CONDITIONING",), "run"

    def run(self):
        return ([[torch.zeros(1, 4, 8), {}]],)


class View:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"view": ("STRING", {})}})
    RETURN_TYPES, FUNCTION = ("LOAD3D_CAMERA",), "run"

    def run(self, view):
        return (json.loads(view),)


class Save:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"conditioning": ("CONDITIONING",), "name": ("STRING", {})}})
    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "run", True

    def run(self, conditioning, name):
        ((_, extra),) = conditioning
        torch.save(extra["lingbot_camera"], os.path.join(folder_paths.get_output_directory(), name + ".pt"))
        return {}


class Loras:
    """Two LoRAs, each a name or rgthree's object with the key `lora`."""

    INPUT_TYPES = classmethod(
        lambda cls: {"required": {"model": ("MODEL",), "lora_1": ("LORA_SLOT",), "lora_2": ("LORA_SLOT",)}}
    )
    RETURN_TYPES, FUNCTION = ("MODEL",), "run"

    def run(self, model, lora_1, lora_2):
        for lora in (lora_1, lora_2):
            name = lora["lora"] if isinstance(lora, dict) else lora
            (model,) = LoraLoaderModelOnly().load_lora_model_only(model, name, 1.0)
        return (model,)


class Nothing:
    """A switch of which no input is active."""

    INPUT_TYPES = classmethod(lambda cls: {"required": {}})
    RETURN_TYPES, FUNCTION = ("*",), "run"

    def run(self):
        return (None,)


NODE_CLASS_MAPPINGS = {
    "TestNothing": Nothing,
    **{"TestConditioning": Conditioning, "TestView": View, "TestSave": Save},
    "TestLoras": Loras,
}
