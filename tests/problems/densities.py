"""Log-joint densities of some problems, written again in NumPy from the files themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
DATA = "src/jalax/problems/data"


def read(path: str | Path) -> pandas.DataFrame:
    """Relative to the repository, or anywhere; text such as "01" and "N" stays as it is."""
    text = {"ord": str}
    return pandas.read_csv(ROOT / path, keep_default_na=False, dtype=text)


def bernoulli(y: np.ndarray, eta: np.ndarray) -> float:
    return float(np.where(y == 1, -np.logaddexp(0, -eta), -np.logaddexp(0, eta)).sum())


def normals(*arrays: np.ndarray) -> float:
    return float(sum(stats.norm.logpdf(array).sum() for array in arrays))


def codes(column: pandas.Series) -> np.ndarray:
    return column.astype("category").cat.codes.to_numpy()


def treatment(table: pandas.DataFrame, columns: list[str]) -> np.ndarray:
    """R's default coding, by pandas: text gets indicators of all levels but the first."""
    dummies = pandas.get_dummies(table[columns], drop_first=True, dtype=float)
    parts = []
    for column in columns:
        names = [name for name in dummies if name == column or name.startswith(f"{column}_")]
        parts.append(dummies[names].to_numpy(float))
    return np.column_stack([np.ones(len(table)), *parts])


def immunisation() -> tuple[dict[str, np.ndarray], np.ndarray]:
    table = read(f"{DATA}/guImmun.csv.gz")
    columns = ["kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural", "pcInd81"]
    rows = {"y": (table["immun"] == "Y").to_numpy(float)}
    rows |= {"mom": table["mom"].to_numpy(), "comm": table["comm"].to_numpy()}
    return rows, treatment(table, columns)


def guimmun(theta, u) -> float:
    """u["comm"] (161, 1), u["mom"] (161, 37): mothers in the order of their numbers."""
    rows, X = immunisation()
    total = normals(u["comm"], u["mom"])
    for g, community in enumerate(np.unique(rows["comm"])):
        mothers = np.unique(rows["mom"][rows["comm"] == community])
        for m, mother in enumerate(mothers):
            own = rows["mom"] == mother
            effect = np.exp(theta["log_sd_comm"]) * u["comm"][g, 0]
            effect = effect + np.exp(theta["log_sd_mom"]) * u["mom"][g, m]
            total += bernoulli(rows["y"][own], X[own] @ theta["beta"] + effect)
    return total


def pound_dollar(theta, x) -> float:
    y = read(f"{DATA}/pound_dollar.csv.gz")["y"].to_numpy()
    phi, sigma = np.tanh(theta["atanh_phi"]), np.exp(theta["log_sigma"])
    total = stats.norm.logpdf(x[0], 0, sigma / np.sqrt(1 - phi**2))
    total += stats.norm.logpdf(x[1:], phi * x[:-1], sigma).sum()
    return total + stats.norm.logpdf(y, 0, np.exp((theta["mu"] + x) / 2)).sum()


def spatial(theta, u) -> float:
    table = read(f"{DATA}/spatial_poisson.csv.gz")
    z1, z2 = table["z1"].to_numpy(), table["z2"].to_numpy()
    distance = np.hypot(z1[:, None] - z1, z2[:, None] - z2)
    covariance = np.exp(-np.exp(theta["log_a"]) * distance)
    prior = stats.multivariate_normal.logpdf(u, np.zeros(100), covariance)
    eta = table[["x1", "x2"]].to_numpy() @ theta["b"] + np.exp(theta["log_sigma"]) * u
    return prior + stats.poisson.logpmf(table["y"], np.exp(eta)).sum()


def _pines() -> tuple[np.ndarray, np.ndarray, float]:
    table = read(f"{DATA}/finpines_30x30.csv.gz").sort_values(["row", "col"])
    row, col = table["row"].to_numpy(), table["col"].to_numpy()
    covariance = 1.91 * np.exp(-33 / 30 * np.hypot(row[:, None] - row, col[:, None] - col))
    return table["count"].to_numpy(), covariance, np.log(126) - 0.955


def finpines(theta, x) -> float:
    y, covariance, mu = _pines()
    prior = stats.multivariate_normal.logpdf(x, np.full(900, mu), covariance)
    return prior + y @ x - np.exp(x).sum() / 900


def finpines_slope(x) -> np.ndarray:
    y, covariance, mu = _pines()
    return y - np.exp(x) / 900 - np.linalg.solve(covariance, x - mu)


def verbagg(theta, u) -> float:
    table = read(f"{DATA}/VerbAgg.csv.gz")
    X = treatment(table, ["Anger", "Gender", "btype", "situ"])
    eta = X @ theta["beta"]
    for factor in ("id", "item"):
        eta = eta + np.exp(theta[f"log_sd_{factor}"]) * u[factor][codes(table[factor])]
    return bernoulli((table["r2"] == "Y").to_numpy(), eta) + normals(u["id"], u["item"])


def _insteval(theta, u) -> tuple[pandas.DataFrame, np.ndarray]:
    table = read("benchmarks/data/InstEval.csv.gz")
    eta = theta["beta"][0] + theta["beta"][1] * table["service"].to_numpy()
    for factor in ("s", "d", "dept"):
        eta = eta + np.exp(theta[f"log_sd_{factor}"]) * u[factor][codes(table[factor])]
    return table, eta


def insteval(theta, u) -> float:
    table, eta = _insteval(theta, u)
    rows = stats.norm.logpdf(table["y"], eta, np.exp(theta["log_sigma"]))
    return rows.sum() + normals(*u.values())


def insteval_binary(theta, u) -> float:
    table, eta = _insteval(theta, u)
    return bernoulli((table["y"] > 3).to_numpy(), eta) + normals(*u.values())
