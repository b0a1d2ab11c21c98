"""leaf-classification: 99 plant species from 192 measures of a leaf and its black-and-white image; log loss.

The twin has the competition's 99 species. With 198 or more rows (the default) every species has at least two of them;
with fewer, only rows // 2 of the species occur, two rows each, and the other columns of a submission deserve 0. The hidden
rule is in `draw`: a species is a point in the space of measures, close relatives are close, and leaves scatter
around it with a noise that differs by column. The measures are tiny, so a model that does not scale them learns nothing.
"""

import io
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from tasks import raw, tables
from tasks.grading import LOG_LOSS_99, grade_log_loss
from tasks.task import Schema
from tasks.words import softmax

NAME, ID = "leaf-classification", "leaf-classification"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS = LOG_LOSS_99, 60.0, 198
DATA = "twin"  # what make_twin returns
SPECIES = tuple("""
Acer_Capillipes Acer_Circinatum Acer_Mono Acer_Opalus Acer_Palmatum Acer_Pictum Acer_Platanoids Acer_Rubrum Acer_Rufinerve
Acer_Saccharinum Alnus_Cordata Alnus_Maximowiczii Alnus_Rubra Alnus_Sieboldiana Alnus_Viridis Arundinaria_Simonii
Betula_Austrosinensis Betula_Pendula Callicarpa_Bodinieri Castanea_Sativa Celtis_Koraiensis Cercis_Siliquastrum
Cornus_Chinensis Cornus_Controversa Cornus_Macrophylla Cotinus_Coggygria Crataegus_Monogyna Cytisus_Battandieri
Eucalyptus_Glaucescens Eucalyptus_Neglecta Eucalyptus_Urnigera Fagus_Sylvatica Ginkgo_Biloba Ilex_Aquifolium Ilex_Cornuta
Liquidambar_Styraciflua Liriodendron_Tulipifera Lithocarpus_Cleistocarpus Lithocarpus_Edulis Magnolia_Heptapeta
Magnolia_Salicifolia Morus_Nigra Olea_Europaea Phildelphus Populus_Adenopoda Populus_Grandidentata Populus_Nigra Prunus_Avium
Prunus_X_Shmittii Pterocarya_Stenoptera Quercus_Afares Quercus_Agrifolia Quercus_Alnifolia Quercus_Brantii
Quercus_Canariensis Quercus_Castaneifolia Quercus_Cerris Quercus_Chrysolepis Quercus_Coccifera Quercus_Coccinea
Quercus_Crassifolia Quercus_Crassipes Quercus_Dolicholepis Quercus_Ellipsoidalis Quercus_Greggii Quercus_Hartwissiana
Quercus_Ilex Quercus_Imbricaria Quercus_Infectoria_sub Quercus_Kewensis Quercus_Nigra Quercus_Palustris Quercus_Phellos
Quercus_Phillyraeoides Quercus_Pontica Quercus_Pubescens Quercus_Pyrenaica Quercus_Rhysophylla Quercus_Rubra
Quercus_Semecarpifolia Quercus_Shumardii Quercus_Suber Quercus_Texana Quercus_Trojana Quercus_Variabilis Quercus_Vulcanica
Quercus_x_Hispanica Quercus_x_Turneri Rhododendron_x_Russellianum Salix_Fragilis Salix_Intergra Sorbus_Aria Tilia_Oliveri
Tilia_Platyphyllos Tilia_Tomentosa Ulmus_Bergmanniana Viburnum_Tinus Viburnum_x_Rhytidophylloides Zelkova_Serrata
""".split())  # noqa: SIM905
FEATURES = tuple(f"{kind}{i}" for kind in ("margin", "shape", "texture") for i in range(1, 65))
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "species", *FEATURES), ("id", *FEATURES)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", SPECIES, "multiclass", "probabilities",
                numeric=FEATURES, classes=SPECIES, label_column="species", image_files=("images/{id}.jpg",) * 2)  # fmt: skip

DESCRIPTION = """\
Goal: tell the species of a plant, one of 99, from a leaf.

Files:
- train.csv: id, species, margin1 to margin64, shape1 to shape64, texture1 to texture64. Few rows a species.
- test.csv: the same columns without species.
- images/<id>.jpg: a black-and-white image of each leaf of both tables; sizes differ.
- sample_submission.csv: a submission of the right form, with 1/99 everywhere. Its header lists the 99 species.

Columns: id is a number without meaning; margin, shape and texture are three descriptions of the leaf by 64 small numbers
each; species is a text such as Acer_Mono.

Metric: log loss over the 99 classes, the mean of -log of the probability given to the true species; lower is better.

Submission: submission.csv with exactly the columns id and the 99 species, and one row per row of test.csv; the 99
probabilities of a row are in [0, 1] and sum to 1.
"""
HIDDEN_ROWS_PER_SPECIES = 4  # in each of the two hidden splits
SIZE = 48  # longer side of an image, pixels


def draw(rng: np.random.Generator, species: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a leaf of each of the given species (numbers), and the hidden rule's probabilities, (rows, 99)."""
    genera = sorted({name.split("_")[0] for name in SPECIES})
    genus = [genera.index(name.split("_")[0]) for name in SPECIES]
    centres = rng.standard_normal((len(genera), 192))[genus] + 0.8 * rng.standard_normal((99, 192))  # (99, 192)
    spread = np.exp(rng.uniform(-0.8, 1.3, 192))  # some columns say much more than others
    mixing = rng.standard_normal((12, 192))
    noise = rng.standard_normal((len(species), 192)) * spread + 0.8 * rng.standard_normal((len(species), 12)) @ mixing
    points = centres[species] + noise
    scale = np.repeat([0.004, 0.00015, 0.004], 64)  # margin and texture sum to about 1, shape is tiny
    offset = np.repeat([0.0156, 0.0006, 0.0156], 64)
    values = np.maximum(np.round(offset + scale * points, 8), 0)
    covariance = np.diag(spread**2) + 0.8**2 * mixing.T @ mixing
    table = pd.DataFrame(values, columns=FEATURES)
    table.insert(0, "id", 1 + rng.permutation(2 * len(species))[: len(species)])
    table.insert(1, "species", np.array(SPECIES)[species])
    images = [_silhouette(rng, centres[s, 64:70]) for s in species]
    return table.assign(**{tables.FILE: images}), softmax(_log_density(points, centres, covariance))


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels, every species as often as any other."""
    present = rng.permutation(99)[: rows // 2]
    hidden = [rng.permutation(np.tile(present, HIDDEN_ROWS_PER_SPECIES)) for _ in range(2)]
    species = np.concatenate([rng.permutation(np.resize(present, rows)), *hidden])
    return tables.split_twin(draw(rng, species)[0], rows, len(hidden[0]))


def _log_density(points: np.ndarray, centres: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the logarithm, up to a constant per row, of each point's density under each species, (rows, 99)."""
    weights = np.linalg.solve(covariance, centres.T)  # (192, 99)
    return points @ weights - 0.5 * np.einsum("sf,fs->s", centres, weights)


def _silhouette(rng: np.random.Generator, shape: np.ndarray) -> bytes:
    """Return a JPEG of a white leaf on black; six numbers of the species shape its outline, a little differently each time."""
    ratio = 0.5 + 0.3 / (1 + np.exp(-shape[0]))
    height, width = SIZE, int(SIZE * ratio)
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle, radius = np.arctan2(y, x), np.sqrt(x * x + y * y)
    outline = 0.75 + sum(0.06 * (shape[k] + 0.5 * rng.standard_normal()) * np.cos((k + 1) * angle) for k in range(1, 6))
    buffer = io.BytesIO()
    Image.fromarray(np.where(radius < outline, 255, 0).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with 1/99 everywhere."""
    return pd.DataFrame({"id": hidden["id"], **dict.fromkeys(SPECIES, 1 / 99)})


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download.

    Raises ValueError for a table of another form, FileNotFoundError for missing images.
    """
    table = download.table("train.csv", TRAIN_COLUMNS)
    table[tables.FILE] = download.files(f"images/{number}.jpg" for number in table["id"])
    train, test = raw.split(table)
    return public_files(train, test), {"test.csv": tables.to_csv(answers(test))}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_log_loss, id_column="id", classes=SPECIES, exact=True)
