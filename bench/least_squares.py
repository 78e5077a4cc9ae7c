"""Least squares with no negative coefficient, exactly, for a handful of unknowns: how a step-time model is fitted.

A step's parts cost something or nothing, never less, so a fit that may go below 0 describes noise. With four unknowns
the fifteen subsets of them are tried one by one. Considered: scipy's active-set method (a dependency for this alone).
"""

from itertools import combinations

import numpy as np
from pagedkv.bench.traces import Float64Array


def non_negative_least_squares(design: Float64Array, target: Float64Array) -> Float64Array:
    """Minimise |design x - target| over x >= 0, exactly: the best of all subsets whose own solution is positive.

    Cost: 2^columns least-squares problems; there are four columns.
    """
    columns = range(design.shape[1])
    best, least = np.zeros(design.shape[1]), float(target @ target)
    for size in range(1, design.shape[1] + 1):
        for chosen in map(list, combinations(columns, size)):
            scale = np.maximum(np.linalg.norm(design[:, chosen], axis=0), np.finfo(np.float64).tiny)
            solution = np.linalg.lstsq(design[:, chosen] / scale, target, rcond=None)[0] / scale
            residual = target - design[:, chosen] @ solution
            if (solution >= 0).all() and residual @ residual < least:
                best, least = np.zeros(design.shape[1]), float(residual @ residual)
                best[chosen] = solution
    return best
