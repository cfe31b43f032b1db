"""A person in a notebook: training inside a running event loop, and the stop button."""

import time

import pytest


@pytest.fixture(scope="module")
def kernel():
    """One for all: after each interrupt it must be as good as new."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code):
    """(printed text, name of the error or None)."""
    printed = []
    reply = client.execute_interactive(
        code, timeout=300, output_hook=lambda message: printed.append(message["content"].get("text", ""))
    )
    return "".join(printed), reply["content"].get("ename")


def test_train_then_interrupt_then_train_again(kernel):
    manager, client = kernel
    small = (
        'run = lib.train("quadratic", "gba", "{}", workers=2, samples=320, save=False); print(run.summary["issued"])'
    )
    assert execute(client, "import lib\n" + small.format("virtual")) == ("10\n", None)
    for cluster in ("virtual", "local"):
        endless = f'lib.train("ctr-synthetic", "gba", "{cluster}", workers=4, samples=50_000_000, save=False)'
        client.execute(endless, stop_on_error=False)  # else the kernel drops what is asked soon after the error
        time.sleep(1.5)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=300)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        printed, error = execute(
            client, "import threading; print([t.name for t in threading.enumerate() if 'lockstep' in t.name])"
        )
        assert (printed, error) == ("[]\n", None)
        printed, error = execute(client, small.format(cluster))
        assert printed.startswith("10")


def test_sweep_then_interrupt_then_sweep_again(kernel):
    manager, client = kernel
    jobs = 'jobs = [dict(workload="quadratic", protocol="gba", cluster="virtual", workers=2, seed=s) for s in range(4)]'
    sweep = (
        "runs = lib.sweep([{**job, 'samples': 320, 'save': False} for job in jobs], processes=2)\n"
        "print([run.summary['samples'] for run in runs])"
    )
    assert execute(client, f"import lib\n{jobs}\n{sweep}") == ("[320, 320, 320, 320]\n", None)
    endless = "lib.sweep([{**job, 'samples': 10**9, 'save': False} for job in jobs], processes=2)"
    client.execute(endless, stop_on_error=False)  # else the kernel drops what is asked soon after the error
    time.sleep(1.5)
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=300)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert execute(client, sweep) == ("[320, 320, 320, 320]\n", None)


def test_a_class_of_a_notebook_is_told_apart_by_its_code(kernel):
    _, client = kernel
    cell = """from lib.protocols.baselines import Async
from lib.training.train import Job
factor = 1
class Mine(Async):
    name = "mine"
    def on_push(self, state, push):
        return super().on_push(state, push) if factor else None
print(Job.of("quadratic", Mine(), "virtual").key)"""
    commented = cell.replace("name =", '"""Mine."""  # a remark\n    name =')
    others = [cell.replace("factor = 1", "factor = 2"), cell.replace("if factor", "if not factor")]
    printed = [execute(client, text) for text in (cell, commented, *others)]
    assert all(error is None for _, error in printed), printed
    keys = [key for key, _ in printed]
    assert keys[0] == keys[1] and len(set(keys)) == 3
