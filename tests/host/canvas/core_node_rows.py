"""What becomes of ComfyUI's nodes that make a CONDITIONING or change a MODEL, and how docs/comfyui.md says it."""

FRONTS = ("sampler", "guider", "ksampler", "rollout")
LETTERS = {"U": "used", "T": "told", "R": "refused", "I": "idle", "F": "fails", "-": "not run"}

ROWS = {
    "UUUU": (
        "CLIPTextEncode, CLIPTextEncodeLumina2, ConditioningAverage, ConditioningMultiply, ConditioningZeroOut, "
        "LoadTrainingDataset, LoraLoader, LoraLoaderBypass, LoraLoaderBypassModelOnly, LoraLoaderModelOnly, "
        "LoraModelLoader, MiniMaxH3ReferenceToVideo, ModelMergeAdd, ModelMergeSubtract, ScaleROPE, "
        "TextEncodeAceStepAudio1.5, TextEncodeHunyuanVideo_ImageToVideo, TextEncodeJoyImageEdit, "
        "TextEncodeQwenImageEdit, TextEncodeQwenImageEditPlus, TextEncodeZImageOmni"
    ),
    "UUUI": ("ModelMergeBlocks, ModelMergeSimple"),
    "UUUT": (
        "APG, CFGNorm, CFGOverride, CFGZeroStar, ConditioningConcat, ContextWindowsManual, Epsilon Scaling, FreSca, "
        "LatentApplyOperationCFG, Mahiro, ModelComputeDtype, ModelNoiseScale, PerpNeg, RescaleCFG, "
        "SkipLayerGuidanceDiT, SkipLayerGuidanceDiTSimple, SkipLayerGuidanceSD3, StyleModelApply, TCFG, "
        "TemporalScoreRescaling, VideoLinearCFGGuidance, VideoTriangleCFGGuidance, WanContextWindowsManual"
    ),
    "UUUR": ("ConditioningCombine, WanDancerVideo, WanFirstLastFrameToVideo, WanFunInpaintToVideo"),
    "IIII": ("LTXVCropGuides, ModelAttentionBackend, wanBlockSwap"),
    "IIIR": (
        "ConditioningSetAreaStrength, ConditioningSetDefaultCombine, ConditioningSetPropertiesAndCombine, "
        "PairConditioningCombine, PairConditioningSetDefaultCombine, PairConditioningSetPropertiesAndCombine, "
        "WanImageToVideo, WanMoveTrackToVideo, WanTrackToVideo"
    ),
    "IIIT": ("EasyCache, LazyCache, LTXVContextWindows"),
    "TIUT": ("ModelSamplingSD3"),
    "TTTT": (
        "ARVideoI2V, BerniniConditioning, ChromaRadianceOptions, CLIPTextEncodeControlnet, CLIPTextEncodePixArtAlpha, "
        "CLIPTextEncodeSDXLRefiner, ConditioningStableAudio, ControlNetApply, ControlNetApplyAdvanced, "
        "ControlNetApplySD3, ControlNetInpaintingAliMamaApply, DifferentialDiffusion, FluxDisableGuidance, "
        "FluxGuidance, FluxKontextMultiReferenceLatentMethod, GLIGENTextBoxApply, HiDreamO1ReferenceImages, "
        "LTXVConditioning, LTXVModalityGuidance, LTXVReferenceAudio, LTXVSpatioTemporalGuidance, "
        "MiniMaxH3ImageToVideo, MiniMaxH3SigmaShift, MiniMaxMusic3TextEncode, MultiGPU_WorkUnits, NAGuidance, "
        "PatchModelAddDownscale, PerturbedAttentionGuidance, PiDConditioning, ReferenceLatent, ReferenceTimbreAudio, "
        "SD_4XUpscale_Conditioning, SelectModelDevice, SelfAttentionGuidance, StableCascade_StageB_Conditioning, "
        "TextEncodeAceStepAudio, TextEncodeBooguEdit, TextEncodeMageFlowEdit, Trellis2ShapeStage, unCLIPConditioning, "
        "UNetCrossAttentionMultiply, UNetSelfAttentionMultiply, UNetTemporalAttentionMultiply, USOStyleReference, "
        "WanAnimate2Cache, WanHuMoImageToVideo, WanPhantomSubjectToVideo, WanSoundImageToVideo, "
        "WanSoundImageToVideoExtend, WanVaceToVideo"
    ),
    "TTTR": (
        "ConditioningSetArea, ConditioningSetAreaPercentageVideo, ConditioningSetMask, ConditioningSetProperties, "
        "HunyuanRefinerLatent, Kandinsky5ImageToVideo, PairConditioningSetProperties, WanCameraImageToVideo, "
        "WanSCAILToVideo"
    ),
    "RRRR": (
        "AnimaLLLiteApply, ConditioningSetAreaPercentage, ConditioningSetTimestepRange, FluxKVCache, FreeU, FreeU_V2, "
        "HiDreamO1PatchSeamSmoothing, Hunyuan3Dv2Conditioning, HunyuanImageToVideo, HypernetworkLoader, HyperTile, "
        "InpaintModelConditioning, InstructPixToPixConditioning, LotusConditioning, Pixal3DConditioning, "
        "QwenImageDiffsynthControlnet, StableZero123_Conditioning, StableZero123_Conditioning_Batched, "
        "SV3D_Conditioning, SVD_img2vid_Conditioning, TomePatchModel, Trellis2Conditioning, TripoSplatConditioning, "
        "VOIDInpaintConditioning, Wan22FunControlToVideo, WanAnimate2ToVideo, WanAnimateToVideo, "
        "WanFunControlToVideo, WanInfiniteTalkToVideo, ZImageFunControlnet"
    ),
    "RRRT": (
        "ModelSamplingAuraFlow, ModelSamplingContinuousEDM, ModelSamplingContinuousV, ModelSamplingDiscrete, "
        "ModelSamplingFlux, ModelSamplingLTXV, ModelSamplingStableCascade, RenormCFG"
    ),
    "FFFF": (
        "CLIPTextEncodeFlux, CLIPTextEncodeHiDream, CLIPTextEncodeHunyuanDiT, CLIPTextEncodeKandinsky5, "
        "CLIPTextEncodeSD3, CLIPTextEncodeSDXL, Hunyuan3Dv2ConditioningMultiView, HunyuanVideo15ImageToVideo, "
        "HunyuanVideo15SuperResolution, LTXVAddGuide, LTXVImgToVideo, MakeTrainingDataset, MiniMaxH3AddGuide, "
        "PhotoMakerEncode, ResolutionBucket, SeedVR2Conditioning, SUPIRApply, Trellis2TextureStage, "
        "Trellis2UpsampleStage, TripoSplatSamplingPreview, WanUni3CControlnetApply"
    ),
    "----": ("TorchCompileModel"),
}
"""Four letters, one for each of FRONTS, and the nodes that they are true of. `idle`: what the checks ask of the node
changes nothing that could be seen, and should not."""

WORDS = {
    "U": "used",
    "I": "used",
    "T": "reported: without effect, or in part",
    "R": "refused",
    "F": "fails by itself: needs another model's inputs",
}
WANTING = {"see the guider's checks": "the compiler: run above, on a server"}
"""What the checks have nothing for, as they say it and as docs/comfyui.md does."""
_SHIFT = "the shift is used by ComfyUI's schedulers; Sampler uses its own, with a note"


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
