"""A custom node pack for tests: gives empty conditioning and 3D views, and saves the camera of a conditioning."""

import json
import os

import folder_paths
import torch


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


NODE_CLASS_MAPPINGS = {"TestConditioning": Conditioning, "TestView": View, "TestSave": Save}
