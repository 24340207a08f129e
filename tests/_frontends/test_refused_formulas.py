"""Calls that users of R's packages write and jalax has not: each is answered by what to write.

A message names what is wrong and a remedy, comes before anything is compiled, and knows nothing of
the classes of the parser.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest

import jalax
from jalax._frontends import mixed as frontend
from jalax.contrasts import Helmert, Treatment

ROWS = 24
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=ROWS),
        "x": RNG.normal(size=ROWS),
        "z": RNG.normal(size=ROWS),
        "time": RNG.uniform(1, 2, ROWS),
        "event": np.tile([0, 1], ROWS // 2),
        "ill": np.tile([0, 1, 2, 3], ROWS // 4),
        "size": 5,
        "arm": np.tile(["a", "b", "c"], ROWS // 3),
        "grade": pd.Categorical(np.tile(["low", "top"], ROWS // 2)),
        "school": np.repeat(list("nesw"), ROWS // 4),
        "room": np.repeat(np.arange(8), ROWS // 8),
        "one": "same",
        "constant": 1.5,
        "day": pd.date_range("2024-01-01", periods=ROWS),
        "mixture": pd.Series([1, "two"] * (ROWS // 2), dtype=object),
        "a+b": RNG.normal(size=ROWS),
        "gap": np.where(np.arange(ROWS) == 3, np.nan, 1.0),
    }
)
G = " + (1|school)"
KEY = jax.random.key(0)


def binomial():
    """As in R, where a family is a function."""


class Refused(NamedTuple):
    call: Callable[[], Any]
    names: str  # the piece of the call that is to blame
    remedy: str


def formula(written, names, remedy, **options):
    return written, Refused(lambda: mixed(written, **options), names, remedy)


def option(remedy, names=None, /, **options):
    value = next(iter(options.values()))
    # No address in it: all workers must find the same tests.
    label = f"{next(iter(options))}={getattr(value, '__name__', repr(value))}"[:60]
    call = Refused(lambda: mixed(f"y ~ x{G}", **options), names or next(iter(options)), remedy)
    return label, call


def data(label, table, names, remedy, written=f"y ~ x{G}"):
    return label, Refused(lambda: jalax.mixed(written, table, key=KEY), names, remedy)


def mixed(written, **options):
    return jalax.mixed(written, FRAME, **{"key": KEY, **options})


FORMULAS = [
    # --- shape
    formula(f"x{G}", "x + (1|school)", "write 'y ~ x + (1|school)'"),
    formula(f"~ x{G}", "no response", "write 'y ~ x"),
    formula("y ~", "after ~", "write y ~ 1 + (1|group)"),
    formula(f"y ~ x ~ z{G}", "two ~", "write one"),
    formula(f"y = x{G}", "y = x", "write 'y ~ x + (1|school)'"),
    formula("", "''", "write 'y ~"),
    formula("y ~ x", "no random effect", "Add one"),
    formula(f"y ~ (x + z{G}", "'(x + z", "add ')'"),
    formula(f"y ~ x + z){G}", "')'", "take it out"),
    formula(f"y ~ x z{G}", "from 'z' on", "operator such as + is missing"),
    formula(f"y ~ x +* z{G}", "'*'", "leave it out"),
    formula("y ~ x + (1|school) +", "'+'", "leave it out"),
    formula(f"y ~ x, weights = z{G}", "comma", "by name"),
    formula(f"y ~ log(){G}", "log()", "name a column"),
    formula(f"y ~ x & z{G}", "'and'", "as a column of the data"),
    formula(f"y ~ FRAME$x{G}", "FRAME$x", "by its name alone"),
    formula(f"y ~ x[1]{G}", "x[1]", "select rows before"),
    formula(f"y ~ I(arm == 'a){G}", "not closed", "add "),
    formula(f"y ~ x # the slope{G}", "'#'", "compute it before"),
    # --- terms
    formula(f"y ~ x^2{G}", "x^2", "I(x**2)"),
    formula(f"y ~ x**2{G}", "x**2", "I(x**2)"),
    formula(f"y ~ log(time)^2{G}", "log(time)^2", "I(log(time)**2)"),
    formula(f"y ~ 2*x{G}", "number 2", "write I(2*x)"),
    formula(f"y ~ x/10{G}", "10", "write I(x/10)"),
    formula(f"y ~ x + 5{G}", "5", "write I(x + 5)"),
    formula(f"y ~ -x{G}", "'x'", "leave '-x' out"),
    formula(f"y ~ arm == 'a'{G}", "comparison", "write I(arm == 'a')"),
    formula(f"y ~ I(arm < 'b'){G}", "'<'", "compute it before"),
    formula(f"y ~ I(arm %in% c('a', 'b')){G}", "'%in%'", "compute it before"),
    formula(f"y ~ I(x > 0 | z > 0){G}", "I(x > 0 | z > 0)", "compute it before"),
    formula(f"y ~ x %% 2{G}", "'%%'", "compute it before"),
    formula(f"y ~ 'x'{G}", "'x'", "unquoted"),
    formula(f"y ~ TRUE{G}", "TRUE", "name a column"),
    formula(f"y ~ log(.){G}", "'.'", "compute it before"),
    formula("y ~ x + (.|school)", "'.'", "name them"),
    formula(f"y ~ `a+b`{G}", "`a+b`", "rename that column"),
    formula(f"y ~ log(x, 2){G}", "log", "log2"),
    # --- functions of other packages
    formula(f"y ~ s(x){G}", "s(...)", "ns(x, 4)"),
    formula(f"y ~ te(x, z){G}", "te(...)", "ns(x, 4)"),
    formula(f"y ~ mo(grade){G}", "mo(...)", "Poly()"),
    formula(f"y ~ ordered(arm){G}", "ordered(...)", "factor(x)"),
    formula(f"y ~ strata(arm){G}", "strata(...)", "(1|group)"),
    formula(f"y ~ cluster(school) + x{G}", "cluster(...)", "(1|group)"),
    formula("y ~ x + Error(school)", "Error(...)", "(1|group)"),
    formula(f"y ~ cut(x, 3){G}", "cut(...)", "pandas.cut"),
    formula(f"y ~ ifelse(x > 0, 1, 0){G}", "ifelse(...)", "I(x == 'a')"),
    formula(f"y ~ as.numeric(room){G}", "as.numeric(...)", "as a column of the data"),
    formula("y ~ x + (1|gr(school))", "gr(...)", "(1|group)"),
    formula("y ~ x + (1|interaction(school, room))", "interaction(...)", "g:h"),
    formula("y ~ x + (0 + dummy(arm, 'a')|school)", "dummy(...)", "I(x == 'a')"),
    formula(f"y ~ frob(x){G}", "frob", "compute anything else before"),
    formula(f"y ~ exec('x'){G}", "exec", "compute anything else before"),
    # --- random effects
    formula("y ~ x + (1|", "'(1|'", "add ')'"),
    formula("y ~ x + (|school)", "before '|'", "write (1|group)"),
    formula("y ~ x + (1|)", "after '|'", "name the grouping factor"),
    formula("y ~ x + (1|1)", "1", "name the grouping factor"),
    formula("y ~ x + (0|school)", "(0|school)", "write (1|group)"),
    formula("y ~ x + 1|school", "parentheses", "(1|group)"),
    formula("y ~ x + (1|school|room)", "two '|'", "(1|g) + (1|h)"),
    formula("y ~ x * (1|school)", "(1|school)", "by + alone"),
    formula("y ~ (x + (1|school))", "(1|school)", "by + alone"),
    formula("y ~ x - (1|school)", "(1|school)", "by + alone"),
    # --- the response
    formula(f"ill/size ~ x{G}", "ill/size", "p(ill, size)", weights="size"),
    formula(f"y + z ~ x{G}", "y + z", "write I(y + z)"),
    formula(f"-y ~ x{G}", "-y", "write I(-y)"),
    formula(f"ill | trials(size) ~ x{G}", "'|'", "p(y, n)", family="binomial"),
    formula(f"trials(size) ~ x{G}", "trials(...)", "p(y, n)"),
    formula(f"mvbind(y, z) ~ x{G}", "mvbind(...)", "one model for each response"),
    formula(f"Surv(time) ~ x{G}", "Surv(time)", "Surv(time, event)", family="weibull"),
    formula(f"Surv(time, ill) ~ x{G}", "ill", "1 where it was seen", family="weibull"),
    formula(f"arm ~ x{G}", "'arm'", "encode it as numbers"),
    formula(f"grade ~ x{G}", "'grade'", "1 or 0", family="binomial"),
    formula(f"constant ~ x{G}", "constant", "nothing varies"),
    formula(f"y ~ x{G} ", "counts", "gaussian", family="poisson"),
    # --- columns
    formula(f"y ~ X{G}", "'X'", "did you mean 'x'"),
    formula("y ~ x + (1|shool)", "'shool'", "did you mean 'school'"),
    formula("y ~ x + (1|one)", "'one'", "at least two"),
    formula(f"y ~ one{G}", "'one'", "leave it out"),
    formula(f"y ~ day{G}", "'day'", "dt.days"),
    formula(f"y ~ mixture{G}", "'mixture'", "astype(str)"),
    formula(f"y ~ log(arm){G}", "log(arm)", "make the column numbers"),
    formula(f"y ~ scale(arm){G}", "scale(arm)", "make the column numbers"),
    formula(f"y ~ I(arm * 2.5){G}", "I(arm * 2.5)", "Compute it before"),
    formula(f"y ~ ns(x, 100){G}", "100", "less than the rows"),
    formula(f"y ~ ns(event, 5){G}", "ns needs knots", "take fewer"),
    formula(f"y ~ relevel(arm, ref='q'){G}", "'q'", "there are 'a', 'b', 'c'"),
    formula(f"y ~ factor(arm, levels=c('a', 'b')){G}", "'c'", "name all levels"),
    formula(f"y ~ relevel(arm){G}", "no level None", "there are 'a', 'b', 'c'"),
    formula(f"y ~ factor(arm, ordered = TRUE){G}", "ordered=", "C(x, Poly())"),
    formula(f"y ~ relevel(arm, reference = 'b'){G}", "reference=", "there is no argument"),
    formula(f"y ~ x:+z{G}", "':' and '+'", "leave one out"),
    formula(f"y ~ (x:z)^2{G}", "(x:z)^2", "I((x:z)**2)"),
    formula(f"y ~ factor(1){G}", "factor(1)", "write factor(column)"),
    formula(f"y ~ ns(x, 3, 4, 5, 6, 7, 8){G}", "ns(x, 3, 4", "Compute it before"),
    formula(f"y ~ x + I(2 * x){G}", "I(2 * x)", "leave one out"),
]

OPTIONS = [
    option("leave it out", REML=True),
    option("leave it out", nAGQ=25),
    option("write zero='~ x'", ziformula="~1"),
    option("write dispersion='~ x'", dispformula="~x"),
    option("num_steps=", control={"optimizer": "bobyqa"}),
    option("jalax.families.Binomial(link='probit')", family="binomial", link="probit"),
    option("missing", **{"na.action": "na.omit"}),
    option("takes one", start=[0.0]),
    option("y ~ x + (1|group)", random="~1|school"),
    option("y ~ x + (1|group)", groups="school"),
    option("covariances=", correlation="corAR1()"),
    option("log_prior=", prior="normal(0, 1)"),
    option("key=jax.random.key(seed)", seed=1),
    option("num_particles=", chains=4),
    option("progress=", verbose=True),
    option("did you mean weights=", weigths="x"),
    option("did you mean family=", Family="poisson"),
    option("it takes formula, data", qqq=1),
    option("family must be a name in quotes", "binomial", family=binomial),
    option("Binomial()", "Binomial", family=jalax.families.Binomial),
    option("did you mean 'gamma'", "gama", family="gama"),
    option("jalax.families.Binomial(link='...')", "probit", family="binomial(link='probit')"),
    option("use 'negativebinomial1'", "quasipoisson", family="quasipoisson"),
    option("did you mean 'size'", "'sizes'", weights="sizes"),
    option("did you mean 'x'", "'X'", dispersion="~ X"),
    option("such as '~ 1 + x'", zero=True, family="poisson"),
    option("such as '~ 1 + x'", dispersion="x"),
    option("leave the bar term out", dispersion="~ (1|school)"),
    option("jalax.contrasts.Helmert()", contrasts="contr.helmert"),
    option("jalax.contrasts.Helmert()", "'arm'", contrasts={"arm": "contr.helmert"}),
    option("leave it out", "'x'", contrasts={"x": Helmert()}),
    option("leave it out", "'zzz'", contrasts={"zzz": Helmert()}),
    option("jax.random.key(0)", key=None),
    option("Got int", key=1),
]

DATA = [
    data("a path", "data.csv", "str", "pandas.read_csv"),
    data("a list", [{"y": 1.0}], "list", "pandas.DataFrame(data)"),
    data("an array", np.ones((3, 2)), "ndarray", "columns=[...]"),
    data("nothing", None, "NoneType", "pandas.DataFrame(data)"),
    data("lengths", {"y": [1.0, 2.0], "x": [1.0]}, "'y': 2", "a value a row"),
    data("twice", pd.concat([FRAME, FRAME[["x"]]], axis=1), "'x'", "a name of its own"),
    data("swapped", f"y ~ x{G}", "DataFrame", "it comes first", written=FRAME),
    (
        "by their places",
        Refused(lambda: jalax.mixed("y ~ x" + G, FRAME, "binomial"), "3 arguments", "family="),
    ),
    ("no data", Refused(lambda: jalax.mixed("y ~ x" + G, key=KEY), "data", "jalax.mixed('y ~")),
    (
        "a model, too",
        Refused(lambda: jalax.models.mixed("y ~ x" + G, FRAME, REML=False), "REML", "leave it out"),
    ),
    (
        "a level that is not there",
        Refused(
            lambda: mixed("y ~ arm" + G, contrasts={"arm": Treatment("q")}), "'q'", "'a', 'b', 'c'"
        ),
    ),
]

TABLE = [*FORMULAS, *OPTIONS, *DATA]

# Names of formulae's and pandas' insides. A DataFrame is what users give.
INTERNAL = re.compile(
    r"formulae|\b(Variable|Call|Lazy\w*|Term|GroupSpecificTerm|Intercept\(|NegatedIntercept|Token|"
    r"Scan\w*|Parse\w*|Resolver\w*|DesignMatri\w*|CategoricalBox|QuotedName|Literal|Binary|Unary|"
    r"ufunc|KeyError|AttributeError|<class|<function|object at|NotImplemented)"
)


@pytest.fixture(scope="module", autouse=True)
def packages():
    """What the first formula imports takes its time."""
    jalax.models.mixed(f"y ~ ns(x, 2){G}", FRAME)


def test_there_are_many():
    assert len(TABLE) >= 60
    assert len({label for label, _ in TABLE}) == len(TABLE)


@pytest.mark.parametrize("refused", [row for _, row in TABLE], ids=[label for label, _ in TABLE])
def test_what_is_refused_says_what_to_write(refused, monkeypatch, capsys):
    def fit(*args, **options):
        raise AssertionError("a fit was begun")

    monkeypatch.setattr(frontend, "fit", fit)
    before = time.process_time()
    with pytest.raises((ValueError, TypeError)) as caught:
        refused.call()
    seconds = time.process_time() - before
    message = str(caught.value)
    assert refused.names in message
    assert refused.remedy in message
    assert not INTERNAL.search(message), message
    assert message.endswith("."), message
    assert seconds < 1
    assert capsys.readouterr().out == ""


def test_the_same_without_the_fault_is_fine():
    """So that the rows of the table are refused for what they show."""
    for written in ("y ~ x", "y ~ I(x**2)", "y ~ I(2 * x)", "y ~ I(arm == 'a')", "I(y + z) ~ x"):
        jalax.models.mixed(written + G, FRAME)
    jalax.models.mixed("p(ill, size) ~ x" + G, FRAME, family="binomial")
    jalax.models.mixed("y ~ arm" + G, FRAME, contrasts={"arm": Helmert()})
