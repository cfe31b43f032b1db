"""What Persia's experiments train, in which modes and on which machines; each next to what the paper says of it.

The paper names its machines, networks and dense parameters, and neither batches nor optimisers nor the rows' width. A row of 16
numbers is what Criteo's 540 million sparse parameters come to over its 34 million ids. Nothing here is fitted to a result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lib import Device, Lognormal, Node, Rule, Uplink, VirtualCluster, Workload, workloads
from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import Async, Frozen, Sync
from lib.protocols.persia import Hybrid
from lib.tasks import prepared_datasets
from lib.tasks.workload import dense_parameters
from notebooks import clusters, setting, study
from notebooks.planted_control import CONTROL, PlantedControl

TAU = 4
"""Batches that are read ahead: "less than 5 for most cases" (Sec. 5)."""

FAR = 32
"""The same for what the paper calls PaddlePaddle's "more aggressive asynchronicity" (Sec. 6.2): our reading, and our number."""

MODES: Mapping[str, Rule] = {
    "sync": AllReduce(),
    "sync on servers": Sync(),
    "hybrid (raw)": Hybrid(tau=TAU, buckets=1),
    "hybrid": Hybrid(tau=TAU),
    "async": Async(pull_ahead=TAU),
    "async (32)": Async(pull_ahead=FAR),
    "frozen": Frozen(),
    CONTROL: PlantedControl(dropped=0.25),
}
"""Figure 3's four modes, sync with the dense part on servers as XDL has it, PaddlePaddle's as we read it, and what trains
nothing: from there to sync is all that can be lost. Async reads as far ahead as the hybrid does, so that the dense part alone
distinguishes them. The planted control loses 0.028 of what training brings on Criteo, 0.026 on Taobao and 0.043 on Avazu, where
the margin is 0.01 (`planted_control.dose`, one tuning seed)."""

GPUS = 8
"""Workers of Figures 6 and 7 (Sec. 6.1)."""

DENSE = 12e6
"""Dense parameters of the public tasks (Sec. 6, Table 1)."""

PUBLIC = ("taobao", "avazu", "criteo")
TASKS = (*PUBLIC, "kwai")


def trained(names: Sequence[str] = TASKS) -> list[str]:
    """The tasks that a page trains: all of the names, or for a folder of clicks the public task whose data it holds; for
    other clicks Criteo's."""
    if not setting.data():
        return [*names]
    setting.served(dict.fromkeys(names, "clicks"))
    source = prepared_datasets.Partitions(setting.data()).manifest.get("dataset", "")
    return [next((task for task in PUBLIC if source.startswith(task)), "criteo")]


TABLE_2 = study.paper_table("persia", "table 2")
"""Final test AUC; PaddlePaddle's column stands under the mode that we read it as."""


def learning_task(task: str, samples: int, *, world: int, dense: float = 1.0, rows: float = 1.0) -> Workload:
    """A task that learns, in one pass over five days, Kwai's over seven, and is tested on the day after, as by the paper's splits
    of 80/20 and 85/15; at full 0 samples stand for the paper's. It has so many times its usual learning rates of the network and
    of the rows."""
    small = {"batch_size": 64, "world": world, "hidden": (64, 32)}
    workload = setting.workload(f"{task}-ffnn", "persia", task, samples, **small)
    times = {"dense_optimizer": dense, "row_optimizer": rows}
    rates = {name: replace(kind := getattr(workload, name), lr=kind.lr * by) for name, by in times.items()}
    return replace(workload, **rates)


def small(task: Workload, gpus: int = GPUS) -> VirtualCluster:
    """The paper's machines for a small network: as much slower as it is smaller, so that a step and an all-reduce take as long as
    those of 12 million parameters and 4096 samples."""
    cluster = clusters.persia(gpus)
    shrink = dense_parameters(task) / DENSE
    device = clusters.V100
    device = replace(device, flops=device.flops * shrink * task.batch_size / 4096, memory=device.memory * shrink)
    worker = replace(clusters.scale(cluster.worker, shrink, "bandwidth"), device=device)
    server = clusters.scale(cluster.server, shrink, "bandwidth")
    return replace(
        cluster, servers=2, worker=worker, server=server, slowdown=Lognormal(sigma=0.1)
    )  # the spread: estimate


def job(
    task: str, protocol: str, seed: int, *, samples: int, evaluations: Sequence[float] = (), **rates: float
) -> dict:
    """A run that learns."""
    workload = learning_task(task, samples, world=seed, **rates)
    return study.job(workload, MODES[protocol], small(workload), seed, evaluations=evaluations or study.marks())


A100 = Device(
    flops=9.7e12,  # estimate: half of the data sheet's 19.5 TFLOP/s in single precision, as for the V100
    memory=1.2e12,  # estimate: of the data sheet's 1.555 TB/s
    pcie=24e9,  # PCIe 4.0 x16 less protocol overhead
    capacity=40e9,  # a2-highgpu-8g has A100 of 40 GB
)

WIDTH = 4096
"""Of the first of five hidden layers, each half as wide as the one before it (Sec. 6)."""

PLACES = 4
"""Servers that are simulated; each stands for as many as there are more, with all their cores, memory and links."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One of Table 1's models at full width, for a timing run: ids are real, parameters and gradients have sizes alone."""

    fields: int
    dense_features: int
    dim: int = 16
    cloud: bool = False
    """On Google's machines (Sec. 6, Cluster setup): a worker is an instance of eight A100, whose GPUs share 100 Gbit/s."""

    def workload(self, workers: int, seed: int, *, batch: int, steps: int, width: int = WIDTH) -> Workload:
        """Steps of each worker, with so many samples for a GPU; `width` of the widest layer, by which all others go."""
        size = batch * (8 if self.cloud else 1)
        shape = {"fields": self.fields, "dense_features": self.dense_features, "dim": self.dim, "vocabulary": 50_000}
        shape |= {"hidden": tuple(width >> layer for layer in range(5)), "evaluation_samples": 100}
        samples = {"batch_size": size, "samples": size * workers * steps}
        return workloads.get("criteo-ffnn", **shape, **samples, world=seed)

    def cluster(self, workers: int, wait: float = 0.0) -> VirtualCluster:
        """The paper's machines for that many GPUs; machines that hold rows take `wait` seconds more for each request, many at
        once."""
        cluster = clusters.persia(workers)
        worker, server, each = cluster.worker, cluster.server, 100 / 64  # CPU machines for each GPU
        if self.cloud:
            eight = clusters.scale(A100, 8, "flops", "memory", "pcie")
            worker = replace(worker, device=eight)  # a2-highgpu-8g: 100 Gbit/s
            server = Node(cores=416, flops=server.flops, memory=server.memory, bandwidth=32 * clusters.GBIT)
            each = 30 / 8  # m2-ultramem-416, 32 Gbit/s each
        fold = max(1.0, workers * each / PLACES)
        wide = clusters.scale(server, fold, "memory", "bandwidth")
        # A store has a part for each thread (Sec. 4.2.2), so that all cores work at what one worker asks.
        wide = replace(wide, cores=round(server.cores * fold), core_memory=wide.memory, launch=wait)
        spread = Lognormal(sigma=0.05)  # estimate
        cluster = replace(cluster, servers=PLACES, worker=worker, server=wide, slowdown=spread)
        return cluster if self.cloud else in_machines(cluster)


def in_machines(cluster: VirtualCluster) -> VirtualCluster:
    """Every eight workers are GPUs of a machine, which share its 100 Gbit/s and average among themselves first ("hierarchical",
    Sec. 4.2.3)."""
    ranks = range(cluster.workers)
    machines = (ranks[first : first + GPUS] for first in ranks[::GPUS])
    uplinks = tuple(
        Uplink(nodes=tuple(f"worker{rank}" for rank in each), bandwidth=cluster.worker.bandwidth) for each in machines
    )
    worker = replace(cluster.worker, bandwidth=100e9)  # estimate: NVLink's 150 GB/s less overhead; the paper names none
    return replace(cluster, worker=worker, uplinks=uplinks, collective="hierarchical")


SCALES = {
    "taobao": Scale(fields=16, dense_features=1),
    "avazu": Scale(fields=21, dense_features=0),
    "criteo": Scale(fields=26, dense_features=13),
    "kwai": Scale(fields=43, dense_features=8, dim=128),
    "criteo-syn": Scale(fields=26, dense_features=13, dim=128, cloud=True),
}
"""Kwai's width is not said: with 43 fields of 128 numbers its network of the public tasks' widths has the paper's 34 million."""


def speed_job(
    task: str, protocol: str, workers: int, seed: int, *, wait: float = 0.0, between: bool = False, **shape: int
) -> dict:
    """A timing run; with embedding workers `between` GPUs and servers, on as many machines more (Sec. 4.1)."""
    scale, options = SCALES[task], {"embedding_workers": PLACES} if between else {}
    workload, cluster = scale.workload(workers, seed, **shape), scale.cluster(workers, wait)
    return study.job(workload, MODES[protocol], cluster, seed, gradients=False, **options)
