"""The README's first example with the package as installed: no make, no tests, any system."""

import math
import re
from pathlib import Path

text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
names: dict = {}
exec(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0], names)

# The exact answer: y_i is N(mean, sd^2 + 1).
result, y = names["result"], names["y"]
assert result.status == "converged", result.message
assert abs(float(result.theta["mean"]) - float(y.mean())) < 0.02
assert abs(math.exp(result.theta["log_sd"]) - math.sqrt(float(y.var()) - 1)) < 0.02
