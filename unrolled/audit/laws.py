"""Laws of networks that read tokens in order or at once: one function for each law.

A law takes `model`, a `Model`, and a batch of inputs: token ids of shape (batch, tokens), features
of shape (batch, tokens, width), or images. It returns what was found and what was expected. Laws
use torch and each other alone, since the scripts that show a broken law contain their source.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .model import Model

Pair = tuple[Tensor, Tensor]


class NotApplicable(Exception):
    """Raised by a law that a network turns out not to promise."""


EXACT = "nothing is computed"
HALF = "the error is a share"
HALF_OF_FLOAT32 = "half the digits of float32"
DIFFERENCES = "float32 inside moves differences by up to 1 %"


@dataclass(frozen=True)
class NetworkLaw:
    """A law of networks.

    Attributes
    ----------
    name : str
    statement : str
        What holds, in a sentence.
    check : callable
        ``check(model, inputs)`` returns what was found and what was expected.
    needs : tuple of str
        What the law needs of a model, of `Model.offers`.
    tolerance : float, optional
        Of the largest difference over the largest expected entry; by default the model's own
        rounding decides.
    why : str
        Where the tolerance comes from.
    slow : bool
        Whether it is tried only where it is named: it compiles.
    """

    name: str
    statement: str
    check: Callable[[Model, Tensor], Pair]
    needs: tuple[str, ...]
    tolerance: float | None
    why: str
    slow: bool = False


LAWS: list[NetworkLaw] = []


def network_law(
    *needs: str, tolerance: float | None = None, why: str = "", slow: bool = False
) -> Callable[[Callable[[Model, Tensor], Pair]], Callable[[Model, Tensor], Pair]]:
    """Add a function to `LAWS`; its docstring is the statement."""

    def add(check: Callable[[Model, Tensor], Pair]) -> Callable[[Model, Tensor], Pair]:
        name = check.__name__.replace("_", " ")
        LAWS.append(NetworkLaw(name, str(check.__doc__), check, needs, tolerance, why, slow))
        return check

    return add


@network_law()
def determinism(model: Model, inputs: Tensor) -> Pair:
    """Two calls in eval mode give the same output."""
    return model(inputs)[0], model(inputs)[0]


@network_law(tolerance=0.0, why=EXACT)
def arguments(model: Model, inputs: Tensor) -> Pair:
    """The caller's inputs stay as they were."""
    given = inputs.clone()
    model(given)
    return given, inputs


@network_law()
def rows_of_a_batch(model: Model, inputs: Tensor) -> Pair:
    """A row of a batch has the output that it has alone."""
    alone = [model(row[None])[0] for row in inputs]
    return model(inputs)[0], torch.cat(alone)


@network_law("causal")
def later_tokens(model: Model, inputs: Tensor) -> Pair:
    """Later tokens change nothing."""
    half = inputs.shape[1] // 2
    changed = torch.cat([inputs[:, :half], inputs[:, half:].flip(0)], 1)
    return model(changed)[0][:, :half], model(inputs)[0][:, :half]


@network_law("causal")
def shorter_inputs(model: Model, inputs: Tensor) -> Pair:
    """The first tokens alone have the output that they have in the whole, whatever the length."""
    n, whole = inputs.shape[1], model(inputs)[0]
    lengths = [1, 2, n // 2, n - 1]
    alone = [model(inputs[:, :length])[0] for length in lengths]
    return torch.cat(alone, 1), torch.cat([whole[:, :length] for length in lengths], 1)


def count_positions(inputs: Tensor) -> Tensor:
    """Positions 0 to n - 1 for each row."""
    return torch.arange(inputs.shape[1]).expand(len(inputs), -1)


def in_pieces(
    model: Model,
    inputs: Tensor,
    ends: Sequence[int],
    *,
    positions: Tensor | None = None,
    mask: Tensor | None = None,
    cache: Any = None,
    grad: bool = False,
) -> Tensor:
    """The outputs of consecutive pieces that end at `ends`, each after the cache of the last."""
    outputs, start = [], 0
    for end in ends:
        given: dict[str, Any] = {}
        if positions is not None:
            given["positions"] = positions[:, start:end]
        if mask is not None:
            given["mask"] = mask[:, start:end] if model.mask_of_call else mask[:, :end]
        output, cache = model(inputs[:, start:end], cache=cache, grad=grad, **given)
        outputs.append(output)
        start = end
    return torch.cat(outputs, 1)


@network_law("cache")
def decoding(model: Model, inputs: Tensor) -> Pair:
    """Token by token through the cache, the output is that of the full pass."""
    expected = model(inputs)[0]  # first, so that a state kept in modules is not new
    ends = range(1, inputs.shape[1] + 1)
    return in_pieces(model, inputs, ends), expected


@network_law("cache", "positions")
def decoding_with_positions(model: Model, inputs: Tensor) -> Pair:
    """Token by token with positions, the output is that of the full pass."""
    expected = model(inputs)[0]  # first, so that a state kept in modules is not new
    ends = range(1, inputs.shape[1] + 1)
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), expected


@network_law("cache")
def decoding_after_prefill(model: Model, inputs: Tensor) -> Pair:
    """Half of the tokens at once and the others one by one, the output is that of the full pass."""
    n = inputs.shape[1]
    ends = range(n // 2, n + 1)
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), model(inputs)[0]


@network_law("cache")
def prefill_in_pieces(model: Model, inputs: Tensor) -> Pair:
    """In three pieces through the cache, the output is that of the full pass."""
    n = inputs.shape[1]
    ends = [n // 3, n // 3 + n // 2, n]
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), model(inputs)[0]


@network_law("cache", "use_cache")
def without_cache(model: Model, inputs: Tensor) -> Pair:
    """A call that makes no cache gives the output of a call that makes one."""

    def call(ids: Tensor, **given: Any) -> Any:
        return model.network(ids, **(given | {"use_cache": False}))

    return model.of(call)(inputs)[0], model(inputs)[0]


def pad_left(inputs: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs behind n tokens of padding (id 0, or features), their mask and positions."""
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = inputs[:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[:, :n])
    return torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0)


@network_law("mask")
def left_padding(model: Model, inputs: Tensor) -> Pair:
    """Behind masked padding, tokens have the output that they have alone, in batches and not."""
    padded, mask, positions = pad_left(inputs, 3)
    outputs = [
        model(padded[:size], mask=mask[:size], positions=positions[:size])[0][:, 3:]
        for size in (len(inputs), 1)
    ]
    expected = model(inputs)[0]
    return torch.cat(outputs), torch.cat([expected, expected[:1]])


@network_law("mask")
def right_padding(model: Model, inputs: Tensor) -> Pair:
    """Before masked padding, tokens have the output that they have alone."""
    padding = torch.zeros_like(inputs[:, :3])
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (0, 3))
    output = model(torch.cat([inputs, padding], 1), mask=mask)[0]
    return output[:, :-3], model(inputs)[0]


@network_law("mask")
def content_of_padding(model: Model, inputs: Tensor) -> Pair:
    """Which tokens stand under the mask, before the others or among them, changes nothing."""
    n, half, outputs = inputs.shape[1], inputs.shape[1] // 2, []
    seen = torch.tensor([0] * 3 + [1] * half + [0] * 3 + [1] * (n - half))
    mask = seen.expand(len(inputs), -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for hidden in (inputs[:, -3:], torch.zeros_like(inputs[:, -3:])):
        padded = torch.cat([hidden, inputs[:, :half], hidden, inputs[:, half:]], 1)
        outputs.append(model(padded, mask=mask, positions=positions)[0][:, seen == 1])
    return outputs[0], outputs[1]


def pad_later_rows(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, all but the first without four tokens behind padding; mask and positions."""
    short, mask, positions = pad_left(inputs[1:, 4:], 4)
    first = inputs[:1]
    return (
        torch.cat([first, short]),
        torch.cat([torch.ones_like(mask[:1]), mask]),
        torch.cat([count_positions(first), positions]),
    )


def padded_in_pieces(model: Model, inputs: Tensor, ends: Sequence[int]) -> Pair:
    """Outputs of rows behind paddings that differ, in pieces, and those that rows have alone."""
    padded, mask, positions = pad_later_rows(inputs)
    found = in_pieces(model, padded, ends, positions=positions, mask=mask)
    alone = model(inputs[:1])[0][0], model(inputs[1:, 4:])[0].flatten(0, 1)
    return torch.cat([found[0], found[1:, 4:].flatten(0, 1)])[None], torch.cat(alone)[None]


@network_law("mask", "cache")
def decoding_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """Rows behind paddings that differ decode to the outputs that they have alone."""
    n = inputs.shape[1]
    return padded_in_pieces(model, inputs, range(n // 2, n + 1))


@network_law("mask", "cache")
def pieces_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """In three pieces, rows behind paddings that differ have the outputs that they have alone."""
    n = inputs.shape[1]
    return padded_in_pieces(model, inputs, [n // 3, n // 3 + n // 2, n])


def generate(model: Model, ids: Tensor, n: int, **given: Any) -> Any:
    """Append n tokens by the network's own greedy `generate`, without rules that force tokens."""
    mask = given.pop("mask", torch.ones_like(ids))
    model.network.generation_config = type(model.network.generation_config)()
    return model.network.generate(
        ids, attention_mask=mask, max_new_tokens=n, do_sample=False, eos_token_id=None,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True, **given,
    )  # fmt: skip


def scores_of(model: Model, generated: Any, lengths: Sequence[int]) -> Pair:
    """What `generate` scored its tokens with, and the full passes of rows of these lengths."""
    found, ids = torch.stack(generated.logits, 1), generated.sequences
    n = found.shape[1]
    rows = [ids[i : i + 1, -n - length : -1] for i, length in enumerate(lengths)]
    return found, torch.cat([model(row)[0][:, -n:] for row in rows])


@network_law("generate", "causal")
def generation(model: Model, inputs: Tensor) -> Pair:
    """`generate` scores its tokens as full passes score them."""
    return scores_of(model, generate(model, inputs, 8), [inputs.shape[1]] * len(inputs))


@network_law("generate", "causal", "mask")
def generation_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """`generate` scores the tokens of a row of a padded batch as the row alone is scored."""
    n = inputs.shape[1]
    padded, mask, _ = pad_later_rows(inputs)
    lengths = [n, *[n - 4] * (len(inputs) - 1)]
    return scores_of(model, generate(model, padded, 8, mask=mask), lengths)


@network_law("generate", "cache")
def generation_from_cache(model: Model, inputs: Tensor) -> Pair:
    """`generate` goes on from the cache of an earlier `generate`, with and without new tokens."""
    pairs = []
    for n_new in (0, 3):
        first = generate(model, inputs, 4)
        cache = getattr(first, model.cache_name, None)
        if cache is None:
            raise NotImplementedError("generate returns no cache")
        text = torch.cat([first.sequences, inputs[:, :n_new]], 1)
        second = generate(model, text, 8, **{model.cache_name: cache})
        pairs.append(scores_of(model, second, [text.shape[1]] * len(text)))
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def step_after(model: Model, inputs: Tensor, cache: Any, n: int) -> Pair:
    """The output of token n after a cache of the n tokens before it, and that of the full pass."""
    positions = torch.full((len(inputs), 1), n)
    found = model(inputs[:, n : n + 1], cache=cache, positions=positions)[0]
    return found, model(inputs[:, : n + 1])[0][:, -1:]


@network_law("cache")
def copied_cache(model: Model, inputs: Tensor) -> Pair:
    """A copy of the cache stays as it was while the cache goes on."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    copied = copy.deepcopy(cache)
    step_after(model, inputs.flip(0), cache, half)
    return step_after(model, inputs, copied, half)


@network_law("cache", "state of tensors")
def state_of_the_caller(model: Model, inputs: Tensor) -> Pair:
    """A state that is given twice gives the same output twice."""
    half = inputs.shape[1] // 2
    state = model(inputs[:, :half])[1]
    step_after(model, inputs.flip(0), state, half)
    return step_after(model, inputs, state, half)


@network_law("cache", "cache object")
def reordered_cache(model: Model, inputs: Tensor) -> Pair:
    """A cache whose rows are reordered, as for beams, serves the reordered inputs."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    cache.reorder_cache(torch.tensor([1, 0]))
    return step_after(model, inputs.flip(0), cache, half)


@network_law("cache", "cache object")
def cropped_cache(model: Model, inputs: Tensor) -> Pair:
    """A cache without its last three tokens serves what comes after those before."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    cache.crop(-3)
    return step_after(model, inputs, cache, half - 3)


@network_law("cache", "cache object", "generate")
def static_cache(model: Model, inputs: Tensor) -> Pair:
    """In a `StaticCache` of transformers, outputs are those of the full pass."""
    from transformers import StaticCache

    n = inputs.shape[1]
    cache = StaticCache(config=model.network.config, max_cache_len=n + 3)
    ends, positions = range(n // 2, n + 1), count_positions(inputs)
    return in_pieces(model, inputs, ends, positions=positions, cache=cache), model(inputs)[0]


def rebuild(network: Any, **changes: Any) -> Any:
    """A network of the same weights, whose configuration has other values."""
    config = copy.deepcopy(network.config)
    for name, value in changes.items():
        setattr(config, name, value)
    return load(type(network)(config).eval(), network.state_dict())


def load(network: Any, weights: dict[str, Tensor]) -> Any:
    """The network with these weights."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise NotApplicable("its weights depend on what changes") from error
    return network


def convert(model: Model, dtype: torch.dtype) -> Model:
    """The model of a copy of the network in another dtype."""
    return model.of(copy.deepcopy(model.network).to(dtype))


def variables(network: Any, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return weights, inputs
    inputs = inputs.clone().requires_grad_()
    return [*weights, inputs], inputs


def cast(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs in another dtype, but for ids."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


@network_law("module", "same in training")
def training_mode(model: Model, inputs: Tensor) -> Pair:
    """Without dropout and batch norm, training mode gives the output of eval mode."""
    expected = model(inputs)[0]
    model.network.train()
    found, again = model(inputs)[0], model(inputs)[0]
    model.network.eval()
    if not torch.equal(found, again):
        raise NotApplicable("it draws random numbers in training, without dropout too")
    return found, expected


@network_law("config")
def dropout_in_eval(model: Model, inputs: Tensor) -> Pair:
    """In eval mode, dropout of one half changes nothing."""
    settings = vars(model.network.config).items()
    changes = {name: 0.5 for name, x in settings if "drop" in name and isinstance(x, float)}
    return model.of(rebuild(model.network, **changes))(inputs)[0], model(inputs)[0]


@network_law("config", "chunks")
def chunk_sizes(model: Model, inputs: Tensor) -> Pair:
    """Another chunk size gives the same output."""
    other = rebuild(model.network, **dict.fromkeys(model.chunks, 5))
    return model.of(other)(inputs)[0], model(inputs)[0]


def compare_implementations(model: Model, inputs: Tensor, names: Sequence[str]) -> Pair:
    """The last outputs of two implementations of attention, padded and not."""
    given: list[tuple[Tensor, dict[str, Any]]] = [(inputs, {})]
    if "mask" in model.offers:
        padded, mask, positions = pad_left(inputs, 3)
        given.append((padded, {"mask": mask, "positions": positions}))
    outputs = []
    for name in names:
        other = rebuild(model.network, _attn_implementation=name)
        outputs.append(torch.cat([model.of(other)(x, **more)[0][:, -3:] for x, more in given], 1))
    return outputs[0], outputs[1]


@network_law("implementations")
def attention_implementations(model: Model, inputs: Tensor) -> Pair:
    """The implementations "eager" and "sdpa" give the same output, padded and not."""
    return compare_implementations(model, inputs, ["sdpa", "eager"])


@network_law("flex", slow=True)
def flex_attention(model: Model, inputs: Tensor) -> Pair:
    """The implementations "eager" and "flex_attention" give the same output, padded and not."""
    return compare_implementations(model, inputs, ["flex_attention", "eager"])


@network_law("module", "smooth", tolerance=1.0, why=HALF)
def half_precision(model: Model, inputs: Tensor) -> Pair:
    """In bfloat16, the output moves by at most 16 times what rounding of the weights moves it."""
    half = cast(inputs, torch.bfloat16)
    rounded = convert(model, torch.bfloat16)
    expected = convert(rounded, torch.float32)(cast(half, torch.float32))[0]
    moved = (expected - model(inputs)[0]).abs().max() + 2**-8 * expected.abs().max()
    error = (rounded(half)[0].float() - expected).abs().max()
    return (1 + error / (16 * moved))[None], torch.ones(1)


def differ(
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor | None]
) -> Pair:
    """Derivatives along three random directions: of the slopes, and the nearest of differences.

    Central differences have four sizes. A choice, as of experts, may jump within larger ones, and
    float32 inside a network rounds smaller ones. If no two sizes in a row agree, nothing is said.
    """
    draw, pairs, settled = torch.Generator().manual_seed(1), [], True
    for _ in range(3):
        along = [torch.randn(p.shape, generator=draw).double() for p in weights]
        along = [direction / direction.norm() for direction in along]
        products = [(a * s).sum() for a, s in zip(along, slopes, strict=True) if s is not None]
        found, differences = torch.stack(products).sum(), []
        for size in (1e-3, 1e-4, 1e-5, 1e-6):
            values = []
            for steps in (1, -2, 1):  # forth, back past the start, and to the start
                with torch.no_grad():
                    for p, direction in zip(weights, along, strict=True):
                        p.add_(direction, alpha=steps * size)
                values.append(evaluate().detach())
            differences.append((values[0] - values[1]) / (2 * size))
        nearest = [abs(slope.item() - found.item()) for slope in differences]
        pairs.append((found, differences[nearest.index(min(nearest))]))
        sizes = torch.stack(differences)
        settled &= bool((sizes.diff().abs() <= 0.1 * sizes[1:].abs()).any())
    found, expected = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    if max(found.abs().max(), expected.abs().max()) <= 1e-9 * values[-1].abs():
        raise NotApplicable("the output does not move")
    if not settled and (found - expected).abs().max() > 0.03 * expected.abs().max():
        raise NotApplicable("differences of no size settle")
    return found, expected


def has_gradient(model: Model, inputs: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient in this dtype is finite."""
    exact = convert(model, dtype)
    weights, inputs = variables(exact.network, cast(inputs, dtype))
    output = exact(inputs, grad=True)[0]
    slopes = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return all(bool(s.isfinite().all()) for s in slopes if s is not None)


def run_in_float64(model: Model, inputs: Tensor) -> Model:
    """The model in float64, unless it has a gradient in float32 alone."""
    exact, single = torch.float64, torch.float32
    if not has_gradient(model, inputs, exact) and has_gradient(model, inputs, single):
        raise NotApplicable("its gradient is finite in float32 and not in float64")
    return convert(model, exact)


@network_law("module", tolerance=3e-2, why=DIFFERENCES)
def gradients(model: Model, inputs: Tensor) -> Pair:
    """The gradient in weights and features agrees with central differences."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator().manual_seed(0)
    output = exact(inputs, grad=True)[0]
    upstream = torch.randn(output.shape, generator=draw).double()
    slopes = torch.autograd.grad((output * upstream).sum(), weights, allow_unused=True)
    return differ(lambda: (exact(inputs)[0] * upstream).sum(), weights, slopes)


@network_law("module", "cache", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def gradients_in_pieces(model: Model, inputs: Tensor) -> Pair:
    """In pieces through the cache, one of them short, the gradient is that of the full pass."""
    exact = convert(model, torch.float64)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    n, slopes = inputs.shape[1], []
    for ends in ([n // 3, n // 3 + 2, n], [n]):
        output = in_pieces(exact, inputs, ends, positions=count_positions(inputs), grad=True)
        draw = torch.Generator().manual_seed(0)
        upstream = torch.randn(output.shape, generator=draw).double()
        found = torch.autograd.grad((output * upstream).sum(), weights, allow_unused=True)
        slopes.append(torch.cat([slope.flatten() for slope in found if slope is not None]))
    return slopes[0], slopes[1]


@network_law("module", "smooth", tolerance=3e-2, why=DIFFERENCES)
def second_derivatives(model: Model, inputs: Tensor) -> Pair:
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator().manual_seed(0)
    upstream = torch.randn(exact(inputs)[0].shape, generator=draw).double()
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad: bool = False) -> Tensor:
        loss = (exact(inputs, grad=True)[0].square() * upstream).sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, create_graph=grad)
        products = [(s * a).sum() for s, a in zip(slopes, along, strict=True) if s is not None]
        return torch.stack(products).sum()

    bends = torch.autograd.grad(slope(grad=True), weights, allow_unused=True)
    return differ(slope, weights, bends)


@network_law("config", "grouped")
def grouped_heads(model: Model, inputs: Tensor) -> Pair:
    """Fewer heads of keys and values are those heads repeated."""
    config = model.network.config
    heads, repeated = config.num_key_value_heads, {}
    copies = config.num_attention_heads // heads
    for name, weight in model.network.state_dict().items():
        if name.split(".")[-2] in ("k_proj", "v_proj") and len(weight) % heads == 0:
            weight = weight.unflatten(0, (heads, -1)).repeat_interleave(copies, 0).flatten(0, 1)
        repeated[name] = weight
    config = copy.deepcopy(config)
    config.num_key_value_heads = config.num_attention_heads
    other = load(type(model.network)(config).eval(), repeated)
    return model(inputs)[0], model.of(other)(inputs)[0]


@network_law("module", "cache", "smooth", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def long_inputs(model: Model, inputs: Tensor) -> Pair:
    """Over 16 times as many tokens, float32 stays with float64."""
    many = inputs.repeat(1, 16, *[1] * (inputs.ndim - 2))[:, : model.longest]
    return model(many)[0], convert(model, torch.float64)(cast(many, torch.float64))[0].float()
