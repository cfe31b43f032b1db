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


def interrupted(kernel, code):
    """The error's name when a person presses stop while the code runs."""
    manager, client = kernel
    client.execute(code, stop_on_error=False)  # else the kernel drops what is asked soon after the error
    time.sleep(1.5)
    manager.interrupt_kernel()
    return client.get_shell_msg(timeout=300)["content"]["ename"]


THREADS = "import threading; print([t.name for t in threading.enumerate() if 'lockstep' in t.name])"


def test_train_then_interrupt_then_train_again(kernel):
    _, client = kernel
    train = 'print(lib.train("{}", "gba", "{}", workers=4, samples={}, save=False).summary["issued"])'
    assert execute(client, "import lib\n" + train.format("quadratic", "virtual", 320)) == ("10\n", None)
    for cluster in ("virtual", "local"):
        assert interrupted(kernel, train.format("ctr-synthetic", cluster, 50_000_000)) == "KeyboardInterrupt"
        assert execute(client, THREADS) == ("[]\n", None)
        assert execute(client, train.format("quadratic", cluster, 320))[0].startswith("10")


def test_sweep_then_interrupt_then_sweep_again(kernel):
    _, client = kernel
    jobs = 'jobs = [dict(workload="quadratic", protocol="gba", cluster="virtual", workers=2, seed=s) for s in range(4)]'
    sweep = "lib.sweep([{{**job, 'samples': {}, 'save': False}} for job in jobs], processes=2)"
    short = f"print([run.summary['samples'] for run in {sweep.format(320)}])"
    assert execute(client, f"import lib\n{jobs}\n{short}") == ("[320, 320, 320, 320]\n", None)
    assert interrupted(kernel, sweep.format("10**9")) == "KeyboardInterrupt"
    assert execute(client, short) == ("[320, 320, 320, 320]\n", None)


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
