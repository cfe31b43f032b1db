"""Quantities with units: read to the last bit, told in errors, and asked for where a plain number is beyond sense."""

import re
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

import lib
from lib.errors import BadField, BadOption, UnknownOption, nearest
from lib.options import units
from lib.options.registry import field_descriptions
from lib.options.yaml_source import parse, read
from tests.options.kinds import kinds


@pytest.mark.parametrize(
    "text, unit, number",
    [
        ("50us", units.SECONDS, 50e-6),
        ("2 ms", units.SECONDS, 0.002),
        ("1.5h", units.SECONDS, 5400.0),
        ("10Gbit/s", units.RATE, 1.25e9),
        ("10 Gbps", units.RATE, 1.25e9),
        ("25 GB/s", units.RATE, 25e9),
        ("1e2MB/s", units.RATE, 1e8),
        ("2GiB", units.BYTES, 2**31),
        ("20 GFLOP/s", get_args(units.Speed)[-1], 20e9),
    ],
)
def test_a_quantity_is_its_plain_number_to_the_last_bit(text, unit, number):
    found = unit.read(text)
    assert found == number and type(found) is type(number)


@pytest.mark.parametrize("text", ["10Gb/s", "10Gbit", "fast", "10", "Gbit/s", "10 ms"])
def test_what_is_no_quantity_of_the_unit_is_told_with_one_that_is(text):
    words = rf"bandwidth must be a number of bytes a second, such as 10Gbit/s or 25 GB/s, not '{text}'"
    with pytest.raises(BadField, match=words):
        lib.Node(bandwidth=text)


def test_options_files_and_objects_take_them_alike():
    by_options = {"worker.latency": "50us", "network": "10Gbit/s"}
    given = {"workers": 2, "samples": 640, "save": False, "gradients": False}
    run = lib.train("ctr-synthetic", "gba", "virtual", **given, **by_options)
    of = run.provenance
    assert of["cluster"]["worker"]["bandwidth"] == of["cluster"]["server"]["bandwidth"] == 1.25e9
    assert of["cluster"]["worker"]["latency"] == 50e-6
    read = lib.VirtualCluster.read(parse("worker: {latency: 50us, bandwidth: 10 Gbit/s}", "a.yaml"))
    assert read.worker == lib.Node(latency=50e-6, bandwidth=1.25e9) == lib.Node(latency="50us", bandwidth="10Gbit/s")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"network": 10}, r"bandwidth is 10 bytes a second, which is beyond sense: say its unit, as 10Gbit/s"),
        ({"worker.latency": 50}, r"latency is 50 seconds, which is beyond sense: say its unit, as 50us or 2 ms"),
        ({"worker": {"flops": 20}}, r"flops is 20 operations a second, which is beyond sense"),
        ({"worker.launch": "-2 ms"}, r"launch must be 0 or more, not '-2 ms'"),
    ],
)
def test_a_plain_number_beyond_sense_is_asked_for_its_unit(options, words):
    with pytest.raises(BadOption, match=words):
        lib.train("ctr-synthetic", "gba", "virtual", workers=2, samples=640, **options)
    assert lib.Node(bandwidth=10).bandwidth == 10, "who makes the object knows what it is"
    with pytest.raises(BadOption, match="beyond sense"):
        read(lib.VirtualCluster, parse("worker: {bandwidth: 10}", "a.yaml"), "a.yaml")


def test_a_tiny_quantity_that_says_its_unit_is_meant():
    run = lib.train("quadratic", "gba", "virtual", workers=2, samples=64, save=False, **{"worker.bandwidth": "10B/s"})
    assert run.provenance["cluster"]["worker"]["bandwidth"] == 10


SECONDS_OR_BYTES = r"(Mean |Most |Operations per )?(seconds?|bytes) |.*bytes per second"


def test_every_option_whose_words_are_seconds_or_bytes_has_its_unit():
    """The sentence below each field is compared with the field's type."""
    missing = []
    for kind in kinds():
        hints = get_type_hints(kind, include_extras=True)
        for name, text in field_descriptions(kind):
            measured = re.match(SECONDS_OR_BYTES, text, re.IGNORECASE)
            if measured and name in {field.name for field in fields(kind)} and not has_unit(hints[name]):
                missing.append(f"{kind.__name__}.{name}")
    assert not missing


def has_unit(hint):
    its_own = any(isinstance(each, units.Unit) for each in getattr(hint, "__metadata__", ()))
    return its_own or any(map(has_unit, get_args(hint)))


def test_a_network_is_no_model():
    """A workload's field of that name is told as `model`, and is no option beside it."""
    with pytest.raises(BadOption, match=r"bandwidth must be a number of bytes a second, such as .*, not 'dlrm'"):
        lib.train("ctr-synthetic", "gba", "virtual", network="dlrm", samples=640)
    with pytest.raises(UnknownOption, match=r"no option 'worker.bandwidth'"):
        lib.train("ctr-synthetic", "gba", "local", network="10Gbit/s", samples=640)


def test_of_many_names_three_come_first_however_far():
    many = [f"name{number}" for number in range(80)]
    assert nearest("qqq", many).startswith("the nearest are 'name")
    assert nearest("qqq", ["a", "b"]) == "valid: a, b"
