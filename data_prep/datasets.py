"""The data sets by name."""

from data_prep.any_clicks import AnyClicks
from data_prep.any_triples import Triples
from data_prep.avazu import Avazu
from data_prep.cifar import Cifar10, Cifar100
from data_prep.criteo_1tb import Criteo1TB
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.dataset import Dataset
from data_prep.fb15k237 import FB15k237
from data_prep.freebase86m import Freebase86m
from data_prep.imagenet import ImageNet
from data_prep.ratings import Ratings
from data_prep.squad import Squad
from data_prep.taobao import Taobao
from data_prep.wn18rr import WN18RR
from lib.errors import unknown

_KINDS = (
    AnyClicks,
    Ratings,
    CriteoKaggle,
    Criteo1TB,
    Avazu,
    Taobao,
    Freebase86m,
    FB15k237,
    WN18RR,
    Triples,
    Cifar10,
    Cifar100,
    ImageNet,
    Squad,
)

ALL: dict[str, type[Dataset]] = {kind.name: kind for kind in _KINDS}


def get(name: str) -> type[Dataset]:
    if name not in ALL:
        raise unknown("data set", name, ALL)
    return ALL[name]
