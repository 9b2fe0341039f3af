"""Static loading through the loaders' uploader. Import after `embed`; the checks are reported with those of LoRAs."""

import torch
from common import FP32, NF4, check, experts, gap, predict
from lingbot_world.host.loading import load_patcher
from lingbot_world.host.model import operations, patcher
from lingbot_world.host.model.operations import Linear
from lora_cases import CPU, expected, load, lora, room_for_a_part, with_lora


class PlayedBus:
    """The CPU's memory plays a GPU's: what is loaded is copied into memory of its own."""

    def __enter__(self):
        self.kept = patcher.can_upload
        patcher.can_upload = lambda checkpoint, device: device is not None

    def __exit__(self, *_):
        patcher.can_upload = self.kept


def _sent(model) -> list[bool]:
    """Of each linear layer's parameters, whether they have left their file."""
    layers = (layer for layer in model.model.modules() if isinstance(layer, Linear))
    return [
        layer._parameters[name] is not in_file for layer in layers for name, in_file in layer.file_parameters.items()
    ]


def _storages(model) -> dict[int, set]:
    """Layers by the memory that their weights lie in."""
    found = {}
    for name, layer in model.model.named_modules():
        if isinstance(layer, Linear):
            found.setdefault(layer.weight._qdata.untyped_storage().data_ptr(), set()).add(name)
    return found


@check
def uploads_together():
    """Static loading through the loaders' uploader: all, some, more, back to the file, and all of it with a LoRA."""
    tensors, deltas = lora("lightning")
    patched, want, found = with_lora(experts(NF4)[0], tensors), expected(deltas), {}
    with PlayedBus():
        patched.patch_model(CPU, lowvram_model_memory=0)
        found["sent in full"] = all(_sent(patched))
        found["layers to a buffer"] = max(map(len, _storages(patched).values()))
        found["gaps"] = [gap(predict(patched), want)]
        patched.partially_unload(CPU, patched.model_size() // 3)
        found["left after unloading a third"] = sum(_sent(patched)) / len(_sent(patched))
        found["gaps"] += [gap(predict(patched), want)]
        patched.partially_load(CPU, patched.model_size() * 1000)
        found["sent again"] = all(_sent(patched))
        found["gaps"] += [gap(predict(patched), want)]
        patched.detach()
        found["sent after unload"] = any(_sent(patched))
        found["lowvram"] = _lowvram_uploads(tensors)
    return found | {"waiting after": any(getattr(m, "upload", None) for m in patched.model.modules())}


def _lowvram_uploads(tensors) -> bool:
    """With room for a part, exactly the layers that ComfyUI took are sent."""
    patched = with_lora(experts(NF4)[0], tensors)
    patched.patch_model(CPU, lowvram_model_memory=room_for_a_part(patched.model_size(), tensors))
    layers = [layer for layer in patched.model.modules() if isinstance(layer, Linear)]
    sent = [layer.weight is not layer.file_parameters["weight"] for layer in layers]
    return any(sent) and sent == [not hasattr(layer, "prev_comfy_cast_weights") for layer in layers]


@check
def upload_of_another_dtype():
    """fp32 in the file, bf16 to compute in: what is uploaded is rounded on its way, and is never there in both."""
    asked, original = [], operations.state_tensors

    def spy(checkpoint, *arguments, names, **options):
        weights = [name for name in names if name.endswith("weight")]
        asked.append([len(weights), sorted({str(checkpoint.tensors[name].dtype) for name in weights})])
        return original(checkpoint, *arguments, names=names, **options)

    operations.state_tensors = spy
    try:
        with PlayedBus():
            load(load_patcher(FP32[0], "bf16"))
            load(load_patcher(FP32[0], "fp32"))
    finally:
        operations.state_tensors = original
    return asked


@check
def upload_fails():
    """A file that ends early, or a full device: the error comes out, and every weight is back in its file."""
    high, found = experts(NF4)[0], {}
    original = operations.state_tensors
    for error in (torch.cuda.OutOfMemoryError("played"), ValueError("file: ends at byte 7")):

        def fail(*_, error=error, **__):
            raise error

        operations.state_tensors = fail
        try:
            with PlayedBus():
                load(high)
        except Exception as raised:
            found[type(error).__name__] = [raised is error, any(_sent(high)), high.model.model_loaded_weight_memory]
        finally:
            operations.state_tensors = original
    return found | {"afterwards": gap(predict(load(high)), expected({}))}
