"""What looks at a fit while it runs, and may stop it."""

from jalax._fit.callbacks import Callback as Callback
from jalax._fit.callbacks import Stop as Stop
from jalax._fit.callbacks import progress_bar as progress_bar
from jalax._fit.callbacks import stop_when as stop_when
from jalax._fit.callbacks import time_limit as time_limit
from jalax._fit.checkpoint import checkpoint as checkpoint
from jalax._fit.held_out import held_out as held_out
