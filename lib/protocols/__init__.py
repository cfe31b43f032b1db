"""How workers keep in step: every protocol by its name. A new one is a file here and a line in `ALL`."""

from lib.options.registry import Registry
from lib.protocols.rule import Pair, Rule

ALL = Registry(
    "protocol",
    {
        "sync": "lib.protocols.baselines:Sync",
        "async": "lib.protocols.baselines:Async",
        "all-reduce": "lib.protocols.all_reduce:AllReduce",
        "frozen": "lib.protocols.baselines:Frozen",
        "bsp": "lib.protocols.baselines:BSP",
        "hop-bs": "lib.protocols.hop:HopBS",
        "ssp": "lib.protocols.hop:SSP",
        "hop-bw": "lib.protocols.hop:HopBW",
        "gba": "lib.protocols.gba:GBA",
        "prague": "lib.protocols.decentralised:Prague",
        "swarm-adam": "lib.protocols.decentralised:SwarmAdam",
        "s-easgd": "lib.protocols.shadowsync:ShadowEASGD",
        "s-ma": "lib.protocols.shadowsync:ShadowMA",
        "s-bmuf": "lib.protocols.shadowsync:ShadowBMUF",
        "fr-easgd": "lib.protocols.shadowsync:ForegroundEASGD",
        "fr-ma": "lib.protocols.shadowsync:ForegroundMA",
        "fr-bmuf": "lib.protocols.shadowsync:ForegroundBMUF",
        "hybrid": "lib.protocols.persia:Hybrid",
        "ds-sync": "lib.protocols.dssync:DSSync",
        "easgd": "lib.protocols.easgd:EASGD",
        "downpour": "lib.protocols.easgd:Downpour",
        "local-sgd": "lib.protocols.local_sgd:LocalSGD",
        "post-local-sgd": "lib.protocols.local_sgd:PostLocalSGD",
        "dynamic-averaging": "lib.protocols.local_sgd:DynamicAveraging",
        "slowmo": "lib.protocols.local_sgd:SlowMo",
        "diloco": "lib.protocols.local_sgd:DiLoCo",
        "sparta": "lib.protocols.sparta:SPARTA",
        "d-psgd": "lib.protocols.decentralised:DPSGD",
        "ad-psgd": "lib.protocols.decentralised:ADPSGD",
        "staleness-aware": "lib.protocols.delay:StalenessAware",
        "dc-asgd": "lib.protocols.delay:DCASGD",
        "ringmaster": "lib.protocols.delay:Ringmaster",
        "admission": "lib.protocols.hop:Admission",
        "semi-sync": "lib.protocols.semi_sync:SemiSync",
        "streaming-diloco": "lib.protocols.streaming:StreamingDiLoCo",
        "eager-diloco": "lib.protocols.streaming:EagerDiLoCo",
        "async-local-sgd": "lib.protocols.easgd:AsyncLocalSGD",
        "noloco": "lib.protocols.local_sgd:NoLoCo",
        "des-loc": "lib.protocols.local_sgd:DESLOC",
        "2d-sparse": "lib.protocols.all_reduce:TwoDSparse",
        "sequential": "lib.protocols.oac:Sequential",
        "pipelined": "lib.protocols.oac:Pipelined",
        "oac": "lib.protocols.oac:OAC",
    },
)

__all__ = ["ALL", "Pair", "get"]


def get(name: str, **options) -> Rule:
    """The protocol of that name; an unknown name or option is an error that names the nearest valid ones."""
    return ALL.make(name, **options)
