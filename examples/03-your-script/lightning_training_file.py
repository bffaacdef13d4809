"""The module and the data of lightning_plain.py as a training file, for `brim train` and `brim evaluate`.

brim train lightning_training_file.py --epochs 3 --clip-norm 1
"""

from lightning_plain import Classifier, Shapes


def model():
    return Classifier()


def datamodule():
    return Shapes()
