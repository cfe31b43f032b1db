"""Traces: strict reading of every format, and fits to small files made here."""

import gzip
import math

import numpy as np
import pandas as pd
import pytest

from data_prep.__main__ import main
from data_prep.traces.fitting import fit, fit_shared
from data_prep.traces.formats import read_trace
from data_prep.traces.quality import better, quality
from lib.cluster.slowdowns import Diurnal, Empirical, Lognormal, Product, Shared, Steady, Transient
from lib.errors import BadOption


def pai(path, slowdown, workers=4, count=400, step=10.0):
    """A job whose workers are slowed down so, in Alibaba PAI's format."""
    rows = []
    for worker in range(workers):
        course = slowdown.sample_path(0, f"worker{worker}", worker)
        rows += [(worker, 20, 1 + k * step, round(1e5 * course.stretch(k * step, 1e-6) / 1e-6)) for k in range(count)]
    table = pd.DataFrame(rows, columns=["worker", "gpu", "time", "batch_time_norm"])
    table.sort_values(["time", "worker"], ignore_index=True).to_csv(path)
    return path


def machines(path, count, days, cpu):
    """Machines of whose CPUs `cpu(machine, time)` per cent are in use, every ten minutes."""
    times = range(0, days * 86_400, 600)
    rows = (f"m_{each},{time},{cpu(each, time):g},80,,,40.0,30.0,5\n" for each in range(count) for time in times)
    path.write_text("".join(rows))
    return path


def usage(path, count=3, days=3):
    """Machines that use 20 % of their CPUs at night and 60 % from noon; the last one has 1.2 times as much to give."""
    noise = np.random.default_rng(0)

    def cpu(machine, time):
        used = (20 if time % 86_400 < 43_200 else 60) + noise.integers(-3, 4)
        return max(0, 100 - 1.2 * (100 - used) if machine == count - 1 else used)

    return machines(path, count, days, cpu)


def operations(path, slow=3, steps=(4, 9), ranks=4, batches=6):
    """Two stages, the second with twice the work; rank `slow` takes three times as long."""
    rows = []
    for rank in range(ranks):
        for step in steps:
            time = 0.0
            for batch in range(batches):
                for kind, seconds in (("forward-compute", 0.1), ("backward-compute", 0.2), ("forward-send", 9.0)):
                    stage = rank * 2 // ranks
                    took = seconds * (1 + stage) * (3 if rank == slow else 1) * (1 + 0.01 * (batch % 3 - 1))
                    rows.append((rank, stage, step, kind, time, took, batch if kind.endswith("compute") else -1))
                    time += took if kind.endswith("compute") else 0
    columns = ["rank", "stage", "step", "optype", "start_ts", "duration", "mb_id"]
    pd.DataFrame(rows, columns=columns).to_parquet(path)
    return path


# Fits of what is known


def test_a_fit_finds_what_a_trace_was_made_of(tmp_path):
    truth = Product(
        parts=(
            Steady(factors=(1.0, 1.2, 0.8, 1.0)),
            Transient(mean_on=200.0, mean_off=3_000.0, factor=2.0),
            Empirical(quantiles=(0.9, 1.0, 1.1), seconds=(30.0,), shares=(0.9,)),
        )
    )
    trace = read_trace(pai(tmp_path / "job.csv", truth, count=3_000))
    steady, transient, noise = fit(trace).slowdown.parts
    assert steady.factors == pytest.approx(truth.parts[0].factors, rel=0.02)
    assert transient.mean_on == pytest.approx(200, rel=0.3) and transient.mean_off == pytest.approx(3_000, rel=0.4)
    assert transient.factor == pytest.approx(2.0, rel=0.05)
    # The 99th percentile: a period of one or two samples is taken for noise.
    assert [noise.quantiles[place] for place in (0, 7, -2)] == pytest.approx([0.9, 1.0, 1.1], abs=0.015)
    lag = sum(share * math.exp(-10 / seconds) for share, seconds in zip(noise.shares, noise.seconds, strict=True))
    assert lag == pytest.approx(0.9 * math.exp(-10 / 30), abs=0.1)
    found = quality(fit(trace).slowdown, trace, seeds=3)
    assert found["ks"] < 0.05 < found["ks_lognormal"] and found["steady"] < 0.05


def test_a_day_is_found_in_machine_usage(tmp_path):
    steady, day, _ = fit(read_trace(usage(tmp_path / "usage.csv"))).slowdown.parts
    assert isinstance(day, Diurnal) and day.period == 86_400
    free = np.array(day.curve)
    assert free[:12] == pytest.approx(0.8, abs=0.03) and free[12:] == pytest.approx(0.4, abs=0.03)
    assert steady.factors == pytest.approx((1, 1, 1 / 1.2), rel=0.02)


def test_sharing_is_found_in_machine_usage(tmp_path):
    truth = Shared(curve=(0.25, 0.4), concentration=12.0, hold=6_000.0)
    courses = [truth.sample_path(0, f"worker{machine}", machine) for machine in range(12)]

    def cpu(machine, time):
        return 100 * (1 - courses[machine].speed(time)[0]) if machine < 12 else 2  # nobody shares the thirteenth

    found = fit_shared(read_trace(machines(tmp_path / "usage.csv", 13, 20, cpu)))
    night, day = found.curve[2:11], found.curve[14:23]  # what is held reaches into the hours at which the mean changes
    assert night == pytest.approx([0.25] * 9, abs=0.04) and day == pytest.approx([0.4] * 9, abs=0.04)
    assert found.concentration == pytest.approx(12, rel=0.1) and found.hold == pytest.approx(6_000, rel=0.1)


@pytest.mark.parametrize("cpu", [2, 60])
def test_machines_that_nobody_shares_are_told(cpu, tmp_path):
    trace = read_trace(machines(tmp_path / "usage.csv", 2, 1, lambda *_: cpu))
    with pytest.raises(BadOption, match="no machine in it is in use by others, to 10% or more and at times more"):
        fit_shared(trace)


def test_a_slow_rank_is_found_in_operations_whatever_its_stage_does(tmp_path):
    steady, noise = fit(read_trace(operations(tmp_path / "trace.parquet"))).slowdown.parts
    assert steady.factors == pytest.approx((1.0, 1.0, 0.5, 1.5), abs=0.01)  # of two ranks, the median lies in between
    assert noise.quantiles[0] == pytest.approx(0.99) and noise.quantiles[-1] == pytest.approx(1.01)


def test_a_trace_without_any_noise_is_steady(tmp_path):
    fitted = fit(read_trace(pai(tmp_path / "job.csv", Steady(factors=(1.0, 2.0)), workers=2, count=5))).slowdown
    assert fitted.parts[0].factors == pytest.approx((2 / 3, 4 / 3), rel=1e-3)
    assert set(fitted.parts[1].quantiles) == {1.0} and fitted.parts[1].seconds == ()


def steps(path, header="host,step,took_s", workers=4, count=300):
    """Steps of workers, one after another, the last worker's twice as long."""
    noise = np.random.default_rng(0)
    rows = [
        f"node{worker},{step},{(2 if worker == workers - 1 else 1) * 0.05 * math.exp(0.2 * noise.standard_normal()):.6f}"
        for step in range(count)
        for worker in range(workers)
    ]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_columns_are_asked_for_by_their_likely_names_and_taken(tmp_path, capsys):
    path = steps(tmp_path / "steps.csv")
    assert main(["trace", str(path)]) == 2
    assert "which columns are they? --columns worker=host,took=took_s" in capsys.readouterr().err
    assert main(["trace", str(path), "--columns", "worker=host,took=took_s"]) == 0
    said = capsys.readouterr().out
    assert "1,200 samples of 4 workers" in said and "name: steady" in said
    trace = read_trace(path, columns={"worker": "host", "took": "took_s"})
    first = trace.table[trace.table["worker"] == 0]
    took = np.loadtxt(path, delimiter=",", skiprows=1, usecols=2)[::4]
    assert first["time"].to_numpy() == pytest.approx(took.cumsum()), "steps follow one another"
    assert main(["trace", str(path), "--columns", "worker=hst,took=took_s"]) == 2
    assert "row 1: no column 'hst' for worker; did you mean 'host'" in capsys.readouterr().err
    assert main(["trace", str(path), "--columns", "rank=host"]) == 2
    assert "--columns names 'rank'; expected worker=..., time=... and took=..." in capsys.readouterr().err


@pytest.mark.parametrize(
    "scale, took, known", [(1, "took_s", 0.05), (1e3, "took_ms", 0.05), (1e3, "took:ms", 0.05), (1e3, "took", None)]
)
def test_a_steps_time_is_read_in_its_unit_and_unknown_where_it_cannot_be_seconds(tmp_path, scale, took, known):
    """Steps of 50 ms, one after another; as seconds 50 would be longer than the time from one step to the next."""
    rows = [f"{worker},{0.05 * step},{0.05 * scale}" for step in range(40) for worker in range(2)]
    (tmp_path / "steps.csv").write_text("\n".join([f"rank,begin,{took.split(':')[0]}", *rows]))
    trace = read_trace(tmp_path / "steps.csv", columns={"worker": "rank", "time": "begin", "took": took})
    assert trace.took == (known and pytest.approx(known)) and trace.step == pytest.approx(0.05)


def test_a_unit_that_is_none_is_refused(tmp_path):
    path = steps(tmp_path / "steps.csv")
    with pytest.raises(BadOption, match="took_s:min ends with 'min'; expected one of s, ms, us, ns"):
        read_trace(path, columns={"worker": "host", "took": "took_s:min"})


def test_a_fit_that_is_worse_than_a_lognormal_says_so_and_is_left_for_it(tmp_path):
    """Of four lognormal workers the slowest of a step is what it is; with one that is slow for good it is not."""
    trace = read_trace(pai(tmp_path / "job.csv", Lognormal(sigma=0.3), count=500))
    kept, said = better(fit(trace).slowdown, trace)
    assert kept == fit(trace).slowdown and not said
    left, said = better(Steady(factors=(1.0, 1.0, 1.0, 3.0)), trace)
    assert isinstance(left, Lognormal) and left.sigma == pytest.approx(0.3, rel=0.05)
    assert "the slowest worker of a step would be off by" in said[0] and "this is the lognormal" in said[0]


# Errors


def job(path):
    """A short one of four workers."""
    return pai(path, Steady(sigma=0.1), count=30)


def broken(path, change):
    """The file, with its lines changed."""
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")
    return path


def put(line, column, value):
    """Puts a value into a cell; lines and columns are counted from 1."""

    def change(lines):
        cells = lines[line - 1].split(",")
        cells[column - 1] = value
        lines[line - 1] = ",".join(cells)

    return change


def drop(first, last):
    def change(lines):
        del lines[first - 1 : last]

    return change


JOBS = [
    (put(1, 5, "seconds"), "job.csv, row 1: no trace that is known here begins so: ',worker,gpu,time,seconds'"),
    (put(1, 2, "rank"), "job.csv, column worker: the column is missing; found"),
    (put(7, 5, "-3"), "job.csv, row 7, column batch_time_norm: expected a positive number, found '-3'"),
    (put(7, 5, "0"), "row 7, column batch_time_norm: expected a positive number, found '0'"),
    (put(9, 5, "fast"), "row 9, column batch_time_norm: expected a finite number, found 'fast'"),
    (put(9, 4, ""), "row 9, column time: expected a finite number, found ''"),
    (put(9, 4, "inf"), "row 9, column time: expected a finite number, found 'inf'"),
    (put(9, 2, ""), "row 9, column worker: no worker is named"),
    (drop(10, 40), "row 11, column time: a gap of 90 seconds before it, and 3 more of over 60; a gap of 90 accepts"),
    (drop(2, 10_000), "job.csv: no rows"),
    (drop(1, 10_000), "job.csv, row 1: no trace that is known here begins so: ''"),
    (drop(6, 10_000), "no worker has two samples at different times"),
    (lambda lines: lines.insert(4, "1,2,3,4,5,6,7"), "not a table of comma-separated values: .*line 5"),
]
MACHINES = [
    (put(5, 3, "101"), r"usage.csv, row 5, column cpu \(3rd\): a CPU use of 101 per cent"),
    (put(5, 3, "-1"), r"row 5, column cpu \(3rd\): expected 0 or more, found '-1'"),
    (put(5, 3, ""), r"row 5, column cpu \(3rd\): expected a finite number, found ''"),
    (put(5, 2, "noon"), r"row 5, column time \(2nd\): expected a finite number, found 'noon'"),
    (put(5, 2, "-1"), r"row 5, column time \(2nd\): expected 0 or more"),
    (drop(20, 26), r"row 20, column time \(2nd\): a gap of 4800 seconds before it, and 0 more of over 3600"),
]


@pytest.mark.parametrize(
    "make, change, words", [*((job, *case) for case in JOBS), *((usage, *case) for case in MACHINES)]
)
def test_a_trace_that_cannot_be_names_its_row_and_column(make, change, words, tmp_path):
    with pytest.raises(BadOption, match=words):
        read_trace(broken(make(tmp_path / f"{make.__name__}.csv"), change))


def test_a_gap_is_accepted_where_the_other_days_fill_it(tmp_path):
    path = broken(usage(tmp_path / "usage.csv"), drop(20, 50))
    assert read_trace(path, gap=20_000.0).table["time"].size == 3 * 3 * 144 - 31
    path = broken(usage(tmp_path / "usage.csv", count=1, days=1), drop(13, 30))
    with pytest.raises(BadOption, match=r"no sample between 2:00 and 3:00 of any day"):
        read_trace(path, gap=20_000.0)


def of_row_7(duration):
    """Puts the duration into the seventh row."""
    return lambda table: table.assign(duration=table["duration"].where(table.index != 6, duration))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda table: table.drop(columns="duration"), "column duration: the column is missing"),
        (of_row_7(-1.0), "row 7, column duration"),
        (of_row_7(math.nan), "row 7, column duration: .*nan"),
        (of_row_7(0), "row 7, column duration"),
        (lambda table: table.assign(start_ts="soon"), "row 1, column start_ts: expected a finite number, found 'soon'"),
        (
            lambda table: table.drop(index=7),
            "row 7, column optype: a gap: micro-batch 2 of rank 0, step 4, has not one",
        ),
        (
            lambda table: table.query("mb_id != 5 or rank != 2 or step != 9"),
            "mb_id: a gap: rank 2 has 5 .* in step 9, ",
        ),
        (lambda table: table.query("rank != 2 or step != 9"), "mb_id: a gap: rank 2 has 0 .* in step 9, others have 6"),
        (lambda table: table[table["optype"] == "forward-send"], "column optype: no forward-compute and backward"),
    ],
)
def test_operations_that_cannot_be_name_their_row_and_column(tmp_path, change, words):
    path = operations(tmp_path / "trace.parquet")
    change(pd.read_parquet(path)).to_parquet(path)
    with pytest.raises(BadOption, match=words):
        read_trace(path)


def test_files_that_are_not_there_or_no_trace(tmp_path):
    with pytest.raises(BadOption, match=r"job.csv: there is no such file"):
        read_trace(tmp_path / "job.csv")
    (tmp_path / "trace.parquet").write_text("PAR1 no parquet")
    with pytest.raises(BadOption, match=r"trace.parquet: not a parquet file"):
        read_trace(tmp_path / "trace.parquet")
    (tmp_path / "job.csv").write_bytes(b"worker,time,took\xff\n")
    with pytest.raises(BadOption, match=r"row 1: no trace that is known here begins so"):
        read_trace(tmp_path / "job.csv")
    (tmp_path / "job.csv.gz").write_bytes(gzip.compress(b"worker,time,took\n"))
    with pytest.raises(BadOption, match=r"job.csv.gz: this is a gzip file; unpack it, and give the file that is in it"):
        read_trace(tmp_path / "job.csv.gz")
    with pytest.raises(BadOption, match="gap is 0; expected seconds, more than 0"):
        read_trace(pai(tmp_path / "job.csv", Steady()), gap=0)


def test_the_gap_that_is_named_is_accepted(tmp_path):
    path = tmp_path / "job.csv"
    path.write_text("worker,time,took\n" + "".join(f"a,{time},1\n" for time in (0, 10, 20, 1_234_587.5, 1_234_597.5)))
    with pytest.raises(BadOption, match=r"a gap of 1234567.5 seconds before it.* \(--gap 1234568\)"):
        read_trace(path)
    assert len(read_trace(path, gap=1_234_568).table) == 5


def test_times_of_any_job_are_read_whatever_its_workers_are_called(tmp_path):
    path = tmp_path / "job.csv"
    path.write_text("took,worker,time\n" + "".join(f"{3 + 3 * (w == 'b')},{w},{t}\n" for t in (0, 5, 9) for w in "ba"))
    trace = read_trace(path)
    assert trace.table["worker"].tolist() == [0, 0, 0, 1, 1, 1] and trace.table["time"].tolist() == [0, 5, 9] * 2
    assert trace.table["factor"].tolist() == pytest.approx([2 / 3] * 3 + [4 / 3] * 3) and trace.step == 4.5
    path.write_text("worker,time,took\n" + "".join(f"{w},{t},{w}\n" for w in (10, 9) for t in (0, 1)))
    assert fit(read_trace(path)).slowdown.parts[0].factors == pytest.approx((18 / 19, 20 / 19), abs=1e-4)
