"""What the server of warm kernels imports, and reads, once for all of them."""

from importlib import import_module

from lib.results import key

for name in (
    *("torch", "numba", "scipy.stats", "seaborn", "pyarrow.parquet", "ipykernel.kernelapp", "reports.plots"),
    *("lib.training.sweep", "lib.cluster.virtual", "lib.cluster.local"),
    *("lib.drivers.server_loop", "lib.drivers.replica_loop", "lib.drivers.pipeline_loop"),
):
    import_module(name)
key.engine()  # parses all of lib, for the names of runs
