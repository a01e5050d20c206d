# SPDX-License-Identifier: Apache-2.0
# An exporter, or a DRA driver, as it is, with a /dev of its own. IMAGE is its image, of the Debian release that
# nvsandbox was built for; COMMAND what it starts:
#   podman build --build-arg IMAGE=... --build-arg COMMAND=... -f containers/wrapped.Dockerfile
# The new entry point takes IMAGE's CMD away: default arguments go into a CMD at the end, or into the manifest's args.
# The program's argv[0] is the link's name, wrapped.
ARG NVSANDBOX=nvsandbox
ARG IMAGE

FROM $NVSANDBOX AS nvsandbox

FROM $IMAGE
ARG COMMAND
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/* && ln -s /opt/nvsandbox/bin/nvsandbox /usr/local/bin/nvsandbox && \
    ln -s "$COMMAND" /usr/local/bin/wrapped
COPY --from=nvsandbox /opt/nvsandbox /opt/nvsandbox
ENTRYPOINT ["nvsandbox", "run", "--", "wrapped"]
