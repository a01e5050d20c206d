/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that initialise, ask, change and shut down, each in its own rhythm: linked with the simulator's sources under
 * the sanitizers. What the calls return is not looked at, for it depends on who comes first.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvml_abi.h"

extern nvmlReturn_t nvmlInit_v2 (void);
extern nvmlReturn_t nvmlShutdown (void);
extern nvmlReturn_t nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device);
extern nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex (nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
extern nvmlReturn_t nvmlDeviceGetName (nvmlDevice_t device, char *name, unsigned int length);
extern nvmlReturn_t
nvmlDeviceGetComputeRunningProcesses_v3 (nvmlDevice_t device, unsigned int *count, struct nvml_process *out);
extern nvmlReturn_t nvmlDeviceSetPowerManagementLimit (nvmlDevice_t device, unsigned int milliwatts);
extern nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption (nvmlDevice_t device, unsigned long long *millijoules);
extern nvmlReturn_t nvmlDeviceCreateGpuInstance (nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *gi);
extern nvmlReturn_t
nvmlGpuInstanceCreateComputeInstance (nvmlGpuInstance_t gi, unsigned int profile, nvmlComputeInstance_t *ci);
extern nvmlReturn_t nvmlComputeInstanceDestroy (nvmlComputeInstance_t ci);
extern nvmlReturn_t nvmlGpuInstanceDestroy (nvmlGpuInstance_t gi);
extern nvmlReturn_t nvmlEventSetCreate (nvmlEventSet_t *set);
extern nvmlReturn_t nvmlEventSetWait_v2 (nvmlEventSet_t set, struct nvml_event *event, unsigned int timeout_ms);
extern nvmlReturn_t nvmlEventSetFree (nvmlEventSet_t set);

#define THREADS 4
#define ROUNDS  200

static void *
work (void *argument)
{
    unsigned number = *(unsigned *)argument;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct nvml_process processes[64];
        struct nvml_event event;
        unsigned count = 64;
        unsigned long long energy = 0;
        char name[96];
        nvmlDevice_t device = NULL, mig = NULL;
        nvmlGpuInstance_t gi = NULL;
        nvmlComputeInstance_t ci = NULL;
        nvmlEventSet_t set = NULL;

        (void)nvmlInit_v2 ();
        (void)nvmlDeviceGetHandleByIndex_v2 (number, &device);
        (void)nvmlDeviceGetMigDeviceHandleByIndex (device, 0, &mig);
        (void)nvmlDeviceGetName (mig, name, sizeof name);
        (void)nvmlDeviceGetComputeRunningProcesses_v3 (device, &count, processes);
        (void)nvmlDeviceSetPowerManagementLimit (device, 300000 + round);
        (void)nvmlDeviceGetTotalEnergyConsumption (device, &energy);
        if (nvmlDeviceCreateGpuInstance (device, 19, &gi) == NVML_SUCCESS) {
            if (nvmlGpuInstanceCreateComputeInstance (gi, 0, &ci) == NVML_SUCCESS)
                (void)nvmlComputeInstanceDestroy (ci);
            (void)nvmlGpuInstanceDestroy (gi);
        }
        if (nvmlEventSetCreate (&set) == NVML_SUCCESS) {
            (void)nvmlEventSetWait_v2 (set, &event, 1);
            (void)nvmlEventSetFree (set);
        }
        (void)nvmlShutdown ();
    }
    return NULL;
}

int
main (void)
{
    pthread_t threads[THREADS];
    unsigned numbers[THREADS];

    (void)setenv ("NVSANDBOX_SIM", "h100x4,mig=3g.40gb+1g.10gb*2,leak_kib=1,grow=1", 1);
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create (&threads[i], NULL, work, &numbers[i]) != 0)
            return 1;
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join (threads[i], NULL);
    (void)puts ("done");
    return 0;
}
