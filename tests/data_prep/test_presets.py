"""The presets against the samples that they were fitted to, and against others of the same clusters."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from data_prep.traces.fitting import fit, fit_shared
from data_prep.traces.formats import read_trace
from data_prep.traces.quality import distance, play, quality
from lib.cluster.slowdowns import Diurnal, Product, Steady, Transient, presets
from lib.errors import BadOption
from lib.options.checked import to_plain

FILES = {
    "alibaba-pai-job-1": ("job_1_norm.csv", None),
    "alibaba-pai-job-2": ("job_2_norm.csv", None),
    "alibaba-machines-2018": ("alibaba_v2018_machine_usage.16machines.csv", 27_000),
    "alibaba-shared-2018": ("alibaba_v2018_machine_usage.16machines.csv", 27_000),
    "bytedance-64-gpus": ("bytedance_trace-AR.parquet", None),
}


@pytest.fixture
def traced(samples):
    """The trace that a preset was fitted to."""
    return lambda name: read_trace(samples / "traces" / FILES[name][0], FILES[name][1])


LIMITS = {
    # (ks, largest error of a worker's median, largest error of the autocorrelation at 1, 5 and 20 steps)
    "alibaba-pai-job-1": (0.05, 0.03, 0.10),
    "alibaba-pai-job-2": (0.05, 0.01, 0.08),
    "alibaba-machines-2018": (0.07, 0.06, 0.15),
    "bytedance-64-gpus": (0.02, 0.01, 0.05),
}


def test_every_preset_has_its_limits_its_source_and_says_how_far_it_carries():
    assert set(FILES) == set(presets())
    assert set(LIMITS) == {name for name, preset in presets().items() if isinstance(preset.slowdown, Product)}
    assert all("github.com/" in preset.source or "OSDI" in preset.source for preset in presets().values())
    assert all("(KS)" in preset.carries or "nobody knows" in preset.carries for preset in presets().values())


@pytest.mark.parametrize("name", LIMITS)
def test_a_preset_is_the_fit_to_its_sample_and_the_fit_is_good(name, traced):
    preset = presets()[name]
    trace = traced(name)
    for fitted, shipped in zip(fit(trace).slowdown.parts, preset.slowdown.parts, strict=True):
        if isinstance(shipped, Diurnal):
            fitted, shipped = Steady(factors=fitted.curve), Steady(factors=shipped.curve)
        one, other = to_plain(fitted), to_plain(shipped)
        assert one.keys() == other.keys() and one.pop("name") == other.pop("name")
        assert all(one[field] == pytest.approx(other[field], rel=1e-3) for field in one)
    found = quality(preset.slowdown, trace, seeds=6 if trace.daily else 10)
    ks, steady, correlation = LIMITS[name]
    assert found["ks"] < ks < found["ks_lognormal"]
    assert found["steady"] < steady
    for lag in (1, 5, 20):
        assert found[f"correlation_{lag}_played"] == pytest.approx(found[f"correlation_{lag}"], abs=correlation)


def test_the_sharing_preset_is_the_fit_to_its_sample_and_follows_its_distribution(traced):
    preset = presets()["alibaba-shared-2018"]
    trace = traced("alibaba-shared-2018")
    found = fit_shared(trace)
    assert found.curve == pytest.approx(preset.slowdown.curve, rel=1e-3)
    assert (found.concentration, found.hold) == pytest.approx((preset.slowdown.concentration, preset.slowdown.hold))
    in_use = trace.table["factor"].groupby(trace.table["worker"]).transform("median") > 1 / 0.9
    shared = replace(trace, table=trace.table[in_use].reset_index(drop=True))
    ours = quality(preset.slowdown, shared, seeds=3)
    assert ours["ks"] < 0.06 < ours["ks_lognormal"]
    # One hold time is too slow for the first minutes and too fast for hours.
    assert ours["correlation_1_played"] > ours["correlation_1"]
    assert ours["correlation_20_played"] < ours["correlation_20"]


def test_the_machines_sample_has_gaps_and_says_so(samples):
    with pytest.raises(BadOption, match=r"16machines.csv, row \d+, column time \(2nd\): a gap of 26660 seconds"):
        read_trace(samples / "traces" / "alibaba_v2018_machine_usage.16machines.csv")


def test_in_the_samples_the_straggler_strays_and_the_workers_differ():
    first, second = (presets()[f"alibaba-pai-job-{number}"].slowdown for number in (1, 2))
    assert any(isinstance(part, Transient) for part in first.parts)
    assert not any(isinstance(part, Transient) for part in second.parts)
    steady = [max(each.parts[0].factors) / min(each.parts[0].factors) for each in (first, second)]
    assert steady[1] > 1.3 > steady[0]


def test_how_far_the_jobs_carry(samples, traced):
    """Each job's preset, played for the other; and by how much the workers of a hundred other jobs differ."""
    jobs = {name: traced(name) for name in ("alibaba-pai-job-1", "alibaba-pai-job-2")}
    spread = {}
    for name, other in zip(jobs, reversed(jobs), strict=True):
        trace = jobs[other]
        others = np.concatenate([play(presets()[name].slowdown, trace, seed) for seed in range(5)])
        found = distance(trace.table["factor"], others)
        said = re.search(r"the other of these two jobs is at a distance \(KS\) of (0\.\d+)", presets()[name].carries)
        assert found == pytest.approx(float(said[1]), abs=0.02)
        times = trace.table.groupby("time")["factor"]
        spread[other] = (times.std() / times.mean()).mean()
    jobs_there = pd.read_csv(samples / "traces" / "coefficient_variation.csv", index_col=0).mean(axis=1)
    assert len(jobs_there) == 100 and list(spread.values()) == pytest.approx([0.09, 0.06], abs=0.005)
    assert (jobs_there < min(spread.values())).mean() == pytest.approx(1 / 3, abs=0.1)
    assert jobs_there.quantile(0.75) == pytest.approx(0.61, abs=0.01)


def test_how_far_the_machines_carry(traced):
    """Fitted to half of the busy machines, and played for the other half; four halves."""
    whole = traced("alibaba-machines-2018")
    busy = [machine for machine in range(16) if machine not in (1, 14)]

    def only(machines):
        table = whole.table[whole.table["worker"].isin(machines)].reset_index(drop=True)
        return replace(whole, table=table.assign(worker=pd.factorize(table["worker"], sort=True)[0]))

    generator, found = np.random.default_rng(0), []
    for _ in range(4):
        order = generator.permutation(busy)
        one, other = only(order[:7]), only(order[7:])
        found.append([distance(other.table["factor"], play(s, other, 0)) for s in (fit(one).slowdown, fit_shared(one))])
    for name, column in zip(("alibaba-machines-2018", "alibaba-shared-2018"), np.transpose(found), strict=True):
        said = re.search(r"at a distance \(KS\) of ([\d.]+) to ([\d.]+)", presets()[name].carries)
        assert [column.min(), column.max()] == pytest.approx([float(said[1]), float(said[2])], abs=0.01)
