"""Other methods for the same problem, on the same engine, with public names only.

Each is a file that imports `jalax.extend` and nothing else of jalax: examples for authors, and for
comparisons. `jalax.PGD`, `jalax.IPLA`, `jalax.SOUL` and `jalax.SFLA` are the paper's own peers.
"""

from ._coin_em import CoinEM as CoinEM
from ._kiplmc import KIPLMC as KIPLMC
from ._monte_carlo_em import MonteCarloEM as MonteCarloEM
from ._saem import SAEM as SAEM
