"""Fields have their types, whoever makes an object; what is wrong is one sentence that says where and what would be right."""

import inspect
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

import lib
from lib.errors import BadField, BadOption
from lib.options.checked import Checked, Count, NotNegative, Positive, Share, _adapters, check, checked, to_plain
from lib.options.yaml_source import load, parse, read, value
from tests.options.kinds import kinds


@dataclass(frozen=True, kw_only=True)
class Part(Checked):
    size: Count = 1
    rate: Positive = 0.5


@dataclass(frozen=True, kw_only=True)
class Thing(Checked):
    name: ClassVar = "thing"

    workers: Count | None = None
    speeds: tuple[Positive, ...] = ()
    ends: tuple[str, str] = ("a", "b")
    feed: Literal["rule", "split"] = "rule"
    evaluations: Count | Literal["daily"] = 1
    save: bool = True
    worker: Part = field(default=Part())
    nodes: Mapping[str, Part] = field(default_factory=dict)
    links: tuple[Part, ...] = ()
    curve: tuple[Share, ...] | str = "day"
    iota: NotNegative = 3
    anything: Any = None

    def __post_init__(self):
        assert self.workers is None or type(self.workers) is int  # its own checks come after those of the types
        if self.workers == 13:
            raise BadOption("thing: 13 brings bad luck")


@pytest.mark.parametrize(
    "given, words",
    [
        ({"workers": "many"}, "thing: workers must be a whole number, not 'many'"),
        ({"workers": 2.5}, "thing: workers must be a whole number, not 2.5"),
        ({"workers": np.float64(2.5)}, "thing: workers must be a whole number, not "),
        ({"workers": True}, "thing: workers must be a whole number, not True"),
        ({"workers": 0}, "thing: workers must be at least 1, not 0"),
        ({"workers": 13}, "thing: 13 brings bad luck"),
        ({"speeds": 0.5}, "thing: speeds must be a list, not 0.5"),
        ({"speeds": "12"}, "thing: speeds must be a list, not '12'"),
        ({"speeds": [1, 0]}, "thing: speeds[1] must be positive, not 0"),
        ({"speeds": [1, float("inf")]}, "thing: speeds[1] must be finite, not inf"),
        ({"ends": ["a"]}, "thing: ends must be a longer list, not ['a']"),
        ({"ends": ["a", "b", "c"]}, "thing: ends must be a shorter list"),
        ({"feed": "spilt"}, "thing: feed must be 'rule' or 'split', not 'spilt'"),
        ({"evaluations": 0}, "thing: evaluations must be at least 1 or 'daily', not 0"),
        ({"save": "maybe"}, "thing: save must be true or false, not 'maybe'"),
        ({"save": 1}, "thing: save must be true or false, not 1"),
        (
            {"worker": 32},
            "worker must be Part's fields, such as {size: ..., rate: ...}, not 32; did you mean 'workers'?",
        ),
        ({"worker": {"size": "big"}}, "thing: worker.size must be a whole number, not 'big'"),
        ({"worker": {"sise": 1}}, "thing: worker.sise: Part has no such field; did you mean 'size'?"),
        ({"nodes": {"a": {"size": 0}}}, "thing: nodes.a.size must be at least 1, not 0"),
        ({"nodes": 3}, "thing: nodes must be names and values, not 3"),
        ({"links": [{}, {"rate": "x"}]}, "thing: links[1].rate must be a number, not 'x'"),
        ({"curve": [0.5, 2]}, "thing: curve[1] must be at most 1, not 2"),
        ({"curve": 3}, "thing: curve must be a list or text, not 3"),
        ({"iota": "abc"}, "thing: iota must be a number, not 'abc'"),
        ({"iota": list(range(1000))}, "... (list)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(given, words):
    with pytest.raises(BadOption) as error:
        Thing(**given)
    assert words in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(BadOption):
        replace(Thing(), **given)


def test_what_plain_data_means_the_same_is_taken():
    parts = {"nodes": {"a": {"size": 2}}, "links": [{}], "curve": [0.5]}
    made = Thing(workers=np.int64(3), speeds=np.ones(2), iota=1, worker={"size": 3}, **parts)
    objects = {"nodes": {"a": Part(size=2)}, "links": (Part(),), "curve": (0.5,)}
    assert made == Thing(workers=3, speeds=(1.0, 1.0), iota=1.0, worker=Part(size=3), **objects)
    assert [type(each) for each in (made.workers, made.speeds[0], made.iota)] == [int, float, float]
    assert Thing.read(to_plain(made)) == made and to_plain(Thing()) == {}


def test_what_is_missing_or_unknown_is_named_however_it_is_made():
    @dataclass(frozen=True, kw_only=True)
    class Needs(Checked):
        size: Count

    for make in (lambda options: Needs(**options), Needs.read):
        with pytest.raises(BadField, match=r"sise: Needs has no such field; did you mean 'size'?"):
            make({"size": 1, "sise": 1})
        with pytest.raises(BadField, match="size: missing; Needs needs it"):
            make({})


def test_an_own_class_is_checked_without_any_word_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Mine(lib.protocols.ALL["bsp"]):
        share: float = 0.5

        def __post_init__(self):  # does not call the one above
            assert isinstance(self.share, float)

    assert Mine(share=1).share == 1.0
    with pytest.raises(BadOption, match="bsp: share must be a number, not 'much'"):
        Mine(share="much")


def test_one_value_and_an_error_that_travels():
    assert checked(Count, np.int32(3), "it", "n") == 3
    with pytest.raises(BadField, match="it: n must be at least 1, not 0") as error:
        checked(Count, 0, "it", "n")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_every_field_of_every_kind_here_has_a_check():
    ours = kinds()
    assert len(ours) > 60
    for kind in ours:
        if inspect.isabstract(kind) or not is_dataclass(kind):
            continue  # its subclasses have its fields
        assert [*_adapters(kind)] == [each.name for each in fields(kind)], kind
        for name in _adapters(kind):
            if name == "optimizer" and kind.__name__ in ("Centre", "Downpour"):
                continue  # rules know no store: checked when servers open
            with pytest.raises(BadOption):
                check(kind, {name: object()})
                raise AssertionError(f"{kind.__name__}.{name} takes anything")


# YAML


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1e-3", 0.001),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("-.5", -0.5),
        ("-.inf", -math.inf),
        ("010", "010"),
        ("1:30", "1:30"),
        ("0o17", "0o17"),
        ("[1e9, -2E+3, .5e1]", [1e9, -2000.0, 5.0]),
        ("2022-01-01", "2022-01-01"),
        ("1.5.2", "1.5.2"),
        ("e3", "e3"),
        ("{name: adam, lr: 1e-2}", {"name": "adam", "lr": 0.01}),
        ("", None),
        ("true", True),
    ],
)
def test_yaml_as_people_write_it(text, expected):
    assert value(text) == expected and type(value(text)) is type(expected)


@pytest.mark.parametrize(
    "text, words",
    [
        ("a: 1\nb: [1,", "it:3:1: not YAML: "),
        ("a: 1\nb: 2\na: 3", "it:3:1: not YAML: 'a' stands here twice"),
        ("- a: {b: 1, b: 2}", "it:1:13: not YAML: 'b' stands here twice"),
        (
            "\n".join([f"a0: &a0 [{'x,' * 10}]", *(f"a{n}: &a{n} [{f'*a{n - 1},' * 10}]" for n in range(1, 9))]),
            "it:5:5: not YAML: written out, this would be more than 100,000 values",
        ),
        ("&a [*a]", "it:1:1: not YAML: written out, this would be more than 100,000 values"),
        ("!!python/object:os.system {}", "it:1:1: not YAML: could not determine a constructor"),
        ("? [1]\n: 2", "it:1:3: not YAML: "),
    ],
)
def test_what_is_no_yaml_is_told_with_its_place(text, words):
    with pytest.raises(BadOption) as error:
        parse(text, "it")
    assert words in str(error.value)


def test_a_constructor_of_its_own_is_answered_with_what_to_write():
    with pytest.raises(BadOption, match=r"Mine: it has an __init__ of its own; .*limit: int = 3"):

        class Mine(Checked):
            def __init__(self, limit):
                self.limit = limit


def test_a_field_in_a_file_is_told_with_its_path(tmp_path):
    path = tmp_path / "thing.yaml"
    path.write_text("workers: 3\nnodes:\n  a: {size: 2}\n  b:\n    rate: fast\n")
    with pytest.raises(BadOption, match=r"thing\.yaml: nodes\.b\.rate must be a number, not 'fast'"):
        read(Thing, load(path), path)
    with pytest.raises(BadOption, match=r"none\.yaml: cannot be read as text"):
        load(tmp_path / "none.yaml")
