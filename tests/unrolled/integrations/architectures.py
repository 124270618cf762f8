"""Tiny models of the architectures in transformers, at random weights, and inputs for them."""

import inspect
import logging

import torch

try:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
except ImportError:  # the tests that need it are skipped
    transformers, CONFIG_MAPPING = None, {}

_TOKENS = {"pad_token_id": 0, "bos_token_id": 1}
_SIZES = {
    60: "vocab_size",
    32: "hidden_size d_model n_embd dim embed_dim image_size embedding_size out_hidden_size",
    48: "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim hidden_dim n_inner "
    "ffn_hidden_size mlp_dim",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth layers "
    "num_decoder_layers num_encoder_layers num_key_value_heads num_experts_per_tok type_vocab_size",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads rotary_dim "
    "decoder_attention_heads num_experts num_local_experts n_routed_experts",
    8: "d_kv head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim attention_head_dim patch_size",
    128: "max_position_embeddings n_positions max_seq_len",
    64: "max_source_positions max_target_positions",
    16: "moe_intermediate_size q_lora_rank kv_lora_rank projection_dim num_mel_bins qk_head_dim",
    1: "n_group topk_group n_shared_experts",
}
_SIZE_OF = {name: size for size, names in _SIZES.items() for name in names.split()}
_OF_STAGES = {"embed_dim", "num_heads", "patch_size", "hidden_size"}


def tiny(kind, implementation=None):
    """A model of this type in float64, or an error of the library's if it cannot be so small."""
    config = CONFIG_MAPPING[kind]()
    _shrink(config)
    config._experts_implementation = "eager"
    settings = {} if implementation is None else {"attn_implementation": implementation}
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, **settings)
    if sum(p.numel() for p in model.parameters()) > 3e7:
        raise RuntimeError("too large")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def _shrink(config):
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            _shrink(value)
        elif name in _TOKENS or name.endswith(("token_id", "token_index")):
            if isinstance(value, int):
                setattr(config, name, _TOKENS.get(name, 2))
        elif hasattr(config, "depths") and name in _OF_STAGES:
            continue
        elif name == "depths":
            config.depths = [1] * len(value)
        elif hasattr(config, "depths") and name == "image_size":
            config.image_size = 64
        elif name == "window_size" and type(value) is int:
            config.window_size = 2
        elif name == "num_attention_heads" and isinstance(value, int):
            config.num_attention_heads = 4
        elif name in _SIZE_OF and type(value) is int:
            setattr(config, name, min(value, _SIZE_OF[name]))
        elif name == "layer_types" and isinstance(value, list):
            config.layer_types = value[:1] + value[-1:]


def inputs_of(model, padded=False):
    """Inputs by the names in the model's forward; sequences of 12 tokens."""
    config, names = model.config, inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 45, (2, 12), generator=generator)
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    sizes = {
        "pixel_values": (2, getattr(vision, "num_channels", 3), size, size),
        "input_values": (2, 2000),
        "input_features": (
            2, getattr(config, "num_mel_bins", 16), 2 * getattr(config, "max_source_positions", 32)
        ),
        "inputs_embeds": (2, 12, 32),
    }  # fmt: skip
    inputs = {"input_ids": ids} if "input_ids" in names else {}
    if not inputs or hasattr(model, "get_image_features"):
        name = next(name for name in sizes if name in names)
        inputs[name] = torch.randn(sizes[name], generator=generator).double()
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids[:, :7]
    if padded and "attention_mask" in names and "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones(2, 12, dtype=torch.long)
        inputs["attention_mask"][1, 8:] = 0
    return inputs


def outputs_of(model, inputs):
    """All tensors that the model returns, of visible tokens."""
    with torch.no_grad():
        torch.manual_seed(5)
        found = list(_floats(model(**inputs)))
    visible = inputs.get("attention_mask")
    if visible is None:
        return found
    return [x[visible.bool()] for x in found if x.shape[:2] == visible.shape]


def _floats(x):
    if isinstance(x, torch.Tensor):
        yield from [x] if x.is_floating_point() else []
    elif isinstance(x, dict | list | tuple):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _floats(part)


logging.getLogger("transformers").setLevel(logging.ERROR)
