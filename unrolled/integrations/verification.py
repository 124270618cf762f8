"""Check that a replacement with ``Softmax()`` computes what the original attention computes."""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..generators import kept_generators

Build = Callable[[Any], nn.Module]

_SHORT = 11
_LONG = 67  # more tokens than the customary windows of 7 x 7 and 8 x 8 hold
_MOST = 32 * 32  # tokens of the largest window that is tried
_ROUNDINGS = 32
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Mismatch(ValueError):
    """An attention module differs from its replacement; the message says how."""


def check_arguments(original: nn.Module, replacement: type[nn.Module]) -> None:
    """Raise a Mismatch if forward takes arguments that the replacement lacks or reorders."""
    served = [*inspect.signature(replacement.forward).parameters][1:]
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    for place, parameter in enumerate(inspect.signature(original.forward).parameters.values()):
        star = stars.get(parameter.kind, "")
        if star or served[place : place + 1] != [parameter.name]:
            raise Mismatch(
                f"takes the argument {star}{parameter.name} in its forward, where only "
                f"({', '.join(served)}) can be served"
            )


def compare_fused(original: nn.Module, build: Build) -> None:
    """Raise a Mismatch unless attention with ``qkv`` and ``proj`` equals its replacement.

    Both run on random tokens, in evaluation mode with the masks that the original takes, and in
    training mode with the same random draws. They are copies with random weights: the present
    weights may be zeros and ones that hide a difference. Half precision runs in float32 too, which
    shows differences that rounding would hide. A module without data (``meta``) runs on the CPU.
    The original and the states of the random generators stay as they are. ``build(module)`` makes
    the replacement with ``Softmax()``.
    """
    options = inspect.signature(original.forward).parameters
    for twin, like in _make_copies(original):
        trial = _Trial(twin, build)
        x = _find_tokens(twin, _list_long_counts(twin), like)
        trial.compare((x,))
        x = _find_tokens(twin, (_SHORT, x.shape[1]), like)
        if "is_causal" in options:
            trial.compare((x,), "is_causal=True", is_causal=True)
        if "attn_mask" in options:
            _compare_masks(trial, x)
        trial.compare_training((x,))


def compare_multihead(original: nn.MultiheadAttention, build: Build) -> None:
    """Raise a Mismatch unless ``nn.MultiheadAttention`` equals its replacement: `compare_fused`."""
    widths = original.embed_dim, original.kdim, original.vdim
    for twin, like in _make_copies(original):
        trial = _Trial(twin, build)
        q, k, v = (
            _draw_tokens((2, _SHORT, width), like, seed) for seed, width in enumerate(widths)
        )
        first = original.batch_first
        inputs = (q, k, v) if first else (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        hidden = ~_draw_mask(like.device)[0, 0]
        trial.compare(inputs)
        trial.compare(inputs, "attn_mask", attn_mask=hidden)
        trial.compare(inputs, "key_padding_mask", key_padding_mask=hidden[:2])
        trial.compare_training(inputs)


class _Trial:
    """A module in evaluation mode, and its replacement that shares its weights."""

    def __init__(self, original: nn.Module, build: Build) -> None:
        self.original = original.eval()
        try:
            self.replacement = build(original).eval()
        except Exception as error:
            raise Mismatch(f"has parts that do not fit together as expected ({error})") from error

    def compare(self, inputs: tuple[Tensor, ...], how: str = "", **options: Any) -> None:
        """Raise a Mismatch unless both outputs agree up to rounding."""
        tokens = f"random tokens {tuple(inputs[0].shape)}{' with ' if how else ''}{how}"
        try:
            expected = _run_module(self.original, inputs, options)
        except Exception as error:
            raise Mismatch(f"fails on {tokens} ({_shorten_error(error)})") from error
        try:
            output = _run_module(self.replacement, inputs, options)
        except Exception as error:
            why = _shorten_error(error)
            raise Mismatch(f"runs on {tokens}, but its replacement does not ({why})") from error
        expected, output = (x if isinstance(x, tuple) else (x,) for x in (expected, output))
        if [_describe_form(x) for x in expected] != [_describe_form(x) for x in output]:
            raise Mismatch(
                f"returns {', '.join(map(_describe_form, expected))} on {tokens}, but its "
                f"replacement {', '.join(map(_describe_form, output))}"
            )
        allowed = _ROUNDINGS * _relative_rounding(inputs[0])
        for a, b in zip(output, expected, strict=True):
            if not (deviation := _relative_error(a, b)) <= allowed:
                raise Mismatch(
                    f"is not the softmax attention that its parts suggest: on {tokens} its "
                    f"replacement has a relative error of {deviation:.2g}, of which rounding "
                    f"explains {allowed:.1g}"
                )

    def compare_training(self, inputs: tuple[Tensor, ...]) -> None:
        """Compare in training mode, without dropout of weights; other dropout must be the same."""
        if inputs[0].device.type not in ("cpu", "cuda"):
            return  # generators whose states `_run_module` does not know
        weights: Any = getattr(self.original, "attn_drop", None)
        if isinstance(weights, nn.Dropout):
            weights.p = 0.0
        for name in ("attn_drop", "dropout"):
            if isinstance(getattr(self.original, name, None), float):
                setattr(self.original, name, 0.0)
        self.original.train()
        self.replacement.train()
        self._refuse_changes(inputs)
        self.compare(inputs, "the same random draws in training mode")

    def _refuse_changes(self, inputs: tuple[Tensor, ...]) -> None:
        """Raise a Mismatch if a second run differs from the first: nothing can be compared."""
        try:
            first, second = (_run_module(self.original, inputs, {}) for _ in range(2))
        except Exception:
            return  # `compare` says why
        first, second = (x if isinstance(x, tuple) else (x,) for x in (first, second))
        allowed = _ROUNDINGS * _relative_rounding(inputs[0])
        if not all(_relative_error(b, a) <= allowed for a, b in zip(first, second, strict=True)):
            raise Mismatch(
                "changes its output with each forward pass in training mode, even with the same "
                "random draws, as torch.nn.utils.parametrizations.spectral_norm does, and so "
                "cannot be compared with its replacement; replace attention first and parametrize "
                "it then"
            )


def _compare_masks(trial: _Trial, x: Tensor) -> None:
    """Compare under masks, in each form of torch's attention that the original takes."""
    visible = _draw_mask(x.device, x.shape[1])
    bias = _draw_tokens(visible.shape, x, 7).masked_fill(~visible, -torch.inf)
    n_taken = 0
    for kind, mask in (("a boolean", visible), ("an additive", bias)):
        for form in (mask, mask[:, 0], mask[0, 0], mask[..., :1, :]):
            try:
                _run_module(trial.original, (x,), {"attn_mask": form})
            except Exception:
                continue
            n_taken += 1
            trial.compare((x,), f"{kind} attn_mask {tuple(form.shape)}", attn_mask=form)
    if not n_taken:
        raise Mismatch(
            "takes an attn_mask, but in none of the forms of scaled_dot_product_attention"
        )


def _make_copies(original: nn.Module) -> Iterator[tuple[Any, Tensor]]:
    """Yield copies with random weights, each with a tensor of its device and dtype."""
    like = next(p for p in original.parameters() if p.is_floating_point())
    dtypes = [like.dtype] if like.dtype.itemsize >= 4 else [torch.float32, like.dtype]
    for dtype in dtypes:
        twin = _copy_module(original)
        if dtype != like.dtype:
            twin = twin.to(dtype)
        with torch.no_grad():
            for seed, (name, parameter) in enumerate(twin.named_parameters()):
                if parameter.is_floating_point():
                    scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
                    scale = 0.3 if name.endswith("bias") else scale
                    parameter.copy_(scale * _draw_tokens(parameter.shape, parameter, seed))
        yield twin, next(p for p in twin.parameters() if p.is_floating_point())


def _copy_module(original: nn.Module) -> nn.Module:
    """Return a copy without hooks; of a module on the meta device, one with data."""
    values = [x for part in original.modules() for x in vars(part).values()]
    tensors = [x for x in values if isinstance(x, Tensor) and not x.is_leaf]
    detached = {id(x): x.detach().clone() for x in tensors}  # deepcopy refuses them
    try:
        twin = copy.deepcopy(original, detached)
    except Exception as error:
        raise Mismatch(f"cannot be copied for a trial run ({_shorten_error(error)})") from error
    for part in twin.modules():
        for hooks in _HOOKS:
            getattr(part, hooks).clear()
    if any(x.is_meta for x in (*twin.parameters(), *twin.buffers())):
        twin = twin.to_empty(device="cpu")
        for buffer in twin.buffers():
            buffer.fill_(1)
    return twin


def _run_module(module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> Any:
    """Return the module's output, without gradients; all runs draw the same random numbers."""
    device = inputs[0].device
    with torch.no_grad(), kept_generators(), torch.autocast(device.type, enabled=False):
        return module(*(x.clone() for x in inputs), **options)


def _find_tokens(module: Any, counts: tuple[int, ...], like: Tensor) -> Tensor:
    """Return random tokens, as many as the first of `counts` that the module takes."""
    refusals: dict[int, str] = {}
    for count in counts:
        x = _draw_tokens((2, count, module.qkv.in_features), like, count)
        try:
            _run_module(module, (x,), {})
        except Exception as error:
            refusals[count] = _shorten_error(error)
        else:
            return x
    raise Mismatch(
        f"could not be run on random tokens (batch, tokens, {module.qkv.in_features}) with 2 x "
        f"{', '.join(map(str, refusals))} of them ({refusals[counts[0]]})"
    )


def _list_long_counts(module: nn.Module) -> tuple[int, ...]:
    """Return numbers of tokens to try: more than any window holds, or else a fixed number.

    A whole number among the module's attributes, of whatever name, may be the length of a window,
    its reach to either side, or the side of a square window; of a pair either may be a length, and
    both the sides. First come two tokens more than each of these sizes, then two windows. The last
    are for modules that take nothing else: the size itself, without and with a class token.

    Raises
    ------
    Mismatch
        If a window of that name may hold more tokens than are tried.
    """
    sizes: set[int] = set()
    for name, value in inspect.getmembers_static(module):
        pair = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
        if not all(type(side) is int and side > 0 for side in pair):
            continue
        lengths = {*pair, pair[0] * pair[1]}
        if "window" in name and max(lengths) > _MOST:
            raise Mismatch(
                f"has {name}={value!r}, a window that may hold {max(lengths)} tokens, where at "
                f"most {_MOST} can be tried"
            )
        sizes |= {size for size in lengths if size <= _MOST}
    beyond = sorted({_LONG, *(size + 2 for size in sizes if size + 2 > _LONG)}, reverse=True)
    fixed = sorted({n for size in sizes for n in (2 * size, size + 1, size) if n > 1}, reverse=True)
    return tuple(dict.fromkeys((*beyond, *fixed)))


def _draw_mask(device: torch.device, n_tokens: int = _SHORT) -> Tensor:
    """Draw a boolean mask (2, 1, tokens, tokens) in which every query sees itself."""
    shape = 2, 1, n_tokens, n_tokens
    generator = torch.Generator().manual_seed(0)
    visible = torch.rand(shape, generator=generator, device="cpu") > 0.4
    return (visible | torch.eye(n_tokens, dtype=torch.bool, device="cpu")).to(device)


def _draw_tokens(shape: tuple[int, ...], like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(like.device, like.dtype)


def _relative_rounding(x: Tensor) -> float:
    """Return the relative rounding of a product, at least float32's: softmax may be in float32."""
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps)
    reduced = {"high": 2.0**-10, "medium": 2.0**-7}
    if x.dtype == torch.float32:
        eps = reduced.get(torch.get_float32_matmul_precision(), eps)
    return eps


def _relative_error(actual: Any, expected: Any) -> float:
    if not isinstance(expected, Tensor):
        return 0.0
    a, b = (x.detach().to("cpu").to(torch.float64) for x in (actual, expected))
    return float((a - b).norm() / b.norm().clamp(min=torch.finfo(b.dtype).tiny))


def _describe_form(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _shorten_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
