"""Values come back as they were, and what is not data is refused by name."""

from __future__ import annotations

import collections
import datetime
import enum
import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.protocol import packing
from fsworker.protocol.packing import NotPacked, Unpackable

pytestmark = pytest.mark.unit

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


class Colour(enum.IntEnum):
    RED = 3


class Name(str):
    pass


class Point(collections.namedtuple("Point", "x y")):
    pass


@given(plain)
def test_plain_data_comes_back_with_its_types(value: Any) -> None:
    found = packing.unpack(packing.pack(value))
    assert found == value
    assert repr(found) == repr(value)  # True is 1, and (1,) no list: tell them apart


def test_nan_and_infinity_come_back() -> None:
    assert math.isnan(packing.unpack(packing.pack(math.nan)))
    assert packing.unpack(packing.pack([math.inf, -0.0])) == [math.inf, -0.0]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Colour.RED, 3),
        (Name("x"), "x"),
        (Point(1, 2), (1, 2)),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({(1, 2): 3}, {(1, 2): 3}),
    ],
)
def test_relatives_of_plain_data_come_as_plain_data(value: Any, found: Any) -> None:
    assert packing.unpack(packing.pack(value)) == found


@pytest.mark.parametrize(
    "dtype", ["<f4", ">f8", "<f2", "|b1", "<i8", "|u1", "<U3", "|S2", "<M8[s]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_arrays_come_back_with_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.dtype(dtype))
    found = packing.unpack(packing.pack(array))
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, shape)
    assert np.array_equal(found, array)


def test_arrays_may_be_written_to_and_need_not_be_contiguous() -> None:
    array = np.arange(12).reshape(3, 4)[:, ::2]
    found = packing.unpack(packing.pack({"x": [array]}))["x"][0]
    assert np.array_equal(found, array)
    found[0, 0] = 9


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int64(-3), np.bool_(True)])
def test_numpy_scalars_come_back(scalar: Any) -> None:
    found = packing.unpack(packing.pack(scalar))
    assert type(found) is type(scalar) and found == scalar


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1, 2}, "a set cannot be sent"),
        (lambda: 0, "function"),
        (Custom(), "Custom cannot be sent"),
        (datetime.datetime(2026, 1, 1), "datetime"),
        (1j, "complex"),
        (2**64, "an integer outside"),
        (-(2**63) - 1, "an integer outside"),
        ("\ud800", "lone surrogate"),
        ({"a": {"b": [Custom]}}, "type cannot be sent"),
        (np.array([object()]), "dtype object cannot be sent"),
        (np.zeros(1, [("a", "i4")]), "cannot be sent"),
    ],
)
def test_what_is_no_data_is_refused_by_name(value: Any, told: str) -> None:
    with pytest.raises(Unpackable, match=told):
        packing.pack(value)


def test_what_is_nested_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unpackable, match=r"deep|recursion|nested"):
        packing.pack(value)
    deep: Any = ()
    for _ in range(3000):
        deep = (deep,)
    with pytest.raises(Unpackable):
        packing.pack(deep)


@given(st.binary(max_size=60))
def test_noise_is_a_value_or_not_packed_but_nothing_else(noise: bytes) -> None:
    try:
        packing.unpack(noise)
    except NotPacked:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x01",  # two values
        b"\xa5abc",  # a cut text
        b"\xa1\xff",  # no UTF-8
        b"\xc1",  # never used by msgpack
        b"\xdd\xff\xff\xff\xff",  # four billion elements announced
        b"\x91" * 3000,  # nested too deep
        b"\xd4\x63\x00",  # an unknown extension
        b"\xd4\x01\xc1",  # a tuple that is none
        b"\xd4\x02\x01",  # an array that is none
        packing.pack(np.zeros(2))[:-1],
        b"\xc7\x06\x02\x93\xa2<i\x90\xc0",  # a dtype that is none
    ],
)
def test_bytes_that_are_not_one_value_are_refused(data: bytes) -> None:
    with pytest.raises(NotPacked):
        packing.unpack(data)


def test_no_packed_bytes_name_code() -> None:
    # An object dtype would let numpy unpickle: frombuffer must refuse it.
    import msgpack

    body = msgpack.packb(["|O", [1], b"\0" * 8])
    with pytest.raises(NotPacked):
        packing.unpack(msgpack.packb(msgpack.ExtType(packing.NDARRAY, body)))
