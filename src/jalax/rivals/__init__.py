"""Other methods for the same problem, on the same engine, with public names only.

They import `jalax.extend` and nothing else of jalax, as examples for authors, and are there for
comparisons. What SAEM and Monte-Carlo EM share, chains and Newton steps, is in `_parts.py`.
`jalax.PGD`, `jalax.IPLA`, `jalax.SOUL` and `jalax.SFLA` are the paper's own peers.
"""

from ._coin_em import CoinEM as CoinEM
from ._kiplmc import KIPLMC as KIPLMC
from ._monte_carlo_em import MonteCarloEM as MonteCarloEM
from ._saem import SAEM as SAEM
