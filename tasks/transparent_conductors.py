"""transparent-conductors: two energies of aluminium-gallium-indium oxides from composition and structure; mean RMSLE.

The twin's hidden rule is in `draw`: both energies depend on the composition, curved and differently for each crystal
symmetry, and on the mean height of the atoms in the cell, which only geometry.xyz tells. Ids start at 1 in train and in
test, as in MLE-bench: the same number occurs in both.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import COLUMN_RMSLE, grade_rmsle
from tasks.task import Schema

NAME, ID = "transparent-conductors", "nomad2018-predict-transparent-conductors"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = COLUMN_RMSLE, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
METALS = ("al", "ga", "in")
SHAPE = (*(f"lattice_vector_{i}_ang" for i in (1, 2, 3)),
         *(f"lattice_angle_{name}_degree" for name in ("alpha", "beta", "gamma")))  # fmt: skip
FEATURES = ("spacegroup", "number_of_total_atoms", *(f"percent_atom_{metal}" for metal in METALS), *SHAPE)
TARGETS = ("formation_energy_ev_natom", "bandgap_energy_ev")
TRAIN_COLUMNS, TEST_COLUMNS = ("id", *FEATURES, *TARGETS), ("id", *FEATURES)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", TARGETS, "regression", "value",
                numeric=FEATURES[1:], categorical=("spacegroup",), bounds=(0, math.inf),
                geometry_files=("train/{id}/geometry.xyz", "test/{id}/geometry.xyz"))  # fmt: skip

DESCRIPTION = """\
Goal: predict two energies of a transparent conductor, an oxide of aluminium, gallium and indium, from its structure.

Files:
- train.csv: id, the columns below and the two energies.
- test.csv: the same columns without the energies.
- train/<id>/geometry.xyz, test/<id>/geometry.xyz: the crystal's cell: comment lines (#), three lines
  `lattice_vector x y z` and one line `atom x y z element` per atom; lengths in ångström.
- sample_submission.csv: a submission of the right form, with two constants.

Columns: spacegroup (12, 33, 167, 194, 206 or 227: the crystal's symmetry, a category), number_of_total_atoms,
percent_atom_al, percent_atom_ga, percent_atom_in (shares of the three metals, they sum to 1), lattice_vector_1_ang to
lattice_vector_3_ang, lattice_angle_alpha_degree, lattice_angle_beta_degree, lattice_angle_gamma_degree. To predict:
formation_energy_ev_natom (eV per atom) and bandgap_energy_ev (eV); neither is negative. Ids of train and test are counted
apart: the same number may occur in both.

Metric: the root mean squared error of log(1 + value), computed for each of the two columns, then averaged; lower is better.

Submission: submission.csv with the header id,formation_energy_ev_natom,bandgap_energy_ev and one row per row of test.csv;
no value may be negative.
"""
GROUPS = (12, 33, 167, 194, 206, 227)
RADII = {"al": 0.535, "ga": 0.62, "in": 0.8}  # ionic, ångström


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n crystals with energies and geometry files, and the hidden rule's two energies, (n, 2)."""
    group = rng.integers(0, len(GROUPS), n)
    atoms = np.array([10, 20, 30, 40, 80])[rng.integers(0, 5, n)]
    metals = (2 * atoms) // 5
    cuts = np.sort(np.floor(rng.random((n, 2)) * (metals[:, None] + 1)), axis=1)  # (n, 2)
    share = np.diff(np.column_stack([np.zeros(n), cuts, metals]), axis=1) / metals[:, None]  # (n, 3) of al, ga, in
    height = rng.random(n)  # where in the cell the metals sit
    radius = share @ list(RADII.values())
    side = np.array([6.2, 5.1, 4.9, 3.2, 10.1, 9.6])[group] * (1 + 0.5 * (radius - 0.6)) * (1 + 0.01 * rng.standard_normal(n))
    volume = atoms * (9.5 + 12 * (radius - 0.6)) * (1 + 0.02 * rng.standard_normal(n))
    lengths = np.column_stack([side, side * rng.uniform(0.95, 1.05, n), volume / side**2])
    angles = np.array([(90, 103, 90), (90, 90, 90), (90, 90, 120), (90, 90, 120), (90, 90, 90), (90, 90, 90)])[group]
    angles = angles + 0.4 * rng.standard_normal((n, 3))
    rule = energies(group, share, height)
    noisy = np.maximum(rule * (1 + 0.06 * rng.standard_normal((n, 2))) + [0.006, 0.08] * rng.standard_normal((n, 2)), 0)
    files = [_geometry(rng, *row) for row in zip(lengths, angles, share * metals[:, None], atoms, height, strict=True)]
    values = (np.arange(1, n + 1), np.array(GROUPS)[group], atoms, *share.T.round(4), *lengths.T.round(4), *angles.T.round(4))
    columns = dict(zip(TRAIN_COLUMNS, (*values, *noisy.T.round(4)), strict=True))
    return pd.DataFrame({**columns, tables.FILE: files}), rule


def energies(group: np.ndarray, share: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Return formation energy and band gap, (n, 2), from the symmetry (a number), the metals' shares and mean height."""
    al, ga, indium = share.T
    slope, bend = np.array([3.6, 2.2, 4.4, 1.6, 3.0, 2.6])[group], np.array([0.9, -1.2, 1.5, 0.2, -0.6, 2.0])[group]
    gap = 0.3 + 1.3 * slope * (1 - indium) ** 1.5 * (0.5 + 0.5 * al) + bend * al * ga + 1.3 * (height - 0.5) * (indium > 0.3)
    mixing = np.array([0.5, 0.25, 0.9, 0.35, 0.7, 0.15])[group]
    formation = 0.05 + mixing * (al * indium + 0.4 * ga * indium) + 0.3 * (height - 0.6) ** 2 + 0.12 * (ga > 0.6)
    return np.column_stack([formation, np.maximum(gap, 0.05)])


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels; each is numbered from 1."""
    split = tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)
    return tuple(table.assign(id=np.arange(1, len(table) + 1)) for table in split)


def _geometry(rng, lengths: np.ndarray, angles: np.ndarray, counts: np.ndarray, atoms: int, height: float) -> bytes:
    """Return geometry.xyz: three lattice vectors and the atoms, metals around `height` of the cell, oxygen anywhere."""
    alpha, beta, gamma = np.deg2rad(angles)
    x = (np.cos(alpha) - np.cos(beta) * np.cos(gamma)) / np.sin(gamma)
    directions = [[1, 0, 0], [np.cos(gamma), np.sin(gamma), 0], [np.cos(beta), x, np.sqrt(1 - np.cos(beta) ** 2 - x * x)]]
    vectors = lengths[:, None] * directions  # (3, 3), a row each
    elements = np.repeat(["Al", "Ga", "In"], np.round(counts).astype(int)).tolist()
    places = rng.random((atoms, 3))  # fractions of the lattice vectors
    places[: len(elements), 2] = np.clip(height + 0.12 * rng.standard_normal(len(elements)), 0, 1)
    positions = places[:, :1] * vectors[0] + places[:, 1:2] * vectors[1] + places[:, 2:] * vectors[2]
    lines = ["#" + 55 * "=", "# crystal structure, lengths in Angstrom", "#" + 55 * "="]
    lines += ["lattice_vector " + " ".join(f"{value:.6f}" for value in row) for row in vectors + 0.0]
    elements += ["O"] * (atoms - len(elements))
    lines += ["atom " + " ".join(f"{v:.6f}" for v in row) + f" {name}" for row, name in zip(positions, elements, strict=True)]
    return ("\n".join(lines) + "\n").encode()


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with two constants."""
    return hidden[["id"]].assign(**dict(zip(TARGETS, (0.1779, 1.8892), strict=True)))


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download, ids from 1 in each split.

    Raises ValueError for a table of another form, FileNotFoundError for missing geometries.
    """
    table = download.table("train.csv", TRAIN_COLUMNS)
    table[tables.FILE] = download.files(f"train/{number}/geometry.xyz" for number in table["id"])
    train, test = (part.assign(id=np.arange(1, len(part) + 1)) for part in raw.split(table))
    return public_files(train, test), {"test.csv": tables.to_csv(test[list(TRAIN_COLUMNS)])}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_rmsle, id_column="id", columns=TARGETS)
