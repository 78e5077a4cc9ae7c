"""Which manager a driver drives: ours, the spec's model, or anybody's, by `--target package.module:factory`.

A stranger's module is code like any other: it may not be there, raise when it is imported, or hold something else than
a manager. Each of these is bad input and said in one line. What goes wrong later, while it is driven, is a finding.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from pagedkv.bench.adapter import Implementation
from pagedkv.bench.failures import BadInput
from pagedkv.spec.manager import Factory, Manager
from pagedkv.spec.reference import Reference
from pagedkv.spec.state import Config

OURS: dict[str, type[Manager]] = {"impl": Implementation, "spec": Reference}

Target = Annotated[
    str,
    typer.Option(
        "--target", metavar="M:F", help="The manager: impl, spec, or package.module:factory (pagedkv.spec.manager)."
    ),
]


def load_target(name: str) -> Factory:
    """Return the factory that `--target` names. Errors: `BadInput`."""
    if name in OURS:
        return OURS[name]
    where = f"--target {name}"
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise BadInput(where, "no target", f"give {' or '.join(OURS)}, or package.module:factory")
    if os.getcwd() not in sys.path:  # noqa: PTH109  (sys.path holds strings)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise BadInput(
            where, f"cannot be imported ({type(error).__name__}: {error})", "name a module that can be"
        ) from error
    if not callable(found):
        raise BadInput(where, "not callable", "name a class or a function that returns a pagedkv.spec.manager.Manager")
    return found  # type: ignore[no-any-return]


def trial(factory: Factory, where: str, config: Config) -> Manager:
    """Make one manager, to learn whether it can be made and what it offers. Errors: `BadInput`."""
    try:
        manager = factory(config)
    except Exception as error:
        raise BadInput(
            where, f"cannot be made ({type(error).__name__}: {error})", "it is called with a Config"
        ) from error
    if not isinstance(manager, Manager):
        raise BadInput(where, f"gives a {type(manager).__name__}", "subclass pagedkv.spec.manager.Manager")
    return manager
