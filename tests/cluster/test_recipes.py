"""The recipes for a cluster that others can start, as far as one machine can check them."""

import re
from pathlib import Path

import pytest
import yaml

from lib import paths

FOLDER = paths.root() / "lib" / "cluster" / "ray"


def recipe(name: str) -> dict:
    return yaml.safe_load((FOLDER / name).read_text())


def start_options() -> set[str]:
    """The options of the pinned `ray start`."""
    from ray.scripts.scripts import start

    return {option.removeprefix("--") for each in start.params for option in each.opts if option.startswith("--")}


def test_machines_are_what_ray_s_schema_allows():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = recipe("machines.yaml")
    validate_config(prepare_config(config))
    assert config["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"]) == 9
    with pytest.raises(Exception, match="setup_command"):
        validate_config(prepare_config({**config, "setup_command": []}))


def test_ray_start_knows_every_option():
    machines, pods = recipe("machines.yaml"), recipe("kuberay.yaml")["spec"]
    commands = machines["head_start_ray_commands"] + machines["worker_start_ray_commands"]
    asked = {option for command in commands for option in re.findall(r"--([a-z-]+)", command)}
    groups = [pods["headGroupSpec"], *pods["workerGroupSpecs"]]
    asked |= {option for group in groups for option in group["rayStartParams"]}
    assert {"head", "port", "address", "include-dashboard"} <= asked <= start_options()


def test_pods_have_the_pinned_ray_and_shared_memory():
    pods = recipe("kuberay.yaml")["spec"]
    pinned = re.search(r"^ray==(.+)$", Path(paths.root(), "requirements.txt").read_text(), re.MULTILINE)[1]
    assert pods["rayVersion"] == pinned and pods["workerGroupSpecs"][0]["replicas"] == 9
    for group in (pods["headGroupSpec"], *pods["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        mounted = {each["name"] for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/dev/shm"}
        assert mounted == {each["name"] for each in spec["volumes"] if each["emptyDir"]["medium"] == "Memory"}
