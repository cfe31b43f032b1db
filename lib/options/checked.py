"""Frozen dataclasses whose fields are checked when an object is made, whether a script, a file or the command line makes it.

A field takes what its type says, and what stands for it in plain data: a list for a tuple, numpy's numbers for Python's own, a
mapping of fields or a registered name for an object, a quantity with its unit ("10Gbit/s"). It never takes what would have to be
guessed: a word for a number, a number for a truth value. What is wrong is a `BadField`, with the field's path and what would be
right there. pydantic does the checking.
"""

import functools
import inspect
import typing
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AllowInfNan, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from lib.errors import BadField, BadOption, nearest

Finite = AllowInfNan(False)
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Finite]
NotNegative = Annotated[float, Ge(0), Finite]
Share = Annotated[float, Ge(0), Le(1)]
Text = Annotated[str, MinLen(1)]


class CheckedType(ABCMeta):
    """The type of classes whose fields have their types before the class's own `__post_init__` sees them."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        known = [field for field in fields(cls) if field.init]
        options |= dict(zip((field.name for field in known if not field.kw_only), args, strict=False))
        for field in known:
            if field.name not in options and (default := _default(field)) is MISSING:
                raise BadField(cls.__name__, (field.name,), f": missing; {cls.__name__} needs it")
            options.setdefault(field.name, default if field.name not in options else None)
        return super().__call__(**check(cls, options))


class Checked(metaclass=CheckedType):
    """The base of a frozen dataclass of options."""

    spelled: ClassVar[Mapping[str, str]] = {}
    """Option -> field, for an option whose name a method has taken."""
    plain_name: ClassVar[bool] = False
    """Whether plain data of it says its name, since it is one of several kinds."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in cls.__dict__:  # a dataclass gets its own later
            raise BadOption(
                f"{cls.__name__}: it has an __init__ of its own; make it a dataclass and its options fields: "
                "`@dataclass(frozen=True, kw_only=True)`, then `limit: int = 3`"
            )
        for name in [field.name for field in fields(cls)] if is_dataclass(cls) else ():
            if name in cls.__dict__ and name not in inspect.get_annotations(cls):
                value = show_value(cls.__dict__[name])
                raise BadOption(
                    f"{cls.__name__}: {name} = {value} would not be the option's default, for which a dataclass looks at "
                    f"annotations: write `{name}: ... = {value}`, with its type"
                )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        read = core_schema.no_info_plain_validator_function
        return read(lambda data: data if isinstance(data, cls) else cls.read(data))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what an object has cached is made again in another process, and is no part of a run's name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _reject(self, field: str, right: str) -> None:
        raise BadField(self.error_label(), (field,), f" must be {right}, not {show_value(getattr(self, field))}")

    @classmethod
    def error_label(cls) -> str:
        """What errors call it."""
        name = getattr(cls, "name", None)
        return name if isinstance(name, str) else cls.__name__.lower()

    @classmethod
    def read(cls, data: Any) -> Self:
        """Make an object from plain data: by default from a mapping of its fields."""
        if not isinstance(data, Mapping):
            such = ", ".join(f"{field.name}: ..." for field in fields(cls)[:2])
            raise BadField(
                cls.error_label(), (), f" must be {cls.__name__}'s fields, such as {{{such}}}, not {show_value(data)}"
            )
        return cls(**check(cls, data, needs_units=True))


def read_kind(what: str, kinds: Mapping[str, type], data: Any) -> Any:
    """Make an object of one of several kinds, from a kind's name or from `{name: kind, field: value, ...}`."""
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise BadField(what, (), f" must be the name of a {what}, or its name and fields, not {show_value(data)}")
    if "name" not in data:
        raise BadField(what, ("name",), f": missing; one of {', '.join(kinds)}")
    name = data["name"]
    if not isinstance(name, str) or name not in kinds:
        raise BadField(what, ("name",), f": no {what} is called {name!r}; {nearest(str(name), kinds)}")
    own = {key: value for key, value in data.items() if key != "name"}
    return kinds[name](**check(kinds[name], own, needs_units=True))


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


def check(kind: type[Checked], options: Mapping[str, Any], needs_units: bool = False) -> dict[str, Any]:
    """Check some of a class's fields, and return them as their types want them; `needs_units`: a plain
    number that is beyond sense must say its unit."""
    adapters, owner, result = _adapters(kind), kind.error_label(), {}
    for name, value in options.items():
        if name not in adapters:
            raise BadField(kind.__name__, (name,), f": {kind.__name__} has no such field; {nearest(name, adapters)}")
        option = next((option for option, field in kind.spelled.items() if field == name), name)
        result[name] = _checked(adapters[name], value, owner, option, adapters, needs_units)
    return result


def checked(hint: Any, value: Any, owner: str, name: str) -> Any:
    """Check one value that is no field, and return it as its type wants it."""
    return _checked(_adapter(hint), value, owner, name)


def show_value(value: Any) -> str:
    """A value in an error; a list is a tuple by the time that it is checked."""
    text = repr([*value]) if type(value) is tuple else repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({type(value).__name__})"


@functools.cache
def _adapters(kind: type) -> Mapping[str, TypeAdapter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _adapter(hints[field.name]) for field in fields(kind) if field.init}


@functools.cache
def _adapter(hint: Any) -> TypeAdapter:
    if isinstance(hint, type) and issubclass(hint, Checked):  # pydantic takes no settings for dataclasses
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _checked(
    adapter: TypeAdapter, value: Any, owner: str, name: str, others: Iterable[str] = (), needs_units: bool = False
) -> Any:
    context = {"needs_units": needs_units}
    try:
        return adapter.validate_python(value, context=context)
    except ValidationError:
        pass
    try:
        return adapter.validate_python(_native_tuples(value), context=context)
    except ValidationError as error:
        raise _bad(owner, name, value, error, others) from None


def _native_tuples(value: Any) -> Any:
    """Python's own numbers for numpy's, and tuples for lists, at any depth."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(_native_tuples, value))
    return {name: _native_tuples(item) for name, item in value.items()} if isinstance(value, dict) else value


def _bad(owner: str, name: str, value: Any, error: ValidationError, others: Iterable[str]) -> BadField:
    """One sentence from pydantic's errors, of which there is one for each alternative of a union."""
    found = [(*_locate(value, each["loc"]), each) for each in error.errors(include_url=False)]
    deepest, value, _ = max(found, key=lambda each: len(each[0]))
    found = [each for where, _, each in found if where == deepest]
    path = (name, *deepest)
    for each in found:
        inner = each.get("ctx", {}).get("error")
        if isinstance(inner, BadField):
            alike = next((other for other in others if other != name and other.startswith(name)), None)
            hint = f"; did you mean {alike!r}?" if alike and len(path) == 1 and not inner.path else ""
            return BadField(owner, (*path, *inner.path), inner.problem + hint)
        if isinstance(inner, ValueError):
            return BadField(owner, path, f": {inner}")
    right = " or ".join(dict.fromkeys(map(_expected_value, found)))
    return BadField(owner, path, f" must be {right}, not {show_value(value)}")


def _locate(value: Any, steps: Iterable[int | str]) -> tuple[tuple[int | str, ...], Any]:
    """Where in a field's value an error is, and what stands there; a step that names a union's alternative leads nowhere."""
    path: list[int | str] = []
    for step in steps if isinstance(value, (Mapping, list, tuple)) else ():
        with suppress(LookupError, TypeError):
            path, value = [*path, step], value[step]
    return tuple(path), value


RIGHT = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "finite",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "names and values",
    "mapping_type": "names and values",
    "missing": "a longer list",
    "too_short": "a longer list",
    "too_long": "a shorter list",
    "string_too_short": "a text that is not empty",
    "predicate_failed": "filled in",
    "none_required": "None",
    "literal_error": "{expected}",
    "is_instance_of": "a {class}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
}
"""pydantic's names of what is wrong -> what would be right."""


def _expected_value(error: Mapping[str, Any]) -> str:
    right = RIGHT.get(error["type"], error["msg"].removeprefix("Input should be ")).format(**error.get("ctx", {}))
    return {"at least 0": "0 or more", "above 0": "positive"}.get(right, right)


def _default(field: Field) -> Any:
    """A field's default; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
