"""What a user names and writes: objects by ``package.module:name``, and errors of their code."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def reporting(what: str) -> Iterator[None]:
    """Turn any error of a user's code in the block into a ValueError that begins with `what`.

    Examples
    --------
    >>> from twinsolve.unrolled.users_code import reporting
    >>> with reporting("audit: cannot make 'mine:Net'"):
    ...     1 / 0
    Traceback (most recent call last):
        ...
    ValueError: audit: cannot make 'mine:Net': ZeroDivisionError: division by zero
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}") from error


def import_object(name: str, lacking: str) -> Any:
    """Import the object ``package.module:name``; a name within a class follows it after a dot.

    Raises
    ------
    ValueError
        If the name has another form, the module is missing or raises, or has no such name. The
        message begins with `lacking`.

    Examples
    --------
    >>> from twinsolve.unrolled.users_code import import_object
    >>> import_object("math:pi", "number: there is no")
    3.141592653589793
    """
    module, _, words = name.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), *words.split(".")))):
        raise ValueError(f"{lacking} {name!r} (must be package.module:name)")
    try:
        imported: Any = import_module(module)
        for word in words.split("."):
            imported = getattr(imported, word)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{lacking} {name!r} ({error})") from error
    except (Exception, SystemExit) as error:
        reason = f"{module} raises {type(error).__name__}: {error}"
        raise ValueError(f"{lacking} {name!r} ({reason})") from error
    return imported
