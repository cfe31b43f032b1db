"""Frozen dataclasses whose fields are checked when an object is made, whoever makes it: a script, a file, the command line.

A field takes what its type says, and what stands for it in plain data: a list for a tuple, numpy's numbers for Python's own, a
mapping of fields or a registered name for an object, a quantity with its unit ("10Gbit/s"). It never takes what would have to be
guessed: a word for a number, a number for a truth value. What is wrong is a `BadField`, with the field's path and what would be
right there. pydantic does the checking.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, Union

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan, ConfigDict, InstanceOf, PlainValidator, Strict, TypeAdapter, ValidationError

from lib.errors import BadField, BadOption, nearest
from lib.options import units

Finite = AllowInfNan(False)
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Finite]
NotNegative = Annotated[float, Ge(0), Finite]
Share = Annotated[float, Ge(0), Le(1)]


class Checked:
    """The base of a frozen dataclass of options. Its fields have their types before its own `__post_init__` sees them."""

    spelled: ClassVar[Mapping[str, str]] = {}
    """Option -> field, for an option whose name a method has taken."""
    plain_name: ClassVar[bool] = False
    """Whether plain data of it says its name, since it is one of several kinds."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in [field.name for field in fields(cls)] if is_dataclass(cls) else ():
            if name in cls.__dict__ and name not in inspect.get_annotations(cls):
                raise BadOption(
                    f"{cls.__name__}: {name} = {shown(cls.__dict__[name])} would not be the option's default, for which a "
                    f"dataclass looks at annotations: write `{name}: ... = {shown(cls.__dict__[name])}`, with its type"
                )
        if (own := cls.__dict__.get("__post_init__")) is None:
            return

        @functools.wraps(own)
        def __post_init__(self: Checked) -> None:
            if type(self).__post_init__ is __post_init__:  # else a subclass has checked already
                _check(self)
            own(self)

        cls.__post_init__ = __post_init__

    def __post_init__(self) -> None:
        if type(self).__post_init__ is Checked.__post_init__:
            _check(self)

    def _reject(self, field: str, right: str) -> None:
        raise BadField(self.owner(), (field,), f" must be {right}, not {shown(getattr(self, field))}")

    @classmethod
    def owner(cls) -> str:
        """What errors call it."""
        name = getattr(cls, "name", None)
        return name if isinstance(name, str) else cls.__name__.lower()

    @classmethod
    def read(cls, data: Any) -> Self:
        """An object from plain data: by default from a mapping of its fields."""
        if not isinstance(data, Mapping):
            such = ", ".join(f"{field.name}: ..." for field in fields(cls)[:2])
            raise BadField(cls.owner(), (), f" must be {cls.__name__}'s fields, such as {{{such}}}, not {shown(data)}")
        return of_fields(cls, data)


def of_fields(kind: type, data: Mapping[str, Any]) -> Any:
    """An object from its fields; unknown and missing ones are errors."""
    known = {field.name: field for field in fields(kind)}
    for name in data:
        if name not in known:
            raise BadField(kind.__name__, (name,), f": {kind.__name__} has no such field; {nearest(name, known)}")
    for name, field in known.items():
        if name not in data and _default(field) is MISSING:
            raise BadField(kind.__name__, (name,), f": missing; {kind.__name__} needs it")
    units.asked(kind, data)
    return kind(**data)


def of_name(what: str, kinds: Mapping[str, type], data: Any) -> Any:
    """An object of one of several kinds, from a kind's name or from `{name: kind, field: value, ...}`."""
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise BadField(what, (), f" must be the name of a {what}, or its name and fields, not {shown(data)}")
    if "name" not in data:
        raise BadField(what, ("name",), f": missing; one of {', '.join(kinds)}")
    name = data["name"]
    if not isinstance(name, str) or name not in kinds:
        raise BadField(what, ("name",), f": no {what} is called {name!r}; {nearest(str(name), kinds)}")
    return of_fields(kinds[name], {key: value for key, value in data.items() if key != "name"})


def to_plain(thing: Any) -> Any:
    """Dicts, lists and scalars; fields that have their default are left out. A kind of several says its name."""
    if is_dataclass(thing):
        own = {
            field.name: to_plain(getattr(thing, field.name))
            for field in fields(thing)
            if getattr(thing, field.name) != _default(field)
        }
        return {"name": thing.name, **own} if getattr(type(thing), "plain_name", False) else own
    if isinstance(thing, Mapping):
        return {str(key): to_plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [to_plain(item) for item in thing]
    return thing


def checked(hint: Any, value: Any, owner: str, name: str) -> Any:
    """One value as its type wants it, for what is no field."""
    try:
        return _validator(hint)(value)
    except ValidationError as error:
        raise _bad(owner, name, value, error) from None


def shown(value: Any) -> str:
    """A value in an error."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({type(value).__name__})"


def _check(thing: Checked) -> None:
    for name, validate in _validators(type(thing)):
        value, unit = getattr(thing, name), units.of(type(thing), name)
        try:
            made = validate(unit.read(value) if unit else value)
        except ValidationError as error:
            spelled = next((option for option, field in thing.spelled.items() if field == name), name)
            bad = _bad(thing.owner(), spelled, value, error, [other.name for other in fields(thing)])
            bad.problem += f": {unit.name}, such as {unit.such}" if unit else ""
            raise BadField(bad.owner, bad.path, bad.problem) from None
        if made is not value:
            object.__setattr__(thing, name, made)


@functools.cache
def _validators(kind: type) -> tuple[tuple[str, Any], ...]:
    """The check of each field; none where annotations name what is only there for a type checker."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError:
        return ()
    return tuple((field.name, _validator(hints[field.name])) for field in fields(kind))


@functools.cache
def _validator(hint: Any) -> Any:
    validate = TypeAdapter(_plain_too(hint), config=_STRICT).validate_python

    def numpy_too(value: Any) -> Any:
        if getattr(value, "shape", None) == ():  # one of numpy's numbers
            value = value.item()
        try:
            return validate(value)
        except ValidationError:
            if (native := _native(value)) is value:
                raise
        return validate(native)

    return numpy_too


_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


def _plain_too(hint: Any) -> Any:
    """The annotation as pydantic is to take it: lists for tuples, plain data for objects of ours, other objects as they are."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        if not issubclass(hint, Checked):
            return InstanceOf[hint]
        return Annotated[Any, PlainValidator(lambda data: data if isinstance(data, hint) else hint.read(data))]
    if origin is tuple:
        return Annotated[tuple[tuple(map(_plain_too, arguments))], Strict(False)]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_plain_too, arguments))]  # noqa: UP007
    if origin is Annotated:
        return Annotated[(_plain_too(arguments[0]), *arguments[1:])]
    if origin in (dict, list, Mapping):
        return origin[tuple(map(_plain_too, arguments))]
    return hint


def _native(value: Any) -> Any:
    """Python's own numbers and lists for numpy's, at any depth."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        made = [_native(item) for item in value]
        return value if all(one is other for one, other in zip(made, value, strict=True)) else made
    return value


def _bad(owner: str, name: str, value: Any, error: ValidationError, others: Sequence[str] = ()) -> BadField:
    """pydantic's errors, one for each way in which a union could have been met, as one sentence."""
    found = [(*_place(value, each["loc"]), each) for each in error.errors(include_url=False)]
    depth = max(len(path) for path, _, _ in found)
    (path, value), *_ = ((path, value) for path, value, _ in found if len(path) == depth)
    found = [each for where, _, each in found if where == path]
    path = (name, *path)
    for each in found:
        inner = each.get("ctx", {}).get("error")
        if isinstance(inner, BadField):
            hint = _meant(name, others) if not inner.path and len(path) == 1 else ""
            return BadField(owner, (*path, *inner.path), inner.problem + hint)
        if isinstance(inner, ValueError):
            return BadField(owner, path, f": {inner}")
    right = " or ".join(dict.fromkeys(_right(each) for each in found))
    return BadField(owner, path, f" must be {right}, not {shown(value)}")


def _meant(name: str, others: Sequence[str]) -> str:
    """Another option of almost the same name."""
    return next((f"; did you mean {other!r}?" for other in others if other != name and other.startswith(name)), "")


def _place(value: Any, steps: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], Any]:
    """Where in a field's value pydantic stood, and what stands there; its steps also name a union's alternatives."""
    path: list[int | str] = []
    for step in steps:
        inside = step in value if isinstance(value, Mapping) else _is_place(step, value)
        if inside:
            path, value = [*path, step], value[step]
    return tuple(path), value


def _is_place(step: int | str, value: Any) -> bool:
    return isinstance(step, int) and isinstance(value, (list, tuple)) and step < len(value)


def _right(error: Mapping[str, Any]) -> str:
    """What would be right, in our words."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _words()["bounds"]:
        sign, bound = _words()["bounds"][kind]
        limit = context[bound]
        return {("at least", 0): "0 or more", ("above", 0): "positive"}.get((sign, limit), f"{sign} {limit:g}")
    if kind == "literal_error":
        return context["expected"]
    if kind == "is_instance_of":
        return f"a {context['class']}"
    return _words()["kinds"].get(kind) or error["msg"].removeprefix("Input should be ").lower()


@functools.cache
def _words() -> Mapping[str, Any]:
    import yaml  # not for options that are right

    return yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))


def _default(field: Field) -> Any:
    """A field's default; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
