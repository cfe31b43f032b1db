"""What a run is given: a workload, a protocol and a cluster, each an object, a registered name or something of a user's own file;
and options, each for whatever has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from lib import cluster as clusters
from lib import protocols, workloads
from lib.cluster.base import Cluster
from lib.cluster.virtual.cluster import VirtualCluster
from lib.errors import BadOption, UnknownOption, unknown_option
from lib.options import own_file, units
from lib.options.checked import Checked
from lib.protocols.rule import Pair, Rule
from lib.tasks.workload import Workload
from lib.training.schedule import Choice, Schedule

KINDS = {"workload": (Workload,), "protocol": (Rule, Pair, Schedule, Choice), "cluster": (Cluster,)}
REGISTRIES = {"workload": workloads.ALL, "protocol": protocols.ALL, "cluster": clusters.ALL}
SHORT = {
    "lr": ("dense_optimizer.lr", "row_optimizer.lr"),
    "network": ("worker.bandwidth", "server.bandwidth"),
}
"""An option for several parts."""


@dataclass(frozen=True)
class _Named:
    """Something that is still to be made, with the options that it takes."""

    options: frozenset[str]
    make: Callable[..., Any]


def resolve(
    settings: type[Checked], workload: Any, protocol: Any, cluster: Any, options: Mapping[str, Any]
) -> list[Any]:
    """Workload, protocol, cluster and settings; an option that nothing has is an error that names the nearest."""
    given = {"workload": workload, "protocol": protocol, "cluster": cluster}
    made = {what: _named(what, thing) for what, thing in given.items()}
    own = _Named(_names(settings), settings)
    makers = [maker for maker in (*made.values(), own) if isinstance(maker, _Named)]
    whole, parts = _parts(options)
    for option in [*whole, *parts]:
        if not any(option in maker.options for maker in makers):
            said = option if option in whole else f"{option}.{next(iter(parts[option]))}"
            raise _nothing_has(said, options.get(said), makers, made.values())
    return [_make(maker, whole, parts) if isinstance(maker, _Named) else maker for maker in (*made.values(), own)]


def taken(
    settings: type[Checked], workload: Any, protocol: Any, cluster: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the options that something of this run has; another protocol's run may have the others."""
    given = {"workload": workload, "protocol": protocol, "cluster": cluster}
    makers = [*(_named(what, thing) for what, thing in given.items()), _Named(_names(settings), settings)]
    has = set().union(*(maker.options for maker in makers if isinstance(maker, _Named)))
    has |= {short for short, (part, _) in SHORT.items() if part.partition(".")[0] in has or short == "lr"}
    return {name: value for name, value in options.items() if name.partition(".")[0] in has}


def _named(what: str, thing: Any) -> Any:
    """The object, or what makes it."""
    if not isinstance(thing, str):
        if not isinstance(thing, KINDS[what]):
            raise BadOption(f"train: {thing!r} is no {what}; give a registered name or an object")
        return thing
    if own_file.is_file(thing):
        kind = own_file.load(thing, what, KINDS[what])
        return _Named(_names(kind), kind) if isinstance(kind, type) else kind
    if _is_yaml(what, thing):
        loaded = VirtualCluster.load(thing)
        return _Named(_names(VirtualCluster), lambda **options: replace(loaded, **options))
    if what == "protocol" and "+" in thing:
        return _pair(*(protocols.ALL[name] for name in thing.split("+", 1)))
    if what == "workload":
        own = frozenset(workloads.options(thing)) - {*workloads.ALL[thing].spelled.values()}
        return _Named(own, lambda **options: workloads.get(thing, **options))
    kind = REGISTRIES[what][thing]
    return _Named(_names(kind), kind)


def _pair(sparse: type[Rule], dense: type[Rule]) -> _Named:
    """A rule for the rows and one for the dense parameters; an option goes to each that has it."""

    def make(**options: Any) -> Pair:
        halves = ({name: value for name, value in options.items() if name in _names(half)} for half in (sparse, dense))
        return Pair(sparse=sparse(**next(halves)), dense=dense(**next(halves)))

    return _Named(_names(sparse) | _names(dense), make)


def _is_yaml(what: str, name: str) -> bool:
    return what == "cluster" and name.endswith((".yaml", ".yml"))


def _names(kind: type) -> frozenset[str]:
    return frozenset({*(field.name for field in fields(kind)), *kind.spelled} - {*kind.spelled.values()})


def _parts(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options as a whole, and those of a part of one: `dense_optimizer.lr`; what `SHORT` has is for several."""
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        for each in SHORT.get(name, (name,)):
            option, dot, part = each.partition(".")
            (parts.setdefault(option, {}) if dot else whole)[part or option] = value
    for option in parts.keys() & whole.keys():
        if isinstance(whole[option], str):
            whole[option] = {"name": whole[option]}
        if isinstance(whole[option], Mapping):
            whole[option] = {**whole[option], **parts.pop(option)}
    return whole, parts


def _make(maker: _Named, whole: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Any:
    made = maker.make(**{name: value for name, value in whole.items() if name in maker.options})
    for option, changes in parts.items():
        if option not in maker.options:
            continue
        part = getattr(made, option)
        if not is_dataclass(part):
            raise BadOption(f"{option} is {part!r}, which has no options of its own")
        for name in changes:
            if name not in _names(type(part)):
                raise unknown_option(option, name, _names(type(part)))
        units.asked(type(part), changes)
        made = replace(made, **{option: replace(part, **changes)})
    return made


def _nothing_has(option: str, value: Any, makers: list[_Named], things: Any) -> UnknownOption:
    for thing in things:
        if is_dataclass(thing) and not isinstance(thing, _Named) and option in _names(type(thing)):
            return UnknownOption(
                f"{option!r} is an option of {thing.name!r}, which was given as an object: set it there, as in "
                f"{type(thing).__name__}({option}={value!r})"
            )
    valid = {"seed", "samples", *SHORT}.union(*(maker.options for maker in makers))
    return unknown_option("this run", option, valid)
