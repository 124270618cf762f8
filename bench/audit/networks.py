"""Networks that the page audits: architectures of transformers, and layers of other packages."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from ...unrolled import (
    LanguageModel,
    Local,
    LocallyLinear,
    TopK,
    VisionTransformer,
    make_operator,
    operator_names,
)
from ...unrolled.audit import Convention

_LEFT_OUT = {
    # They read pictures or sound too; their language models have names of their own.
    *("blt", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "got_ocr2", "mllama"),
    *("moss_transcribe_diarize", "musicgen", "musicgen_melody", "phi4_multimodal", "emu3"),
    *("llama4", "git", "dots3_note", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    # They draft for another network.
    *("gemma4_assistant", "gemma4_unified_assistant"),
    # They have no tiny configuration.
    *("inkling2_loop_text", "inkling2_text", "xlm"),
    # They are not causal by design.
    *("cpmant", "prophetnet"),
}
ENCODERS = [
    f"{name}Model"
    for name in (
        *("Albert", "Beit", "Bert", "BigBird", "CLIPText", "ConvBert", "Deberta", "DebertaV2"),
        *("DeiT", "Dinov2", "DINOv3ViT", "DistilBert", "Electra", "Ernie", "EuroBert", "FNet"),
        *("Funnel", "IBert", "IJepa", "Longformer", "Luke", "MobileBert", "ModernBert", "MPNet"),
        *("Mra", "NomicBert", "Nystromformer", "Pvt", "RemBert", "RoFormer", "Roberta"),
        *("SiglipText", "SiglipVision", "SqueezeBert", "T5Encoder", "ViT", "ViTMSN"),
        *("XLMRoberta", "Yoso"),
    )
]
_BATCH, _TOKENS, _WIDTH, _HEADS, _IDS = 2, 21, 32, 4, 97


def list_architectures() -> list[str]:
    """Model types of transformers that have a causal language model of their own, and encoders."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    seen: set[str] = set()
    found = []
    for name, network in sorted(CAUSAL.items()):
        if name not in _LEFT_OUT and network not in seen:
            seen.add(network)
            found.append(name)
    return [*found, *ENCODERS]


PEERS: dict[str, Callable[[], dict[str, Any]]] = {}


def peer(name: str) -> Callable[[Callable[[], dict[str, Any]]], Callable[[], dict[str, Any]]]:
    """Add a function that builds the arguments of `twinsolve.audit` to `PEERS`."""

    def add(build: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        PEERS[name] = build
        return build

    return add


def build_peer(name: str) -> dict[str, Any]:
    """The arguments of `twinsolve.audit` for a layer of another package."""
    torch.manual_seed(0)
    source = f"""from twinsolve.bench.audit.networks import build_peer

made = build_peer({name!r})
network, inputs = made["network"], made["inputs"]"""
    return {**PEERS[name](), "source": source}


def _features(width: int = _WIDTH) -> Tensor:
    return torch.randn(_BATCH, _TOKENS, width, generator=torch.Generator().manual_seed(1))


def _ids() -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(3, _IDS, (_BATCH, _TOKENS), generator=draw)


class _Function(nn.Module):
    """A function of queries, keys, values and gates, on features that hold them side by side.

    Parameters
    ----------
    function : callable
    arguments : str
        Names in the order of the features. What is no gate has heads of width 8.
    layout : {"bthd", "bhtd"}
    gates : mapping of str to callable
        What maps a feature to a gate; a name that ends with a star has one gate for each entry.
    keeps_state : bool
        Whether the function takes ``initial_state`` and returns the last one.
    options : Any
        Further arguments.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: str,
        *,
        layout: str = "bthd",
        gates: dict[str, Callable[[Tensor], Tensor]] | None = None,
        keeps_state: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.function, self.names, self.layout = function, arguments.split(), layout
        self.gates, self.keeps_state, self.options = gates or {}, keeps_state, options

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(map(self._width_of, self.names))

    def _width_of(self, name: str) -> int:
        return _HEADS if name in self.gates and name[-1] != "*" else _HEADS * _HEAD

    def forward(self, x: Tensor, state: Any = None) -> Any:
        parts = x.split([self._width_of(name) for name in self.names], -1)
        given = {}
        for name, part in zip(self.names, parts, strict=True):
            shared = name in self.gates and name[-1] != "*"
            value = part if shared else part.unflatten(-1, (_HEADS, _HEAD))
            if name in ("k", "p"):
                value = value / value.norm(dim=-1, keepdim=True)
            if name in self.gates:
                value = self.gates[name](value)
            given[name.rstrip("*")] = value.transpose(1, 2) if self.layout == "bhtd" else value
        if not self.keeps_state:
            found = self.function(**given, **self.options)
            return self._merge(found[0] if isinstance(found, tuple) else found)
        output, last = self.function(
            **given, initial_state=state, output_final_state=True, **self.options
        )[:2]
        return self._merge(output), last

    def _merge(self, output: Tensor) -> Tensor:
        return (output.transpose(1, 2) if self.layout == "bhtd" else output).flatten(2)


_HEAD = 8
_DECAY, _STEP = nn.functional.logsigmoid, torch.sigmoid


def _fla_builder(name: str, arguments: str, options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        module, _, function = name.partition(":")
        found = resolve_name(f"fla.ops.{module}.naive:{function}")
        network = _Function(found, arguments, **options)
        state = Convention(cache="state") if network.keeps_state else Convention()
        inputs = _features(network.width)
        return {"network": network, "inputs": inputs, "convention": state, "causal": True}

    return build


_NO_STATE = {"keeps_state": False}
_FLA: list[tuple[str, str, dict[str, Any]]] = [
    ("linear_attn:naive_recurrent_linear_attn", "q k v", {}),
    ("simple_gla:naive_recurrent_simple_gla", "q k v g", {"gates": {"g": _DECAY}}),
    ("simple_gla:naive_parallel_simple_gla", "q k v g", {"gates": {"g": _DECAY}, **_NO_STATE}),
    ("gla:naive_recurrent_gla", "q k v gk*", {"gates": {"gk*": _DECAY}}),
    (
        "delta_rule:delta_rule_recurrence",
        "q k v beta",
        {"gates": {"beta": _STEP}, "layout": "bhtd"},
    ),
    (
        "gated_delta_rule:naive_recurrent_gated_delta_rule",
        "q k v beta g",
        {"gates": {"beta": _STEP, "g": _DECAY}},
    ),
    ("kda:naive_recurrent_kda", "q k v g* beta", {"gates": {"beta": _STEP, "g*": _DECAY}}),
    ("comba:naive_recurrent_comba", "q k v p beta g", {"gates": {"beta": _STEP, "g": _DECAY}}),
    ("retention:naive_retention", "q k v", {"layout": "bhtd", **_NO_STATE}),
    ("forgetting_attn:naive_forgetting_attn", "q k v g", {"gates": {"g": _DECAY}, **_NO_STATE}),
]
PEERS |= {f"fla-core/{row[0]}": _fla_builder(*row) for row in _FLA}


@peer("fla-core/ttt:chunk_ttt_linear_ref")
def _ttt() -> dict[str, Any]:
    from fla.ops.ttt.naive import chunk_ttt_linear_ref

    weight, bias = torch.ones(_HEADS, _HEAD), torch.zeros(_HEADS, _HEAD)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return chunk_ttt_linear_ref(q, k, v, weight, bias, 0.1, mini_batch_size=7)

    network = _Function(function, "q k v", keeps_state=False)
    return {"network": network, "inputs": _features(network.width), "causal": True}


def _of_ids(network: nn.Module, *, causal: bool, convention: Convention | None = None) -> Any:
    return {"network": network, "inputs": _ids(), "causal": causal, "convention": convention}


class _Masked(nn.Module):
    """A network that takes its mask as booleans, under the name `mask`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.network(x, **({} if mask is None else {"mask": mask.bool()}))


_MASK = Convention(mask="mask")


class _XTransformer(nn.Module):
    """A network of x-transformers: it gets the new tokens alone beside its cache.

    It is told how many tokens are new, and where the rows of a batch start behind padding.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, mask: Tensor | None = None, state: Any = None) -> Any:
        given: dict[str, Any] = {}
        if mask is not None:
            given["mask"] = mask.bool()
            starts = mask.int().argmax(1)
            if bool(((torch.arange(mask.shape[1]) >= starts[:, None]) == mask).all()):
                given["seq_start_pos"] = starts  # it takes the place of the mask
        if state is not None:
            given |= {"cache": state, "input_not_include_cache": True, "cache_age": x.shape[1]}
        return self.network(x, return_intermediates=True, **given)


def _x_transformer(kind: str, **options: Any) -> nn.Module:
    import x_transformers

    layers = getattr(x_transformers, kind)(
        dim=_WIDTH, depth=2, heads=_HEADS, attn_dim_head=8, **options
    )
    return x_transformers.TransformerWrapper(num_tokens=_IDS, max_seq_len=512, attn_layers=layers)


_X_OPTIONS: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "T5 bias": {"rel_pos_bias": True},
    "grouped heads": {"rotary_pos_emb": True, "attn_kv_heads": 2},
    "sparse top-k": {"rotary_pos_emb": True, "attn_sparse_topk": 8},
    "talking heads": {"rotary_pos_emb": True, "attn_pre_talking_heads": True},
    "qk norm": {"rotary_pos_emb": True, "attn_qk_norm": True},
    "shift tokens": {"rotary_pos_emb": True, "shift_tokens": 1},
    "forgetting": {"attn_data_dependent_alibi": True},
}


def _x_decoder(options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        network = _XTransformer(_x_transformer("Decoder", **options))
        return _of_ids(network, causal=True, convention=Convention(cache="state", mask="mask"))

    return build


def _x_encoder(options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        return _of_ids(
            _XTransformer(_x_transformer("Encoder", **options)), causal=False, convention=_MASK
        )

    return build


for _name, _options in _X_OPTIONS.items():
    PEERS[f"x-transformers/Decoder, {_name}"] = _x_decoder(_options)
    if _name not in ("forgetting", "learned positions"):
        PEERS[f"x-transformers/Encoder, {_name}"] = _x_encoder(_options)


@peer("local-attention/LocalTransformer")
def _local_transformer() -> dict[str, Any]:
    from local_attention import LocalTransformer

    network = LocalTransformer(
        num_tokens=_IDS, dim=_WIDTH, depth=2, max_seq_len=512, local_attn_window_size=8,
        dim_head=8, heads=_HEADS,
    )  # fmt: skip
    return _of_ids(_Masked(network), causal=True, convention=_MASK)


@peer("linear-attention-transformer/LinearAttentionTransformerLM, causal")
def _linear_causal() -> dict[str, Any]:
    from linear_attention_transformer import LinearAttentionTransformerLM

    network = LinearAttentionTransformerLM(
        num_tokens=_IDS, dim=_WIDTH, depth=2, max_seq_len=512, heads=_HEADS, causal=True
    )
    return _of_ids(network, causal=True)


@peer("linear-attention-transformer/LinearAttentionTransformerLM")
def _linear() -> dict[str, Any]:
    from linear_attention_transformer import LinearAttentionTransformerLM

    network = LinearAttentionTransformerLM(
        num_tokens=_IDS, dim=_WIDTH, depth=2, max_seq_len=512, heads=_HEADS
    )
    return _of_ids(network, causal=False)


@peer("performer-pytorch/PerformerLM, causal")
def _performer_causal() -> dict[str, Any]:
    from performer_pytorch import PerformerLM

    network = PerformerLM(
        num_tokens=_IDS, dim=_WIDTH, depth=2, max_seq_len=512, heads=_HEADS, dim_head=8, causal=True
    )
    return _of_ids(_Masked(network), causal=True, convention=_MASK)


@peer("performer-pytorch/PerformerLM")
def _performer() -> dict[str, Any]:
    from performer_pytorch import PerformerLM

    network = PerformerLM(
        num_tokens=_IDS, dim=_WIDTH, depth=2, max_seq_len=512, heads=_HEADS, dim_head=8
    )
    return _of_ids(_Masked(network), causal=False, convention=_MASK)


@peer("nystrom-attention/NystromAttention")
def _nystrom() -> dict[str, Any]:
    from nystrom_attention import NystromAttention

    network = NystromAttention(_WIDTH, dim_head=8, heads=_HEADS, num_landmarks=7)
    return {"network": _Masked(network), "inputs": _features(), "convention": _MASK}


@peer("agent-attention-pytorch/AgentSelfAttention")
def _agent() -> dict[str, Any]:
    from agent_attention_pytorch import AgentSelfAttention

    network = AgentSelfAttention(_WIDTH, num_agent_tokens=7, dim_head=8, heads=_HEADS)
    return {"network": _Masked(network), "inputs": _features(), "convention": _MASK}


@peer("mambapy/Mamba")
def _mamba() -> dict[str, Any]:
    from mambapy.mamba import Mamba, MambaConfig

    return {
        "network": Mamba(MambaConfig(d_model=_WIDTH, n_layers=2)),
        "inputs": _features(),
        "causal": True,
    }


@peer("minGRU-pytorch/minGRU")
def _min_gru() -> dict[str, Any]:
    from minGRU_pytorch import minGRU

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = minGRU(_WIDTH)

        def forward(self, x: Tensor, state: Tensor | None = None) -> Any:
            return self.layer(x, state, return_next_prev_hidden=True)

    return {"network": Network(), "inputs": _features()}


def _entmax_builder(name: str) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        function = resolve_name(f"entmax:{name}")

        class Network(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return function(x, dim=-1)

        return {"network": Network(), "inputs": _features()}

    return build


for _name in ("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect"):
    PEERS[f"entmax/{_name}"] = _entmax_builder(_name)


def _torch_recurrent(name: str) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        network = getattr(nn, name)(_WIDTH, _WIDTH, num_layers=2, batch_first=True)
        return {"network": network, "inputs": _features()}

    return build


for _name in ("RNN", "GRU", "LSTM"):
    PEERS[f"torch/{_name}"] = _torch_recurrent(_name)


@peer("torch/TransformerEncoder")
def _torch_encoder() -> dict[str, Any]:
    layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 2 * _WIDTH, 0.0, batch_first=True)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return {"network": network, "inputs": _features()}


def _own_builder(name: str, *, causal: bool) -> Callable[[], Any]:
    def build() -> dict[str, Any]:
        if causal:
            options = {"operator": _own_operator(name), "tie_weights": False}
            return _of_ids(LanguageModel(_IDS, _WIDTH, 2, _HEADS, 512, **options), causal=True)
        network = VisionTransformer(32, 8, 3, 10, _WIDTH, 2, _HEADS, operator=_own_operator(name))
        draw = torch.Generator().manual_seed(1)
        return {"network": network, "inputs": torch.randn(_BATCH, 3, 32, 32, generator=draw)}

    return build


def _own_operator(name: str) -> Any:
    small = {"locally_linear": LocallyLinear(3), "top_k": TopK(3), "local": Local(2)}
    return small.get(name, name)


for _name in operator_names():
    PEERS[f"twinsolve/VisionTransformer, {_name}"] = _own_builder(_name, causal=False)
    if make_operator(_name, head_dim=8, num_heads=_HEADS).causal:
        PEERS[f"twinsolve/LanguageModel, {_name}"] = _own_builder(_name, causal=True)
