/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's end of the control connection: packets in and out, and what START asks for. */
#ifndef NVSANDBOX_WORKER_CONTROL_H
#define NVSANDBOX_WORKER_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

#define NVS_LIBRARIES_MAX 1024u

struct nvs_control {
    int socket;
    int signals; /* a signalfd for SIGTERM, which means what STOP means */
    int fd;      /* the descriptor that came with the packet, or -1; nvs_control_take_fd hands it over */
    size_t length;
    _Alignas (16) char packet[NVS_MESSAGE_MAX];
};

/* START, checked. The strings lie in `text`. */
struct nvs_options {
    enum nvs_isolation isolation;
    uint32_t flags;
    uint32_t devices_count;
    uint32_t device_minors[NVS_DEVICES_MAX];
    const char *driver_root;
    const char *dev_root;
    const char *simulator;
    uint32_t spinning_max; /* threads that may spin at a time */
    uint32_t libraries_count;
    const char *libraries[NVS_LIBRARIES_MAX];
    char text[NVS_MESSAGE_MAX];
};

/* Whether the descriptor is a control socket at all. */
bool nvs_control_is_socket (int fd);

/* 1: a packet with a valid header is there. 0: the end, for the caller is gone or SIGTERM came. -1: error. */
int nvs_control_receive (struct nvs_control *control, struct nvs_error *error);

/* The type of the packet that was received last. */
enum nvs_message_type nvs_control_type (const struct nvs_control *control);

/* The descriptor that came with it; the caller of this owns it then. */
int nvs_control_take_fd (struct nvs_control *control);

/* Fills the header and sends; -1 when the caller is gone. */
int nvs_control_send (const struct nvs_control *control, enum nvs_message_type type, void *message, size_t size);

/* The packet as START. */
int nvs_control_parse_start (const struct nvs_control *control, struct nvs_options *options, struct nvs_error *error);

/* The packet as OPEN. */
int nvs_control_parse_open (const struct nvs_control *control, struct nvs_open *open_, struct nvs_error *error);

#endif
