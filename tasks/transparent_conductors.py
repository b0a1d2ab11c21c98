"""transparent-conductors: two energies of aluminium-gallium-indium oxides from composition and structure; mean RMSLE.

The twin's hidden rule is in `draw`: both energies depend on the composition, curved and differently for each crystal
symmetry, and on the mean height of the atoms in the cell, which only geometry.xyz tells. Ids start at 1 in train and in
test, as in MLE-bench: the same number occurs in both.
"""

import math

from tasks.grading import COLUMN_RMSLE
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
