"""How hard hypothesis looks: JALAX_HYPOTHESIS=quick (the default) or thorough.

quick: few examples, since each tree of another shape is compiled anew; a failure is shown as it was
    found. They are the same each time, but for one draw in twenty: hypothesis then takes a constant
    from the modules imported so far, which depend on the tests before.
thorough: fifty times as many, other ones each time; a failure is made as small as can be.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, configuration, settings

CHOSEN = os.environ.get("JALAX_HYPOTHESIS", "quick")
FACTOR = {"quick": 1, "thorough": 50}[CHOSEN]

# It keeps tables of its own on disk; not in the folder that the tests are run from.
configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "jalax-hypothesis")


def examples(number: int) -> settings:
    """A decorator: so many examples in the quick profile."""
    return settings(
        max_examples=number * FACTOR,
        derandomize=CHOSEN == "quick",
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if CHOSEN == "thorough" else [])),
        print_blob=True,
        suppress_health_check=list(HealthCheck),  # what is slow is the compiler
    )
