"""Import one part of a large package without all that the whole of it needs.

An engine's cache manager is plain Python, yet to import it means to import the engine: its web server, its
tokenizers, its metrics. Where the package was installed without its dependencies (`pip install --no-deps`), stand-ins
take the place of those that are absent. The caller names them, one by one, so that none is left out unknowingly; what
else is absent is bad input, said in one line.

A stand-in is an empty package in which every name exists. What comes out of it is a class that can be a base class, an
annotation, a decorator (which changes nothing) or be called; its objects keep the arguments that have names. So a
class of settings built on one still holds its fields. Code that computes with what a stand-in gives would be wrong;
what an adapter drives must not, and the checks that its manager passes are the evidence.

Guarantees: a package that is there is never hidden, for stand-ins are asked last; they are there only while the import
runs, and are gone from `sys.modules` afterwards; the answer says which were used. Considered: importing by file path
past the packages' `__init__`, which breaks at the first absolute import; one catch-all for whatever is absent, which
changes what a package does that looks for its options (a driver of another vendor's card, say) by trying to import.
"""

import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from pagedkv.bench.failures import BadInput
from pagedkv.spec.calls import said

NOTHING: Mapping[str, str] = MappingProxyType({})


class Imported(NamedTuple):
    """Modules, and the absent packages that something stood in for when they were imported, in the order of need."""

    modules: tuple[ModuleType, ...]
    stood_in: tuple[str, ...]


def import_peer(
    modules: Sequence[str],
    absent: Iterable[str],
    remedy: str,
    instead: Mapping[str, str] = NOTHING,
    first: Sequence[str] = (),
) -> Imported:
    """Import modules of a package, with stand-ins for the packages named as `absent` as far as they are.

    `instead` maps an absent package to a module that is there and does the same (`{"dill": "pickle"}`). `first` names
    modules of others that are imported beforehand, without stand-ins, since they look for their own options and should
    see what is truly there. Errors: `BadInput`, with `remedy`, where one cannot be imported all the same.

    Cost: that of the import, once.
    """
    _import(first, remedy)
    with stand_ins(absent, instead) as used, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a package warns of while it is imported is its owners' business
        found = _import(modules, remedy)
    return Imported(found, tuple(used))


def _import(modules: Sequence[str], remedy: str) -> tuple[ModuleType, ...]:
    found = []
    for module in modules:
        try:
            found.append(importlib.import_module(module))
        except Exception as error:
            raise BadInput(module, f"cannot be imported ({said(error)})", remedy) from error
    return tuple(found)


@contextmanager
def stand_ins(absent: Iterable[str], instead: Mapping[str, str] = NOTHING) -> Iterator[list[str]]:
    """Let stand-ins be found for absent packages as long as this lasts; the list gets the names that are asked for."""
    finder = _Finder({*absent}, instead)
    sys.meta_path.append(finder)
    try:
        yield finder.used
    finally:
        sys.meta_path.remove(finder)
        for name, module in [*sys.modules.items()]:
            if getattr(getattr(module, "__spec__", None), "loader", None) is finder:
                del sys.modules[name]


class _Finder(MetaPathFinder, Loader):
    """Finds a stand-in for each package that is named and that nobody before it in `sys.meta_path` has found."""

    def __init__(self, absent: set[str], instead: Mapping[str, str]) -> None:
        self.absent = absent
        self.instead = instead
        self.used: list[str] = []

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  (the signature is importlib's)
        """Answer for a named package, and for modules inside one that a stand-in was found for."""
        package, dot, _ = fullname.partition(".")
        if not dot and (package in self.absent or package in self.instead) and package not in self.used:
            self.used.append(package)
        return ModuleSpec(fullname, self, is_package=True) if package in self.used else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module in which every name exists, or has what the one instead of it has."""
        module = _StandInModule(spec.name)
        if spec.name in self.instead:
            module.__dict__.update(
                {
                    name: value
                    for name, value in vars(importlib.import_module(self.instead[spec.name])).items()
                    if not name.startswith("__")
                }
            )
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


class _StandInModule(ModuleType):
    """A module in which every name exists."""

    def __getattr__(self, name: str) -> Any:
        return _anything(name)


class _Anything(type):
    """The class of stand-ins that are classes: what is asked of one is there, and is another."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_options: object) -> "_Anything":
        return super().__new__(cls, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_options: object) -> None:
        super().__init__(name, bases, namespace)

    def __getattr__(cls, name: str) -> Any:
        return _anything(name)

    def __getitem__(cls, _parameters: object) -> "_Anything":
        return cls

    def __iter__(cls) -> Iterator[Any]:  # without it Python would ask for item after item
        return iter(())

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:
        """Make an object; a stand-in that is called with one function is a decorator that changes nothing."""
        decorates = cls.__module__ == __name__ and len(arguments) == 1 and callable(arguments[0]) and not fields
        return arguments[0] if decorates else super().__call__(*arguments, **fields)


class _StandIn(metaclass=_Anything):
    """An object of a stand-in, or of a class that has one as its base: it keeps the arguments that have names."""

    def __init__(self, *_arguments: object, **fields: object) -> None:
        vars(self).update(fields)

    def __call__(self, *arguments: Any, **_fields: object) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else _StandIn()

    def __getattr__(self, name: str) -> Any:
        return _anything(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Let a field of this type in a pydantic model hold anything."""
        return importlib.import_module("pydantic_core.core_schema").any_schema()


def _anything(name: str) -> _Anything:
    if name.startswith("__"):  # what Python itself asks for has a meaning, and is not there
        raise AttributeError(name)
    return _Anything(name, (_StandIn,), {})
