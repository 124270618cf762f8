"""Operators that stand in attention of others: found, or refused where something else stands."""

from typing import Any

from torch import nn

from ..attention import Operator

# Names of attention implementations; those of positional operators have masks of their own.
ATTACHED = {False: "twinsolve", True: "twinsolve_attached_positional"}


def operator_of(module: nn.Module) -> Operator:
    """What ``module.operator`` runs: an operator, or one that ``torch.compile`` wraps.

    Raises
    ------
    ValueError
        If anything else stands where an operator was attached, or nothing.
    """
    operator: Any = getattr(module, "operator", None)
    if isinstance(plain(operator), Operator):
        return operator
    kind = "nothing" if operator is None else f"{type(operator).__name__}, which is not recognised"
    raise ValueError(
        f"operator: {type(module).__name__} had one attached, but holds {kind}; allowed are an "
        "Operator and torch.compile of one"
    )


def plain(module: Any) -> Any:
    """The module inside if ``torch.compile`` wraps it; it keeps the names of its attributes."""
    return getattr(module, "_orig_mod", module)


def is_attached(module: nn.Module) -> bool:
    """Whether `attach_huggingface` gave this module itself an operator, not one that it wraps."""
    return vars(module).get("twinsolve_passes") is not None


def list_attached(model: nn.Module) -> dict[str, Any]:
    """The attention modules with an attached operator, by name.

    Raises
    ------
    ValueError
        If one would not run it.
    """
    found = {name: module for name, module in model.named_modules() if is_attached(module)}
    for module in found.values():
        check_runs(module)
    return found


def check_runs(module: Any, _: Any = None) -> None:
    """Refuse a module that would not run its attached operator. It is a forward pre-hook.

    Raises
    ------
    ValueError
    """
    found = module.config._attn_implementation
    allowed = [ATTACHED[True]] if operator_of(module).positional else [*ATTACHED.values()]
    if found not in allowed:
        raise ValueError(
            f"attn_implementation: {found!r} leaves out the operator of {type(module).__name__}; "
            f"call model.set_attn_implementation({allowed[0]!r}) to run it"
        )


def keep_operator(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let checkpoints from before the replacement load: the operator keeps its parameters.

    Raises
    ------
    ValueError
        If something else stands where the operator was.
    """
    own, operator = f"{prefix}operator.", operator_of(module)
    if not any(key.startswith(own) for key in state_dict):
        state_dict.update({own + key: value for key, value in operator.state_dict().items()})
