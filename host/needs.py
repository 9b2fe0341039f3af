"""The names of ComfyUI's own code that the nodes use.

ComfyUI changes its internals without notice. The names are looked up before the nodes load. Where one is missing, the
nodes that need it are left out, the log says so, and the other nodes work. A test compares the names with the code."""

import logging
import sys
from collections.abc import Iterable
from importlib import import_module
from operator import attrgetter

OLDEST = "0.33"
"""The oldest ComfyUI that the pack works on; pyproject.toml says the same to ComfyUI's Manager."""


def _names(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for name in names.split())


EVERY_NODE = (
    *_names("comfy_api.latest", "ComfyExtension io.ComfyNode io.Schema io.NodeOutput io.Output io.Custom io.Combo"),
    *_names("comfy_api.latest", "io.Boolean io.Conditioning io.Float io.Image io.Int io.Latent io.Model io.String"),
    *_names("comfy_api.latest", "io.ControlAfterGenerate.fixed io.Vae"),
    *_names("comfy_execution.utils", "get_executing_context"),
    *_names("folder_paths", "add_model_folder_path folder_names_and_paths get_filename_list get_folder_paths"),
    *_names("folder_paths", "get_input_directory models_dir"),
)
_CAMERA = _names("node_helpers", "conditioning_set_values")
_MODEL = (
    *_names("comfy.cli_args", "args"),
    *_names("comfy.conds", "CONDNoiseShape.process_cond CONDNoiseShape.can_concat CONDNoiseShape.concat CONDRegular"),
    *_names("comfy.context_windows", "slice_cond"),
    *_names("comfy.ldm.modules.attention", "optimized_attention"),
    *_names("comfy.memory_management", "TensorFileSlice"),
    *_names("comfy.model_base", "ModelType.FLOW WAN21.extra_conds WAN21._apply_model WAN21.process_timestep"),
    *_names("comfy.model_base", "WAN21.memory_required WAN21.resize_cond_for_context_window WAN21.get_dtype_inference"),
    *_names("comfy.model_base", "WAN21.process_latent_in WAN21.process_latent_out"),
    *_names("comfy.model_management", "archive_model_dtypes current_loaded_models extra_reserved_memory free_memory"),
    *_names("comfy.model_management", "get_free_memory get_torch_device intermediate_device is_device_cpu is_oom"),
    *_names("comfy.model_management", "minimum_inference_memory should_use_bf16 should_use_fp16 soft_empty_cache"),
    *_names("comfy.model_management", "throw_exception_if_processing_interrupted unet_offload_device"),
    *_names("comfy.model_patcher", "CoreModelPatcher ModelPatcherDynamic create_model_options_clone"),
    *_names("comfy.model_patcher", "LowVramPatch.memory_required LowVramPatch.prepare"),
    *_names("comfy.model_patcher", "ModelPatcher.add_hook_patches ModelPatcher.add_patches ModelPatcher.cleanup"),
    *_names("comfy.model_patcher", "ModelPatcher.clone ModelPatcher.detach ModelPatcher.get_combined_hook_patches"),
    *_names("comfy.model_patcher", "ModelPatcher.get_free_memory ModelPatcher.is_clone ModelPatcher.is_dynamic"),
    *_names("comfy.model_patcher", "ModelPatcher.get_additional_models_with_key ModelPatcher.match_multigpu_clones"),
    *_names("comfy.model_patcher", "ModelPatcher.load ModelPatcher.loaded_size ModelPatcher.model_size"),
    *_names("comfy.model_patcher", "ModelPatcher.partially_unload ModelPatcher.patch_hook_weight_to_device"),
    *_names("comfy.model_patcher", "ModelPatcher.patch_hooks ModelPatcher.patch_weight_to_device"),
    *_names("comfy.model_patcher", "ModelPatcher.state_dict_for_saving ModelPatcher.unpatch_model"),
    *_names("comfy.model_sampling", "CONST"),
    *_names("comfy.ops", "cast_bias_weight uncast_bias_weight run_every_op manual_cast.Linear manual_cast.Conv3d"),
    *_names("comfy.ops", "manual_cast.LayerNorm manual_cast.RMSNorm"),
    *_names("comfy.patcher_extension", "WrapperExecutor.new_class_executor add_wrapper get_all_wrappers"),
    *_names("comfy.patcher_extension", "add_wrapper_with_key"),
    *_names("comfy.patcher_extension", "WrappersMP.DIFFUSION_MODEL WrappersMP.PREPARE_SAMPLING"),
    *_names("comfy.patcher_extension", "WrappersMP.OUTER_SAMPLE WrappersMP.SAMPLER_SAMPLE WrappersMP.PREDICT_NOISE"),
    *_names("comfy.patcher_extension", "WrappersMP.APPLY_MODEL WrappersMP.CALC_COND_BATCH"),
    *_names("comfy.samplers", "add_area_dims resolve_areas_and_cond_masks_multidim"),
    *_names("comfy.supported_models", "WAN21_T2V"),
    *_names("comfy.utils", "ProgressBar get_attr load_torch_file set_attr_param"),
    *_names("comfy.weight_adapter", "LoRAAdapter"),
)
_SAMPLING = (
    *_MODEL,
    *_names("comfy.sample", "fix_empty_latent_channels prepare_noise"),
    *_names("comfy.sampler_helpers", "prepare_sampling"),
    *_names("comfy.samplers", "CFGGuider.inner_set_conds CFGGuider.sample CFGGuider.set_conds CFGGuider.set_cfg"),
    *_names("comfy.samplers", "KSamplerX0Inpaint Sampler"),
    *_names("comfy.utils", "PROGRESS_BAR_ENABLED"),
    *_names("latent_preview", "prepare_callback"),
)
_STATE = _names("folder_paths", "get_output_directory get_save_image_path")
NEEDS: dict[str, tuple[str, ...]] = {
    "load_models": (*_MODEL, *_names("comfy.sd", "VAE.encode")),
    "text": (
        *_names("comfy.model_management", "free_memory get_free_memory get_torch_device intermediate_device"),
        *_names("comfy.model_management", "should_use_bf16 soft_empty_cache throw_exception_if_processing_interrupted"),
        *_names("comfy.sd", "CLIP"),
        *_names("comfy.sd1_clip", "SDTokenizer.tokenize_with_weights SDTokenizer._try_get_embedding"),
        *_names("comfy.sd1_clip", "SD1ClipModel.set_clip_options"),
        *_names("comfy.text_encoders.sd3_clip", "t5_xxl_detect"),
        *_names("comfy.text_encoders.wan", "WanT5Tokenizer te"),
        *_names("comfy.utils", "ProgressBar calculate_parameters convert_old_quants load_torch_file"),
        *_names("comfy_api.latest", "io.Clip"),
    ),
    "image": (),
    "camera": _CAMERA,
    "camera_make": (
        *_CAMERA,
        *_names("comfy_api.latest", "io.Autogrow io.FolderType.temp io.Load3DCamera ui.ImageSaveHelper.save_images"),
    ),
    "camera_files": _CAMERA,
    "camera_preview": (*_CAMERA, *_names("comfy_api.latest", "ui.PreviewImage")),
    "camera_measure": (*_CAMERA, *_names("comfy_api.latest", "ui.PreviewImage")),
    "drift": (*_CAMERA, *_names("comfy_api.latest", "ui.PreviewImage")),
    "sampling": (*_SAMPLING, *_names("comfy_api.latest", "io.Guider io.Sampler io.Sigmas")),
    "rollout": (
        *_SAMPLING,
        *_STATE,
        *_names("latent_preview", "Latent2RGBPreviewer get_previewer"),
    ),
    "live": (
        *_SAMPLING,
        *_STATE,
        *_names("comfy.model_management", "load_models_gpu"),
        *_names("comfy.sd", "CLIP.encode_from_tokens_scheduled CLIP.tokenize VAE.get_sd"),
        *_names("comfy_api.latest", "io.Clip"),
        *_names("latent_preview", "Latent2RGBPreviewer get_previewer"),
    ),
    "state": _STATE,
    "quantize": (
        *_names("comfy.model_management", "get_torch_device throw_exception_if_processing_interrupted"),
        *_names("comfy.utils", "ProgressBar"),
        *_names("comfy_api.latest", "ui.PreviewText"),
    ),
    "toy": (),
}  # fmt: skip
"""For each module of nodes/ what it and the parts of host/ under it use, as `module:name`."""


def usable(modules: Iterable[str], ours: str) -> list[str]:
    """Those modules of nodes/ of which ComfyUI has everything. What is missing is said in the log; `ours` is the pack's
    version."""
    wanted = {name for names in NEEDS.values() for name in (*EVERY_NODE, *names)}
    missing = {name for name in wanted if not _is_there(name)}
    if not missing:
        return list(modules)
    theirs = getattr(sys.modules.get("comfyui_version"), "__version__", "of an unknown version")
    logging.warning(
        "LingBot-World %s needs ComfyUI %s or newer, and this ComfyUI %s lacks %s: update the older of the two; the "
        "nodes that do without it are there", ours, OLDEST, theirs, _listed(missing),
    )  # fmt: skip
    found = []
    for module in modules:
        if lacks := missing.intersection((*EVERY_NODE, *NEEDS[module])):
            logging.warning("LingBot-World left out the nodes of nodes/%s.py: ComfyUI lacks %s", module, _listed(lacks))
        else:
            found.append(module)
    return found


def _is_there(name: str) -> bool:
    module, _, attributes = name.partition(":")
    try:
        attrgetter(attributes)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name.replace(":", ".") for name in names))
