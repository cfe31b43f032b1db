"""Codecs: within their bounds, bytes that are counted, arrays that are not copied."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lib.cluster.base import nbytes
from lib.errors import BadOption
from lib.store.spec import CODECS, HALF_MAX, Fp16, Fp32, Int8, ScaledFp16, _multiply

SETTINGS = settings(derandomize=True, deadline=None, max_examples=150, database=None)
MOST = np.finfo(np.float32).max
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
BLOCKS = hnp.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(0, 20)), elements=FLOATS)
WILD = hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 20)), elements=st.floats(width=32))


@pytest.mark.parametrize("name", CODECS)
@SETTINGS
@given(block=BLOCKS)
@example(block=np.array([[MOST, 1.0, -MOST]], np.float32))  # 127 steps of its 127th part, rounded, are infinite
def test_a_finite_block_comes_back_within_the_bound(name, block):
    codec = CODECS[name]()
    coded = codec.encode(block)
    back = codec.decode(coded)
    assert back.dtype == np.float32 and back.shape == block.shape
    x = block.astype(np.float64)
    norm = np.abs(x).max(axis=1, keepdims=True, initial=0)
    bound = {
        "fp32": 0 * x,
        "fp16": np.where(np.abs(x) > HALF_MAX, np.abs(x) - HALF_MAX, 2.0**-11 * np.abs(x) + 2.0**-25),
        "scaled-fp16": (2.0**-11 * np.abs(x) + 2.0**-25 * norm / 32768) * (1 + 2.0**-10) + 2.0**-149,
        "int8": norm / 254 * (1 + 2.0**-14) + 2.0**-149,
    }[name]
    with np.errstate(invalid="ignore"):
        assert (np.abs(back.astype(np.float64) - x) <= bound).all()
    widths = {"fp32": (4, 0), "fp16": (2, 0), "scaled-fp16": (2, 4), "int8": (1, 4)}[name]
    blocks = block.shape[0] if name == "int8" or block.size else 0
    assert nbytes(coded) == widths[0] * block.size + widths[1] * blocks


@pytest.mark.parametrize("name", CODECS)
@SETTINGS
@given(block=WILD)
def test_nan_and_infinities_are_defined_and_touch_no_other_number(name, block):
    codec = CODECS[name]()
    back = codec.decode(codec.encode(block))
    assert np.array_equal(np.isnan(back), np.isnan(block))
    infinite, finite = np.isinf(block), np.isfinite(block)
    norm = np.broadcast_to(np.where(finite, np.abs(block), 0).max(axis=1, keepdims=True), block.shape)
    kept = {"fp16": np.full_like(norm, HALF_MAX), "int8": norm}.get(name, np.full_like(norm, np.inf))
    np.testing.assert_allclose(back[infinite], np.sign(block[infinite]) * kept[infinite], rtol=1e-6)
    only_finite = codec.decode(codec.encode(np.where(finite, block, 0).astype(np.float32)))
    assert np.array_equal(back[finite], only_finite[finite])


def test_half_precision_is_the_hardwares():
    """Every pattern of bits in the upper 16 and a spread of the lower: equal to torch's conversion, clamped."""
    low = np.array([0, 1, 0x1000, 0x1001, 0x2FFF, 0xFFFF], np.uint32)
    block = ((np.arange(2**16, dtype=np.uint32) << 16)[:, None] | low).view(np.float32)
    known = ~np.isnan(block)
    expected = torch.from_numpy(block.copy()).clamp(-HALF_MAX, HALF_MAX).half().numpy()
    coded = Fp16().encode(block)
    assert np.array_equal(coded.view(np.uint16)[known], expected.view(np.uint16)[known])
    assert np.array_equal(Fp16().decode(coded), coded.astype(np.float32), equal_nan=True)


@SETTINGS
@given(
    block=hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=FLOATS),
    size=st.integers(1, 30),
)
def test_scaled_blocks_may_have_any_size(block, size):
    codec = ScaledFp16(block=size, kappa=1024.0)
    coded = codec.encode(block)
    assert coded.norms.size == -(-block.size // size)
    padded = np.zeros(coded.norms.size * size)
    padded[: block.size] = np.abs(block.ravel())
    norm = np.repeat(padded.reshape(-1, size).max(axis=1), size)[: block.size].reshape(block.shape)
    bound = (2.0**-11 * np.abs(block.astype(np.float64)) + 2.0**-25 * norm / 1024) * (1 + 2.0**-10) + 2.0**-149
    assert (np.abs(codec.decode(coded).astype(np.float64) - block) <= bound).all()


def test_scaling_saves_what_plain_half_precision_loses():
    """Gradients of 1e-8: below fp16's least number they vanish; scaled by kappa over the norm they keep 11 bits."""
    block = np.random.default_rng(0).normal(0, 1e-9, (64, 16)).astype(np.float32)
    assert not Fp16().decode(Fp16().encode(block)).any()
    back = ScaledFp16().decode(ScaledFp16().encode(block))
    assert np.abs(back - block).max() <= 2.0**-11 * np.abs(block).max() * 1.001


@pytest.mark.parametrize("name", CODECS)
def test_tensors_travel_out_of_band(name):
    """Pickle's protocol 5 hands over the arrays' own memory; what is pickled beside it is a few hundred bytes."""
    codec, buffers = CODECS[name](), []
    message = codec.encode(np.random.default_rng(0).normal(0, 1, (1000, 16)).astype(np.float32))
    text = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    assert len(text) < 600
    assert sum(np.frombuffer(buffer.raw(), np.uint8).nbytes for buffer in buffers) == nbytes(message)
    assert np.array_equal(codec.decode(pickle.loads(text, buffers=buffers)), codec.decode(message))


def test_bytes_are_the_networks():
    coded = Int8().encode(np.ones((10, 16), np.float32))
    assert nbytes(coded) == 200
    assert Fp32().encode(np.ones((10, 16), np.float32)).nbytes == 640


def test_what_cannot_be_encoded_is_named():
    with pytest.raises(BadOption, match=r"a block must be two-dimensional, not of shape \(3,\)"):
        Fp16().encode(np.ones(3, np.float32))
    with pytest.raises(BadOption, match="block must be float32, not float64"):
        Int8().encode(np.ones((3, 1)))
    with pytest.raises(BadOption, match=r"scaled-fp16: kappa must be at most 65504"):
        ScaledFp16(kappa=1e6)


@pytest.mark.parametrize("name", CODECS)
def test_memory_that_is_read_only_is_read(name, recwarn):
    """What Ray brings is."""
    codec, block = CODECS[name](), np.linspace(-2, 2, 24, dtype=np.float32).reshape(6, 4)
    expected = codec.decode(codec.encode(block))
    block.flags.writeable = False
    message = codec.encode(block)
    for array in [message] if isinstance(message, np.ndarray) else [message.codes, message.norms]:
        array.flags.writeable = False
    np.testing.assert_array_equal(codec.decode(message), expected)
    assert not recwarn.list


@pytest.mark.parametrize("factor", [1e39, 1e-42, 3.0])
def test_a_factor_that_float32_has_no_room_for_keeps_its_bits(factor):
    part = np.float32(1e-5 if factor > 1 else 1e5)
    found = _multiply(np.full((1, 2), part, np.float32), np.array([factor])).numpy()
    assert found == pytest.approx(np.full((1, 2), np.float64(part) * factor), rel=1e-6)
