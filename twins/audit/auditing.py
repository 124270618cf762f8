"""Hold a network to the laws."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...unrolled.generators import kept_generators, seeded
from ...unrolled.users_code import import_object, reporting
from ..report import Finding, Report
from .architectures import find_architecture, load_folder
from .inputs import difference
from .judging import hold
from .laws import LAWS
from .model import CACHES, CAUSAL, Convention, Model, find_convention
from .scripts import NetworkOrigin
from .weights import draw_weights

SEED, BATCH, TOKENS = 1, 2, 21
_SOURCE, _FRAMES, _SAMPLES = 13, 40, 4000  # of what an encoder reads: tokens, features, sound
_FEATURES = ("input_feat_per_channel", "feature_projection_input_dim")
_LEAST_TOKENS = 12  # laws cut three pieces and pads of four
_FIRST_ID = 3  # ids below have meanings: padding, begin, end


@kept_generators()
def audit(
    network: str | Callable[..., Any],
    inputs: Tensor | None = None,
    *,
    convention: Convention | None = None,
    causal: bool | None = None,
    weights: Literal["drawn", "own"] = "drawn",
    source: str = "",
    laws: tuple[str, ...] = (),
    device: str = "cpu",
    progress: Callable[[Finding], None] | None = None,
) -> Report:
    """Hold a network to the laws that its kind promises.

    Parameters
    ----------
    network : str or callable
        An architecture of transformers by name, such as ``"mamba"`` or ``"BertModel"``, which is
        built tiny; a folder that ``save_pretrained`` wrote; ``"module:callable"``, which is called
        without arguments and returns a network, or a pair of network and inputs; or a module or
        function. One of 16 bits is turned to float32. A module of your own takes features of shape
        (batch, tokens, width), or ids. It returns outputs, or a pair of outputs and a state that it
        takes back as ``state``.
    inputs : Tensor, optional
        Token ids, features or images: two rows or more, of 12 tokens or more. Drawn by default,
        where the network tells their size.
    convention : Convention, optional
        Names of the arguments; by default found in the signature. In later pieces the mask is that
        of all tokens so far; ``Convention(cache=..., mask=..., mask_of_call=True)`` gives that of
        the piece alone, as recurrent networks may take it.
    causal : bool, optional
        Whether later tokens must change nothing. By default this is so for a network with a cache,
        and for what `model.CAUSAL` lists.
    weights : {"drawn", "own"}, default="drawn"
        Draw weights that bite in a copy of the network, as `draw_weights` does: at the
        initialisation of a library a layer does nearly nothing, which hides faults. Or audit the
        network's own, such as trained ones.
    source : str, optional
        Lines of Python that make ``network`` and ``inputs``, for the scripts of broken laws. By
        default a script of a module or function leaves a place for them.
    laws : tuple of str, optional
        Names of the laws; by default all.
    device : str, default="cpu"
        Where a module and its inputs are moved, such as ``"cuda"``. What laws make is made there,
        and convolutions multiply in full float32.
    progress : callable, optional
        Called with every `Finding` when it is done.

    Returns
    -------
    Report
        False if a law is broken. A law that is refused, as the network raises, breaks nothing.

    Raises
    ------
    ValueError
        If the architecture or a law is unknown, inputs must be given and are not or are too small,
        the network raises on them, it returns a state and takes none, or there is no such device.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from twinsolve import audit
    >>> class RunningMean(nn.Module):
    ...     def forward(self, x, state=None):
    ...         total, n = (0, 0) if state is None else state
    ...         total = total + x.cumsum(1)
    ...         counts = torch.arange(1, x.shape[1] + 1)[:, None] + n
    ...         return total / counts, (total[:, -1:], 0)  # forgets how many tokens it saw
    >>> report = audit(RunningMean(), torch.randn(2, 21, 4))
    >>> bool(report), [finding.law for finding in report.broken][:2]
    (False, ['decoding', 'decoding after prefill'])
    """
    unknown = set(laws) - {law.name for law in LAWS}
    if unknown:
        known = ", ".join(law.name for law in LAWS)
        raise ValueError(f"audit: no law {sorted(unknown)[0]!r}; there are: {known}")
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"audit: there is no device {device!r}: {error}") from error
    name, network, inputs, origin = _find(network, inputs, weights)
    if source:
        origin = replace(origin, source=source)
    if isinstance(network, nn.Module):
        network.to(device)
    findings = []
    with _working_on(device):
        model = _make_model(network, inputs, convention, causal, device)
        for law in LAWS:
            if not laws or law.name in laws:
                findings.append(hold(law, model, origin))
                if progress:
                    progress(findings[-1])
    return Report(name, tuple(findings))


@contextmanager
def _working_on(device: str) -> Iterator[None]:
    """Make tensors on the device, without the TF32 of cuDNN, which hides errors below 1e-3."""
    if device == "cpu":  # the default device; a context that sets it would make torch slower
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.device(device):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _find(
    network: str | Callable[..., Any], inputs: Tensor | None, weights: str
) -> tuple[str, Any, Tensor | None, NetworkOrigin]:
    """Return a name, the network to audit, its inputs if they are known, and its origin."""
    if isinstance(network, str) and Path(network).is_dir():
        return network, _widen(load_folder(network)), inputs, NetworkOrigin(drawn=False)
    source = ""
    if isinstance(network, str) and ":" not in network:
        architecture = find_architecture(network)
        return (
            architecture.network.__name__,
            architecture.build(),
            inputs,
            NetworkOrigin(architecture=architecture),
        )
    model: Any = network
    if isinstance(network, str):
        module, _, maker = network.partition(":")
        source = f"sys.path.insert(0, {str(Path.cwd())!r})\n"
        source += f"from {module} import {maker}\n\nnetwork = {maker}()"
        model = _make(network)
        if isinstance(model, tuple) and len(model) == 2:
            model, inputs = model
            source = source.replace("network =", "network, inputs =")
    if not callable(model):
        raise ValueError(
            f"audit: {network!r} must make a network, a callable, or a pair of one and its inputs; "
            f"got {type(model).__name__}"
        )
    if not isinstance(model, nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        return name, model, inputs, NetworkOrigin(source=source, drawn=False)
    model = _widen(copy.deepcopy(model).eval())
    if weights == "drawn":
        draw_weights(model)
    name = getattr(model, "__name__", type(model).__name__)
    return name, model, inputs, NetworkOrigin(source=source, drawn=weights == "drawn")


def _widen(network: nn.Module) -> nn.Module:
    """Turn a network of 16 bits to float32: laws need more digits than 16 bits have."""
    narrow = any(p.is_floating_point() and p.itemsize == 2 for p in network.parameters())
    return network.float() if narrow else network


def _make(name: str) -> Any:
    """Call the user's ``module:maker`` at a fixed seed."""
    sys.path.insert(0, "")  # as `python -m` does: the caller's modules
    try:
        maker = import_object(name, "audit: cannot find")
        with seeded(0), reporting(f"audit: {name!r} cannot be called without arguments"):
            return maker()  # as the script does
    finally:
        sys.path.remove("")


def _make_model(
    network: Any,
    inputs: Tensor | None,
    convention: Convention | None,
    causal: bool | None,
    device: str,
) -> Model:
    """Return the network with inputs and a convention: given, or found by calls."""
    names = convention or find_convention(network)
    with torch.device("cpu"):  # the same numbers on every device
        source = _draw_source(network, names.source) if names.source else None
        if source is not None and inputs is not None:
            source = source[:1]  # whichever ids a row has
        inputs = _draw_inputs(network, names) if inputs is None else _check_inputs(inputs)
    inputs, source = inputs.to(device), None if source is None else source.to(device)
    model = Model(network, inputs, names, True, source=source)
    try:
        cache = model(inputs.clone())[1]
    except Exception as error:  # whatever the network raises
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"audit: the network cannot be called with inputs alone: {why}") from error
    if convention is None and names.mask and not names.mask_hides:
        names = _find_kind_of_mask(model)
    if names.cache and model.config is not None and cache is None:
        names = replace(names, returns_cache=False)
    if convention is None and not names.cache and model.config is None and cache is not None:
        raise ValueError(
            "audit: the network returns more than its output, and takes no argument that is known "
            f"as a state ({', '.join(CACHES)}); rename it, or in Python give "
            'convention=Convention(cache="NAME"), or Convention() if it keeps no state'
        )
    if causal is None:
        known = getattr(model.config, "model_type", None) in CAUSAL
        causal = known or names.cache is not None
        causal &= bool(names.source) or getattr(model.config, "is_decoder", True) is not False
    if not causal:
        names = replace(names, cache=None)
    return replace(model, causal=causal, convention=names)


def _find_kind_of_mask(model: Model) -> Convention:
    """Return the convention with the kind of mask that the network takes.

    Of masks that show all tokens three are tried: ones, booleans that show, and booleans that hide.
    The first that leaves the output as it is without a mask is taken; ones if none does.
    """
    names = model.convention
    if model.inputs.ndim > 3:
        return names
    without = model(model.inputs.clone())[0]
    kinds: tuple[dict[str, Any], ...] = ({}, {"mask_shows": True}, {"mask_hides": True})
    for kind in kinds:
        tried = replace(model, convention=replace(names, **kind))
        mask = torch.ones(model.inputs.shape[:2], dtype=torch.long)
        try:
            output = tried(model.inputs.clone(), mask=mask)[0]
        except Exception:  # whatever the network raises of a mask that it does not take
            continue
        if difference(output, without) <= 1e-3:
            return tried.convention
    return names


def _check_inputs(inputs: Tensor) -> Tensor:
    """Return the inputs, after a check that every law can cut and pad them."""
    images = inputs.ndim == 4
    if inputs.ndim not in (2, 3, 4) or len(inputs) < BATCH:
        raise ValueError(
            f"audit: inputs must have two rows or more and 2, 3 or 4 axes: ids (batch, tokens), "
            f"features (batch, tokens, width) or images; got shape {tuple(inputs.shape)}"
        )
    if not images and inputs.shape[1] < _LEAST_TOKENS:
        raise ValueError(
            f"audit: inputs must have {_LEAST_TOKENS} tokens or more, got {inputs.shape[1]}"
        )
    return inputs.float() if inputs.is_floating_point() and inputs.itemsize == 2 else inputs


def _draw_source(network: Any, name: str) -> Tensor:
    """Draw what the encoder reads: two rows, so that rows of a batch read differently."""
    config = network.config.get_text_config(decoder=True)
    draw = torch.Generator().manual_seed(SEED + 1)
    if name == "input_ids":
        return torch.randint(_FIRST_ID, config.vocab_size, (BATCH, _SOURCE), generator=draw)
    if name == "input_values":
        return torch.randn(BATCH, _SAMPLES, generator=draw)
    width = next((getattr(config, x) for x in _FEATURES if hasattr(config, x)), None)
    shape = (_FRAMES, width) if width else (config.num_mel_bins, 2 * config.max_source_positions)
    return torch.randn(BATCH, *shape, generator=draw)


def _draw_inputs(network: Any, names: Convention) -> Tensor:
    """Draw token ids or images, of the sizes in the network's configuration."""
    config: Any = getattr(network, "config", None)
    config = config.get_text_config(decoder=True) if hasattr(config, "model_type") else config
    draw = torch.Generator().manual_seed(SEED)
    size = getattr(config, "image_size", None)
    if names.source:  # ids of a row leave its number as their rest: see `Model.source_of`
        halves = torch.randint(2, config.vocab_size // 2, (BATCH, TOKENS), generator=draw)
        return 2 * halves + torch.arange(BATCH)[:, None]
    if getattr(network, "main_input_name", "") == "pixel_values" and size:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return torch.randn(BATCH, getattr(config, "num_channels", 3), *sides, generator=draw)
    if hasattr(config, "vocab_size"):
        return torch.randint(_FIRST_ID, config.vocab_size, (BATCH, TOKENS), generator=draw)
    raise ValueError(
        "audit: the network does not tell the size of its inputs; give inputs= of shape "
        "(batch, tokens, width), or ids of shape (batch, tokens)"
    )
