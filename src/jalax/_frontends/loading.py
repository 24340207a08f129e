"""`jalax.load`: a result of any kind from its file."""

from __future__ import annotations

import os

from jalax._fit import saving
from jalax._fit.result import FitResult
from jalax._frontends.mixed import MixedResult
from jalax._runtime import files


def load(path: str | os.PathLike, like: FitResult | None = None) -> FitResult:
    """Read what `FitResult.save` wrote.

    A fit of `jalax.mixed` comes back as a `MixedResult` with its model, built again from the
    formula and the data in the file. Of other fits the model's functions are not in the file: what
    needs them says so. No code is run from a file, whoever wrote it.

    Args:
        path: the file.
        like: a result of the same model; needed only where theta or the latent are containers
            other than dict, list and tuple.
    """
    header, arrays = files.read(path, "result")
    with files.interpreting(path):
        fields = saving.fields(header, arrays, like)
        kind = FitResult if header.get("mixed") is None else MixedResult
        return kind._from_fields(fields, header, arrays, None)
