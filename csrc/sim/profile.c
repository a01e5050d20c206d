/* SPDX-License-Identifier: Apache-2.0 */
/* The models. Figures are those that such boards report, rounded where boards differ among themselves. */
#include <stddef.h>
#include <string.h>

#include "profile.h"

#define X(k, product, mib, cc_major, cc_minor, has_mig) \
    enum {                                              \
        major_##k = cc_major,                           \
        minor_##k = cc_minor,                           \
        mig_##k = has_mig,                              \
        mib_##k = mib                                   \
    };                                                  \
    static const char name_##k[] = product;
#include "profiles.def"
#undef X

#define COMMON(k)                                                                                           \
    .key = #k, .name = name_##k, .memory = (uint64_t)mib_##k << 20, .major = major_##k, .minor = minor_##k, \
    .mig = mig_##k

/* Architecture and brand are NVML's numbers: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell; 2 Tesla, 14
 * NVIDIA. */
static const struct nvs_profile profiles[] = {
    {
        COMMON (h100),
        .architecture = 9,
        .brand = 14,
        .cores = 16896,
        .sms = 132,
        .bus_width = 5120,
        .ecc = 1,
        .fabric = 1,
        .device_id = 0x233010de,
        .subsystem_id = 0x16c110de,
        .pcie_generation = 5,
        .pcie_width = 16,
        .power_default_mw = 700000,
        .power_min_mw = 200000,
        .power_idle_mw = 68000,
        .clock_graphics = 1980,
        .clock_memory = 2619,
        .clock_video = 1545,
        .clock_base = 1095,
        .clock_memory_idle = 1593,
        .temperature_shutdown = 92,
        .temperature_slowdown = 89,
        .temperature_memory = 95,
        .temperature_max = 87,
        .links = 18,
        .link_version = 6,
        .link_mbps = 26562,
        .reserved_mib = 551,
        .bar1_mib = 131072,
        .encoders = 0,
        .decoders = 7,
        .jpeg = 7,
        .ofa = 1,
        .vbios = "96.00.89.00.01",
        .inforom = "G520.0200.00.05",
        .part_number = "692-2G520-0200-000",
    },
    {
        COMMON (a100),
        .architecture = 7,
        .brand = 14,
        .cores = 6912,
        .sms = 108,
        .bus_width = 5120,
        .ecc = 1,
        .fabric = 0,
        .device_id = 0x20b010de,
        .subsystem_id = 0x134f10de,
        .pcie_generation = 4,
        .pcie_width = 16,
        .power_default_mw = 400000,
        .power_min_mw = 100000,
        .power_idle_mw = 52000,
        .clock_graphics = 1410,
        .clock_memory = 1215,
        .clock_video = 1290,
        .clock_base = 1095,
        .clock_memory_idle = 1215,
        .temperature_shutdown = 92,
        .temperature_slowdown = 89,
        .temperature_memory = 95,
        .temperature_max = 85,
        .links = 12,
        .link_version = 4,
        .link_mbps = 25000,
        .reserved_mib = 624,
        .bar1_mib = 65536,
        .encoders = 0,
        .decoders = 5,
        .jpeg = 1,
        .ofa = 1,
        .vbios = "92.00.45.00.03",
        .inforom = "G506.0200.00.04",
        .part_number = "692-2G506-0200-002",
    },
    {
        COMMON (l40s),
        .architecture = 8,
        .brand = 14,
        .cores = 18176,
        .sms = 142,
        .bus_width = 384,
        .ecc = 1,
        .device_id = 0x26b910de,
        .subsystem_id = 0x185110de,
        .pcie_generation = 4,
        .pcie_width = 16,
        .power_default_mw = 350000,
        .power_min_mw = 100000,
        .power_idle_mw = 34000,
        .clock_graphics = 2520,
        .clock_memory = 9001,
        .clock_video = 1965,
        .clock_base = 1110,
        .clock_memory_idle = 405,
        .temperature_shutdown = 100,
        .temperature_slowdown = 97,
        .temperature_memory = 105,
        .temperature_max = 90,
        .reserved_mib = 572,
        .bar1_mib = 65536,
        .encoders = 3,
        .decoders = 3,
        .jpeg = 4,
        .ofa = 1,
        .vbios = "95.02.66.00.02",
        .inforom = "G133.0242.00.03",
        .part_number = "900-2G133-0080-000",
    },
    {
        COMMON (t4),
        .architecture = 6,
        .brand = 2,
        .cores = 2560,
        .sms = 40,
        .bus_width = 256,
        .ecc = 1,
        .device_id = 0x1eb810de,
        .subsystem_id = 0x12a210de,
        .pcie_generation = 3,
        .pcie_width = 16,
        .power_default_mw = 70000,
        .power_min_mw = 60000,
        .power_idle_mw = 10000,
        .clock_graphics = 1590,
        .clock_memory = 5001,
        .clock_video = 1470,
        .clock_base = 585,
        .clock_memory_idle = 405,
        .temperature_shutdown = 96,
        .temperature_slowdown = 93,
        .temperature_memory = 0,
        .temperature_max = 85,
        .reserved_mib = 434,
        .bar1_mib = 256,
        .encoders = 1,
        .decoders = 2,
        .jpeg = 0,
        .ofa = 0,
        .vbios = "90.04.96.00.01",
        .inforom = "G183.0200.00.02",
        .part_number = "900-2G183-0000-000",
    },
    {
        COMMON (b200),
        .architecture = 10,
        .brand = 14,
        .cores = 18944,
        .sms = 148,
        .bus_width = 8192,
        .ecc = 1,
        .fabric = 1,
        .device_id = 0x290110de,
        .subsystem_id = 0x199910de,
        .pcie_generation = 5,
        .pcie_width = 16,
        .power_default_mw = 1000000,
        .power_min_mw = 200000,
        .power_idle_mw = 140000,
        .clock_graphics = 1965,
        .clock_memory = 3996,
        .clock_video = 1710,
        .clock_base = 1120,
        .clock_memory_idle = 3996,
        .temperature_shutdown = 97,
        .temperature_slowdown = 92,
        .temperature_memory = 100,
        .temperature_max = 87,
        .links = 18,
        .link_version = 7,
        .link_mbps = 53125,
        .reserved_mib = 713,
        .bar1_mib = 262144,
        .encoders = 0,
        .decoders = 7,
        .jpeg = 7,
        .ofa = 1,
        .vbios = "97.00.88.00.0F",
        .inforom = "G525.0225.00.05",
        .part_number = "692-2G525-0220-000",
    },
    {
        COMMON (gb200),
        .architecture = 10,
        .brand = 14,
        .cores = 19456,
        .sms = 152,
        .bus_width = 8192,
        .ecc = 1,
        .fabric = 1,
        .c2c = 1,
        .device_id = 0x294110de,
        .subsystem_id = 0x204610de,
        .pcie_generation = 6,
        .pcie_width = 16,
        .power_default_mw = 1200000,
        .power_min_mw = 200000,
        .power_idle_mw = 150000,
        .clock_graphics = 2062,
        .clock_memory = 3996,
        .clock_video = 1725,
        .clock_base = 1120,
        .clock_memory_idle = 3996,
        .temperature_shutdown = 97,
        .temperature_slowdown = 92,
        .temperature_memory = 100,
        .temperature_max = 87,
        .links = 18,
        .link_version = 7,
        .link_mbps = 53125,
        .reserved_mib = 716,
        .bar1_mib = 262144,
        .encoders = 0,
        .decoders = 7,
        .jpeg = 7,
        .ofa = 1,
        .vbios = "97.00.B9.00.65",
        .inforom = "G548.0201.00.06",
        .part_number = "699-2G548-0200-000",
    },
};

static const struct nvs_mig_profile mig_profiles[] = {
#define M(k, ...) { #k, __VA_ARGS__ },
#include "mig_profiles.def"
#undef M
};

const struct nvs_profile *
nvs_profile_find (const char *key)
{
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
        if (strcmp (profiles[i].key, key) == 0)
            return &profiles[i];
    return NULL;
}

const struct nvs_mig_profile *
nvs_mig_profile (const struct nvs_profile *profile, unsigned n)
{
    for (size_t i = 0; i < sizeof mig_profiles / sizeof *mig_profiles; i++)
        if (strcmp (mig_profiles[i].key, profile->key) == 0 && n-- == 0)
            return &mig_profiles[i];
    return NULL;
}
