/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVML's binary interface that the simulator speaks: numbers and layouts, declared here anew. A test
 * compares every structure with the ctypes class of the same purpose in the pynvml module (tests/sim/test_abi.py).
 *
 * Structures that carry a version are checked against NVS_VERSIONED (type, n): the size in the low 24 bits, n
 * above.
 */
#ifndef NVSANDBOX_SIM_NVML_ABI_H
#define NVSANDBOX_SIM_NVML_ABI_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvs_device *nvmlDevice_t;
typedef struct nvs_gi *nvmlGpuInstance_t;
typedef struct nvs_ci *nvmlComputeInstance_t;
typedef struct nvs_event_set *nvmlEventSet_t;
typedef struct nvs_system_event_set *nvmlSystemEventSet_t;
typedef struct nvs_gpm_sample *nvmlGpmSample_t;
typedef struct nvs_unit *nvmlUnit_t;

#define NVS_VERSIONED(type, n) ((uint32_t)sizeof (type) | (uint32_t)(n) << 24)

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

struct nvml_memory {
    uint64_t total, free, used;
};
struct nvml_memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};
struct nvml_bar1 {
    uint64_t total, free, used;
};
struct nvml_utilization {
    uint32_t gpu, memory;
};

struct nvml_pci {
    char bus_id_short[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct nvml_pci_v2 {
    char bus_id[16];
    uint32_t domain, bus, device, device_id, subsystem_id, reserved[4];
};
struct nvml_pci_ext_v1 {
    uint32_t version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

struct nvml_process_v1 {
    uint32_t pid;
    uint64_t memory;
};
struct nvml_process {
    uint32_t pid;
    uint64_t memory;
    uint32_t gi, ci;
};
struct nvml_process_detail {
    uint32_t pid;
    uint64_t memory;
    uint32_t gi, ci;
    uint64_t protected_memory;
};
struct nvml_process_detail_list {
    uint32_t version, mode, count;
    struct nvml_process_detail *entries;
};
struct nvml_process_sample {
    uint32_t pid;
    uint64_t time;
    uint32_t sm, memory, encoder, decoder;
};
struct nvml_process_util {
    uint64_t time;
    uint32_t pid, sm, memory, encoder, decoder, jpeg, ofa;
};
struct nvml_processes_util {
    uint32_t version, count;
    uint64_t since;
    struct nvml_process_util *entries;
};

union nvml_value {
    double d;
    uint32_t ui;
    unsigned long ul;
    uint64_t ull;
    int64_t sll;
    int32_t si;
    uint16_t us;
};
enum {
    VALUE_DOUBLE,
    VALUE_UINT,
    VALUE_ULONG,
    VALUE_ULONGLONG,
    VALUE_SLONGLONG,
    VALUE_INT,
    VALUE_USHORT
};
struct nvml_sample {
    uint64_t time;
    union nvml_value value;
};
struct nvml_field_value {
    uint32_t field, scope;
    int64_t time, latency_us;
    uint32_t type, result;
    union nvml_value value;
};
struct nvml_violation {
    uint64_t reference_ns, violation_ns;
};

struct nvml_ecc_counts {
    uint64_t l1, l2, memory, registers;
};
struct nvml_sram_ecc {
    uint32_t version;
    uint64_t aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded,
        volatile_corrected, l2, sm, pcie, mcu, other;
    uint32_t exceeded;
};
struct nvml_row_histogram {
    uint32_t max, high, partial, low, none;
};
struct nvml_remapped_v2 {
    uint32_t corrected_active, corrected_inactive, uncorrected_active, uncorrected_inactive, pending, failure;
};
struct nvml_repair_status {
    uint32_t version, channel_pending, tpc_pending;
};

struct nvml_uuid {
    uint32_t version, type;
    union {
        char text[41];
        uint8_t bytes[16];
    } value;
};
struct nvml_pdi {
    uint32_t version;
    uint64_t value;
};
struct nvml_branch_info {
    uint32_t version;
    char branch[80];
};
struct nvml_excluded_device {
    struct nvml_pci pci;
    char uuid[80];
};
struct nvml_addressing_mode {
    uint32_t version, value;
};
struct nvml_c2c {
    uint32_t enabled;
};
struct nvml_capabilities {
    uint32_t version, mask;
};
struct nvml_platform_info {
    uint32_t version;
    uint8_t ib_guid[16], chassis[16], slot, tray, host, peer, module;
};

struct nvml_temperature_v1 {
    uint32_t version, sensor;
    int32_t value;
};
struct nvml_margin_temperature {
    uint32_t version;
    int32_t value;
};
struct nvml_thermal_sensor {
    int32_t controller, min, max, current, target;
};
struct nvml_thermal {
    uint32_t count;
    struct nvml_thermal_sensor sensors[3];
};
struct nvml_cooler {
    uint32_t version, index, control, target;
};
struct nvml_fan_rpm {
    uint32_t version, fan, rpm;
};
struct nvml_pstate_util {
    uint32_t present, percent, raise, lower;
};
struct nvml_pstates_info {
    uint32_t flags;
    struct nvml_pstate_util domains[8];
};
struct nvml_text_2048 {
    uint32_t version;
    char text[2048];
};
struct nvml_clock_offset {
    uint32_t version, type, pstate;
    int32_t offset, min, max;
};
struct nvml_clk_mon {
    uint32_t faulty, count;
    struct {
        uint32_t domain, mask;
    } faults[32];
};
struct nvml_power_value {
    uint32_t version, scope, milliwatts;
};

struct nvml_event {
    nvmlDevice_t device;
    uint64_t type, data;
    uint32_t gi, ci;
};
struct nvml_event_v1 {
    nvmlDevice_t device;
    uint64_t type, data;
};
struct nvml_system_event_request {
    uint32_t version;
    nvmlSystemEventSet_t set;
};
struct nvml_system_event_register {
    uint32_t version;
    uint64_t types;
    nvmlSystemEventSet_t set;
};
struct nvml_system_event {
    uint64_t type;
    uint32_t gpu;
};
struct nvml_system_event_wait {
    uint32_t version, timeout_ms;
    nvmlSystemEventSet_t set;
    struct nvml_system_event *events;
    uint32_t room, count;
};

struct nvml_placement {
    uint32_t start, size;
};
struct nvml_gi_profile {
    uint32_t id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    uint64_t memory_mib;
};
struct nvml_gi_profile_v2 {
    uint32_t version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    uint64_t memory_mib;
    char name[96];
};
struct nvml_gi_profile_v3 {
    uint32_t version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    uint64_t memory_mib;
    char name[96];
    uint32_t capabilities;
};
struct nvml_gi_info {
    nvmlDevice_t device;
    uint32_t id, profile;
    struct nvml_placement placement;
};
struct nvml_ci_profile {
    uint32_t id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
};
struct nvml_ci_profile_v2 {
    uint32_t version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    char name[96];
};
struct nvml_ci_info {
    nvmlDevice_t device;
    nvmlGpuInstance_t gi;
    uint32_t id, profile;
    struct nvml_placement placement;
};
struct nvml_attributes {
    uint32_t sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
    uint64_t memory_mib;
};

struct nvml_gpm_support {
    uint32_t version, supported;
};
struct nvml_gpm_metric {
    uint32_t id, result;
    double value;
    struct {
        const char *short_name, *long_name, *unit;
    } info;
};
/* How many metrics the array holds is part of the size and so of the version; newer headers have more. The
 * simulator takes any. */
struct nvml_gpm_metrics {
    uint32_t version, count;
    nvmlGpmSample_t first, second;
    struct nvml_gpm_metric metrics[];
};

struct nvml_fabric {
    uint8_t cluster[16];
    uint32_t status, clique;
    uint32_t state;
};
struct nvml_fabric_v2 {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint32_t state, health;
};
struct nvml_fabric_v3 {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint32_t state, health;
    uint8_t summary;
};
struct nvml_fabric_v4 {
    uint8_t cluster[16];
    uint32_t status;
    struct {
        uint8_t type;
        uint32_t id;
    } cliques[64];
    uint32_t cliques_count;
    uint8_t state;
    uint32_t health;
    uint8_t summary;
};
struct nvml_link_info {
    uint32_t version, encrypted;
};
struct nvml_link_info_v2 {
    uint32_t version, encrypted;
    struct {
        struct {
            uint8_t kind;
            uint32_t major, minor, sub_minor;
        } versions[100];
        uint32_t count;
    } firmware;
};

struct nvml_encoder_session {
    uint32_t id, pid, vgpu, codec, width, height, fps, latency;
};
struct nvml_fbc_stats {
    uint32_t sessions, fps, latency;
};
struct nvml_bridge_chips {
    uint32_t count;
    struct {
        uint32_t type, firmware;
    } chips[128];
};
struct nvml_licensable_features {
    int32_t supported;
    uint32_t count;
};
struct nvml_accounting {
    uint32_t gpu, memory;
    uint64_t max_memory, time, start;
    uint32_t running, reserved[5];
};

struct nvml_cc_state {
    uint32_t environment, feature, dev_tools;
};
struct nvml_cc_settings {
    uint32_t version, environment, feature, dev_tools, multi_gpu;
};
struct nvml_cc_caps {
    uint32_t cpu, gpus;
};
struct nvml_cc_memory {
    uint64_t protected_kib, unprotected_kib;
};

#define NVS_SIZE(type, size) _Static_assert (sizeof (struct type) == (size), #type)
NVS_SIZE (nvml_memory_v2, 40);
NVS_SIZE (nvml_pci, 68);
NVS_SIZE (nvml_pci_v2, 52);
NVS_SIZE (nvml_pci_ext_v1, 64);
NVS_SIZE (nvml_process, 24);
NVS_SIZE (nvml_process_detail, 32);
NVS_SIZE (nvml_process_detail_list, 24);
NVS_SIZE (nvml_process_sample, 32);
NVS_SIZE (nvml_process_util, 40);
NVS_SIZE (nvml_processes_util, 24);
NVS_SIZE (nvml_sample, 16);
NVS_SIZE (nvml_field_value, 40);
NVS_SIZE (nvml_sram_ecc, 104);
NVS_SIZE (nvml_row_histogram, 20);
NVS_SIZE (nvml_uuid, 52);
NVS_SIZE (nvml_excluded_device, 148);
NVS_SIZE (nvml_platform_info, 44);
NVS_SIZE (nvml_thermal, 64);
NVS_SIZE (nvml_pstates_info, 132);
NVS_SIZE (nvml_text_2048, 2052);
NVS_SIZE (nvml_clk_mon, 264);
NVS_SIZE (nvml_event, 32);
NVS_SIZE (nvml_system_event_wait, 32);
NVS_SIZE (nvml_gi_profile, 48);
NVS_SIZE (nvml_gi_profile_v2, 152);
NVS_SIZE (nvml_gi_info, 24);
NVS_SIZE (nvml_ci_profile, 36);
NVS_SIZE (nvml_ci_profile_v2, 136);
NVS_SIZE (nvml_ci_info, 32);
NVS_SIZE (nvml_attributes, 40);
NVS_SIZE (nvml_gpm_metric, 40);
NVS_SIZE (nvml_gpm_metrics, 24);
NVS_SIZE (nvml_fabric, 28);
NVS_SIZE (nvml_fabric_v2, 36);
NVS_SIZE (nvml_fabric_v3, 40);
NVS_SIZE (nvml_fabric_v4, 548);
NVS_SIZE (nvml_link_info_v2, 1612);
NVS_SIZE (nvml_bridge_chips, 1028);
NVS_SIZE (nvml_accounting, 56);

#endif
