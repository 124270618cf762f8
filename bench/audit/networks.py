"""Layers of other packages that the page audits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...twins.audit import Adapter, Convention
from ...twins.audit.scripts import write_inputs
from ...unrolled import make_operator, operator_names
from ...unrolled.generators import seeded
from .construction import Call, Name, build, write
from .functions import KERNEL_LAWS, choose_backend, fallbacks, kernels, references

_BATCH, _TOKENS, _WIDTH, _HEADS, _IDS = 2, 21, 32, 4, 97


@dataclass(frozen=True)
class Peer:
    """A network of another package, as data.

    Attributes
    ----------
    network : Call
    shape : tuple of int
        Of the inputs: ids (batch, tokens), features, or images.
    convention : Convention, optional
    causal : bool, optional
    laws : tuple of str
        The laws that are tried where none are named and there is no GPU; by default all.
    """

    network: Call
    shape: tuple[int, ...] = (_BATCH, _TOKENS, _WIDTH)
    convention: Convention | None = None
    causal: bool | None = None
    laws: tuple[str, ...] = ()


def build_peer(name: str, laws: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments of `twinsolve.audit` for a layer of another package."""
    peer = PEERS[name]
    if name.startswith("fla-core/"):
        choose_backend()
    with seeded(0):
        network = build(peer.network)
    shape = (*peer.shape[:2], network.width) if isinstance(network, Adapter) else peer.shape
    draw = torch.Generator().manual_seed(1)
    inputs = (
        torch.randint(3, _IDS, shape, generator=draw)
        if len(shape) == 2
        else torch.randn(shape, generator=draw)
    )
    return {
        "network": network,
        "inputs": inputs,
        "convention": peer.convention,
        "causal": peer.causal,
        "laws": tuple(laws) or (() if torch.cuda.is_available() else peer.laws),
        "source": f"{write(peer.network)}\n{write_inputs(inputs, _IDS)}",
    }


_TEXT = (_BATCH, _TOKENS)
_MASK = Convention(mask="mask", mask_shows=True)


class XTransformer(nn.Module):
    """A network of x-transformers: it gets the new tokens alone beside its cache.

    It is told how many tokens are new, and where the rows of a batch start behind padding.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, mask: Tensor | None = None, state: Any = None) -> Any:
        given: dict[str, Any] = {}
        if mask is not None:
            given["mask"] = mask
            starts = mask.int().argmax(1)
            if bool(((torch.arange(mask.shape[1]) >= starts[:, None]) == mask).all()):
                given["seq_start_pos"] = starts  # it takes the place of the mask
        if state is not None:
            given |= {"cache": state, "input_not_include_cache": True, "cache_age": x.shape[1]}
        return self.network(x, return_intermediates=True, **given)


class Applied(nn.Module):
    """A function with these options, as a network."""

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.options)


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


def _x_transformer(kind: str, options: dict[str, Any]) -> Peer:
    wrapper, layers = (Name(f"x_transformers:{name}") for name in ("TransformerWrapper", kind))
    sizes = {"dim": _WIDTH, "depth": 2, "heads": _HEADS, "attn_dim_head": 8}
    network = wrapper(num_tokens=_IDS, max_seq_len=512, attn_layers=layers(**sizes, **options))
    causal = kind == "Decoder"
    convention = Convention(cache="state" if causal else None, mask="mask", mask_shows=True)
    return Peer(Name(f"{__name__}:XTransformer")(network), _TEXT, convention, causal)


def _x_transformers() -> Iterator[tuple[str, Peer]]:
    for name, options in _X_OPTIONS.items():
        yield f"x-transformers/Decoder, {name}", _x_transformer("Decoder", options)
        if name not in ("forgetting", "learned positions"):
            yield f"x-transformers/Encoder, {name}", _x_transformer("Encoder", options)


_LM: dict[str, Any] = {
    "num_tokens": _IDS, "dim": _WIDTH, "depth": 2, "max_seq_len": 512, "heads": _HEADS
}  # fmt: skip
_LINEAR = Name("linear_attention_transformer:LinearAttentionTransformerLM")
_PERFORMER = Name("performer_pytorch:PerformerLM")
_ADAPTER = Name("twinsolve.twins.audit:Adapter")
_SDPA = Name("torch.nn.functional:scaled_dot_product_attention")
_LAYERS = {
    "local-attention/LocalTransformer": Peer(
        Name("local_attention:LocalTransformer")(**_LM, local_attn_window_size=8, dim_head=8),
        _TEXT, _MASK, True,
    ),
    "linear-attention-transformer/LinearAttentionTransformerLM, causal": Peer(
        _LINEAR(**_LM, causal=True), _TEXT, causal=True
    ),
    "linear-attention-transformer/LinearAttentionTransformerLM": Peer(
        _LINEAR(**_LM), _TEXT, causal=False
    ),
    "performer-pytorch/PerformerLM, causal": Peer(
        _PERFORMER(**_LM, dim_head=8, causal=True), _TEXT, _MASK, True
    ),
    "performer-pytorch/PerformerLM": Peer(_PERFORMER(**_LM, dim_head=8), _TEXT, _MASK, False),
    "nystrom-attention/NystromAttention": Peer(
        Name("nystrom_attention:NystromAttention")(
            _WIDTH, dim_head=8, heads=_HEADS, num_landmarks=7
        ),
        convention=_MASK,
    ),
    "agent-attention-pytorch/AgentSelfAttention": Peer(
        Name("agent_attention_pytorch:AgentSelfAttention")(
            _WIDTH, num_agent_tokens=7, dim_head=8, heads=_HEADS
        ),
        convention=_MASK,
    ),
    "mambapy/Mamba": Peer(
        Name("mambapy.mamba:Mamba")(Name("mambapy.mamba:MambaConfig")(d_model=_WIDTH, n_layers=2)),
        causal=True,
    ),
    "minGRU-pytorch/minGRU": Peer(
        Name("minGRU_pytorch:minGRU")(_WIDTH),
        convention=Convention(cache="prev_hidden", asks=("return_next_prev_hidden",)),
    ),
    **{
        f"entmax/{name}": Peer(Name(f"{__name__}:Applied")(Name(f"entmax:{name}"), dim=-1))
        for name in ("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect")
    },
    **{
        f"torch/{name}": Peer(
            Name(f"torch.nn:{name}")(_WIDTH, _WIDTH, num_layers=2, batch_first=True)
        )
        for name in ("RNN", "GRU", "LSTM")
    },
    "torch/scaled_dot_product_attention": Peer(
        _ADAPTER(_SDPA, "query=q, key=k, value=v, attn_mask=mask", heads_first=True)
    ),
    "torch/scaled_dot_product_attention, causal": Peer(
        _ADAPTER(_SDPA, "query=q, key=k, value=v", heads_first=True, is_causal=True), causal=True
    ),
    "torch/TransformerEncoder": Peer(
        Name("torch.nn:TransformerEncoder")(
            Name("torch.nn:TransformerEncoderLayer")(
                _WIDTH, _HEADS, 2 * _WIDTH, 0.0, batch_first=True
            ),
            2, enable_nested_tensor=False,
        )
    ),
}  # fmt: skip


def _own() -> Iterator[tuple[str, Peer]]:
    vision = Name("twinsolve.unrolled:VisionTransformer")
    language = Name("twinsolve.unrolled:LanguageModel")
    sizes = {"locally_linear": ("LocallyLinear", 3), "top_k": ("TopK", 3), "local": ("Local", 2)}
    for name in operator_names():
        operator: Any = name
        if name in sizes:
            maker, size = sizes[name]
            operator = Name(f"twinsolve.unrolled:{maker}")(size)
        yield (
            f"twinsolve/VisionTransformer, {name}",
            Peer(vision(32, 8, 3, 10, _WIDTH, 2, _HEADS, operator=operator), (_BATCH, 3, 32, 32)),
        )
        if make_operator(name, head_dim=8, num_heads=_HEADS).causal:
            options = {"operator": operator, "tie_weights": False}
            network = language(_IDS, _WIDTH, 2, _HEADS, 512, **options)
            yield f"twinsolve/LanguageModel, {name}", Peer(network, _TEXT, causal=True)


PEERS: dict[str, Peer] = {
    **{name: Peer(network, causal=True) for name, network in references()},
    **{name: Peer(network, causal=True, laws=KERNEL_LAWS) for name, network in kernels()},
    **dict(_x_transformers()),
    **_LAYERS,
    **dict(_own()),
    **{name: Peer(network, causal=True) for name, network in fallbacks()},
}
