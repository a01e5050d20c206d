# SPDX-License-Identifier: Apache-2.0
"""One scenario for each shape of argument, run on both sides by name. What a scenario returns must be equal."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from . import shapes
from .describe import describe, describe_error

Scenario = Callable[["Bench"], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Registers a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def received(pointer: Any) -> tuple[str, int]:
    """What the library says about the calls since it was last asked: its complaint, empty if there is none, and a
    digest of all that it was given."""
    text = ctypes.create_string_buffer(512)
    pointer("nvmlEchoNote")(text, ctypes.c_uint(512))
    digest = ctypes.c_ulonglong()
    pointer("nvmlEchoDigest")(ctypes.byref(digest))
    return text.value.decode(errors="replace"), digest.value


class Bench:
    """Calls symbols of the echo library with any arguments, and notes all that came of it."""

    def __init__(self, api: Any, pointer: Any, supply: Any) -> None:
        self.api = api
        self.pointer = pointer
        self.supply = supply
        self.log: list[Any] = []

    def expect(self, text: str) -> None:
        """Tells the library what calls will come."""
        self.pointer("nvmlEchoExpect")(text.encode())

    def note(self) -> list[Any]:
        """The library's complaint about the calls since, empty if there is none, and its digest of them."""
        return list(received(self.pointer))

    def call(self, *given: Any, mode: str = "final", result: int = 0, tokens: list[str] | None = None) -> Any:
        """Calls one symbol, and logs its result, its arguments afterwards and the library's complaints."""
        symbol = "nvmlDeviceGetName"
        if tokens is None:
            tokens = [shapes.argument(value).token(mode == "probe", False) for value in given]
        self.expect(" ".join([symbol, str(result), mode, "1", *tokens]) + "\n")
        returned = self.pointer(symbol)(*given)
        self.log.append([returned, *self.note(), *[describe(value, self.supply.identify) for value in given]])
        return returned

    def refused(self, *given: Any) -> None:
        """Calls one symbol with what ctypes is to refuse, and logs how."""
        self.expect("")
        try:
            self.log.append(["accepted", self.pointer("nvmlDeviceGetName")(*given)])
        except Exception as error:
            self.log.append(describe_error(error))

    def handle(self, kind: Any) -> Any:
        """A handle of this type."""
        return self.supply.handle(kind)


@scenario
def pointers_inside_structures(bench: Bench) -> Any:
    for count in (0, 1, 3, 1000):
        info = pynvml.c_nvmlVgpuTypeIdInfo_v1_t(version=1, vgpuCount=count)
        info.vgpuTypeIds = (ctypes.c_uint * count)(*range(count))
        if count:
            bench.call(ctypes.byref(info))
    bench.call(ctypes.byref(pynvml.c_nvmlVgpuTypeIdInfo_v1_t()))


@scenario
def a_pointer_to_a_single_object(bench: Bench) -> Any:
    one = ctypes.c_uint(7)
    info = pynvml.c_nvmlVgpuTypeIdInfo_v1_t(vgpuCount=1)
    info.vgpuTypeIds = ctypes.pointer(one)
    bench.call(ctypes.byref(info))
    return one.value


@scenario
def a_pointer_made_by_cast(bench: Bench) -> Any:
    info = pynvml.c_nvmlProcessDetailList_v1_t(numProcArrayEntries=5)
    info.procArray = ctypes.cast(
        (pynvml.c_nvmlProcessDetail_v1_t * 5)(), ctypes.POINTER(pynvml.c_nvmlProcessDetail_v1_t)
    )
    bench.call(ctypes.byref(info))


@scenario
def structures_behind_pointers_that_hold_pointers(bench: Bench) -> Any:
    inner = (pynvml.c_nvmlNvlinkTelemetrySample_v1_t * 3)()
    for number, sample in enumerate(inner):
        sample.sampleCount = number
        if number:
            sample.samples = (ctypes.c_ulonglong * number)(*range(number))
    outer = pynvml.c_nvmlNvlinkTelemetrySamples_v1_t(telemetryCount=3)
    outer.telemetrySamples = inner
    bench.call(bench.handle(pynvml.c_nvmlDevice_t), ctypes.byref(outer))


@scenario
def a_void_pointer_inside_a_structure(bench: Bench) -> Any:
    buffer = (ctypes.c_ubyte * 100)(*range(100))
    params = pynvml.c_nvmlEventSetGetContextData_v1_t(dataSize=100)
    params.data = ctypes.cast(buffer, ctypes.c_void_p)
    bench.call(ctypes.byref(params))
    return list(buffer)


@scenario
def a_void_pointer_that_is_only_an_address(bench: Bench) -> Any:
    buffer = (ctypes.c_ubyte * 100)(*range(100))
    params = pynvml.c_nvmlEventSetGetContextData_v1_t(dataSize=100)
    params.data = ctypes.addressof(buffer)
    bench.expect("nvmlDeviceGetName 0 final 1 p{P{b100}b8}\n")
    returned = bench.pointer("nvmlDeviceGetName")(ctypes.byref(params))
    return [returned, bench.note(), list(buffer), params.index, params.dataSize]


@scenario
def the_same_array_behind_two_pointers(bench: Bench) -> Any:
    samples = (ctypes.c_ulonglong * 2)(5, 6)
    both = (pynvml.c_nvmlNvlinkTelemetrySample_v1_t * 2)()
    for sample in both:
        sample.samples = samples
    bench.call(both)
    return list(samples)


@scenario
def handles_out_of_structures(bench: Bench) -> Any:
    for kind in (pynvml.c_nvmlEventData_t, pynvml.c_nvmlGpuInstanceInfo_t, pynvml.c_nvmlComputeInstanceInfo_t):
        bench.call(bench.handle(pynvml.c_nvmlEventSet_t), ctypes.byref(kind()))


@scenario
def handles_into_structures(bench: Bench) -> Any:
    data = pynvml.c_nvmlEventData_t(eventType=1)
    data.device = bench.handle(pynvml.c_nvmlDevice_t)
    bench.call(ctypes.byref(data))
    samples = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=2)
    samples.sample1 = bench.handle(pynvml.c_nvmlGpmSample_t)
    samples.sample2 = bench.handle(pynvml.c_nvmlGpmSample_t)
    bench.call(ctypes.byref(samples))
    request = pynvml.c_nvmlSystemRegisterEventRequest_v1_t()
    request.set = bench.handle(pynvml.c_nvmlSystemEventSet_t)
    bench.call(ctypes.byref(request))
    bench.call(ctypes.byref(pynvml.c_nvmlSystemRegisterEventRequest_v1_t()))


@scenario
def arrays_of_handles(bench: Bench) -> Any:
    devices = (pynvml.c_nvmlDevice_t * 20)()
    for index in range(0, 20, 2):
        devices[index] = bench.handle(pynvml.c_nvmlDevice_t)
    bench.call(devices)
    bench.call(ctypes.byref(devices))
    for device in devices:
        bench.call(device)


@scenario
def a_handle_asked_for_twice(bench: Bench) -> Any:
    found = []
    for _ in range(2):
        device = pynvml.c_nvmlDevice_t()
        bench.pointer("nvmlEchoHandle")(shapes.handle_kind(pynvml.c_nvmlDevice_t), 3, ctypes.byref(device))
        found.append(ctypes.cast(device, ctypes.c_void_p).value)
    return found[0] == found[1]


@scenario
def handles_in_whatever_holds_them(bench: Bench) -> Any:
    kind = shapes.handle_kind(pynvml.c_nvmlDevice_t)
    give, identity = bench.pointer("nvmlEchoHandle"), bench.pointer("nvmlEchoIdentity")

    def index_of(given: Any) -> list[int]:
        index = ctypes.c_int(-2)
        return [identity(kind, given, ctypes.byref(index)), index.value]

    void, pointed, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    typed = pynvml.c_nvmlDevice_t()
    cells, others = (ctypes.c_void_p * 3)(), (ctypes.c_void_p * 3)()
    results = [
        give(kind, 1, ctypes.byref(void)),
        give(kind, 2, ctypes.pointer(pointed)),
        give(kind, 3, cells),
        give(kind, 4, ctypes.cast(others, ctypes.POINTER(ctypes.c_void_p))),
        give(kind, 5, ctypes.cast(ctypes.pointer(typed), ctypes.c_void_p)),
        give(kind, 6, ctypes.byref(size)),
    ]
    held = [void, pointed, ctypes.c_void_p(cells[0]), ctypes.c_void_p(others[0]), typed]
    for handle in held:
        number = ctypes.cast(handle, ctypes.c_void_p).value or 0
        results.append(index_of(handle))
        results += [index_of(form(number)) for form in (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong)]
        results.append(index_of(ctypes.cast(number, pynvml.c_nvmlDevice_t)))
    results.append(index_of(size))
    results.append([bool(cell) for cell in (*cells, *others)])
    return results


@scenario
def null_handles(bench: Bench) -> Any:
    bench.call(pynvml.c_nvmlDevice_t())
    bench.call(None, tokens=["h1"])


@scenario
def size_then_fill(bench: Bench) -> Any:
    count = ctypes.c_uint(0)
    device = bench.handle(pynvml.c_nvmlDevice_t)
    returned = bench.call(device, ctypes.byref(count), None, mode="probe", result=7)
    array = (pynvml.c_nvmlProcessInfo_t * count.value)()
    bench.call(device, ctypes.byref(count), array)
    return [returned, count.value]


@scenario
def no_arguments_and_none(bench: Bench) -> Any:
    bench.call()
    bench.call(None)
    bench.call(None, None, None, None, None, None)
    bench.call(ctypes.POINTER(ctypes.c_uint)(), tokens=["n"])
    bench.call(ctypes.c_void_p(None), tokens=["n"])
    bench.call(ctypes.c_char_p(None))


@scenario
def strings_in(bench: Bench) -> Any:
    for text in (b"", b"GPU-1", "Ünïcödé".encode(), b"x" * 5000, bytes(range(1, 256))):
        bench.call(text)
        bench.call(ctypes.c_char_p(text))
        bench.call(ctypes.create_string_buffer(text))
    bench.call(b"cut\0off")


@scenario
def text_arrays_out(bench: Bench) -> Any:
    for size in (1, 2, 16, 96, 4096):
        for mode in ("final", "garbage"):
            buffer = ctypes.create_string_buffer(size)
            bench.call(buffer, ctypes.c_uint(size), mode=mode)
            bench.call(ctypes.byref(buffer), ctypes.c_uint(size), mode=mode)
    bench.call(ctypes.byref(pynvml.c_nvmlUnitInfo_t()), mode="garbage")


@scenario
def strings_out_of_structures(bench: Bench) -> Any:
    kept = []
    for number in range(20):
        metrics = (pynvml.c_metricInfo_t * 7)()
        if number % 2:
            metrics[3].unit = b"of the caller"
        kept.append(metrics)
        bench.call(metrics)
    # What was returned stays what it was, whatever is called later.
    return [describe(metrics, bench.supply.identify) for metrics in kept]


@scenario
def strings_replaced_in_structures(bench: Bench) -> Any:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"of the caller", softLimit=1, hardLimit=2)
    bench.call(ctypes.byref(limits))
    bench.call(ctypes.byref(limits), tokens=["p{Ob24}"])
    bench.call(ctypes.byref(limits))


@scenario
def a_reused_object(bench: Bench) -> Any:
    value = ctypes.c_ulonglong(1)
    for _ in range(3):
        bench.call(ctypes.byref(value))
    memory = pynvml.c_nvmlMemory_t()
    reference = ctypes.byref(memory)
    for _ in range(3):
        bench.call(reference)


@scenario
def one_object_passed_twice(bench: Bench) -> Any:
    value = ctypes.c_uint(5)
    bench.call(ctypes.byref(value), ctypes.byref(value))
    version = pynvml.c_nvmlVgpuVersion_t(1, 2)
    bench.call(ctypes.byref(version), ctypes.pointer(version))


@scenario
def neighbours_in_an_array(bench: Bench) -> Any:
    array = (ctypes.c_uint * 4)(1, 2, 3, 4)
    bench.call(array, tokens=["p{b16}"])
    bench.call(ctypes.byref(array, 4), tokens=["p{b12}"])
    both = pynvml.c_nvmlVgpuVersion_t(1, 2)
    bench.call(ctypes.byref(both), ctypes.byref(both, 4), tokens=["p{b8}", "p{b4}"])


@scenario
def pointer_instances(bench: Bench) -> Any:
    info = pynvml.nvmlPciInfo_t(busIdLegacy=b"00:01.0", domain=1)
    bench.call(ctypes.pointer(info))
    kept = ctypes.pointer(info)
    bench.call(kept)
    kept.contents.domain = 77
    bench.call(kept)
    array = (ctypes.c_uint * 3)(1, 2, 3)
    bench.call(ctypes.cast(array, ctypes.POINTER(ctypes.c_uint)), tokens=["p{b12}"])
    return [describe(info, bench.supply.identify), list(array)]


@scenario
def a_pointer_to_a_handle(bench: Bench) -> Any:
    device = bench.handle(pynvml.c_nvmlDevice_t)
    bench.call(ctypes.pointer(device))
    bench.call(ctypes.byref(device))


@scenario
def scalars_of_every_width(bench: Bench) -> Any:
    for kind in (
        ctypes.c_byte, ctypes.c_ubyte, ctypes.c_short, ctypes.c_ushort, ctypes.c_int, ctypes.c_uint,
        ctypes.c_long, ctypes.c_ulong, ctypes.c_longlong, ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_bool,
    ):  # fmt: skip
        for value in (0, 1, -1, 127, 128, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1):
            bench.call(kind(value))
            bench.call(ctypes.byref(kind(value)))
    bench.call(ctypes.c_char(b"x"), tokens=["v8"])
    bench.call(ctypes.byref(ctypes.c_double(-0.5)))


@scenario
def python_integers(bench: Bench) -> Any:
    for value in (0, 1, -1, True, False, 1 << 31, (1 << 32) - 1, (1 << 32) + 5, 1 << 63, (1 << 64) - 1, -(1 << 63)):
        bench.call(value)
        bench.call(None, value, None)


@scenario
def wrong_types(bench: Bench) -> Any:
    for value in (1.5, object, object(), [], [1], {}, (1, 2), 1 << 64, -(1 << 63) - 1, ctypes.c_uint, len, 1j):
        if type(value) is object:
            value = type("Thing", (), {})()
        bench.refused(value)
        bench.refused(None, value)
        bench.refused(bench.handle(pynvml.c_nvmlDevice_t), value, ctypes.byref(ctypes.c_uint()))


@scenario
def python_calling_rules(bench: Bench) -> Any:
    api = bench.api
    device = bench.handle(pynvml.c_nvmlDevice_t)
    attempts: list[Callable[[], Any]] = [
        lambda: api.nvmlDeviceGetName(),
        lambda: api.nvmlDeviceGetTemperature(device),
        lambda: api.nvmlDeviceGetTemperature(device, 0, 0),
        lambda: api.nvmlDeviceGetTemperature(device, sonsor=0),
        lambda: api.nvmlDeviceGetTemperature(device, "0"),
        lambda: api.nvmlDeviceGetTemperature(device, None),
        lambda: api.nvmlDeviceGetTemperature(device, 0.5),
        lambda: api.nvmlDeviceGetHandleByIndex("0"),
        lambda: api.nvmlDeviceGetFieldValues(device, 5),
        lambda: api.nvmlDeviceGetCpuAffinity(device, -1),
        lambda: api.nvmlDeviceGetNumFans("device"),
        lambda: api.nvmlDeviceGetNumFans(1.5),
        lambda: api.nvmlDeviceGetDisplayMode(),
        lambda: api.nvmlDeviceGetGpuInstanceProfileInfo(device, 0, version=17),
        lambda: api.nvmlDeviceGetMemoryInfo(device, version="2"),
    ]
    for attempt in attempts:
        bench.expect("")
        try:
            bench.log.append(["returned", describe(attempt(), bench.supply.identify)])
        except Exception as error:
            bench.log.append(describe_error(error))
        bench.note()
    bench.expect(f"nvmlDeviceGetTemperature 0 final 1 h{shapes.handle_kind(type(device))} v32 p{{b4}}\n")
    return [api.nvmlDeviceGetTemperature(handle=device, sensor=pynvml.NVML_TEMPERATURE_GPU), bench.note()]


@scenario
def return_codes(bench: Bench) -> Any:
    for code in (0, 1, 7, 999, 1000, -1, -2147483648, 2147483647):
        bench.call(result=code)


@scenario
def error_texts(bench: Bench) -> Any:
    found = []
    for code in range(0, 40):
        found.append(bench.api.nvmlErrorString(code))
    return [found, str(pynvml.NVMLError(31)), str(pynvml.NVMLError(4711))]


@scenario
def results_of_other_types(bench: Bench) -> Any:
    # As pynvml itself does for nvmlErrorString. The pointer is shared: it is put back.
    function = bench.pointer("nvmlDeviceGetSerial")
    bench.expect("nvmlDeviceGetSerial s final 1 v32\n" * 2)
    function.restype = ctypes.c_char_p
    text = function(5)
    function.restype = ctypes.c_int
    bench.note()
    bench.expect("nvmlDeviceGetSerial 5 final 1 v32\n")
    return [describe(text, bench.supply.identify), function(5), bench.note()]


@scenario
def more_than_a_lane_holds(bench: Bench) -> Any:
    for size in (0, 1, 4095, 4096, 1 << 19, (1 << 20) - 4096, 1 << 20, (1 << 20) + 1, 5 << 20):
        buffer = (ctypes.c_ubyte * size)()
        ctypes.memset(buffer, 0x5A, size)
        result = bench.pointer("nvmlEchoBytes")(buffer, ctypes.c_ulonglong(size))
        bench.log.append([size, result, ctypes.string_at(buffer, min(size, 64)).hex(), hash_of(buffer)])


def hash_of(buffer: Any) -> str:
    """A digest of a ctypes array."""
    import hashlib

    return hashlib.sha256(bytes(buffer)).hexdigest()


def run(names: list[str], api: Any, pointer: Any, supply: Any) -> dict[str, Any]:
    """Runs scenarios; one that fails says how, so that the others are compared all the same."""
    found = {}
    for name in names:
        supply.rng.seed(name)
        bench = Bench(api, pointer, supply)
        one: dict[str, Any] = {}
        try:
            one["returned"] = describe(SCENARIOS[name](bench), supply.identify)
        except Exception as error:
            one["failed"] = describe_error(error)
        one["log"] = bench.log
        found[name] = one
    return found
