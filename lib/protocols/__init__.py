"""How workers keep in step: every protocol by its name. A new one is a file here and a line in `ALL`."""

from __future__ import annotations

from dataclasses import fields

from lib.errors import unknown, unknown_option
from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import BSP, Async, Sync
from lib.protocols.dssync import DSSync
from lib.protocols.gba import GBA
from lib.protocols.gossip import Prague, SwarmAdam
from lib.protocols.hop import HopBS, HopBW
from lib.protocols.oac import OAC, Pipelined, Sequential
from lib.protocols.rule import Pair, Rule
from lib.protocols.shadowsync import ShadowEASGD

ALL: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        *(Sync, Async, AllReduce, BSP, HopBS, HopBW, GBA),
        *(Prague, SwarmAdam, ShadowEASGD, DSSync),
        *(Sequential, Pipelined, OAC),
    )
}

__all__ = ["ALL", "Pair", "get"]


def get(name: str, **options) -> Rule:
    """The protocol of that name; an unknown name or option is an error that names the nearest valid ones."""
    if name not in ALL:
        raise unknown("protocol", name, ALL)
    valid = [field.name for field in fields(ALL[name])]
    for option in options:
        if option not in valid:
            raise unknown_option(f"protocol {name!r}", option, valid)
    return ALL[name](**options)
