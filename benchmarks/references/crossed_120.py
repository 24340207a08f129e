"""Simulated crossed binary effects, 60 + 60 levels and 2,400 rows.

logit P(y = 1) = intercept + exp(log_sd_a) u_a + exp(log_sd_b) u_b.

    python benchmarks/references/crossed_120.py --jobs 16
"""

from __future__ import annotations

import numpy as np
from _crossed_fit import Sizes
from _files import arguments
from _simulated import Plan, run

if __name__ == "__main__":
    options = arguments(__doc__ or "")
    more = int(np.round(np.log2(options.effort)))
    sizes = Sizes(first=8, power=11 + more, rounds=16, points=13)
    legs = max(int(64 * options.effort), 4)
    run("crossed_120", Plan(60, 60, 2400, sizes, sizes, legs, 32), options)
