"""The network of a workload: one by its registered name, or a class of the user's own, also as "my_file.py:MyNetwork"."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from torch import nn

from lib.errors import BadField, BadOption
from lib.options import own_file

Network = str | type[nn.Module]


def resolved(network: Network, known: Mapping[str, type[nn.Module]], base: type[nn.Module], owner: str) -> Network:
    """The name of a known one, or the user's own class, which extends `base`."""
    if network in known:
        return network
    if isinstance(network, str):
        if not own_file.is_file(network):
            *others, last = map(repr, known)
            own = f"a class that extends {base.__module__}.{base.__name__} may stand there too, or its file"
            raise BadField(owner, ("model",), f" must be {', '.join(others)} or {last}, not {network!r}; {own}")
        network = own_file.load(network, "model", base)
    if not isinstance(network, type) or not issubclass(network, base):
        raise BadOption(f"{owner}: model {network!r} does not extend {base.__module__}.{base.__name__}")
    return network


def made(kind: type[nn.Module], **shape: Any) -> nn.Module:
    """A network, which gets of its shape what its constructor names."""
    return kind(**{name: shape[name] for name in signature(kind).parameters if name in shape})
