"""The data sets of the examples and experiments, as NumPy arrays in float64."""

from ._cbpp import Cbpp as Cbpp
from ._cbpp import cbpp as cbpp
from ._wisconsin import Wisconsin as Wisconsin
from ._wisconsin import train_test_split as train_test_split
from ._wisconsin import wisconsin as wisconsin
