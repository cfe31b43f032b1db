"""What is wrong with a slowdown names the field and what would be right."""

import math

import pytest

from lib import VirtualCluster
from lib.cluster.slowdowns import Diurnal, Empirical, Lognormal, Product, Shared, Slowdown, Steady, Transient, get
from lib.errors import BadOption, UnknownName
from lib.options.checked import to_plain
from lib.options.yaml_source import parse, read

DAY = Diurnal(curve=(1.0, 0.5, 0.25, 0.75), period=10.0, begin=3.0)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Lognormal(sigma=-1), "slowdown 'lognormal': sigma must be 0 or more, not -1"),
        (lambda: Lognormal(sigma=math.inf), "sigma must be finite"),
        (lambda: Lognormal(sigma=True), "sigma must be"),
        (lambda: Steady(sigma=0.1, factors=(1.0,)), "sigma must be 0 where factors are given"),
        (lambda: Steady(factors=(1.0, 0)), r"factors\[1\] must be positive, not 0"),
        (lambda: Steady(factors=2.0), "factors must be a list"),
        (lambda: Transient(mean_on=0, mean_off=1, factor=2), "mean_on must be at least 1e-06, not 0"),
        (lambda: Transient(mean_on=1, mean_off=math.nan, factor=2), "mean_off must be"),
        (lambda: Transient(mean_on=1, mean_off=1, factor="2x"), "factor must be"),
        (lambda: Transient(mean_on=1, mean_off=1, factor=()), "factor must be a number or a longer list"),
        (lambda: Transient(mean_on=1, mean_off=1, factor=(2, 0)), r"factor\[1\] must be positive, not 0"),
        (lambda: Diurnal(curve=(0.5, 0)), r"curve\[1\] must be at least 1e-09"),
        (lambda: Diurnal(curve=()), "curve must be a longer list"),
        (lambda: Diurnal(curve="alibaba"), "curve must be a list, not 'alibaba'"),
        (lambda: Diurnal(curve=(1,), period=0), "period must be"),
        (lambda: Diurnal(curve=(1,), begin=-1), "begin must be"),
        (lambda: Shared(curve=(1,), concentration=0, hold=1), "concentration must be positive, not 0"),
        (lambda: Shared(curve=(1,), concentration=9, hold=0), "hold must be at least 1e-06, not 0"),
        (lambda: Shared(concentration=9, hold=1, curve=(0.5, 1.2)), r"curve\[1\] must be at most 1"),
        (lambda: Shared(concentration=9, hold=1, curve=()), "curve must be a longer list"),
        (lambda: Shared(curve=(1,), concentration=9, hold=1, least=0), "least must be at least 1e-09"),
        (lambda: Shared(curve=(1,), concentration=9, hold=1, period=0), "period must be"),
        (lambda: Shared(curve=(1,), concentration=9, hold=1e-3).scale_time(1e-4), "hold must be at least"),
        (lambda: Empirical(quantiles=(2.0, 1.0)), "quantiles must be at least two in ascending order"),
        (lambda: Empirical(quantiles=(1.0, 2.0), levels=(0, 0.9)), "levels must be as many as the 2 quantiles, from 0"),
        (lambda: Empirical(quantiles=(1, 2, 3), levels=(0, 0, 1)), "levels must be in strictly ascending order"),
        (lambda: Empirical(quantiles=(1, 2), seconds=(1,), shares=(0.5, 0.2)), "shares must be as many as the 1"),
        (lambda: Empirical(quantiles=(1, 2), seconds=(1, 2), shares=(0.5, 0.7)), "at most 1 together"),
        (lambda: Product(parts=()), "parts must be a list of at least one slowdown"),
        (lambda: Product(parts=(DAY, [0.6])), r"parts\[1\] must be the name of a slowdown"),
        (lambda: DAY.scale_time(0), "scale must be positive, not 0"),
        (lambda: Diurnal(curve=24 * (1,), period=1.0).scale_time(1e-9), "period must be at least"),
    ],
)
def test_a_slowdown_that_cannot_be_names_the_field(make, words):
    with pytest.raises(BadOption, match=words):
        make()


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "{name: product, parts: [0.1, {name: transient, mean_on: 1, mean_off: 1, factor: 0}]}",
            "cluster.yaml: slowdown.parts[1].factor must be positive or a list, not 0",
        ),
        (
            "{name: product, parts: [{name: day, curve: [1], periode: 3}]}",
            "parts[0].periode: Diurnal has no such field",
        ),
        (
            "{name: product, parts: [{name: product, parts: [{name: steady, factors: [1, x]}]}]}",
            "slowdown.parts[0].parts[0].factors[1] must be a number, not 'x'",
        ),
        ("{name: product, parts: 3}", "slowdown.parts must be a list, not 3"),
        ("{name: transient, mean_on: 1, mean_off: 2}", "slowdown.factor: missing; Transient needs it"),
        ("{name: transiant}", "slowdown.name: no slowdown is called 'transiant'; did you mean 'transient'?"),
        ("{name: [1]}", "slowdown.name: no slowdown is called (1,)"),
        ("{sigma: 1}", "slowdown.name: missing; one of"),
        ("alibaba-pai", "did you mean 'alibaba-pai-job-"),
        ("{name: alibaba-pai-job-1, scale: -1}", "slowdown.scale must be positive, not -1"),
        ("{name: alibaba-pai-job-1, sigma: 1}", "slowdown.sigma: a preset has no such field"),
        ("[1]", "slowdown must be the name of a slowdown, or its name and fields, not [1]"),
        ("true", "not True"),
        ("null", "not None"),
        ("-0.5", "slowdown.sigma must be 0 or more, not -0.5"),
    ],
)
def test_reading_names_the_path(text, words):
    with pytest.raises(BadOption) as caught:
        read(VirtualCluster, parse(f"slowdown: {text}", "cluster.yaml"), "cluster.yaml")
    assert words in str(caught.value)


def test_a_number_a_name_and_fields_are_read():
    assert Slowdown.read(0.6) == Lognormal(sigma=0.6) == VirtualCluster(slowdown=0.6).slowdown
    assert VirtualCluster(slowdown="bytedance-64-gpus").slowdown == get("bytedance-64-gpus")
    scaled = parse("{name: alibaba-pai-job-1, scale: 1e-3}", "it")
    assert Slowdown.read(scaled) == get("alibaba-pai-job-1", scale=1e-3)
    assert VirtualCluster(slowdown=DAY).slowdown is DAY and Slowdown.read(to_plain(DAY)) == DAY


def test_a_preset_that_is_not_there_names_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'alibaba-machines-2018'"):
        get("alibaba-machines")
