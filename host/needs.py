"""The names of ComfyUI's internals that the nodes use. Nodes that need a missing name are left out."""

import logging
import sys
from collections.abc import Iterable
from importlib import import_module
from operator import attrgetter

OLDEST = "0.33"
"""The oldest version of ComfyUI that the pack supports. pyproject.toml names the same version."""


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a text, each with its module: "a: x y b: z" gives ("a:x", "a:y", "b:z")."""
    found, module = [], ""
    for word in text.split():
        if word.endswith(":"):
            module = word
        else:
            found.append(module + word)
    return tuple(found)


EVERY_NODE = _names("""
    comfy_api.latest: ComfyExtension io.ComfyNode io.Schema io.NodeOutput io.Input io.Output io.Custom io.Combo
        io.Boolean io.Conditioning io.Float io.Image io.Int io.Latent io.Model io.String io.Vae
        io.ControlAfterGenerate.fixed
    comfy_execution.utils: get_executing_context
    folder_paths: add_model_folder_path folder_names_and_paths get_filename_list get_folder_paths get_full_path
        get_input_directory
        models_dir
""")
_CAMERA = _names("node_helpers: conditioning_set_values")
_DRAWN = (*_CAMERA, *_names("comfy_api.latest: ui.PreviewImage"))
_MODEL = _names("""
    comfy.cli_args: args
    comfy.conds: CONDNoiseShape.process_cond CONDNoiseShape.can_concat CONDNoiseShape.concat CONDRegular
    comfy.context_windows: slice_cond
    comfy.ldm.modules.attention: optimized_attention
    comfy.lora: calculate_weight
    comfy.memory_management: TensorFileSlice
    comfy.model_base: ModelType.FLOW WAN21.extra_conds WAN21._apply_model WAN21.process_timestep WAN21.memory_required
        WAN21.resize_cond_for_context_window WAN21.get_dtype_inference WAN21.process_latent_in WAN21.process_latent_out
    comfy.model_management: archive_model_dtypes current_loaded_models extra_reserved_memory free_memory get_free_memory
        get_torch_device intermediate_device is_device_cpu is_oom minimum_inference_memory should_use_bf16
        should_use_fp16 soft_empty_cache throw_exception_if_processing_interrupted unet_offload_device
    comfy.model_patcher: CoreModelPatcher ModelPatcherDynamic create_model_options_clone LowVramPatch.memory_required
        LowVramPatch.prepare ModelPatcher.add_hook_patches ModelPatcher.add_patches ModelPatcher.cleanup
        ModelPatcher.clone ModelPatcher.detach ModelPatcher.get_combined_hook_patches ModelPatcher.get_free_memory
        ModelPatcher.get_key_patches
        ModelPatcher.is_clone ModelPatcher.is_dynamic ModelPatcher.get_additional_models_with_key
        ModelPatcher.match_multigpu_clones ModelPatcher.load ModelPatcher.loaded_size ModelPatcher.model_size
        ModelPatcher.partially_unload ModelPatcher.patch_hook_weight_to_device ModelPatcher.patch_hooks
        ModelPatcher.patch_weight_to_device ModelPatcher.pre_run
        ModelPatcher.prepare_hook_patches_current_keyframe
        ModelPatcher.state_dict_for_saving ModelPatcher.unpatch_hooks ModelPatcher.unpatch_model
    comfy.model_sampling: CONST
    comfy.ops: cast_bias_weight uncast_bias_weight run_every_op manual_cast.Linear manual_cast.Conv3d
        manual_cast.LayerNorm manual_cast.RMSNorm
    comfy.patcher_extension: WrapperExecutor.new_class_executor add_wrapper get_all_wrappers add_wrapper_with_key
        WrappersMP.DIFFUSION_MODEL WrappersMP.PREPARE_SAMPLING WrappersMP.OUTER_SAMPLE WrappersMP.SAMPLER_SAMPLE
        WrappersMP.PREDICT_NOISE WrappersMP.APPLY_MODEL WrappersMP.CALC_COND_BATCH
    comfy.samplers: add_area_dims resolve_areas_and_cond_masks_multidim
    comfy.supported_models: WAN21_T2V
    comfy.utils: ProgressBar get_attr load_torch_file set_attr_param
    comfy.weight_adapter: LoRAAdapter
""")
_SAMPLING = (
    *_MODEL,
    *_names("""
    comfy.sample: fix_empty_latent_channels prepare_noise
    comfy.sampler_helpers: prepare_sampling
    comfy.samplers: CFGGuider.inner_set_conds CFGGuider.sample CFGGuider.set_conds CFGGuider.set_cfg KSamplerX0Inpaint
        Sampler
    comfy.utils: PROGRESS_BAR_ENABLED
    latent_preview: prepare_callback
"""),
)
_STATE = _names("folder_paths: get_output_directory get_save_image_path")
_SAVED = _names("comfy_api.latest: io.FolderType.temp ui.ImageSaveHelper.save_images")
_SHOWN = _names("folder_paths: get_annotated_filepath")
_PREVIEWS = _names("latent_preview: Latent2RGBPreviewer LatentPreviewer get_previewer")
NEEDS: dict[str, tuple[str, ...]] = {
    "load_models": (*_MODEL, *_names("comfy.sd: VAE.decode_tiled VAE.encode VAE.encode_tiled")),
    "text": _names("""
    comfy.model_management: free_memory get_free_memory get_torch_device intermediate_device should_use_bf16
        soft_empty_cache throw_exception_if_processing_interrupted
    comfy.sd: CLIP
    comfy.sd1_clip: SDTokenizer.tokenize_with_weights SDTokenizer._try_get_embedding SD1ClipModel.set_clip_options
    comfy.text_encoders.sd3_clip: t5_xxl_detect
    comfy.text_encoders.wan: WanT5Tokenizer te
    comfy.utils: ProgressBar calculate_parameters convert_old_quants load_torch_file
    comfy_api.latest: io.Clip
"""),
    "image": _SHOWN,
    "camera.poses": _CAMERA,
    "camera.make": (*_CAMERA, *_SAVED, *_names("comfy_api.latest: io.Autogrow io.Load3DCamera")),
    "camera.files": _CAMERA,
    "camera.preview": _DRAWN,
    "measure": (
        *_DRAWN,
        *_names("""
    comfy.model_management: throw_exception_if_processing_interrupted
    comfy.utils: ProgressBar
"""),
    ),
    "sampling.experts": (*_SAMPLING, *_names("comfy_api.latest: io.Guider io.Sampler io.Sigmas")),
    "sampling.rollout": (*_SAMPLING, *_STATE, *_SHOWN, *_PREVIEWS),
    "sampling.live": (
        *_SAMPLING,
        *_STATE,
        *_SHOWN,
        *_PREVIEWS,
        *_SAVED,
        *_names("""
    comfy.model_management: load_models_gpu
    comfy.sd: CLIP.encode_from_tokens_scheduled CLIP.tokenize VAE.get_sd
    comfy_api.latest: io.Clip
"""),
    ),
    "sampling.state": _STATE,
    "quantize": _names("""
    comfy.model_management: get_torch_device throw_exception_if_processing_interrupted
    comfy.utils: ProgressBar
    comfy_api.latest: ui.PreviewText
"""),
    "toy": _SAVED,
    "camera.export": (
        *_CAMERA,
        *_STATE,
        *_names("""
    comfy.model_management: throw_exception_if_processing_interrupted
    comfy.utils: ProgressBar
    comfy_api.latest: Types.File3D io.File3DPLY io.Load3DCamera
    comfy_execution.graph_utils: ExecutionBlocker
"""),
    ),
    "machine": _names("comfy.model_management: get_torch_device soft_empty_cache"),
}
"""The names, as `module:name`, that each module of nodes/ needs from ComfyUI, in addition to EVERY_NODE."""


def usable_modules(modules: Iterable[str], pack_version: str) -> list[str]:
    """Return those of `modules`, the pack's node modules, for which ComfyUI has every required function and class. Log
    the missing names, the modules left out, and `pack_version`."""
    wanted = {name for names in NEEDS.values() for name in (*EVERY_NODE, *names)}
    missing = {name for name in wanted if not _is_there(name)}
    if not missing:
        return list(modules)
    theirs = getattr(sys.modules.get("comfyui_version"), "__version__", "of an unknown version")
    logging.warning(
        "LingBot-World %s needs ComfyUI %s or newer, and this ComfyUI %s lacks %s: update the older of the two; the "
        "nodes that do without it are there",
        pack_version,
        OLDEST,
        theirs,
        _joined(missing),
    )
    found = []
    for module in modules:
        if lacks := missing.intersection((*EVERY_NODE, *NEEDS[module])):
            logging.warning(
                "LingBot-World left out the nodes of nodes/%s.py: ComfyUI lacks %s",
                module.replace(".", "/"),
                _joined(lacks),
            )
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


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(name.replace(":", ".") for name in names))
