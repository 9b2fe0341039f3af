"""What becomes of ComfyUI's nodes that make a CONDITIONING or change a MODEL, and how docs/comfyui.md says it."""

FRONTS = ("sampler", "guider", "ksampler", "rollout")
LETTERS = {"U": "used", "T": "told", "R": "refused", "I": "idle", "F": "fails", "-": "not run"}

ROWS = {
    "UUUU": (
        "CLIPTextEncode, CLIPTextEncodeLumina2, ConditioningAverage, ConditioningMultiply, ConditioningZeroOut, "
        "LoraLoader, LoraLoaderBypass, LoraLoaderBypassModelOnly, LoraLoaderModelOnly, LoraModelLoader, "
        "MiniMaxH3ReferenceToVideo, ModelMergeAdd, ModelMergeSubtract, ScaleROPE, TextEncodeAceStepAudio1.5, "
        "TextEncodeJoyImageEdit, TextEncodeQwenImageEdit, TextEncodeQwenImageEditPlus, TextEncodeZImageOmni"
    ),
    "UUUI": (
        "ModelMergeBlocks, ModelMergeSimple"
    ),
    "UUUT": (
        "APG, CFGNorm, CFGOverride, CFGZeroStar, ConditioningConcat, ContextWindowsManual, Epsilon Scaling, FreSca, "
        "LatentApplyOperationCFG, Mahiro, ModelComputeDtype, ModelNoiseScale, PerpNeg, RescaleCFG, "
        "SkipLayerGuidanceDiT, SkipLayerGuidanceDiTSimple, SkipLayerGuidanceSD3, TCFG, TemporalScoreRescaling, "
        "VideoLinearCFGGuidance, VideoTriangleCFGGuidance, WanContextWindowsManual"
    ),
    "UUUR": (
        "ConditioningCombine, WanDancerVideo, WanFirstLastFrameToVideo, WanFunInpaintToVideo"
    ),
    "IIII": (
        "LTXVCropGuides, wanBlockSwap"
    ),
    "IIIR": (
        "ConditioningSetAreaStrength, ConditioningSetDefaultCombine, ConditioningSetPropertiesAndCombine, "
        "PairConditioningCombine, PairConditioningSetDefaultCombine, PairConditioningSetPropertiesAndCombine, "
        "WanImageToVideo, WanMoveTrackToVideo, WanTrackToVideo"
    ),
    "IIIT": (
        "EasyCache, LazyCache, LTXVContextWindows"
    ),
    "TIUT": (
        "ModelSamplingSD3"
    ),
    "TTTT": (
        "ARVideoI2V, BerniniConditioning, ChromaRadianceOptions, CLIPTextEncodeControlnet, "
        "CLIPTextEncodePixArtAlpha, CLIPTextEncodeSDXLRefiner, ConditioningStableAudio, ControlNetApply, "
        "ControlNetApplyAdvanced, ControlNetApplySD3, ControlNetInpaintingAliMamaApply, DifferentialDiffusion, "
        "FluxDisableGuidance, FluxGuidance, FluxKontextMultiReferenceLatentMethod, GLIGENTextBoxApply, "
        "LTXVConditioning, LTXVModalityGuidance, LTXVSpatioTemporalGuidance, MiniMaxH3ImageToVideo, "
        "MiniMaxH3SigmaShift, MiniMaxMusic3TextEncode, MultiGPU_WorkUnits, NAGuidance, PatchModelAddDownscale, "
        "PerturbedAttentionGuidance, PiDConditioning, ReferenceLatent, ReferenceTimbreAudio, "
        "SD_4XUpscale_Conditioning, SelectModelDevice, SelfAttentionGuidance, StableCascade_StageB_Conditioning, "
        "TextEncodeAceStepAudio, unCLIPConditioning, UNetCrossAttentionMultiply, UNetSelfAttentionMultiply, "
        "UNetTemporalAttentionMultiply, WanAnimate2Cache, WanHuMoImageToVideo, WanPhantomSubjectToVideo, "
        "WanSoundImageToVideo, WanSoundImageToVideoExtend, WanVaceToVideo"
    ),
    "TTTR": (
        "ConditioningSetArea, ConditioningSetAreaPercentageVideo, ConditioningSetMask, ConditioningSetProperties, "
        "HunyuanRefinerLatent, Kandinsky5ImageToVideo, PairConditioningSetProperties, WanCameraImageToVideo, "
        "WanSCAILToVideo"
    ),
    "RRRR": (
        "ConditioningSetAreaPercentage, ConditioningSetTimestepRange, FluxKVCache, FreeU, FreeU_V2, "
        "HiDreamO1PatchSeamSmoothing, HunyuanImageToVideo, HyperTile, InpaintModelConditioning, "
        "InstructPixToPixConditioning, LotusConditioning, TomePatchModel, VOIDInpaintConditioning, "
        "Wan22FunControlToVideo, WanAnimate2ToVideo, WanAnimateToVideo, WanFunControlToVideo"
    ),
    "RRRT": (
        "ModelSamplingAuraFlow, ModelSamplingContinuousEDM, ModelSamplingContinuousV, ModelSamplingDiscrete, "
        "ModelSamplingFlux, ModelSamplingLTXV, RenormCFG"
    ),
    "FFFF": (
        "CLIPTextEncodeFlux, CLIPTextEncodeHiDream, CLIPTextEncodeHunyuanDiT, CLIPTextEncodeKandinsky5, "
        "CLIPTextEncodeSD3, CLIPTextEncodeSDXL, Hunyuan3Dv2Conditioning, Hunyuan3Dv2ConditioningMultiView, "
        "HunyuanVideo15ImageToVideo, HunyuanVideo15SuperResolution, LTXVAddGuide, LTXVImgToVideo, "
        "MakeTrainingDataset, MiniMaxH3AddGuide, ResolutionBucket, SeedVR2Conditioning, "
        "TextEncodeHunyuanVideo_ImageToVideo, Trellis2TextureStage, Trellis2UpsampleStage, "
        "TripoSplatSamplingPreview"
    ),
    "----": (
        "AnimaLLLiteApply, HiDreamO1ReferenceImages, HypernetworkLoader, LoadTrainingDataset, LTXVReferenceAudio, "
        "ModelAttentionBackend, ModelSamplingStableCascade, PhotoMakerEncode, Pixal3DConditioning, "
        "QwenImageDiffsynthControlnet, StableZero123_Conditioning, StableZero123_Conditioning_Batched, "
        "StyleModelApply, SUPIRApply, SV3D_Conditioning, SVD_img2vid_Conditioning, TextEncodeBooguEdit, "
        "TextEncodeMageFlowEdit, TorchCompileModel, Trellis2Conditioning, Trellis2ShapeStage, "
        "TripoSplatConditioning, USOStyleReference, WanInfiniteTalkToVideo, WanUni3CControlnetApply, "
        "ZImageFunControlnet"
    ),
}
"""Four letters, one for each of FRONTS, and the nodes that they are true of. `idle`: what the checks ask of the node
changes nothing that could be seen, and should not."""

WORDS = {
    "U": "used", "I": "used", "T": "said: of no effect, or in part", "R": "refused, in a sentence",
    "F": "fails by itself, for want of another model's inputs",
}  # fmt: skip
WANTING = {
    "CLIP_VISION": "a CLIP vision model", "MODEL_PATCH": "a patch made for another model", "COMBO": "a file of its own",
    "COMFY_AUTOGROW_V3": "reference images for another model", "AUDIO": "sound, and a VAE for it",
    "PHOTOMAKER": "PhotoMaker's model", "STYLE_MODEL": "Flux's style model", "VOXEL": "Trellis's voxels",
    "see the guider's checks": "the compiler: run above, on a server",
    "it takes 4 s for a model": "time: another model's, refused as the other Model Sampling nodes are",
    "its kernels differ in the last bits": "kernels: read, it sets the attention that the blocks take",
}  # fmt: skip
"""What the checks have nothing for, as they say it and as docs/comfyui.md does."""
_SHIFT = "the shift is used by ComfyUI's schedulers; Sampler has its own and says so"


def names(code: str) -> list[str]:
    """The nodes of a row."""
    return ROWS[code].split(", ")


def documented(needs: dict[str, str]) -> list[str]:
    """The rows of the table in docs/comfyui.md: nodes, before samplers, before a rollout. `needs`: what the nodes that
    were not run want."""
    merged: dict[tuple[str, str], list[str]] = {}
    for name in names("----"):
        merged.setdefault((f"not run, for want of {WANTING[needs[name]]}", "the same"), []).append(name)
    for code in [code for code in ROWS if code != "----"]:
        key = _SHIFT if code == "TIUT" else WORDS[code[0]], WORDS[code[3]]
        if code == "IIII":
            key = "nothing to do", "nothing to do"
        merged.setdefault(key, []).extend(names(code))
    return [f"| {', '.join(sorted(nodes, key=str.lower))} | {' | '.join(key)} |" for key, nodes in merged.items()]
