"""Where a protocol runs: every cluster by its name."""

from lib.options.registry import Registry

ALL = Registry(
    "cluster",
    {
        "virtual": "lib.cluster.virtual:VirtualCluster",
        "local": "lib.cluster.local:LocalCluster",
        "ray": "lib.cluster.ray.cluster:RayCluster",
    },
)
