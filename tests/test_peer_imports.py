"""A package is imported without what it needs: with stand-ins for the absent packages that are named, and no others."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peer_imports import import_peer

ENGINE = '''
"""An engine as they are: its cache needs little, and importing it needs much."""
import warnings
from dataclasses import dataclass
import absent_server
import absent_server.routes.health as health
from absent_messages import Struct, field
from absent_metrics import Counter, timed
from json import dumps  # there, and named as absent all the same

warnings.warn("old", DeprecationWarning)

class Request(Struct, frozen=True, tag="request"):
    name: str
    tokens: list[int] = []

@timed
def doubled(number: "Counter | None") -> int:
    return 2 * number

@timed("seconds", buckets=[1, 2])
def halved(number):
    return number // 2

served: dict[str, absent_server.App[int]] | None = None
requests_total = Counter("requests", "how many").labels(model="none")
names = [each.name for each in health.CHECKS]
'''


@pytest.fixture(autouse=True)
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a made-up engine on the path, and forget it afterwards."""
    (tmp_path / "made_up_engine.py").write_text(ENGINE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


ABSENT = ("absent_server", "absent_messages", "absent_metrics", "never_asked_for", "json")


def test_what_an_engine_does_with_stand_ins_while_it_is_imported() -> None:
    (engine,), stood_in = import_peer(("made_up_engine",), ABSENT, "install it")
    assert stood_in == ("absent_server", "absent_messages", "absent_metrics")
    assert engine.Request(name="a", tokens=[1]).tokens == [1]
    assert engine.Request(name="b").tokens == []
    assert (engine.doubled(2), engine.halved(4)) == (4, 2), "a decorator changes nothing"
    assert engine.names == [], "what is iterated is empty"


def test_what_is_there_is_never_hidden() -> None:
    (engine,), stood_in = import_peer(("made_up_engine",), ABSENT, "install it")
    assert engine.dumps is json.dumps
    assert "json" not in stood_in


def test_stand_ins_are_gone_afterwards() -> None:
    finders = list(sys.meta_path)
    import_peer(("made_up_engine",), ABSENT, "install it")
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith("absent_")]
    with pytest.raises(ModuleNotFoundError, match="absent_server"):
        importlib.import_module("absent_server")


def test_stand_ins_are_gone_after_a_failure() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(BadInput, match="absent_metrics"):
        import_peer(("made_up_engine",), ("absent_server", "absent_messages"), "install it")
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith("absent_")]


@pytest.mark.parametrize(
    ("module", "absent", "said"),
    [
        ("made_up_engine", ("absent_server", "absent_messages"), "No module named 'absent_metrics'"),
        ("made_up_engine", (), "No module named 'absent_server'"),
        ("no_such_engine", ABSENT, "No module named 'no_such_engine'"),
        ("no_such_engine", ("no_such",), "No module named 'no_such_engine'"),
    ],
)
def test_what_is_absent_and_not_named_is_one_clear_line(module: str, absent: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        import_peer((module,), absent, "pip install made-up-engine")
    assert str(caught.value) == (
        f"{module}: cannot be imported (ModuleNotFoundError: {said}); pip install made-up-engine"
    )


def test_a_module_that_is_there_in_place_of_an_absent_package(tmp_path: Path) -> None:
    (tmp_path / "other_engine.py").write_text("from absent_dill import dumps, extra", encoding="utf-8")
    (engine,), stood_in = import_peer(("other_engine",), (), "install it", {"absent_dill": "json"})
    assert engine.dumps([1]) == "[1]"
    assert stood_in == ("absent_dill",)


def test_others_are_imported_first_and_see_what_is_truly_there(tmp_path: Path) -> None:
    probing = "try:\n    import absent_server\n    found = True\nexcept ImportError:\n    found = False\n"
    (tmp_path / "probing_library.py").write_text(probing, encoding="utf-8")
    (tmp_path / "third_engine.py").write_text("import absent_server, probing_library", encoding="utf-8")
    (engine,), _ = import_peer(("third_engine",), ABSENT, "install it", first=("probing_library",))
    assert engine.probing_library.found is False
