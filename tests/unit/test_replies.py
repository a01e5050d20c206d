# SPDX-License-Identifier: Apache-2.0
"""What a worker writes is not trusted: any bytes are either a well-formed reply or refused, and change nothing else."""

from __future__ import annotations

import ctypes

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsandbox import marshal
from nvsandbox._core import lib


class Frame(ctypes.Structure):
    """As csrc/protocol.h has it (struct nvs_reply)."""

    _fields_ = [
        ("status", ctypes.c_uint32),
        ("data_len", ctypes.c_uint32),
        ("strings_len", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("result", ctypes.c_uint64),
        ("padding", ctypes.c_uint64),
    ]


def reply(data: bytes, strings: bytes = b"", **fields: int) -> memoryview:
    header = Frame(**{"data_len": len(data), "strings_len": len(strings), **fields})
    return memoryview(bytes(header) + data + strings)


@given(st.binary(max_size=200))
def test_any_bytes(content):
    try:
        parsed = marshal.parse_reply(memoryview(content))
    except marshal.BrokenReply:
        return
    assert marshal.REPLY_SIZE + len(parsed.data) + len(parsed.strings) == len(content)


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_lengths_that_do_not_add_up(data, strings, data_len, strings_len):
    content = reply(data, strings, data_len=data_len, strings_len=strings_len)
    if data_len + strings_len == len(data) + len(strings):
        assert len(marshal.parse_reply(content).data) == data_len
    else:
        with pytest.raises(marshal.BrokenReply):
            marshal.parse_reply(content)


@given(st.binary(max_size=64), st.integers(0, 2**63 - 1))
def test_strings_stay_inside(strings, offset):
    parsed = marshal.parse_reply(reply(b"", strings))
    try:
        text = parsed.string(offset)
    except marshal.BrokenReply:
        assert offset >= len(strings) or b"\0" not in strings[offset:]
    else:
        assert strings[offset:].startswith(text + b"\0")


class Guarded(ctypes.Structure):
    """An argument between two walls."""

    _fields_ = [("before", ctypes.c_ubyte * 64), ("value", ctypes.c_uint64 * 4), ("after", ctypes.c_ubyte * 64)]


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_only_the_argument_is_written(data):
    memory = Guarded(before=(ctypes.c_ubyte * 64)(*[0xAA] * 64), after=(ctypes.c_ubyte * 64)(*[0xBB] * 64))
    call = marshal.Call("nvmlTest", (ctypes.byref(memory.value),))
    before = bytes(memory.value)
    try:
        call.accept(marshal.parse_reply(reply(data)))
    except marshal.BrokenReply:
        assert len(data) != 32
        assert bytes(memory.value) == before
    else:
        assert bytes(memory.value) == data
    assert bytes(memory.before) == b"\xaa" * 64
    assert bytes(memory.after) == b"\xbb" * 64


def gpm_request() -> tuple[marshal.Call, pynvml.c_nvmlGpmMetricsGet_t]:
    request = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1)
    return marshal.Call("nvmlGpmMetricsGet", (ctypes.byref(request),)), request


@given(st.integers(0, 2**64 - 1), st.binary(max_size=32))
@settings(max_examples=300)
def test_string_pointers_never_come_from_the_worker(value, strings):
    """Whatever stands in the place of a C string, the caller gets NULL, its own pointer or one to memory of ours."""
    call, request = gpm_request()
    metric = request.metrics[0]
    place = type(request).metrics.offset + type(metric).metricInfo.offset
    data = bytearray(bytes(request))
    data[place : place + 8] = value.to_bytes(8, "little")
    try:
        call.accept(marshal.parse_reply(reply(bytes(data), strings)))
    except marshal.BrokenReply:
        return
    found = ctypes.c_void_p.from_buffer(request, place).value
    if value == 0:
        assert found is None
    else:
        assert value >> 63
        assert request.metrics[0].metricInfo.shortName == strings[value & 2**63 - 1 :].split(b"\0")[0]


@given(st.integers(0, 2**64 - 1))
def test_pointers_of_the_caller_stay(value):
    samples = (ctypes.c_ulonglong * 2)(1, 2)
    sample = pynvml.c_nvmlNvlinkTelemetrySample_v1_t(sampleCount=2)
    sample.samples = samples
    call = marshal.Call("nvmlTest", (ctypes.byref(sample),))
    length = len(call.frame(1)) - len(call.frame(1)[: -len(bytes(sample)) - 16])
    data = bytearray(length)
    place = type(sample).samples.offset
    data[place : place + 8] = value.to_bytes(8, "little")
    call.accept(marshal.parse_reply(reply(bytes(data))))
    assert ctypes.addressof(sample.samples.contents) == ctypes.addressof(samples)


def test_a_string_is_not_longer_than_any_that_a_worker_sends():
    """What is kept for good must not be the worker's to fill the caller's memory with."""
    longest = b"x" * (lib.NVS_STRING_MAX - 1)
    assert marshal.parse_reply(reply(b"", longest + b"\0")).string(0) == longest
    with pytest.raises(marshal.BrokenReply, match="longer"):
        marshal.parse_reply(reply(b"", b"x" + longest + b"\0")).string(0)
