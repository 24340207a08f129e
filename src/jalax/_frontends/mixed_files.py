"""A mixed model in a file: its formula, its family, and the columns that the formula names."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from jalax._model import held
from jalax._model.model import Model
from jalax._particles import trees
from jalax._runtime import arguments, files
from jalax._runtime.files import FileError
from jalax.families._catalogue import read, written
from jalax.families._family import Family
from jalax.models import _contrasts, _covariances
from jalax.models._covariances import Covariance
from jalax.models._design import Asked
from jalax.models._kept_rows import LeftOut, Refuse
from jalax.models._mixed import MixedDesign, build, unwrapped, with_all_effects
from jalax.models._restricted import REML

NULLABLE = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64", "boolean"),
)
TEXTS = ("object", "str", "string")  # pandas' names of the types of text
OBJECTS = {"integer": np.int64, "floating": np.float64, "boolean": np.bool_}


# --- writing --------------------------------------------------------------------------------------


def pack(mixed: MixedDesign, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The section of a header; None where a column is of a kind of its own."""
    columns = pack_columns(mixed.design.frame, arrays)
    if columns is None:
        return None
    design = mixed.design
    asked = design.asked._asdict()
    covariances = {k: _covariances.written(c) for k, c in (asked.pop("covariances") or {}).items()}
    for plain in covariances.values():
        if "values" in plain:
            plain["values"] = files.pack("covariance", plain["values"], arrays)
    return {
        "formula": design.formula,
        "family": written(unwrapped(mixed.family)),
        "columns": columns,
        "contrasts": _contrasts.written(design.asked.contrasts),
        "covariances": covariances,
        "index": _pack_index(design.frame.index, arrays),
        "asked": design.asked.in_words(),
        "left_out": None if design.left_out is None else list(design.left_out),
        "restricted": design.asked.likelihood is not None,
    }


def pack_columns(frame: Any, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]] | None:
    """None, with a warning, where one is of a kind of its own."""
    columns = []
    for name in frame.columns:
        try:
            columns.append({"name": str(name), **_pack_column(frame[name], arrays)})
        except (OverflowError, TypeError, ValueError):
            warnings.warn(
                f"column {str(name)!r} holds {frame[name].dtype}, which is neither numbers, text "
                "nor categories: the file has the numbers of the fit, but no tables of a mixed "
                "model, and jalax.load cannot build the model again.",
                stacklevel=arguments.level_of_user(),
            )
            return None
    return columns


def _pack_index(index: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The names of rows, which tell those that are left out; None: they are counted anew."""
    if index.equals(_pandas().RangeIndex(len(index))) or index.nlevels > 1:
        return None
    try:
        return _pack_column(index.to_series(), arrays)
    except (OverflowError, TypeError, ValueError):
        return None


def _pack_column(values: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    import pandas

    dtype = values.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        return {
            "kind": "categories",
            "codes": files.pack("column", values.cat.codes.to_numpy(), arrays),
            "categories": _pack_column(values.cat.categories.to_series(), arrays),
            "ordered": bool(values.cat.ordered),
        }
    inferred = pandas.api.types.infer_dtype(values, skipna=False)
    if inferred == "string":
        codes, texts = pandas.factorize(values)
        return {
            "kind": "text",
            "dtype": str(dtype),
            "codes": files.pack("column", np.asarray(codes), arrays),
            "texts": [str(text) for text in texts],
        }
    if inferred not in OBJECTS:
        raise TypeError(inferred)
    own = isinstance(dtype, np.dtype) and dtype.kind in "biuf"
    numbers = values.to_numpy(None if own else OBJECTS[inferred])
    shown = str(dtype) if str(dtype) in (*NULLABLE, "object") else numbers.dtype.name
    return {
        "kind": "numbers",
        "dtype": shown,
        "values": files.pack("column", numbers, arrays),
    }


def changes(origin: Any) -> dict[str, Any]:
    """What a fit has made of the formula's model: numbers that are held, a prior, white latents."""
    model = None if origin is None else origin.model
    known = None if model is None else model.held
    places = [] if known is None else np.asarray(known.order)[known.free.size :].tolist()
    prior = model is not None and model.outside.log_prior is not None
    white = model is not None and model.is_white
    return {"held": places, "log_prior": prior, "white": white}


# --- reading --------------------------------------------------------------------------------------


def unpack(
    section: Any, arrays: dict[str, np.ndarray], fields: dict[str, Any]
) -> tuple[Model | None, MixedDesign]:
    """The model and its design; `fields` are those of the result they belong to.

    There is no model where the fit had a prior, a function that the file does not hold.
    """
    formula, asked = section["formula"], section.get("asked", {})
    if type(formula) is not str or not all(type(x) in (str, type(None)) for x in asked.values()):
        raise FileError("its formula is no text.")
    if type(section.get("restricted", False)) is not bool:
        raise FileError(f"whether it is a fit by REML is {section['restricted']!r}.")
    frame, family = _frame(section["columns"], arrays), _family(section["family"])
    contrasts = _codings(section.get("contrasts"))
    given = section.get("covariances") or {}
    covariances = {name: _covariance(plain, arrays) for name, plain in given.items()} or None
    if (index := section.get("index")) is not None:
        frame.index = _pandas().Index(_column(index, arrays))
    try:
        whole = Asked(
            **asked,
            contrasts=contrasts,
            covariances=covariances,
            likelihood=REML() if section.get("restricted") else None,
        )
        # All rows of a file were kept by the fit: one with holes is not from it.
        model, design = build(formula, frame, family, whole._replace(missing=Refuse()))
    except ImportError:  # pandas or formulae is not installed: the file may be fine
        raise
    except Exception as error:  # whatever a formula of anybody's brings about, memory included
        raise FileError(f"its mixed model cannot be built again: {error}") from error
    _check_same(with_all_effects(model, design), fields)
    if section.get("white"):
        model = model.whitened() or model
    if places := section.get("held", []):
        model = held.held_at(model, fields["theta"], _held_numbers(places, fields["theta"]))
    if _shapes(fields["free"]) != _shapes(model.unconstrained(fields["theta"])):
        raise FileError("its numbers on the optimiser's scale are not those of its theta.")
    left_out = _left_out(section.get("left_out"))
    known = design.design._replace(asked=whole, left_out=left_out)
    return None if section.get("log_prior") else model, design._replace(design=known)


def _left_out(plain: Any) -> LeftOut | None:
    if plain is None:
        return None
    rows, of, columns = plain
    if type(rows) is not int or type(of) is not int or not 0 < rows < of:
        raise FileError(f"of its rows {rows!r} of {of!r} are left out.")
    if type(columns) is not list or not all(type(name) is str for name in columns):
        raise FileError(f"the columns with missing values are {columns!r}.")
    return LeftOut(rows, of, tuple(columns))


def _family(plain: Any) -> Family:
    try:
        return read(plain)
    except Exception as error:
        raise FileError(f"its family is {plain!r}.") from error


def _codings(plain: Any) -> dict[str, _contrasts.Contrasts]:
    try:
        return _contrasts.read(plain)
    except Exception as error:
        raise FileError(f"its contrasts are {plain!r}.") from error


def _covariance(plain: Any, arrays: dict[str, np.ndarray]) -> Covariance:
    try:
        if "values" in plain:
            plain = plain | {"values": files.unpack(plain["values"], arrays)}
        return _covariances.read(plain)
    except Exception as error:
        raise FileError(f"a covariance of its random effects cannot be read: {error}") from error


def _held_numbers(places: Any, theta: Any) -> np.ndarray:
    which = np.zeros(trees.size(theta), bool)
    if type(places) is not list or not all(type(place) is int for place in places):
        raise FileError(f"the numbers that are held are {places!r}.")
    if not all(0 <= place < which.size for place in places) or len(places) >= which.size:
        raise FileError(f"the numbers that are held are {places!r}, of {which.size}.")
    which[places] = True
    return which


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("formulas need pandas: pip install 'jalax[mixed]'.") from error
    return pandas


def _frame(columns: Any, arrays: dict[str, np.ndarray]) -> Any:
    pandas = _pandas()
    found = {}
    for plain in columns:
        if type(plain["name"]) is not str or plain["name"] in found:
            raise FileError(f"the name of a column is {plain['name']!r}, or it is there twice.")
        found[plain["name"]] = _column(plain, arrays)
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise FileError(f"its columns differ in length: {lengths}.")
    return pandas.DataFrame(found)


def _column(plain: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    pandas = _pandas()
    if plain["kind"] != "categories":
        return _simple_column(plain, arrays)
    codes = _array(plain["codes"], arrays, "iu")
    if type(plain["ordered"]) is not bool:
        raise FileError(f"whether a column is ordered is {plain['ordered']!r}.")
    labels = pandas.Index(_simple_column(plain["categories"], arrays))
    return pandas.Series(pandas.Categorical.from_codes(codes, labels, ordered=plain["ordered"]))


def _simple_column(plain: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    pandas = _pandas()
    kind, dtype = plain["kind"], plain["dtype"]
    if kind == "numbers":
        values = pandas.Series(_array(plain["values"], arrays, "biuf"))
        return values.astype(dtype) if dtype in (*NULLABLE, "object") else values
    if kind != "text" or dtype not in TEXTS:
        raise FileError(f"a column is of the kind {kind!r} and the type {dtype!r}.")
    codes, texts = _array(plain["codes"], arrays, "iu"), plain["texts"]
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise FileError("the labels of a column are no texts.")
    if codes.size and not 0 <= codes.min() <= codes.max() < len(texts):
        raise FileError("a column refers to labels that it does not have.")
    return pandas.Series(np.array(texts, object)[codes], dtype=dtype)


def _array(skeleton: Any, arrays: dict[str, np.ndarray], kinds: str) -> np.ndarray:
    found = files.unpack(skeleton, arrays)
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in kinds:
        raise FileError("a column is not a row of numbers.")
    return found


def _check_same(model: Model, fields: dict[str, Any]) -> None:
    """The numbers of the file are those of this model."""
    groups = (model.num_groups,) if model.grouped else ()
    weights = fields["log_weights"]
    lead = (*groups, weights.shape[-1])
    expected = jax.tree.map(lambda leaf: np.broadcast_to(0, (*lead, *leaf.shape)), model.latent)
    same = (
        fields["labels"] == model.outside.labels
        and weights.shape == lead
        and _shapes(fields["theta"]) == _shapes(model.theta)
        and _shapes(fields["particles"]) == _shapes(expected)
    )
    if not same:
        raise FileError("its formula and its columns make another model than its numbers are of.")


def _shapes(tree: Any) -> Any:
    return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
