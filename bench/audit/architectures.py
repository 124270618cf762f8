"""Architectures of transformers that the page audits."""

from __future__ import annotations

import inspect
import re

_LEFT_OUT = {
    # Their language models have names of their own.
    *("blt", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "got_ocr2", "mllama"),
    *("moss_transcribe_diarize", "musicgen", "musicgen_melody", "phi4_multimodal", "emu3"),
    *("llama4", "git", "dots3_note", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    # They draft for another network.
    *("gemma4_assistant", "gemma4_unified_assistant"),
    # A tiny one is slow or large: 8 s in XLM, tables of 77 million hashed n-grams in Dots3.
    *("xlm", "dots3_note_text"),
    # They are not causal by design.
    *("cpmant", "prophetnet"),
}
_COMPOSED = {
    # They need a picture, boxes, or another encoder's output beside ids.
    *("blip", "blip-2", "instructblip", "instructblipvideo", "idefics", "kosmos-2", "pi0"),
    *("pix2struct", "pp_formulanet", "udop", "vision-encoder-decoder", "encoder-decoder"),
    *("speech-encoder-decoder", "pop2piano", "dia", "speecht5"),
    # Their towers need timm, which is not installed.
    *("fast_vlm", "gemma3n", "perception_lm"),
    # Sizes of their parts depend on each other in ways that no general rule makes small.
    *("apertus1p5", "canary", "chameleon", "cohere_asr", "deepseek_ocr2", "diffusion_gemma"),
    *("dots3_note", "emu3", "ernie4_5_vl_moe", "glm4v_moe", "glm_ocr", "granite4_vision"),
    *("hunyuan_vl", "llama4", "mistral4", "mistral_large4", "molmo2", "moonshine"),
    *("moonshine_streaming", "nemotron_h_omni", "step3p7"),
    # What is tiny of them is large: other parts keep their size.
    *("florence2", "janus", "muse_glimmer", "muse_spark", "seamless_m4t", "seamless_m4t_v2"),
    # A prompt sees itself both ways, by design.
    "paligemma",
    # Its output depends on the number of tokens; nobody has looked into why.
    "prophetnet",
}
ENCODERS = [
    f"{name}Model"
    for name in (
        *("Albert", "AltCLIPText", "AltCLIPVision", "Beit", "Bert", "BigBird", "BlipText"),
        *("BlipVision", "ChineseCLIPText", "ChineseCLIPVision", "CLIPSegText", "CLIPSegVision"),
        *("CLIPText", "CLIPVision", "ConvBert", "Deberta", "DebertaV2", "DeiT", "Dinov2"),
        *("DINOv3ViT", "DistilBert", "Electra", "Ernie", "EuroBert", "FNet", "Funnel"),
        *("GroupViTText", "GroupViTVision", "IBert", "IJepa", "Longformer", "Luke"),
        *("MetaClip2Text", "MetaClip2Vision", "MobileBert", "ModernBert", "MPNet", "Mra"),
        *("NomicBert", "Nystromformer", "OwlViTText", "OwlViTVision", "Owlv2Text", "Owlv2Vision"),
        *("Pvt", "RemBert", "RoFormer", "Roberta", "Siglip2Text", "SiglipText", "SiglipVision"),
        *("SqueezeBert", "T5Encoder", "ViT", "ViTMSN", "XCLIPText", "XLMRoberta", "Yoso"),
    )
]


def list_architectures() -> list[str]:
    """Architectures of transformers, each once.

    Model types that have a causal language model; classes of encoder-decoders and of networks that
    read pictures beside text, which are audited by text alone; and encoders.
    """
    from transformers.models.auto import modeling_auto as auto

    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    sequences = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    speech = auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    pictures = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    found: dict[str, str] = {}
    for name, network in sorted(causal.items(), key=_is_borrowed):
        if name not in _LEFT_OUT:
            found.setdefault(network, name)
    pairs = [x for x in (sequences | speech).items() if _has_encoder(x[1])]
    composed = [network for name, network in [*pairs, *pictures.items()] if name not in _COMPOSED]
    others = dict.fromkeys(network for network in composed if network not in found)
    return [*sorted(found.values()), *others, *ENCODERS]


def _is_borrowed(pair: tuple[str, str]) -> bool:
    """Whether a model type has the class of another, as code_llama has that of llama."""
    name, network = pair
    return not network.lower().startswith(re.sub(r"\W|_", "", name).lower())


def _has_encoder(name: str) -> bool:
    import transformers

    network = getattr(transformers, name, None)
    names = inspect.signature(network.forward).parameters if network else {}
    return "decoder_input_ids" in names
