"""Fits to traces of which everything is known: what is jitter, what is a period, how heavy the tail is, how long it lasts."""

import math
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

import lib
from data_prep.__main__ import main
from data_prep.traces.fitting import fit
from data_prep.traces.formats import Trace
from data_prep.traces.quality import play, quality
from lib import VirtualCluster
from lib.cluster.slowdowns import Empirical, Lognormal, Product, Slowdown, Steady, Transient
from lib.options.yaml_source import load, read

STEP = 10.0


def trace(factors):
    """A trace of one row a worker, one column a step."""
    workers, steps = factors.shape
    columns = {"worker": np.repeat(range(workers), steps), "time": np.tile(np.arange(steps) * STEP, workers)}
    table = pd.DataFrame({**columns, "factor": factors.ravel()})
    return Trace(name="made", table=table, step=STEP, daily=False)


def played(slowdown, workers=6, steps=3_000, seed=0):
    courses = [slowdown.sample_path(seed, f"worker{rank}", rank) for rank in range(workers)]
    return np.array([[course.stretch(step * STEP, 1e-6) / 1e-6 for step in range(steps)] for course in courses])


def transients(fitted):
    return [part for part in fitted.slowdown.parts if isinstance(part, Transient)]


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_jitter_that_does_not_last_is_no_period(sigma, seed):
    fitted = fit(trace(np.exp(sigma * np.random.default_rng(seed).standard_normal((10, 600)))))
    assert transients(fitted) == [] and fitted.remarks == ()
    noise = fitted.slowdown.parts[-1]
    assert sum(s * math.exp(-STEP / seconds) for s, seconds in zip(noise.shares, noise.seconds, strict=True)) < 0.05
    logs = np.log(noise.quantiles)
    assert logs[[1, -4]] == pytest.approx([-2.33 * sigma, 2.33 * sigma], rel=0.15)


@pytest.mark.parametrize("exponent", [1.5, 2.0, 3.0])
def test_a_heavy_tail_keeps_its_quantile(exponent):
    made = trace(1 + np.random.default_rng(0).pareto(exponent, (8, 2_000)))
    fitted = fit(made)
    found = quality(fitted.slowdown, made, seeds=3)
    assert transients(fitted) == [] and found["q99_played"] == pytest.approx(found["q99"], rel=0.15)


@pytest.mark.parametrize("exponent", [1.5, 3.0])
@pytest.mark.parametrize("varies", ["from period to period", "within a period"])
def test_periods_of_a_heavy_tailed_slowness_keep_the_quantile_and_last(varies, exponent):
    generator = np.random.default_rng(0)
    inside = played(Transient(mean_on=200.0, mean_off=2_000.0, factor=2.0), workers=8) > 1.5
    drawn = 1.3 * (1 + generator.pareto(exponent, inside.shape))
    if varies == "from period to period":
        first = inside & ~np.pad(inside, ((0, 0), (1, 0)))[:, :-1]
        drawn = drawn.ravel()[
            np.maximum.accumulate(np.where(first, np.arange(first.size).reshape(first.shape), 0).ravel())
        ]
        drawn = drawn.reshape(inside.shape)
    made = trace(np.where(inside, drawn, 1) * np.exp(0.05 * generator.standard_normal(inside.shape)))
    fitted = fit(made)
    (found,) = transients(fitted)
    assert found.mean_on == pytest.approx(200, rel=0.2)
    # One of a hundred periods is a tail of its own: what one seed plays strays by a fifth, the middle of many does not.
    quantiles = [np.quantile(play(fitted.slowdown, made, seed), 0.99) for seed in range(40, 50)]
    assert np.median(quantiles) == pytest.approx(made.table["factor"].quantile(0.99), rel=0.15)
    told = quality(fitted.slowdown, made, seeds=3)
    assert told["ks"] < 0.05
    if varies == "from period to period":
        assert told["correlation_5_played"] == pytest.approx(told["correlation_5"], abs=0.1)
    else:
        assert "draws its slowness from all samples of the" in fitted.remarks[-1]


@pytest.mark.parametrize("sigma", [0.05, 0.2])
@pytest.mark.parametrize(
    "truth",
    [
        Transient(mean_on=200.0, mean_off=2_000.0, factor=2.0),
        Transient(mean_on=100.0, mean_off=500.0, factor=3.0),
        Transient(mean_on=60.0, mean_off=1_500.0, factor=4.0),
        Transient(mean_on=300.0, mean_off=900.0, factor=1.5),
    ],
)
def test_straggler_periods_are_recovered(truth, sigma):
    made = trace(played(Product(parts=(Steady(factors=(1.0, 1.2, 0.8)), truth, Lognormal(sigma=sigma)))))
    fitted = fit(made)
    (found,) = transients(fitted)
    assert found.factor == pytest.approx(truth.factor, rel=0.05)
    assert found.mean_on == pytest.approx(truth.mean_on, rel=0.2)
    drawn = (played(truth) > 1.2).mean()
    assert found.mean_on / (found.mean_on + found.mean_off) == pytest.approx(drawn, rel=0.08)
    assert fitted.slowdown.parts[0].factors == pytest.approx((1.0, 1.2, 0.8) * 2, rel=0.03)
    told = quality(fitted.slowdown, made, seeds=3)
    assert told["q99_played"] == pytest.approx(told["q99"], rel=0.1) and told["ks"] < 0.05
    assert told["correlation_5_played"] == pytest.approx(told["correlation_5"], abs=0.1)


def test_few_periods_are_told():
    factors = np.exp(0.02 * np.random.default_rng(0).standard_normal((4, 500)))
    factors[2, 100:140] *= 2
    fitted = fit(trace(factors))
    assert transients(fitted)[0].factor == pytest.approx(2, rel=0.02)
    [remark] = fitted.remarks
    assert remark.startswith("one straggler period in all: how long they last, and how often they come, is hardly")


def test_slow_drift_is_noise_that_lasts_and_no_period():
    truth = Empirical(quantiles=tuple(np.exp(0.4 * np.linspace(-2.5, 2.5, 21))), seconds=(200.0,), shares=(0.9,))
    made = trace(played(truth))
    assert transients(fit(made)) == [] and "left to the noise" in fit(made).remarks[0]
    found = quality(fit(made).slowdown, made, seeds=3)
    for lag in (1, 5, 20):
        assert found[f"correlation_{lag}_played"] == pytest.approx(found[f"correlation_{lag}"], abs=0.05)


@pytest.mark.parametrize("step", [1.0, 5e-3, 5e-5])
def test_a_trace_of_any_steps_has_the_fit_of_its_numbers(step):
    """Milliseconds are no less than minutes: the same factors, a step taking so long, last as many steps."""
    generator = np.random.default_rng(0)
    truth = Transient(mean_on=200.0, mean_off=2_000.0, factor=2.0)
    slow = trace(played(truth) * np.exp(0.1 * generator.standard_normal((6, 3_000))))
    table = slow.table.assign(time=slow.table["time"] / STEP * step)
    of_slow, of_quick = (fit(each).slowdown.parts for each in (slow, replace(slow, table=table, step=step)))
    assert len(of_slow) == len(of_quick)
    for one, other in zip(of_slow, of_quick, strict=True):
        for field in fields(one):
            long, short = (np.array(getattr(each, field.name), float) for each in (one, other))
            scale = step / STEP if field.name in ("seconds", "mean_on", "mean_off") else 1
            assert short == pytest.approx(scale * long, rel=0.2)


def test_a_correlation_that_cannot_be_followed_is_told():
    steps = 0.02 * np.random.default_rng(0).standard_normal((4, 1_000))
    turns = np.tile([0.0, 0.3], (4, 500)) + steps
    assert "no sum of exponentials follows how the noise lasts" in fit(trace(np.exp(turns))).remarks[-1]
    walk = fit(trace(np.exp(np.cumsum(steps, 1))))
    assert sum(walk.slowdown.parts[-1].shares) == pytest.approx(1.0)  # not taken as independent
    assert "no sum of exponentials" in walk.remarks[-1]
    short = fit(trace(np.exp(steps[:, :6])))
    assert short.slowdown.parts[-1].seconds == () and "too short to tell how long its noise lasts" in short.remarks[-1]


def test_the_command_writes_what_a_cluster_takes(tmp_path, capsys):
    truth = Transient(mean_on=200.0, mean_off=2_000.0, factor=2.0)
    made = trace(played(Product(parts=(truth, Lognormal(sigma=0.05))), workers=3, steps=1_000)).table
    made.rename(columns={"factor": "took"}).to_csv(tmp_path / "job.csv", index=False)
    out = tmp_path / "slowdown.yaml"
    assert main(["trace", str(tmp_path / "job.csv"), str(out)]) == 0
    printed = capsys.readouterr().out
    assert "fitted to job.csv (batch-times): 3,000 samples of 3 workers, one in 10 s" in printed
    assert out.read_text().startswith(printed) and "autocorrelation at 20 steps" in printed
    slowdown = read(Slowdown, load(out), out)
    assert Slowdown.read(str(out)) == slowdown == VirtualCluster(slowdown=str(out)).slowdown
    run = lib.train("ctr-synthetic", "sync", "virtual", slowdown=str(out), workers=2, samples=512, save=False)
    assert run.summary["samples"] == 512
    assert main(["trace", "--list"]) == 0
    assert capsys.readouterr().out.count("  carries: ") == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "which trace?"),
        (["nowhere.csv"], "nowhere.csv: there is no such file"),
        (["job.csv", "--shared"], "a trace of machines is needed"),
        (["job.csv", "--gap", "-1"], "gap is -1.0; expected seconds, more than 0"),
    ],
)
def test_errors_of_the_command(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.csv").write_text("worker,time,took\n0,1,1\n0,2,1\n")
    assert main(["trace", *arguments]) == 2
    assert sentence in capsys.readouterr().err
