"""Laws of derivatives, which are compared with differences of expected outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...unrolled.attention import Context
from ...unrolled.block_size import small_blocks
from .draws import masks_of, some_rows
from .masks import NO_MASKS, Masks
from .measurement import Array, Measurement
from .outputs import BLOCK, blocked_subjects
from .subject import Declared, Subject, Tensors, Way, as_array, map_tensors
from .trial import Trial, law, operator_law

STEPS = (3e-6, 1e-7, 1e-8)  # errors of differences: 1e-11 f''' + 1e-9 f, and 1e-8 f at the last
_LONG_STEP = 1e-3  # for outputs solved to a tolerance, whose error dominates short differences
SLOPE_TOLERANCE = 1e-5
_LONGEST = 10.0  # largest factor of a move: differences stay accurate
_SECOND_STEPS = (1e-5, 1e-6, 1e-7)  # for differences of the slope, which is accurate to 1e-9
_SECOND_TOLERANCE = 1e-5  # rounding at the second step; at the first, the worst twin has 3e-7
_LEAST_CURVATURE = 1e-3  # as a share of the slope: a smaller curvature counts as zero
_N_FEW, _N_WIDE = 8, 40


@law
def gradient(subject: Subject) -> Iterator[Trial]:
    """Gradients are the slopes of the expected output, that of the reference or else the layer's.

    They are measured separately by inputs, parameters and context; for few tokens under the hardest
    mask; with more values than tokens; and by everything at once in many small blocks. The
    tolerance, 1e-5 of the slope, is the accuracy of central differences in float64.
    """
    accuracy = subject.accuracy
    if accuracy.iterates and (subject.declared is None or subject.brief):
        return
    for gradients in _plain_and_masked(subject):
        names = gradients.names
        if subject.brief:
            names = list(dict.fromkeys([*names[:1], *(n for n in names if n == "parameters")]))
        for name in names:
            yield Trial(name + gradients.suffix, partial(gradients.measure, name))
    if subject.brief:
        return
    if subject.declared is not None:
        wide = Gradients(subject.drawn(subject.rng("wide values"), n_values=_N_WIDE))
        for name in wide.names[:2]:
            yield Trial(f"{name}, wide values", partial(wide.measure, name))
    for small, masks, rows, name in () if accuracy.iterates else blocked_subjects(subject):
        in_blocks = Gradients(small, masks, rows)
        if in_blocks.names:
            yield Trial(f"in blocks, {name}", partial(_measure_in_blocks, in_blocks))


@law
def second_derivative(subject: Subject) -> Iterator[Trial]:
    """Second derivatives by two backward passes and by two transforms are correct or refused.

    They are compared with differences of the gradient, which the law `gradient` judges. A way that
    the subject declares as refused must raise a RuntimeError. The tolerance is 1e-5 of the
    curvature: slopes are accurate to 1e-12, and the second step is 1e-6 long.
    """
    if subject.brief or (subject.accuracy.iterates and subject.declared is None):
        return
    sets = list(_plain_and_masked(subject))
    ways: list[tuple[Gradients, Way]] = [(sets[0], "torch.func"), (sets[-1], "backward")]
    for gradients, way in ways:
        if way in subject.twice:
            measure = partial(gradients.measure_second, transformed=way == "torch.func")
            of_way = partial(_judge_second, measure, subject.twice[way])
            yield Trial(f"by {way}{gradients.suffix}", of_way)


def _judge_second(measure: partial[Measurement], expected: str) -> Measurement:
    """Judge second derivatives that must be "right", "refused" or "either"."""
    try:
        measured = measure()
    except RuntimeError:
        if expected == "right":
            raise
        return Measurement(0.0, 0.0)
    return Measurement(float("inf"), 0.0) if expected == "refused" else measured


@operator_law
def reads(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The output depends on exactly those of queries, keys and values that the layer declares.

    A gradient by others is zero beside the largest, to the tolerance of the output. Where a layer
    chooses keys, that by queries and keys may be zero as well, as if it takes one key. If the layer
    uses the first values of a model as its values, it reads them from the context, and its output
    does not depend on the values.
    """

    def measure() -> Measurement:
        _, *gradients = output_and_gradients(subject)
        sizes = {name: np.abs(g).max() for name, g in zip("qkv", gradients, strict=True)}
        least = subject.accuracy.tolerance * max(sizes.values())
        read = {name for name, size in sizes.items() if size > least}
        allowed = set(declared.reads) - ({"v"} if declared.of_first_values else set())
        chosen = set() if subject.accuracy.continuous else {"q", "k"}
        right = allowed - chosen <= read <= allowed
        return Measurement(0.0 if right else float("inf"), 0.0)

    yield Trial("", measure)


def output_and_gradients(
    subject: Subject,
    masks: Masks = NO_MASKS,
    rows: Array | slice = slice(None),
    *,
    autocast: bool = False,
) -> list[Array]:
    """Return the outputs of some rows, and gradients of their squares by the tokens of these."""
    leaves = tuple(x.detach().requires_grad_() for x in subject.inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = subject.on(leaves, subject.context).run(masks)
    out = out[..., rows, :]
    gradients = torch.autograd.grad(
        out.square().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return [as_array(out), *(as_array(x)[..., rows, :] for x in gradients)]


def _plain_and_masked(subject: Subject) -> Iterator[Gradients]:
    """Yield the plain gradients and, for operators, those of few tokens under the hardest mask.

    Of a brief operator only the latter.
    """
    if subject.declared is None or not subject.brief:
        yield Gradients(subject)
    if subject.declared is None:
        return
    rng = subject.rng("gradients")
    short = subject if subject.brief else subject.drawn(rng, n=_N_FEW)
    masks = masks_of(short)[-1]
    yield Gradients(short, masks, some_rows(short, masks, rng, 3))


def _measure_in_blocks(gradients: Gradients) -> Measurement:
    with small_blocks(BLOCK):
        return gradients.measure(*gradients.names)


class Gradients:
    """The gradient of a random combination of the outputs, in float64.

    The layer's gradient, from one backward pass, is compared with central differences of the
    expected output at the layer's parameters. A direction is the sum of a random one and the
    layer's own gradient, so that no derivative is small by chance.

    Parameters
    ----------
    subject : Subject
    masks : Masks, optional
    rows : ndarray of int, optional
        Queries with outputs in the combination; all by default.
    """

    def __init__(
        self, subject: Subject, masks: Masks = NO_MASKS, rows: Array | None = None
    ) -> None:
        self.subject, self.context = subject, subject.context
        self.masks, self.rows = masks, rows
        self.suffix = "" if masks is NO_MASKS else f", {masks.name}"

    @property
    def names(self) -> list[str]:
        """Names of the inputs, parameters and context that have gradients."""
        return list(self._at)

    def measure(self, *names: str) -> Measurement:
        """Measure the relative deviation of the derivative along a direction of all these names.

        A layer that chooses (keys, a support) may choose differently within a step; then a shorter
        step decides. For a layer that iterates to a tolerance a long step is tried too.
        """
        rng = self.subject.rng(" ".join(names))
        direction = self._balanced(
            {name: tuple(_direction(g, rng) for g in self._gradient[name]) for name in names}
        )
        slope = float(_along(self._gradient, direction))
        deviation = float("inf")
        for step in (_LONG_STEP, *STEPS) if self.subject.accuracy.iterates else STEPS:
            if not deviation <= SLOPE_TOLERANCE:
                ahead, behind = (self._expected(direction, h) for h in (step, -step))
                deviation = _relative(slope, (ahead - behind) / (2 * step), self._least_slope)
        return Measurement(deviation, SLOPE_TOLERANCE)

    def _balanced(self, direction: dict[str, Tensors]) -> dict[str, Tensors]:
        """Return the direction with longer moves by the names that contribute little slope."""
        slopes = {
            name: abs(float(_along(self._gradient, {name: moves})))
            for name, moves in direction.items()
        }
        most = max(slopes.values())
        factors = {
            name: min(most / slope, _LONGEST) if slope else _LONGEST
            for name, slope in slopes.items()
        }
        return {name: tuple(factors[name] * d for d in moves) for name, moves in direction.items()}

    def measure_second(self, *, transformed: bool = False) -> Measurement:
        """Measure the deviation of the second derivative along one direction of all names.

        It contains the mixed derivatives by any two names. It is computed by two backward passes or
        by the transforms of ``torch.func``, with the math kernel if PyTorch's fused kernel has no
        second derivative. It is compared with differences of the gradient, which `measure` judges.
        If the gradient jumps within a step, a shorter step decides.
        """
        rng = self.subject.rng("second")
        direction = {
            name: tuple(_direction(g, rng) / g.numel() ** 0.5 for g in gradient)
            for name, gradient in self._gradient.items()
        }
        curvature = self._curvature(direction, transformed)
        least = _LEAST_CURVATURE * abs(float(_along(self._gradient, direction)))
        deviation = float("inf")
        for step in _SECOND_STEPS:
            if not deviation <= _SECOND_TOLERANCE:
                ahead, behind = (self._slope(direction, h) for h in (step, -step))
                deviation = _relative(curvature, (ahead - behind) / (2 * step), least)
        return Measurement(deviation, _SECOND_TOLERANCE)

    def _slope(self, direction: dict[str, Tensors], step: float) -> float:
        """Return the layer's derivative along the direction, after a step along it."""
        at = _leaves(self._move(direction, step))
        return float(_along(_backward(self._combination(at), at), direction))

    def _curvature(self, direction: dict[str, Tensors], transformed: bool) -> float:
        """Return the layer's second derivative along the direction."""
        if transformed:
            with sdpa_kernel(SDPBackend.MATH):
                second = torch.func.grad(
                    lambda at: _along(torch.func.grad(self._combination)(at), direction)
                )(self._at)
            return float(_along(second, direction).detach())
        try:
            return self._curvature_by_passes(direction)
        except RuntimeError as error:
            if "scaled_dot_product" not in str(error):
                raise
        with sdpa_kernel(SDPBackend.MATH):
            return self._curvature_by_passes(direction)

    def _curvature_by_passes(self, direction: dict[str, Tensors]) -> float:
        """Return the second derivative along the direction, by two backward passes."""
        at = _leaves(self._at)
        slope = _along(_backward(self._combination(at), at, create_graph=True), direction)
        return float(_along(_backward(slope, at), direction)) if slope.requires_grad else 0.0

    @cached_property
    def _at(self) -> dict[str, Tensors]:
        """The present values of everything that has gradients, by name."""
        at: dict[str, Tensors] = {name: (x,) for name, x in self._tokens.items()}
        if parameters := self._named_parameters():
            at["parameters"] = tuple(x.detach() for x in parameters.values())
        if tensors := _tensors_of(self.context):
            at["context"] = tensors
        return {name: x for name, x in at.items() if name in self.subject.differentiable}

    @property
    def _tokens(self) -> dict[str, Tensor]:
        """The inputs by name; queries and keys that must be equal are one."""
        inputs = self.subject.inputs
        if len(inputs) == 1:
            return {"inputs": inputs[0]}
        q, k, v = inputs
        if self.subject.same_points:
            return {"tokens": k, "v": v}
        return {"q": q, "k": k, "v": v}

    def _inputs(self, at: dict[str, Tensors]) -> Tensors:
        """Return the inputs at these values."""
        tokens = {name: at.get(name, (x,))[0] for name, x in self._tokens.items()}
        if "tokens" in tokens:
            return tokens["tokens"], tokens["tokens"], tokens["v"]
        return tuple(tokens.values())

    def _moved(self, at: dict[str, Tensors]) -> Subject:
        """Return the subject on the inputs and the context at these values."""
        if self.context is None or "context" not in at:
            return self.subject.on(self._inputs(at), self.context)
        tensors = iter(at["context"])
        return self.subject.on(
            self._inputs(at), map_tensors(self.context, lambda name, x: next(tensors))
        )

    def _named_parameters(self) -> dict[str, Tensor]:
        layer = self.subject.layer
        return {name: x for name, x in layer.named_parameters() if x.requires_grad}

    @cached_property
    def _cotangent(self) -> Tensor:
        """Random weights of the outputs, zero for rows that are not judged."""
        with torch.no_grad():
            shape = self.subject.run(self.masks).shape
        drawn = torch.from_numpy(self.subject.rng("cotangent").standard_normal(shape))
        if self.rows is not None:
            judged = torch.zeros(shape[-2], 1, dtype=drawn.dtype)
            judged[self.rows] = 1
            drawn *= judged
        return drawn

    @cached_property
    def _least_slope(self) -> float:
        """Slope below which rounding of the outputs exceeds the tolerance."""
        with torch.no_grad():
            size = float((self.subject.run(self.masks) * self._cotangent).abs().nan_to_num().sum())
        return size * np.finfo(np.float64).eps / (STEPS[0] * SLOPE_TOLERANCE)

    @cached_property
    def _gradient(self) -> dict[str, Tensors]:
        at = _leaves(self._at)
        return _backward(self._combination(at), at)

    def _combination(self, at: dict[str, Tensors]) -> Tensor:
        """Return the combination of the layer's outputs at these values."""
        perturbed = self._moved(at)
        names = (f"layer.{name}" for name in self._named_parameters())
        output = torch.func.functional_call(
            _Applied(perturbed),
            dict(zip(names, at.get("parameters", ()), strict=False)),
            (perturbed, self.masks),
        )
        return (output * self._cotangent).sum()

    def _move(self, direction: dict[str, Tensors], step: float) -> dict[str, Tensors]:
        """Return the values of everything that has gradients, after a step along the direction."""
        values = {
            name: tuple(x + step * d for x, d in zip(self._at[name], moves, strict=True))
            for name, moves in direction.items()
        }
        return self._at | values

    def _expected(self, direction: dict[str, Tensors], step: float) -> float:
        """Return the combination of the expected outputs after a step along the direction."""
        at = self._move(direction, step)
        perturbed = self._moved(at)
        if "parameters" in direction:
            layer = copy.deepcopy(perturbed.layer)
            trained = (x for x in layer.parameters() if x.requires_grad)
            with torch.no_grad():
                for parameter, value in zip(trained, at["parameters"], strict=True):
                    parameter.copy_(value)
            perturbed = replace(perturbed, layer=layer)
        out = perturbed.expected(self.masks, self.rows)
        return float((out * self._cotangent.numpy()).sum())


class _Applied(nn.Module):
    """A module that runs the layer as its subject does, so that its parameters can be replaced."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.layer = subject.layer

    def forward(self, subject: Subject, masks: Masks) -> Tensor:
        return subject.run(masks)


def _tensors_of(context: Context | None) -> Tensors:
    """Return the tensors of a context."""
    tensors: list[Tensor] = []

    def keep(name: str, x: Tensor) -> Tensor:
        tensors.append(x)
        return x

    if context is not None:
        map_tensors(context, keep)
    return tuple(tensors)


def _leaves(at: dict[str, Tensors]) -> dict[str, Tensors]:
    """Return copies of all tensors that require gradients."""
    return {
        name: tuple(x.detach().clone().requires_grad_() for x in tensors)
        for name, tensors in at.items()
    }


def _backward(
    value: Tensor, at: dict[str, Tensors], *, create_graph: bool = False
) -> dict[str, Tensors]:
    """Return the gradients of a value by all tensors, by name."""
    gradients = torch.autograd.grad(
        value,
        [x for tensors in at.values() for x in tensors],
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    remaining = iter(gradients)
    return {name: tuple(next(remaining) for _ in tensors) for name, tensors in at.items()}


def _along(gradient: dict[str, Tensors], direction: dict[str, Tensors]) -> Tensor:
    """Return the inner product of a gradient and a direction."""
    pairs = [
        (g * d).sum()
        for name, moves in direction.items()
        for g, d in zip(gradient[name], moves, strict=True)
    ]
    return torch.stack(pairs).sum()


def _relative(actual: float, expected: float, least: float = 0.0) -> float:
    """Return the difference divided by the largest of both sizes and `least`."""
    size = max(abs(actual), abs(expected), least, np.finfo(np.float64).tiny)
    return abs(actual - expected) / size


def _direction(gradient: Tensor, rng: np.random.Generator) -> Tensor:
    """Draw a random direction plus the normalised gradient."""
    drawn = torch.from_numpy(rng.standard_normal(gradient.shape))
    size = gradient.square().mean().sqrt()
    return drawn + gradient / size if size > 0 else drawn
