"""Where the particles of step 0 come from."""

from jalax._starts.example import Example as Example
from jalax._starts.from_sampler import FromSampler as FromSampler
from jalax._starts.given import Given as Given
from jalax._starts.importance import Importance as Importance
from jalax._starts.importance import Laplace as Laplace
from jalax._starts.tempered import Tempered as Tempered
from jalax._starts.ula import ULA as ULA
