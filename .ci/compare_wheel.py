"""Compare the files of a wheel with those that git tracks: `python .ci/compare_wheel.py WHEEL`, from the checkout.

Why: packages are listed by hand in pyproject.toml and map to folders of other names, so a forgotten package, a folder
inside one or a kind of file that nobody declared would be missing from what users install, while every test on the
checkout passes. And a file that was never committed would be in the wheel of one machine alone.

What belongs in the wheel: every tracked file of the four packages, under `pagedkv/`, and its own metadata.
Exit code: 0 alike, 1 a difference, each on a line of its own; 2 where there is no such wheel.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("spec", "impl", "kernels", "bench")


def differences(tracked: Iterable[str], packed: Iterable[str]) -> list[str]:
    """Return a line for each file that is on one side alone. Metadata (`*.dist-info/`) is the builder's business."""
    wanted = {f"pagedkv/{name}" for name in tracked if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    found = {name for name in packed if not name.partition("/")[0].endswith(".dist-info")}
    missing = [f"{name} is tracked and missing from the wheel" for name in sorted(wanted - found)]
    return missing + [f"{name} is in the wheel and not tracked" for name in sorted(found - wanted)]


def tracked_files() -> list[str]:
    """Return the files that git tracks in the checkout of this script, relative to its top."""
    top = Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=top, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def main(arguments: list[str]) -> int:
    """Compare the one wheel that is named."""
    try:
        with zipfile.ZipFile(Path(*arguments)) as wheel:
            packed = wheel.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{' '.join(arguments) or 'no file'}: no wheel ({error}); name one\n")
        return 2
    lines = differences(tracked_files(), packed)
    for line in lines:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"wheel: {len(packed)} files, {len(lines)} differences from git\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
