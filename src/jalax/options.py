"""Options of algorithms: step sizes, optimisers, and the parts of the automatic JALA-EM."""

from jalax._algorithms.jala_em_options import Shift as Shift
from jalax._algorithms.step_size import PilotStep as PilotStep
from jalax._algorithms.step_size import PowerIteration as PowerIteration
from jalax._algorithms.theta_step import Averaging as Averaging
from jalax._algorithms.theta_step import Limiter as Limiter
from jalax._algorithms.theta_step import ObservedInformation as ObservedInformation
from jalax._fit.auto_step_size import auto_step_size as auto_step_size
from jalax._particles.langevin import InverseHessian as InverseHessian
from jalax._runtime.options import Optax as Optax
from jalax._runtime.options import Schedule as Schedule
from jalax._runtime.options import adam as adam
