"""What an integral is measured against, and the moves from there to the posterior."""

from jalax._reference.pattern import find_blocks as find_blocks
from jalax._reference.pattern import find_structure as find_structure
from jalax._reference.references import AtMode as AtMode
from jalax._reference.references import Modes as Modes
from jalax._reference.tempering import JALA as JALA
from jalax._reference.tempering import MALA as MALA
