# SPDX-License-Identifier: Apache-2.0
# A program's image that has no shell, no package manager and perhaps no libraries, as it is, with a /dev of its own.
# IMAGE is that image, COMMAND the file that it starts:
#   podman build --build-arg IMAGE=... --build-arg COMMAND=... -f containers/distroless.Dockerfile
# The new entry point takes IMAGE's CMD away: default arguments go into a CMD at the end, or into the manifest's args.
# The program's argv[0] is the link's path, /nvsandbox/wrapped.
ARG NVSANDBOX=nvsandbox
ARG IMAGE

FROM $NVSANDBOX AS nvsandbox
ARG COMMAND
# A link in a folder is copied as one; the entry point below takes no variables.
RUN mkdir -p /out/nvsandbox && cp /usr/local/bin/nvsandbox-run /out/nvsandbox/ && \
    ln -s "$COMMAND" /out/nvsandbox/wrapped

FROM $IMAGE
COPY --from=nvsandbox /out/ /
ENTRYPOINT ["/nvsandbox/nvsandbox-run", "--", "/nvsandbox/wrapped"]
