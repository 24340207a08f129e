"""Published problems with answers known from elsewhere, to measure a method by."""

from ._catalogue import all as all
from ._catalogue import get as get
from ._crossed import crossed_120 as crossed_120
from ._crossed import crossed_1000 as crossed_1000
from ._electricity import electricity as electricity
from ._finpines import finpines as finpines
from ._guimmun import guimmun as guimmun
from ._heart import heart as heart
from ._insteval import insteval as insteval
from ._kidney import kidney as kidney
from ._lsat import lsat as lsat
from ._orange import orange as orange
from ._pound_dollar import pound_dollar as pound_dollar
from ._problem import Formula as Formula
from ._problem import Problem as Problem
from ._problem import Published as Published
from ._problem import Reference as Reference
from ._pumps import pumps as pumps
from ._salamander import salamander as salamander
from ._seeds import seeds as seeds
from ._spatial import spatial as spatial
from ._theophylline import theophylline as theophylline
from ._toenail import toenail as toenail
from ._verbagg import verbagg as verbagg
from ._wine import wine as wine
