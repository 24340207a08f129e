"""Simulated crossed binary effects, 700 + 300 levels and 12,000 rows.

logit P(y = 1) = intercept + exp(log_sd_a) u_a + exp(log_sd_b) u_b. The nested scheme samples the
300; the swapped one samples the 700, whose weights are far less even.

    python benchmarks/references/crossed_1000.py --jobs 16
"""

from __future__ import annotations

import numpy as np
from _crossed_fit import Sizes
from _files import arguments
from _simulated import Plan, run

if __name__ == "__main__":
    options = arguments(__doc__ or "")
    more = int(np.round(np.log2(options.effort)))
    sizes = Sizes(first=6, power=10 + more, rounds=16, points=11)
    swapped = sizes._replace(rounds=4)
    legs = max(int(24 * options.effort), 8)
    run("crossed_1000", Plan(700, 300, 12_000, sizes, swapped, legs, 64), options)
