"""The data sets of the examples and experiments, as NumPy arrays in float64."""

from ._cbpp import Cbpp as Cbpp
from ._cbpp import cbpp as cbpp
from ._lme4 import Dyestuff as Dyestuff
from ._lme4 import Sleepstudy as Sleepstudy
from ._lme4 import dyestuff as dyestuff
from ._lme4 import sleepstudy as sleepstudy
from ._mnist import MNIST as MNIST
from ._mnist import download_mnist as download_mnist
from ._mnist import mnist as mnist
from ._wisconsin import Wisconsin as Wisconsin
from ._wisconsin import train_test_split as train_test_split
from ._wisconsin import wisconsin as wisconsin
