/* SPDX-License-Identifier: Apache-2.0 */
/* Event sets. Nothing happens to simulated GPUs of its own accord: a wait ends with its time limit, with the XID
 * that the description asks for, or, with wait999=1, at once. */
#include "sim.h"

#define EVENT_XID        0x8ull
#define EVENTS_SUPPORTED 0xc1full /* ECC, performance state, XID, clock, retirement */

struct nvs_event_set {
    uint64_t types[NVS_GPUS_MAX]; /* by GPU index */
};

struct nvs_system_event_set {
    uint64_t types;
};

API nvmlReturn_t
nvmlEventSetCreate (nvmlEventSet_t *set)
{
    BEGIN ();
    NEED (set);
    *set = nvs_handle_new (sizeof **set, NVS_HANDLE_EVENTS);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t
nvmlEventSetFree (nvmlEventSet_t set)
{
    BEGIN ();
    if (!nvs_handle_known (set, NVS_HANDLE_EVENTS))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvs_handle_free (set);
    nvs_wake ();
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetSupportedEventTypes (nvmlDevice_t device, unsigned long long *types)
{
    BEGIN ();
    GPU (device);
    NEED (types);
    *types = EVENTS_SUPPORTED;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceRegisterEvents (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    BEGIN ();
    GPU (device);
    if (!nvs_handle_known (set, NVS_HANDLE_EVENTS))
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((types & ~EVENTS_SUPPORTED) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    set->types[gpu->index] |= types;
    return NVML_SUCCESS;
}

/* The lock is given back while this waits. A set that is freed meanwhile ends its waits. */
static nvmlReturn_t
wait_for_event (struct nvs_call *call, nvmlEventSet_t set, unsigned timeout_ms, struct nvml_event *event)
{
    if (!nvs_handle_known (set, NVS_HANDLE_EVENTS))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (nvs_machine.options.wait999)
        return NVML_ERROR_UNKNOWN;
    if (nvs_machine.options.has_xid && !nvs_machine.xid_given && (set->types[0] & EVENT_XID) != 0) {
        nvs_machine.xid_given = true;
        *event =
            (struct nvml_event){ nvs_machine.gpus[0].device, EVENT_XID, nvs_machine.options.xid, NVS_NO_ID, NVS_NO_ID };
        return NVML_SUCCESS;
    }
    return nvs_wait (call, timeout_ms, set, NVS_HANDLE_EVENTS);
}

API nvmlReturn_t
nvmlEventSetWait_v2 (nvmlEventSet_t set, struct nvml_event *event, unsigned int timeout_ms)
{
    BEGIN ();
    NEED (event);
    return wait_for_event (&call, set, timeout_ms, event);
}

API nvmlReturn_t
nvmlEventSetWait (nvmlEventSet_t set, struct nvml_event_v1 *event, unsigned int timeout_ms)
{
    struct nvml_event whole = { 0 };

    BEGIN ();
    NEED (event);
    TRY (wait_for_event (&call, set, timeout_ms, &whole));
    *event = (struct nvml_event_v1){ whole.device, whole.type, whole.data };
    return NVML_SUCCESS;
}

/* ---- events of the system: GPUs that are bound to and taken from the driver --------------------------- */

API nvmlReturn_t
nvmlSystemEventSetCreate (struct nvml_system_event_request *request)
{
    BEGIN ();
    NEED_VERSION (request, 1);
    request->set = nvs_handle_new (sizeof *request->set, NVS_HANDLE_SYSTEM_EVENTS);
    return request->set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t
nvmlSystemEventSetFree (struct nvml_system_event_request *request)
{
    BEGIN ();
    NEED_VERSION (request, 1);
    if (!nvs_handle_known (request->set, NVS_HANDLE_SYSTEM_EVENTS))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvs_handle_free (request->set);
    nvs_wake ();
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemRegisterEvents (struct nvml_system_event_register *request)
{
    BEGIN ();
    NEED_VERSION (request, 1);
    if (!nvs_handle_known (request->set, NVS_HANDLE_SYSTEM_EVENTS) || (request->types & ~3ull) != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    request->set->types |= request->types;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemEventSetWait (struct nvml_system_event_wait *request)
{
    BEGIN ();
    NEED_VERSION (request, 1);
    NEED (request->events);
    if (!nvs_handle_known (request->set, NVS_HANDLE_SYSTEM_EVENTS))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (nvs_machine.options.wait999)
        return NVML_ERROR_UNKNOWN;
    request->count = 0;
    return nvs_wait (&call, request->timeout_ms, request->set, NVS_HANDLE_SYSTEM_EVENTS);
}
