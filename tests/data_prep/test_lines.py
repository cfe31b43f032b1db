"""Every line comes out of exactly one stretch, whatever the stretches and blocks."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import lines
from data_prep.lines import CutOff, Span
from lib.errors import Damaged

texts = st.lists(st.text("ab\r", max_size=9), max_size=12).map("\n".join)


def read(path, size, block):
    return b"".join(each.tobytes() for span in lines.spans(path, size) for each in lines.blocks(span, block))


@settings(
    derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=texts, size=st.integers(1, 40), block=st.integers(1, 40))
def test_stretches_hold_every_line_once(tmp_path, text, size, block):
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode())
    expected = text if not text or text.endswith("\n") else text + "\n"
    assert read(path, size, block) == expected.encode()
    for span in lines.spans(path, size):
        for each in lines.blocks(span, block):
            assert each[-1] == 10
            assert lines.count(each) == each.tobytes().count(b"\n")


@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=st.lists(texts, min_size=1, max_size=3), block=st.integers(1, 40), padding=st.integers(0, 3))
def test_compressed_files_of_several_members(tmp_path, members, block, padding):
    path = tmp_path / "file.gz"
    path.write_bytes(b"".join(gzip.compress(text.encode()) + bytes(padding) for text in members))
    whole = "".join(members).encode()
    assert read(path, 10, block) == (whole if not whole or whole.endswith(b"\n") else whole + b"\n")


@pytest.mark.parametrize("lost", [1, 8, 9, 300])
def test_a_truncated_file_gives_its_whole_lines_and_then_says_so(tmp_path, lost):
    rows = [f"{number:08x},{number * number % 1009}" for number in range(20_000)]
    whole = gzip.compress("\n".join(rows).encode(), mtime=0)
    path = tmp_path / "file.gz"
    path.write_bytes(whole[:-lost])
    got = b""
    with pytest.raises(CutOff, match="truncated gzip") as cut:
        for block in lines.blocks(Span(path), 1 << 14):
            got += block.tobytes()
    assert "\n".join(rows).encode().startswith(got + cut.value.tail)
    if lost <= 8:  # only the checksum and the length are missing
        assert got + cut.value.tail == "\n".join(rows).encode()


def test_damage_is_found_by_the_checksum(tmp_path):
    data = bytearray(gzip.compress(b"one\ntwo\n", mtime=0))
    data[-6] ^= 1
    path = tmp_path / "file.gz"
    path.write_bytes(data)
    with pytest.raises(CutOff, match="damaged gzip"):
        list(lines.blocks(Span(path)))


@pytest.mark.parametrize("name", ["file.txt", "file.gz"])
def test_a_file_without_lines_is_refused_before_it_fills_the_memory(tmp_path, name):
    data = bytes(4 << 20)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(Damaged, match="no line ends within 1 MiB"):
        list(lines.blocks(Span(path), 1 << 16))


def test_head_and_first_line(tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(b"one\r\ntwo\nthree")
    (block,) = lines.blocks(Span(path))
    assert lines.head(block, 2).tobytes() == b"one\r\ntwo\n"
    assert lines.head(block, 0).tobytes() == b""
    assert lines.first_line(path) == b"one"
