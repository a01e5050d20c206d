/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How busy a GPU is at a moment, and all that follows from it: one slow wave for each GPU, fixed by the seed. Power
 * is linear in the load, so that the energy counter has a closed form and agrees with the power that was reported,
 * however often or rarely anyone looks.
 */
#include "sim.h"

#include <math.h>

#define TWO_PI 6.283185307179586

struct wave {
    double base, swing, period, phase; /* percent, percent, seconds, radians */
};

static struct wave
wave_of (const struct nvs_gpu *gpu)
{
    uint64_t bits = nvs_hash (nvs_machine.options.seed, 1000 + gpu->slot);
    struct wave wave = { 0, 0, 60, 0 };

    /* Without processes nothing runs. */
    if (nvs_machine.options.has_procs && nvs_machine.options.procs == 0)
        return wave;
    wave.base = 40 + (double)(bits % 24);
    wave.swing = 18 + (double)(bits >> 8 & 15);
    wave.period = 40 + (double)(bits >> 16 & 63);
    wave.phase = (double)(bits >> 24 & 1023) / 1023 * TWO_PI;
    return wave;
}

static double
load_at (const struct wave *wave, double seconds)
{
    return wave->base + wave->swing * sin (TWO_PI * seconds / wave->period + wave->phase);
}

/* The load's integral from 0, in percent-seconds, up to a constant. */
static double
load_sum (const struct wave *wave, double seconds)
{
    return wave->base * seconds
           - wave->swing * wave->period / TWO_PI * cos (TWO_PI * seconds / wave->period + wave->phase);
}

unsigned
nvs_util_at (const struct nvs_gpu *gpu, double seconds)
{
    struct wave wave = wave_of (gpu);

    return (unsigned)load_at (&wave, seconds);
}

unsigned
nvs_util_gpu (const struct nvs_gpu *gpu)
{
    return nvs_util_at (gpu, nvs_seconds ());
}

unsigned
nvs_util_memory (const struct nvs_gpu *gpu)
{
    return nvs_util_gpu (gpu) * 5 / 8;
}

/* Milliwatts for one percent of load: full load draws a little less than the limit. */
static double
slope (const struct nvs_gpu *gpu)
{
    return (0.97 * gpu->power_limit_mw - gpu->profile->power_idle_mw) / 100;
}

unsigned
nvs_power_at (const struct nvs_gpu *gpu, double seconds)
{
    struct wave wave = wave_of (gpu);

    return (unsigned)(gpu->profile->power_idle_mw + slope (gpu) * load_at (&wave, seconds));
}

unsigned
nvs_power_mw (const struct nvs_gpu *gpu)
{
    return nvs_power_at (gpu, nvs_seconds ());
}

double
nvs_load_sum (const struct nvs_gpu *gpu)
{
    struct wave wave = wave_of (gpu);

    return load_sum (&wave, nvs_seconds ()) - load_sum (&wave, 0);
}

double
nvs_energy_mj (const struct nvs_gpu *gpu)
{
    struct wave wave = wave_of (gpu);
    double now = nvs_seconds ();
    double load = load_sum (&wave, now) - load_sum (&wave, gpu->energy_since);

    return gpu->energy_mj + gpu->profile->power_idle_mw * (now - gpu->energy_since) + slope (gpu) * load;
}

void
nvs_set_power_limit (struct nvs_gpu *gpu, unsigned milliwatts)
{
    gpu->energy_mj = nvs_energy_mj (gpu);
    gpu->energy_since = nvs_seconds ();
    gpu->power_limit_mw = milliwatts;
}

unsigned
nvs_temperature (const struct nvs_gpu *gpu)
{
    return 29 + gpu->slot % 4 + nvs_util_gpu (gpu) * 2 / 5;
}

unsigned
nvs_temperature_memory (const struct nvs_gpu *gpu)
{
    return nvs_temperature (gpu) + 8;
}

unsigned
nvs_clock_max (const struct nvs_gpu *gpu, unsigned type)
{
    const struct nvs_profile *profile = gpu->profile;

    switch (type) {
    case 0:
    case 1: return profile->clock_graphics;
    case 2: return profile->clock_memory;
    default: return profile->clock_video;
    }
}

unsigned
nvs_clock (const struct nvs_gpu *gpu, unsigned type)
{
    unsigned load = nvs_util_gpu (gpu);
    unsigned most = nvs_clock_max (gpu, type);
    unsigned clock = 0;

    if (type == 2)
        return load > 0 ? gpu->app_clock_mem : gpu->profile->clock_memory_idle;
    if (load == 0)
        return 345;
    clock = type == 3 ? most - most / 10 : gpu->profile->clock_base + (most - gpu->profile->clock_base) * load / 100;
    if (type != 3) {
        if (clock > gpu->app_clock_graphics)
            clock = gpu->app_clock_graphics;
        if (gpu->locked_max != 0) {
            if (clock > gpu->locked_max)
                clock = gpu->locked_max;
            if (clock < gpu->locked_min)
                clock = gpu->locked_min;
        }
    }
    return clock - clock % 15;
}
