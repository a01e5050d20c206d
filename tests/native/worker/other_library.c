/* SPDX-License-Identifier: Apache-2.0 */
/* A sound library that is not NVML, although it has a function with such a name. The fake NVML needs it. */
int nvmlOnlyElsewhere (void);
int
nvmlOnlyElsewhere (void)
{
    return 0;
}
