"""A run's workload, protocol and cluster from objects, registered names or user code, and each option for what has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from lib import cluster as clusters
from lib import protocols, workloads
from lib.cluster.base import Cluster
from lib.cluster.virtual import VirtualCluster
from lib.errors import BadOption, UnknownOption, unknown_option
from lib.options.checked import Checked, check
from lib.options.registry import is_user_file, load_from_user_file
from lib.protocols.rule import Pair, Rule
from lib.tasks.workload import Workload
from lib.training.schedule import Choice, Schedule

KINDS = {"workload": (Workload,), "protocol": (Rule, Pair, Schedule, Choice), "cluster": (Cluster,)}
SHORT = {
    "lr": ("dense_optimizer.lr", "row_optimizer.lr"),
    "network": ("worker.bandwidth", "server.bandwidth"),
}
"""An option for several parts."""


@dataclass(frozen=True)
class Factory:
    """Makes one of the things of a run from the options that it takes."""

    options: frozenset[str]
    make: Callable[..., Any]


def resolve(
    settings: type[Checked], workload: Any, protocol: Any, cluster: Any, options: Mapping[str, Any]
) -> list[Any]:
    """Make workload, protocol, cluster and settings; an option that nothing has is an error that names the nearest."""
    things = _objects_or_factories(settings, workload, protocol, cluster)
    factories = [thing for thing in things if isinstance(thing, Factory)]
    whole, parts = _split_dotted(options)
    for option in [*whole, *parts]:
        if not any(option in factory.options for factory in factories):
            name = option if option in whole else f"{option}.{next(iter(parts[option]))}"
            raise _unknown(name, options.get(name), factories, things)
    return [_make(thing, whole, parts) if isinstance(thing, Factory) else thing for thing in things]


def applicable(
    settings: type[Checked], workload: Any, protocol: Any, cluster: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that something of this run has; another protocol's run may have the others."""
    things = _objects_or_factories(settings, workload, protocol, cluster)
    factories = [thing for thing in things if isinstance(thing, Factory)]
    names = set().union(*(factory.options for factory in factories))
    names |= {short for short, (part, _) in SHORT.items() if part.partition(".")[0] in names or short == "lr"}
    return {name: value for name, value in options.items() if name.partition(".")[0] in names}


def _objects_or_factories(settings: type[Checked], workload: Any, protocol: Any, cluster: Any) -> list[Any]:
    """Each thing of a run as an object, or what makes it."""
    things = {"workload": workload, "protocol": protocol, "cluster": cluster}
    return [*(_object_or_factory(what, thing) for what, thing in things.items()), Factory(_names(settings), settings)]


def _object_or_factory(what: str, thing: Any) -> Any:
    if not isinstance(thing, str):
        if not isinstance(thing, KINDS[what]):
            raise BadOption(f"train: {thing!r} is no {what}; give a registered name or an object")
        return thing
    if is_user_file(thing):
        kind = load_from_user_file(thing, what, KINDS[what])
        return Factory(_names(kind), kind) if isinstance(kind, type) else kind
    if what == "cluster" and thing.endswith((".yaml", ".yml")):
        loaded = VirtualCluster.load(thing)
        return Factory(_names(VirtualCluster), lambda **options: replace(loaded, **options))
    if what == "protocol" and "+" in thing:
        return _pair(*(protocols.ALL[name] for name in thing.split("+", 1)))
    if what == "workload":
        own = frozenset(workloads.options(thing)) - {*workloads.ALL[thing].spelled.values()}
        return Factory(own, lambda **options: workloads.get(thing, **options))
    kind = {"protocol": protocols.ALL, "cluster": clusters.ALL}[what][thing]
    return Factory(_names(kind), kind)


def _pair(sparse: type[Rule], dense: type[Rule]) -> Factory:
    """A rule for the rows and one for the dense parameters; an option goes to each that has it."""

    def make(**options: Any) -> Pair:
        halves = ({name: value for name, value in options.items() if name in _names(half)} for half in (sparse, dense))
        return Pair(sparse=sparse(**next(halves)), dense=dense(**next(halves)))

    return Factory(_names(sparse) | _names(dense), make)


def _names(kind: type) -> frozenset[str]:
    return frozenset({*(field.name for field in fields(kind)), *kind.spelled} - {*kind.spelled.values()})


def _split_dotted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
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


def _make(factory: Factory, whole: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Any:
    made = factory.make(**{name: value for name, value in whole.items() if name in factory.options})
    for option, changes in parts.items():
        if option not in factory.options:
            continue
        part = getattr(made, option)
        if not is_dataclass(part):
            raise BadOption(f"{option} is {part!r}, which has no options of its own")
        for name in changes:
            if name not in _names(type(part)):
                raise unknown_option(option, name, _names(type(part)))
        made = replace(made, **{option: replace(part, **check(type(part), changes, needs_units=True))})
    return made


def _unknown(option: str, value: Any, factories: list[Factory], things: list[Any]) -> UnknownOption:
    for thing in things:
        if is_dataclass(thing) and not isinstance(thing, Factory) and option in _names(type(thing)):
            return UnknownOption(
                f"{option!r} is an option of {thing.name!r}, which was given as an object: set it there, as in "
                f"{type(thing).__name__}({option}={value!r})"
            )
    return unknown_option("this run", option, {"seed", "samples", *SHORT}.union(*(each.options for each in factories)))
