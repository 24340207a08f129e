"""Ready-made latent variable models, with exact answers where they exist."""

from ._factor_analysis import factor_analysis as factor_analysis
from ._families import Binomial as Binomial
from ._families import Poisson as Poisson
from ._gaussian import Gaussian as Gaussian
from ._generator import generator as generator
from ._hierarchical import hierarchical_normal as hierarchical_normal
from ._item_response import item_response as item_response
from ._linear_mixed import linear_mixed as linear_mixed
from ._logistic import logistic_regression as logistic_regression
from ._mixed import mixed as mixed
from ._network import neural_network as neural_network
from ._random_intercept import random_intercept as random_intercept
from ._regression import gaussian_regression as gaussian_regression
from ._regression import polynomial_regression as polynomial_regression
from ._regression import student_t_box as student_t_box
from ._regression import student_t_regression as student_t_regression
from ._rows import sum_over_rows as sum_over_rows
