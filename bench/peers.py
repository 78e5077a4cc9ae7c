"""Other people's cache managers and schedulers, by name: what each is, how to get it, where its adapter stands.

    pagedkv fuzz --target pagedkv.bench.peers:vllm

None of them is needed by this project, and importing this module imports none: a name is looked up when it is asked
for (`__getattr__`), which imports its adapter and with it the peer; where that can't be done, it is bad input that
says how to get it. An adapter stands in a module of its own, `peer_*.py`, and is written from the text of
`pagedkv.spec.manager` or `pagedkv.spec.foreign_scheduler`, as any stranger's would be.

To add one: a line in `PEERS`.
"""

import importlib
import importlib.metadata
import importlib.util
import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pagedkv.bench.failures import BadInput
from pagedkv.bench.targets import OURS
from pagedkv.spec.calls import said

UNKNOWN = "of unknown version"


class Level(StrEnum):
    """What is under test."""

    MANAGER = "manager"
    SCHEDULER = "scheduler"  # with its manager inside


class Peer(NamedTuple):
    """A cache manager, or a scheduler with its cache inside, that somebody else wrote."""

    name: str  # as `--target pagedkv.bench.peers:NAME` has it
    level: Level
    title: str  # what its owners call it
    distribution: str  # whose version counts
    package: str  # what is imported
    how: str  # how to get it, in a line
    adapter: str  # `module:class`, the module in this package; empty: there is none, and `how` says why

    @property
    def target(self) -> str:
        """Return what `--target` calls it."""
        return self.name if self.adapter == self.name else f"pagedkv.bench.peers:{self.name}"

    @property
    def folder(self) -> str:
        """Return a name for a folder of what was found."""
        return self.name.replace(":", "-")

    def factory(self) -> Callable[..., Any]:
        """Import the adapter, and with it the peer. Errors: `BadInput`."""
        if not self.adapter:
            raise BadInput(self.name, "not driven", self.how)
        module, _, attribute = self.adapter.partition(":")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(f"pagedkv.bench.{module}"), attribute)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(self.name, f"cannot be imported ({said(error)})", self.how) from error
        return found

    def is_installed(self) -> bool:
        """Whether its package can be found; nothing is imported."""
        return importlib.util.find_spec(self.package) is not None

    def version(self) -> str:
        """Return the version that is found here: of the installed distribution, or of the sources it stands in."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return _version_of_sources(self.package)


def _version_of_sources(package: str) -> str:
    """Return the version in the nearest pyproject.toml above a package, and the commit if it is a checkout."""
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    for folder in [parent for place in places for parent in Path(place).parents[:3]]:
        if (folder / "pyproject.toml").is_file():
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
            commit = _commit(folder / ".git")
            return str(project.get("version", UNKNOWN)) + (f" (commit {commit})" if commit else "")
    return UNKNOWN


def _commit(git: Path) -> str:
    """Return the commit that a checkout is at, cut short; empty where there is none."""
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            head = (git / head.removeprefix("ref: ")).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return head[:7]


VLLM = ("vLLM", "vllm", "vllm", "pip install --no-deps vllm==0.33.0")
SGLANG = ("SGLang", "sglang", "sglang", "pip install --no-deps sglang==0.5.23")
SGLANG_SCHEDULER = "its Scheduler makes the worker of an accelerator first, and takes its pools from it"
TORCH = ("torch PagedAttention", "torch", "torch", "it comes with pagedkv")
TRANSFORMERS = ("transformers continuous batching", "transformers", "transformers", "pip install transformers==5.24.0")
NANO_VLLM = (
    "nano-vllm",
    "nano-vllm",
    "nanovllm",
    "git clone https://github.com/GeeeekExplorer/nano-vllm and put its folder on PYTHONPATH",
)
MINI_SGLANG = (
    "mini-sglang",
    "minisgl",
    "minisgl",
    "git clone https://github.com/sgl-project/mini-sglang and put its folder python on PYTHONPATH",
)

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("torch_paged_attention", Level.MANAGER, *TORCH, "peer_torch:TorchPagedAttention"),
        Peer("torch_paged_attention_mask", Level.MANAGER, *TORCH, "peer_torch:TorchPagedAttentionMask"),
        Peer("transformers", Level.MANAGER, *TRANSFORMERS, "peer_transformers:TransformersManager"),
        Peer(
            "transformers_scheduler",
            Level.SCHEDULER,
            *TRANSFORMERS,
            "peer_transformers_scheduler:TransformersScheduler",
        ),
        Peer("vllm", Level.MANAGER, *VLLM, "peer_vllm:VllmManager"),
        Peer("vllm_uncached", Level.MANAGER, *VLLM, "peer_vllm:VllmManagerUncached"),
        Peer("vllm_scheduler", Level.SCHEDULER, *VLLM, "peer_vllm_scheduler:VllmScheduler"),
        Peer("vllm_priority_scheduler", Level.SCHEDULER, *VLLM, "peer_vllm_scheduler:VllmPriorityScheduler"),
        Peer("sglang", Level.MANAGER, *SGLANG, "peer_sglang:SglangManager"),
        Peer("sglang_uncached", Level.MANAGER, *SGLANG, "peer_sglang:SglangManagerUncached"),
        Peer("sglang_scheduler", Level.SCHEDULER, *SGLANG[:3], SGLANG_SCHEDULER, ""),
        Peer("nano_vllm", Level.MANAGER, *NANO_VLLM, "peer_nano_vllm:NanoVllmManager"),
        Peer("nano_vllm_scheduler", Level.SCHEDULER, *NANO_VLLM, "peer_nano_vllm_scheduler:NanoVllmScheduler"),
        Peer("mini_sglang", Level.MANAGER, *MINI_SGLANG, "peer_mini_sglang:MiniSglangManager"),
        Peer("mini_sglang_scheduler", Level.SCHEDULER, *MINI_SGLANG, "peer_mini_sglang_scheduler:MiniSglangScheduler"),
        Peer("mini_sglang_served", Level.SCHEDULER, *MINI_SGLANG, "peer_mini_sglang_scheduler:MiniSglangServed"),
    )
}


def peer_of(name: str) -> Peer:
    """Return a peer by its name, or what another target names: `impl`, `package.module:class`. Errors: `BadInput`."""
    if name in PEERS:
        return PEERS[name]
    if name in OURS:
        return Peer(name, Level.MANAGER, "pagedkv", "pagedkv", "pagedkv", "it is this", name)
    package, colon, attribute = name.partition(":")
    if not (package and colon and attribute):
        raise BadInput(name, "no such peer", f"name some of {', '.join(PEERS)}, or package.module:class")
    top = package.partition(".")[0]
    return Peer(name, Level.MANAGER, name, top, top, "put it on PYTHONPATH", name)


def __getattr__(name: str) -> Any:
    """Return the factory of a peer by its name. Errors: `BadInput` where it is not there."""
    if name not in PEERS:
        raise AttributeError(f"{name} is none of {', '.join(PEERS)}")
    return PEERS[name].factory()
