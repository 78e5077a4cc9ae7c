"""Latencies of another machine's kernels, out of the file that the kernel benchmark writes.

`python -m pagedkv.bench.kernel_speed --out DIR` leaves `kernel_speed.json`. Its decode rows have, for several block
sizes, the bytes a second that attention reached and the fraction of that machine's copy. Decode is bound by memory, so
a layer of another batch takes its own bytes at that rate; of several rows of one block size the largest batch counts,
since a sweep is about full machines. The rows are medians: there is no p90.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.sweep_kernels import Latencies, LayerShape

_SHAPE = re.compile(r"([0-9,]+) x ([0-9,]+), 1 new, B = ([0-9]+), (\w+)")


class Rate(NamedTuple):
    """What decode reached with a block size: bytes a second, as a fraction of a copy's, in a batch of positions."""

    positions: int
    bytes_per_s: float
    copy_fraction: float


class KernelTimes(NamedTuple):
    """A file of the kernel benchmark: the machine that it is about, and decode's rate for each block size."""

    machine: str
    rates: dict[int, Rate]

    def latencies(self, layer: LayerShape, positions: int, block_size: int) -> Latencies:
        """Give a layer's latency over so many positions."""
        rate = self.rates[block_size]
        latency_ms = layer.moved_bytes(positions) / rate.bytes_per_s * 1e3
        return Latencies(latency_ms, None, None, rate.copy_fraction, 1, positions)


def read_kernel_times(path: Path, layer: LayerShape, block_sizes: list[int]) -> KernelTimes:
    """Read the decode rows of the layer's dtype. Errors: `BadInput`, also where a block size is not among them."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        machine, rows = str(report["machine"]), [_rate_of(row) for row in report["rows"]]
    except OSError as error:
        raise BadInput(f"--kernel-times {path}", f"cannot be read ({error.strerror})", "name a file") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"no report of the kernel benchmark ({type(error).__name__}: {error})"
        raise BadInput(f"--kernel-times {path}", what, "give the kernel_speed.json that it wrote") from error
    dtype = str(layer.dtype).removeprefix("torch.")
    rates: dict[int, Rate] = {}
    for block_size, of_dtype, rate in filter(None, rows):
        if of_dtype == dtype and (block_size not in rates or rates[block_size].positions < rate.positions):
            rates[block_size] = rate
    missing = [size for size in block_sizes if size not in rates]
    if missing:
        has = ", ".join(map(str, sorted(rates))) or "none"
        what = f"no decode row for {dtype} and block size {', '.join(map(str, missing))} (it has {has})"
        raise BadInput(f"--kernel-times {path}", what, "sweep the block sizes that it has, or measure more")
    return KernelTimes(machine, rates)


def _rate_of(row: dict[str, Any]) -> tuple[int, str, Rate] | None:
    """Give block size, dtype and rate of a row; None where it is about no decode."""
    name = "decode" if row["name"] == "decode, fp8" else row["name"]
    found = _SHAPE.fullmatch(str(row["shape"]))
    if name != "decode" or found is None:
        return None
    batch, length = (int(found[group].replace(",", "")) for group in (1, 2))
    gb_per_s, fraction = float(row["gb_per_s"]), float(row["copy_fraction"])
    if not (gb_per_s > 0 and fraction > 0):
        raise ValueError(f"gb_per_s is {quoted(row['gb_per_s'])}")
    return int(found[3]), found[4], Rate(batch * length, gb_per_s * 1e9, fraction)
