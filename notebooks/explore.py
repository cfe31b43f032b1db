"""Sliders over short simulated runs: which worker waits, how many samples a second that gives, and how old gradients are.

    runs = explore.timing(protocol="gba", workers=16, slowdown=0.6, network="10Gbit/s", batch=64, bound=3)
    explore.panel(protocol="gba", workers=16, slowdown=0.6, network="10Gbit/s", batch=64, bound=3)

Timing runs compute no gradients, so they answer at once; `training` trains the same two runs with real ones.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import ipywidgets
import pandas as pd
from IPython.display import Image, display
from matplotlib.figure import Figure

import lib
from lib import Run
from reports import plots

WORKLOAD = "clicks-light"
BOUNDS = {"gba": "iota", "ssp": "bound", "hop-bs": "bound", "hybrid": "tau", "admission": "lag"}
"""Protocols with a bound on staleness, and its name."""
PROTOCOLS = (*BOUNDS, "async", "bsp", "hop-bw", "local-sgd", "s-easgd", "ds-sync", "all-reduce")
NETWORKS = ("1Gbit/s", "10Gbit/s", "25Gbit/s", "100Gbit/s")
BATCHES = 200
"""Of a timing run, of all workers together; at least four of each worker."""
SHOWN = 6
"""Workers in the timeline."""


@lru_cache(maxsize=64)
def _run(protocol: str, bound: int, workers: int, slowdown: float, network: str, batch: int, **options: Any) -> Run:
    options |= {"worker.bandwidth": network, "server.bandwidth": network}
    options |= {BOUNDS[protocol]: bound} if protocol in BOUNDS else {}
    cluster = {"workers": workers, "slowdown": slowdown, "batch_size": batch}
    return lib.train(WORKLOAD, protocol, "virtual", **cluster, **options, save=False)


def _both(setting: Mapping[str, Any], **options: Any) -> dict[str, Run]:
    """Sync's run and the protocol's; Sync has no bound, so that its run is kept while the slider of the bound moves."""
    sync = {**setting, "protocol": "sync", "bound": 0}
    return {each["protocol"]: _run(**each, **options) for each in (sync, setting)}


def timing(**setting: Any) -> dict[str, Run]:
    """A few updates of Sync and of the protocol in simulated time, without gradients."""
    workers = setting["workers"]
    return _both(setting, gradients=False, samples=max(4, BATCHES // workers) * workers * setting["batch"])


def training(samples: int, **setting: Any) -> dict[str, Run]:
    """The same with real gradients and twenty evaluations."""
    return _both(setting, samples=samples, evaluations=20, trace=False)


def answer(runs: Mapping[str, Run]) -> str:
    """The comparison in a sentence."""
    sync, other = runs["sync"], list(runs.values())[-1]
    name, ratio = list(runs)[-1], other.steady_qps / sync.steady_qps
    return f"{name} trains {ratio:.2f}× as fast as sync; its gradients are {other.summary['staleness_mean']:.1f} updates old."


def spans(runs: Mapping[str, Run]) -> pd.DataFrame:
    """What the first workers do in the time of about four of Sync's updates."""
    workers, seconds = runs["sync"].provenance["cluster"]["workers"], runs["sync"].summary["virtual_seconds"]
    return plots.traces(runs, workers=SHOWN, until=4 * seconds / max(4, BATCHES // workers))


def figures(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Samples a second, and the share of the gradients of each age; a row for each protocol and age."""
    rows = []
    for name, run in runs.items():
        ages = {int(age): count for age, count in run.summary["staleness"].items()}
        speed, total = run.steady_qps, sum(ages.values())
        rows += [(name, speed, age, count / total) for age, count in sorted(ages.items())]
    return pd.DataFrame(rows, columns=["protocol", "samples per second", "age", "share"])


def speed_and_age(data: pd.DataFrame) -> Figure:
    """Draw the table of `figures`: a bar for each protocol's speed, and a histogram of ages in at most twelve steps."""
    width = 1 + data["age"].max() // 12
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 2.2), layout="constrained")
        left, right = fig.subplots(1, 2)
        for name, group in data.groupby("protocol", sort=False):
            tone = plots.colour(name)[0]
            left.barh(name, group["samples per second"].iloc[0] / 1000, color=tone, height=0.6)
            share = 100 * group["share"].groupby(group["age"] // width).sum()
            share = share.reindex(range(share.index.max() + 1), fill_value=0.0)
            edges = [width * step - 0.5 for step in range(len(share) + 1)]
            right.stairs(share, edges, fill=name != "sync", color=tone, linewidth=2, label=name)
        left.invert_yaxis()
        left.set_xlabel("thousand samples per simulated second")
        right.set(xlabel="age of a gradient (updates)", ylabel="% of gradients")
        right.legend(fontsize=9)
    return fig


def panel(samples: int = 40_000, **start: Any) -> ipywidgets.Widget:
    """Sliders, the pictures that follow them, and a button that trains with real gradients."""
    calm, line = {"continuous_update": False}, ipywidgets.Output()
    controls = {
        "protocol": ipywidgets.Dropdown(options=PROTOCOLS, value=start["protocol"]),
        "workers": ipywidgets.IntSlider(start["workers"], 2, 64, **calm),
        "slowdown": ipywidgets.FloatSlider(start["slowdown"], min=0, max=1.5, step=0.1, **calm),
        "network": ipywidgets.SelectionSlider(options=NETWORKS, value=start["network"], **calm),
        "batch": ipywidgets.SelectionSlider(options=(16, 32, 64, 128, 256, 512), value=start["batch"], **calm),
        "bound": ipywidgets.IntSlider(start["bound"], 0, 16, **calm),
    }
    for name, control in controls.items():
        control.description = name
        control.observe(lambda _: show(), "value")
    button, output = ipywidgets.Button(description="Train both"), ipywidgets.Output()
    button.on_click(lambda _: train())

    @output.capture(clear_output=True, wait=True)
    def show() -> None:
        began = time.perf_counter()
        runs = timing(**{name: control.value for name, control in controls.items()})
        pictures = [Image(plots.png(fig)) for fig in (plots.gantt(spans(runs)), speed_and_age(figures(runs)))]
        display(*pictures)
        line.outputs = ()
        line.append_stdout(f"{answer(runs)} (answered in {time.perf_counter() - began:.1f} s)")

    @output.capture(clear_output=True, wait=True)
    def train() -> None:
        runs = training(samples, **{name: control.value for name, control in controls.items()})
        display(Image(plots.png(plots.curves(plots.histories({name: [run] for name, run in runs.items()})))))

    show()
    return ipywidgets.VBox([*controls.values(), button, line, output])
