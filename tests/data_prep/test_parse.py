"""The one pass over the bytes, against values by hand and a plain parser."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import parse as p
from data_prep.parse import DECIMAL, HEX, INTEGER, LABEL, NO_NUMBER, NUMBER, SKIP, TEXT, Layout

LAYOUT = Layout(tuple("abcdef"), (LABEL, NUMBER, HEX, INTEGER, TEXT, SKIP), ",", b"a,b,c,d,e,f")


def rows(text: str | bytes, layout: Layout = LAYOUT, buckets: int = 0):
    data = text.encode() if isinstance(text, str) else text
    return p.parse(np.frombuffer(data, np.uint8), layout, data.count(b"\n"), buckets)


def why(text: str | bytes, layout: Layout = LAYOUT):
    """Reason and column of the only row, which is bad."""
    found = rows(text, layout)
    assert len(found.labels) == 0
    ((_, start, end, column, code),) = found.bad.tolist()
    data = text.encode() if isinstance(text, str) else text
    return p.reason(data[start:end], code, layout), layout.names[column]


def test_values_by_hand():
    found = rows("1,-5,ff,-1,x,anything\n0,,,,,\r\n")
    assert found.labels.tolist() == [1, 0]
    assert found.numbers.tolist() == [[-5], [NO_NUMBER]]
    # FNV-1a of "x" is 0xfd0c5087; a code is the value and 2.
    assert found.codes.tolist() == [[255 + 2, 2**32 - 1 + 2, 0xFD0C5087 + 2], [0, 0, 0]]
    assert p.text_value("x") == 0xFD0C5087
    assert found.lines.tolist() == [0, 1]


def test_hundredths_and_null():
    layout = Layout(("price", "brand"), (DECIMAL, INTEGER), ",")
    found = rows("3.9,NULL\n99999999.0,7\n0.019,0\n12,NULL\n,1\n-1.5,1\n", layout)
    assert found.numbers[:, 0].tolist() == [390, 9_999_999_900, 1, 1200, NO_NUMBER, -150]
    assert found.codes[:, 0].tolist() == [0, 9, 2, 0, 3, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2,1,f,1,x,y", ("label is neither 0 nor 1", "a")),
        (",1,f,1,x,y", ("label is neither 0 nor 1", "a")),
        ("01,1,f,1,x,y", ("label is neither 0 nor 1", "a")),
        ("1,1.5,f,1,x,y", ("not a whole number of 32 bits", "b")),
        ("1,2147483648,f,1,x,y", ("not a whole number of 32 bits", "b")),
        ("1,99999999999999999999,f,1,x,y", ("not a whole number of 32 bits", "b")),
        ("1,-,f,1,x,y", ("not a whole number of 32 bits", "b")),
        ("1,1,fg,1,x,y", ("not at most eight hex digits", "c")),
        ("1,1,123456789,1,x,y", ("not at most eight hex digits", "c")),
        ("1,1,f,4294967296,x,y", ("not a whole number of 32 bits", "d")),
        ("1,1,f,1,é,y", ("not ASCII text", "e")),
        (b"1,1,f,1,x,\xff\xfe", ("not UTF-8", "f")),
        (b"1,1,\xff,1,x,y", ("not UTF-8", "c")),
        ("1,1,f,1,x", ("wrong column count", "e")),
        ("1,1,f,1,x,y,z", ("wrong column count", "f")),
        ("", ("label is neither 0 nor 1", "a")),
        ("a,b,c,d,e,f", ("a second header", "a")),
    ],
)
def test_what_is_wrong_is_named(line, reason):
    data = line.encode() if isinstance(line, str) else line
    for ending in (b"\n", b"\r\n"):
        assert why(data + ending) == reason


def test_a_bad_row_leaves_no_trace_in_its_neighbours():
    good = "1,7,a,3,t,s\n"
    found = rows(good + "0,8,zz,4,u,s\n" + "0,9\n" + good + good)
    assert found.lines.tolist() == [0, 3, 4]
    assert [bad[0] for bad in found.bad.tolist()] == [1, 2]
    assert (found.codes == rows(good).codes[0]).all() and (found.numbers == 7).all()


def test_buckets_are_used_evenly_and_differ_between_fields():
    layout = Layout(("a", "b"), (HEX, HEX), ",")
    found = rows("".join(f"{value:x},{value:x}\n" for value in range(10_000)), layout, buckets=100).codes
    assert found.dtype == np.uint32
    assert found.min() == 2 and found.max() == 101
    for field in (0, 1):
        counts = np.bincount(found[:, field])[2:]
        assert counts.min() > 60 and counts.max() < 145  # 100 each, four standard deviations
    assert (found[:, 0] == found[:, 1]).mean() < 0.03


field = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "abc", "NULL", "ffffffff", "123456789", "1.25", " ", "2147483647", "é"]),
    st.integers(-(2**33), 2**33).map(str),
    st.text("0123456789abcdefABCDEF,-.", max_size=9),
)


def plain(line: str):
    """The row of a line, or None."""
    fields = line.removesuffix("\r").split(",")
    if len(fields) != 6 or fields[0] not in ("0", "1"):
        return None
    if not all(text.isascii() and not re.search(r"[\x00-\x1f]", text) for text in fields[4:]):
        return None
    row = [int(fields[0])]
    for text, low, high in ((fields[1], -(2**31) + 1, 2**31 - 1), (fields[3], -(2**31), 2**32 - 1)):
        if text in ("", "NULL"):
            row.append(None)
        elif re.fullmatch(r"-?[0-9]{1,10}", text) and low <= int(text) <= high:
            row.append(int(text))
        else:
            return None
    if not re.fullmatch(r"[0-9a-fA-F]{0,8}", fields[2]):
        return None
    value = p.text_value(fields[4]) + 2 if fields[4] else 0
    number = NO_NUMBER if row[1] is None else row[1]
    category = 0 if row[2] is None else row[2] % 2**32 + 2
    return row[0], number, int(fields[2], 16) + 2 if fields[2] else 0, category, value


@settings(derandomize=True, deadline=None, max_examples=300)
@given(lines=st.lists(st.tuples(st.lists(field, min_size=1, max_size=8), st.booleans()), min_size=1, max_size=6))
def test_it_agrees_with_a_plain_parser(lines):
    texts = [",".join(fields) + ("\r" if crlf else "") for fields, crlf in lines]
    found = rows("".join(f"{text}\n" for text in texts))
    expected = [(at, row) for at, text in enumerate(texts) if (row := plain(text))]
    assert found.lines.tolist() == [at for at, _ in expected]
    got = zip(found.labels.tolist(), found.numbers[:, 0].tolist(), *found.codes.T.tolist(), strict=True)
    assert list(got) == [row for _, row in expected]
    assert sorted([*found.lines.tolist(), *found.bad[:, 0].tolist()]) == list(range(len(texts)))
