"""leaf-classification: 99 plant species from 192 measures of a leaf and its black-and-white image; log loss.

The twin has the competition's 99 species. With 198 or more rows (the default) every species has at least two of them;
with fewer, only rows // 2 of the species occur, two rows each, and the other columns of a submission deserve 0. The hidden
rule is in `draw`: a species is a point in the space of measures, close relatives are close, and leaves scatter
around it with a noise that differs by column. The measures are tiny, so a model that does not scale them learns nothing.
"""

from tasks.grading import LOG_LOSS_99
from tasks.task import Schema

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
""".split())
FEATURES = tuple(f"{kind}{i}" for kind in ("margin", "shape", "texture") for i in range(1, 65))
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "species", *FEATURES), ("id", *FEATURES)

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
