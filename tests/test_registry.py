"""Names that stand for classes, and are theirs."""

from dataclasses import dataclass

import pytest

from lib import cluster, protocols, workloads
from lib.errors import UnknownName, UnknownOption
from lib.options.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Thing:
    size: int = 1


HERE = Registry("thing", {"thing": f"{__name__}:Thing"})


def test_an_instance_by_its_name():
    assert HERE.make("thing", size=2) == Thing(size=2)
    with pytest.raises(UnknownName, match="unknown thing 'thign'; did you mean 'thing'"):
        HERE.make("thign")
    with pytest.raises(UnknownOption, match="thing 'thing' has no option 'siez'; did you mean 'size'"):
        HERE.make("thing", siez=2)


@pytest.mark.parametrize("registry", [protocols.ALL, cluster.ALL], ids=lambda registry: registry.what)
def test_a_class_stands_under_its_own_name(registry):
    assert {name: kind.name for name, kind in registry.items()} == {name: name for name in registry}


def test_a_workload_has_the_name_that_it_was_asked_for_by():
    assert all(workloads.get(name).name == name for name in workloads.ALL)
    own = {name for name, kind in workloads.ALL.items() if kind.name == name}
    assert own.isdisjoint(workloads.named_entries()) and own | {*workloads.named_entries()} == {*workloads.ALL}
