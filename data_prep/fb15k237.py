"""FB15k-237 (Toutanova and Chen, 2015), in the form that the ConvE repository gives."""

from typing import ClassVar

from data_prep.source import RawFile
from data_prep.triples import NamedTriples


class FB15k237(NamedTriples):
    """310,116 triples of 14,541 entities and 237 relations. The lines end with CRLF."""

    name: ClassVar = "fb15k-237"
    title: ClassVar = "FB15k-237, 272,115 / 17,535 / 20,466 triples of 14,541 entities and 237 relations"
    where: ClassVar = (
        "https://github.com/TimDettmers/ConvE/raw/master/FB15k-237.tar.gz; unpack it, give the folder with train.txt"
    )
    licence: ClassVar = "triples of Freebase: CC BY 2.5; the selection: Microsoft Research's terms, for research"
    archives: ClassVar = (
        RawFile("FB15k-237.tar.gz", 3_678_603, "311df7930f842a02979eaa7a802484a6afe62303c07f915f1e6edbc30cbe05e8"),
    )
    files: ClassVar = (
        RawFile("train.txt", 21_277_292, "6e4c2782169af21e9743f3b1d200886f5d595bf6bc504ec1351720949c5cdfae"),
        RawFile("valid.txt", 1_303_101, "cf6309010852f6a8d47a45df830a426415d1ee6f7a3970a8376ff1fb81db4a5c"),
        RawFile("test.txt", 1_519_499, "5711cf41623ceb4eacc50eb6108a3ca6565c7492e3caaf82a3e355cc660d1574"),
    )
    real_size: ClassVar = (14_541, 237, 272_115, 38_001)
