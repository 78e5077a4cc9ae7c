"""Which code this is: the version, and a digest of the sources, since a checkout changes without its version.

Two things hang on it. A finished cell of a grid counts as long as the code is what it was, and workers on other
machines must run the code that shares the work out: half a campaign on an older manager would be a report of neither.

Cost: all sources are read once, a few milliseconds.
"""

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

import pagedkv.bench
import pagedkv.impl
import pagedkv.kernels
import pagedkv.spec

PACKAGES = (pagedkv.spec, pagedkv.impl, pagedkv.kernels, pagedkv.bench)
DIGEST_BYTES = 8


@cache
def code_version() -> str:
    """Return version and digest, like `0.1.0+3f2a…`: equal where all modules of pagedkv are equal byte by byte."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for package in PACKAGES:
        assert package.__file__ is not None, "a package of ours is a folder with an __init__.py"
        for module in sorted(Path(package.__file__).parent.glob("*.py")):
            source = module.read_bytes()
            digest.update(f"{package.__name__}/{module.name} {len(source)}\n".encode() + source)
    return f"{metadata.version('pagedkv')}+{digest.hexdigest()}"
