"""Operators that stand in attention of others: found, or refused where something else stands."""

from typing import Any

from torch import nn

from ..attention import Operator

# Names of attention implementations; operators that read places have masks of their own.
ATTACHED = {False: "twinsolve", True: "twinsolve_attached_positional"}


def operator_of(module: nn.Module) -> Operator:
    """Return ``module.operator``: the attached operator, or ``torch.compile`` of it.

    A ValueError says if it is anything else, or missing.
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
    """Return the module that ``torch.compile`` wraps, or the module itself."""
    return getattr(module, "_orig_mod", module)


def is_attached(module: nn.Module) -> bool:
    """Whether `attach_huggingface` gave an operator to this module, not to one inside it."""
    return vars(module).get("twinsolve_passes") is not None


def list_attached(model: nn.Module) -> dict[str, Any]:
    """Return the modules with an attached operator, by name; an error if one would not run it."""
    attached = {name: module for name, module in model.named_modules() if is_attached(module)}
    for module in attached.values():
        check_runs(module)
    return attached


def reads_places(operator: Any) -> bool:
    """Whether an operator must know which tokens are the queries: its masks end at the last one."""
    return operator.positional is not None or operator.square_only


def check_runs(module: Any, _: Any = None) -> None:
    """Raise a ValueError if a module would not run its attached operator: a forward pre-hook."""
    implementation = module.config._attn_implementation
    allowed = [ATTACHED[True]] if reads_places(operator_of(module)) else [*ATTACHED.values()]
    if implementation not in allowed:
        raise ValueError(
            f"attn_implementation: {implementation!r} leaves out the operator of "
            f"{type(module).__name__}; call model.set_attn_implementation({allowed[0]!r}) to run it"
        )


def keep_operator(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let checkpoints from before the replacement load: the operator keeps its parameters."""
    operator_prefix, operator = f"{prefix}operator.", operator_of(module)
    if not any(key.startswith(operator_prefix) for key in state_dict):
        state_dict.update(
            {operator_prefix + key: value for key, value in operator.state_dict().items()}
        )
