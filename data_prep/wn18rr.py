"""WN18RR (Dettmers et al., 2018), in the form that the ConvE repository gives."""

from typing import ClassVar

from data_prep.source import RawFile
from data_prep.triples import NamedTriples


class WN18RR(NamedTriples):
    """93,003 triples of 40,943 entities and 11 relations. Names are synset offsets: there is another form with lemmas."""

    name: ClassVar = "wn18rr"
    title: ClassVar = "WN18RR, 86,835 / 3,034 / 3,134 triples of 40,943 entities and 11 relations"
    where: ClassVar = (
        "https://github.com/TimDettmers/ConvE/raw/master/WN18RR.tar.gz; unpack it, and give the folder with train.txt"
    )
    licence: ClassVar = "WordNet's licence (free use with its notice)"
    archives: ClassVar = (
        RawFile("WN18RR.tar.gz", None, "1eb9152f804c140d163462c0d49f65e5a0b30ab5fbb375c5e3353c11a6249060"),
    )
    files: ClassVar = (
        RawFile("train.txt", None, "038612e783c215ee5f3ca9fbfca27b8d0739be1028fe4ee7c174aecf0b83d5df"),
        RawFile("valid.txt", None, "453ce7202afa58094a04d2b1560ee2b02660f1c260b32ce6651c8ccedd1028ab"),
        RawFile("test.txt", None, "0383bceaaa1096cf3c03ec021ed0048068e2355dbfc0239b292cefdac821cec5"),
    )
    real_size: ClassVar = (40_943, 11, 86_835, 6_168)
