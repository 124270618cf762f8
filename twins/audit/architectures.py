"""Tiny networks of transformers, by the name of their architecture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from torch import nn

from ...unrolled.generators import seeded
from .weights import draw_weights

VOCABULARY = 97
_LAYERS = 4
# Small sizes, by the names that configurations use for them.
_SIZES = {
    32: "hidden_size d_model n_embd model_dim embed_dim lru_width attention_hidden_size "
        "embedding_size image_size out_hidden_size text_hidden_size",
    4: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers depth "
       "num_decoder_layers num_encoder_layers encoder_num_hidden_layers decoder_num_hidden_layers "
       "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
       "encoder_attention_heads encoder_num_attention_heads decoder_num_attention_heads "
       "num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads mamba_num_heads "
       "n_mamba_heads linear_num_value_heads linear_num_heads num_experts num_local_experts "
       "n_routed_experts moe_num_experts time_step_rank mamba_dt_rank rotary_dim",
    2: "num_key_value_heads linear_num_key_heads num_experts_per_tok num_experts_per_token "
       "moe_topk top_k_experts moe_k encoder_num_key_value_heads decoder_num_key_value_heads",
    8: "head_dim attention_head_dim mamba_d_head linear_key_head_dim linear_value_head_dim "
       "linear_head_dim mamba_headdim mamba_head_dim v_head_dim qk_rope_head_dim qk_nope_head_dim "
       "kv_channels d_kv global_head_dim state_size mamba_d_state ssm_state_size "
       "hidden_size_per_layer_input chunk_size mamba_chunk_size sliding_window window_size "
       "attention_window_size block_size patch_size",
    16: "qk_head_dim kv_lora_rank q_lora_rank",
    48: "intermediate_size ffn_dim ffn_hidden_size n_inner decoder_ffn_dim encoder_ffn_dim "
        "moe_intermediate_size shared_expert_intermediate_size intermediate_size_mlp "
        "moe_shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size dff",
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    512: "max_position_embeddings n_positions seq_length context_length max_target_positions "
         "max_source_positions",
    1: "n_group topk_group n_groups mamba_n_groups mamba_ngroups",
}  # fmt: skip
_BY_NAME = {name: size for size, names in _SIZES.items() for name in names.split()}
# Sizes that may be None and still count.
_UNSET = ("num_key_value_heads", "head_dim", "num_experts_per_tok", "n_routed_experts")
_MIXED = ["linear_attention", "full_attention"] * 2
# What sizes alone do not settle: None leaves a field as it is by default.
_OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": _MIXED, "num_key_value_heads": 4},
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dory": {
        "initializer_range": 1.0, "n_input_layers": 1, "n_recurrent_layers": 2,
        "n_output_layers": 1,
    },
    "dots1": {"n_shared_experts": 1},
    "falcon": {"head_dim": None},
    "falcon_h1": {"mamba_d_head": 16, "mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _MIXED, "num_key_value_heads": 4},
    "led": {"attention_window": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 2},
    "mamba2": {"num_heads": 8},
    "minimax": {"layer_types": _MIXED},
    "nemotron_h": {"hybrid_override_pattern": "MM*-", "mamba_num_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "qwen3_next": {"layer_types": _MIXED},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local"] * 2, "num_hidden_layers": 2},
    "xmod": {"default_language": "en_XX"},
    "whisper": {"max_source_positions": 16},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "chunk_size": 16},
    "zamba": {
        "num_hidden_layers": 6, "attn_layer_period": 2, "attn_layer_offset": 1,
        "attention_hidden_size": 64, "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 6, "layers_block_type": ["mamba", "hybrid"] * 3, "n_mamba_heads": 8,
        "head_dim": None, "attention_head_dim": None, "num_key_value_heads": 4,
        "attention_hidden_size": None, "kv_channels": None,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
_LATENT = (
    "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm5_next_text glm_moe_dsa "
    "longcat_flash minicpm3 sarvam_mla youtu"
)
_OWN |= {name: {"num_key_value_heads": 4} for name in _LATENT.split()}
# Rotary pairs of time, height and width, whose default is for heads of 128.
_SECTIONS = (
    "glm46v_text glm4v_text paddleocr_vl_text qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text"
)
_ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_OWN |= {name: {"rope_parameters": _ROTARY} for name in _SECTIONS.split()}


@dataclass(frozen=True)
class Architecture:
    """A class of networks of transformers with the settings of a tiny one.

    Attributes
    ----------
    network, config : type
        Classes of the network and of its configuration.
    settings : dict
        Arguments of the configuration.
    """

    network: Any
    config: Any
    settings: dict[str, Any]

    def build(self) -> nn.Module:
        """Build the network in eval mode, with weights that change its outputs noticeably."""
        with seeded(0):
            return draw_weights(self.network(self.config(**self.settings)).eval())


def find_architecture(name: str) -> Architecture:
    """Return the architecture of a model type ("mamba") or a class ("BertModel") of transformers.

    A model type means its causal language model if it has one.

    Raises
    ------
    ValueError
        If transformers has neither.
    """
    import transformers
    from transformers.models.auto import configuration_auto, modeling_auto

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    cls = causal.get(name) or modeling_auto.MODEL_MAPPING_NAMES.get(name, name)
    network = getattr(transformers, cls if isinstance(cls, str) else cls[0], None)
    config = configuration_auto.CONFIG_MAPPING[name] if name in causal else None
    config = config or getattr(network, "config_class", None)
    if network is None or config is None:
        raise ValueError(
            f"audit: transformers {transformers.__version__} has no architecture {name!r}; give a "
            'model type ("mamba"), a class ("BertModel"), a folder or "module:callable"'
        )
    settings = _shrink(config())
    if hasattr(config(), "is_decoder"):
        settings["is_decoder"] = network.__name__ in causal.values()
    return Architecture(network, config, settings)


def load_folder(folder: str) -> nn.Module:
    """Load the network that ``save_pretrained`` wrote to a folder, with its own weights."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    names = config.architectures or []
    network = next((getattr(transformers, x) for x in names if hasattr(transformers, x)), None)
    if network is None:
        raise ValueError(f"audit: config.json in {folder} names no architecture of transformers")
    loaded: nn.Module = network.from_pretrained(folder).eval()
    return loaded


def _shrink(config: Any) -> dict[str, Any]:
    """Return arguments that make a configuration, and those within it, small."""
    settings: dict[str, Any] = {}
    for name in _fields(config):
        value = _value_of(config, name)
        if hasattr(value, "model_type"):
            settings[name] = {"model_type": value.model_type} | _shrink(value)
        elif ("drop" in name or "jitter" in name) and isinstance(value, float):
            settings[name] = 0.0
        elif "soft" in name and "cap" in name and isinstance(value, float):
            settings[name] = 2.0  # logits of unit size feel it
        elif name == "tie_word_embeddings" and value:
            settings[name] = False  # else the likeliest next token is the last one
        elif name == "pad_token_id":
            settings[name] = 0
        elif name in _BY_NAME and (_is_size(value) or name in _UNSET):
            settings[name] = _BY_NAME[name]
        elif name in ("bos_token_id", "eos_token_id") and value is not None:
            settings[name] = {"bos_token_id": 1, "eos_token_id": 2}[name]
        elif name == "rope_parameters" and "mrope_section" in (value or {}):
            settings[name] = value | {"mrope_section": _cut_sections(value)}
        elif name == "layer_types" and len(set(value or ())) > 1:
            settings[name] = list(islice(cycle(dict.fromkeys(value)), _LAYERS))
    parts = [part for part in settings.values() if isinstance(part, dict)]
    if any("expert" in name for part in [settings, *parts] for name in part):
        settings["experts_implementation"] = "eager"  # the default does not run in float64
    settings |= _OWN.get(config.model_type, {})
    return {name: value for name, value in settings.items() if value is not None}


def _cut_sections(rope: dict[str, Any]) -> list[int]:
    """Return the rotary pairs for time, height and width that a tiny head has."""
    pairs = int(_BY_NAME["head_dim"] * rope.get("partial_rotary_factor", 1)) // 2
    return [pairs - pairs // 4 - pairs // 3, pairs // 3, pairs // 4]


def _value_of(config: Any, name: str) -> Any:
    """Return a setting of a configuration, as stored if it is, else as computed; or None."""
    return vars(config)[name] if name in vars(config) else getattr(config, name, None)


def _fields(config: Any) -> list[str]:
    """Return the names of all settings of a configuration."""
    return sorted({*vars(config), *getattr(type(config), "__dataclass_fields__", {})})


def _is_size(value: Any) -> bool:
    """Whether a setting is a number of something: a whole number that is not 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value != 0
