"""A device that this machine does not have, as far as torch can tell: its tensors lie apart, and what goes to and fro is noted.

They lie in a wrapper around the CPU's, and every operation on them is the CPU's own kernel: so a run there has the CPU's bits. As
on a CUDA device an operation on tensors of two devices is an error, but for copies; `.numpy()` is one too. What makes the host
wait for a device is noted by `watch` with the operation's name: `.item()`, `bool()`, `.cpu()`, a copy that is not
`non_blocking`, and what has a size that only the numbers tell.

Torch's own fake tensors would tell shapes and types too, but have no numbers, and without a CUDA build autograd ends the process.
"""

import functools
import threading

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from lib.tasks.flat_model import FlatModel

NAME = "elsewhere"


class Unseen(_DummyBackendModule):
    """Whoever asks torch for an accelerator, as its timers do, finds none."""

    def is_available(self) -> bool:
        return False


DEVICE = torch.device("privateuseone", 0)
"""Torch's own name for what it gets another name for below."""
COPIES = {"copy_", "_to_copy"}
WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim", "_unique2", "allclose"}


class Watch:
    """What the host waits for is noted in `waits` while any thread is in a function that is `watched`: autograd has its own."""

    def __init__(self):
        self._waits, self._inside, self._lock = [], 0, threading.Lock()

    def note(self, name: str) -> None:
        if self._inside:
            self._waits.append(name)

    def watched(self, function, waits):
        self._waits = waits

        def inside(*args):
            self._come(1)
            try:
                return function(*args)
            finally:
                self._come(-1)

        return inside

    def _come(self, step: int) -> None:
        with self._lock:
            self._inside += step


watch = Watch()


class Away(torch.Tensor):
    """A tensor there."""

    @staticmethod
    def __new__(cls, here):
        form = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, here.shape, device=DEVICE, **form)
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return carried_out(operation, args, kwargs or {})


def carried_out(operation, args, kwargs):
    """The operation on the tensors inside, and its results outside again, where they belong."""
    name = operation.overloadpacket.__name__
    if torch.is_inference_mode_enabled() and operation._can_decompose():  # autograd would have done so
        return operation.decompose(*args, **kwargs)
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    strangers = [each for each in tensors if not isinstance(each, Away) and each.dim()]
    if name in COPIES:
        source, target, blocking = _copy(name, args, kwargs)
        if source != target and blocking:
            watch.note(f"{name} from {source} to {target}")
    elif strangers and any(isinstance(each, Away) for each in tensors):
        raise RuntimeError(f"{name}: tensors are on {DEVICE} and on the CPU")
    if name in WAITS or (name == "index" and any(_mask(each) for each in args[1])):
        watch.note(name)
    result = operation(*tree_map(_inside, args), **tree_map(_inside, kwargs))
    if name == "_to_copy" and target == "cpu":
        return result
    if name.endswith("_") and not name.startswith("_"):
        return args[0]
    return tree_map(lambda each: Away(each) if isinstance(each, torch.Tensor) else each, result)


def _copy(name, args, kwargs):
    """From where to where, and whether the host waits for it."""
    if name == "_to_copy":
        source, target = args[0].device, torch.device(kwargs.get("device") or args[0].device)
        return source.type, target.type, not kwargs.get("non_blocking")
    return args[1].device.type, args[0].device.type, not (kwargs.get("non_blocking") or args[2:] == (True,))


def as_on_a_device(monkeypatch) -> None:
    """What a wrapper takes to be like a real device: there is no pinned memory, parameters are views of their vector, and
    autograd adds to a gradient where it lies."""
    if torch.cuda.is_available():
        pytest.skip("torch knows one device at a time, and here is one: see tests/gpu")
    _registered()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    made = FlatModel.__init__

    def add_up(model, *args, **options):
        made(model, *args, **options)
        sizes = [parameter.numel() for parameter in model._parameters]
        for parameter, values in zip(model._parameters, model.vector[: model.size].split(sizes), strict=True):
            if isinstance(values, Away):
                parameter.here = values.here.view(parameter.shape)
            parameter.register_post_accumulate_grad_hook(_into(parameter.grad))

    monkeypatch.setattr(FlatModel, "__init__", add_up)


def _into(gradient):
    def hook(parameter):
        gradient.copy_(parameter.grad)
        parameter.grad = gradient

    return hook


def _inside(each):
    if isinstance(each, torch.device):
        return torch.device("cpu")
    return each.here if isinstance(each, Away) else each


def _mask(index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


@functools.cache
def _registered() -> torch.library.Library:
    """Torch knows the device from now on, in this process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Unseen())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: carried_out(operation, args, kwargs), "PrivateUse1")
    return library
