# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/kubernetes.md, as they stand there, played by podman."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from host import require
from manifests import MANIFESTS, PAGE, Manifest, container_of, pod_of
from podman import Podman
from profiles import UNCONFINED, Profiles

import nvsandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
# A driver in a container: its library is the simulator's, its nodes are those of two GPUs.
DRIVER = f"""
mkdir -p /etc/cdi /run/nvidia/driver/dev /run/nvidia/driver{Path(LIBRARY).parent}
cp /files/nvidia.json /etc/cdi
cp /files/libnvidia-ml.so.1 /run/nvidia/driver{LIBRARY}
for minor in 0 1 255; do
    name=nvidia$minor
    [ $minor != 255 ] || name=nvidiactl
    mknod -m 666 /run/nvidia/driver/dev/$name c 195 $minor
done
"""
# What NVIDIA's container toolkit does for its runtime class
CDI = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "all",
            "containerEdits": {
                "deviceNodes": [
                    {"path": f"/dev/{name}", "hostPath": f"/run/nvidia/driver/dev/{name}"}
                    for name in ("nvidia0", "nvidia1", "nvidiactl")
                ]
            },
        }
    ],
    "containerEdits": {
        "mounts": [
            {
                "hostPath": f"/run/nvidia/driver{LIBRARY}",
                "containerPath": LIBRARY,
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ]
    },
}
PLAY = """
podman kube play --network none -q /files/pod.yaml >/dev/null
for container in $(podman ps -a --format '{{.Names}} {{.IsInfra}}' | sed -n 's/ false$//p'); do
    for attempt in $(seq 150); do
        podman logs "$container" >/tmp/log 2>&1
        ! grep -v '^nvsandbox: isolation' /tmp/log | grep -qE '^(ready|nvsandbox: )' || break
        sleep 0.2
    done
    cat /tmp/log
    echo inspect "$(podman inspect --format json "$container" | tr -d '\\n')"
done
echo host $(ls -d /dev/nvidia* 2>/dev/null)
podman kube down --force /files/pod.yaml >/dev/null
"""
# As distroless images are: the program and its C library, or the program alone.
DISTROLESS = """
FROM localhost/base AS base
FROM scratch
COPY --from=base /lib64/ld-linux-x86-64.so.2 /lib64/
COPY --from=base /lib/x86_64-linux-gnu/libc.so.6 /lib/x86_64-linux-gnu/libm.so.6 /lib/x86_64-linux-gnu/
COPY exporter /usr/bin/exporter
COPY exporter /usr/bin/gpu-kubelet-plugin
ENTRYPOINT ["/usr/bin/exporter"]
"""
BARE = """
FROM scratch
COPY bare /exporter
ENTRYPOINT ["/exporter"]
"""


@pytest.fixture(scope="module")
def pods(podman: Podman) -> Podman:
    """With exporters in images of their own, and the same wrapped by the Dockerfiles of containers/."""
    require(shutil.which("cc"), "needs a C compiler")
    source = str(Path(__file__).with_name("exporter.c"))
    subprocess.run(["cc", "-o", podman.files / "exporter", source], check=True)
    static = subprocess.run(["cc", "-static", "-DBARE", "-o", podman.files / "bare", source], stderr=subprocess.DEVNULL)
    require(static.returncode == 0, "needs a C library to link statically with")
    shutil.copy(Path(nvsandbox.__file__).parent / "sim" / "libnvidia-ml.so.1", podman.files)
    (podman.files / "nvidia.json").write_text(json.dumps(CDI))
    (podman.files / "exporter.Dockerfile").write_text(
        'FROM localhost/base\nCOPY exporter /usr/bin/gpu-exporter\nENTRYPOINT ["gpu-exporter"]\n'
    )
    (podman.files / "distroless.Dockerfile").write_text(DISTROLESS)
    (podman.files / "bare.Dockerfile").write_text(BARE)
    podman.run(
        """
        build () { podman build -q --network host "$@" >/dev/null; }
        recipes=/files/src/containers
        wrap () { build -t $1 --build-arg IMAGE=$2 --build-arg COMMAND=$3 -f $recipes/$4 $recipes; }
        build -t exporter -f /files/exporter.Dockerfile /files
        build -t vendor/exporter -f /files/distroless.Dockerfile /files
        build -t bare -f /files/bare.Dockerfile /files
        wrap gpu-exporter exporter /usr/bin/gpu-exporter wrapped.Dockerfile
        wrap gpu-dra-driver vendor/exporter /usr/bin/gpu-kubelet-plugin distroless.Dockerfile
        wrap wrapped-bare bare /exporter distroless.Dockerfile
        """
    )
    return podman


Said = dict[str, list[str]]
"""What the exporter in a pod said, by the first word of its lines; ``host``: the stand-in's nodes after it;
``inspect``: what podman says of the container."""


def play(pods: Podman, profiles: Profiles, manifest: Manifest, runtime: str) -> Said:
    """Plays the manifest with the default profile of that runtime."""
    manifest = copy.deepcopy(manifest)
    container = container_of(manifest)
    container["env"] += [{"name": "NVSANDBOX_SIM", "value": "h100x2"}, {"name": "NVSANDBOX_DEBUG", "value": "1"}]
    pod = pod_of(manifest)
    if "runtimeClassName" in pod:
        # In place of the limits of memory and CPU, whose controllers may be missing where tests run
        container["resources"] = {"limits": {"nvidia.com/gpu=all": 1}}
    for init in pod.get("initContainers", ()):
        del init["resources"]
    (pods.files / "pod.yaml").write_text(yaml.safe_dump(manifest))
    context = container["securityContext"]
    seccomp = None
    if context.get("seccompProfile", {}).get("type") == "Unconfined" or context.get("privileged"):
        seccomp = UNCONFINED
    elif runtime == "containerd":
        seccomp = profiles.containerd(context["capabilities"].get("add", ()))
    elif runtime == "CRI-O":
        seccomp = profiles.crio()
    said: Said = {}
    for line in pods.run(DRIVER + PLAY, seccomp=seccomp).splitlines():
        word, _, rest = line.partition(" ")
        said.setdefault(word.rstrip(":").split(":")[0], []).append(rest.strip())
    assert said["host"] == [""]
    return said


def has_what_it_asks_for(said: Said, context: dict[str, Any]) -> None:
    """podman has given the container the securityContext, and nothing beyond it."""
    (inspected,) = json.loads(said["inspect"][0])
    given = inspected["HostConfig"]
    assert given["Privileged"] is context.get("privileged", False)
    assert given["ReadonlyRootfs"] is context.get("readOnlyRootFilesystem", False)
    assert ("no-new-privileges" in given["SecurityOpt"]) is (context.get("allowPrivilegeEscalation") is False)
    user = [str(context[name]) for name in ("runAsUser", "runAsGroup") if name in context]
    assert inspected["Config"]["User"] in (":".join(user), "" if user in ([], ["0"]) else None)
    if "capabilities" in context:
        assert context["capabilities"]["drop"] == ["ALL"]
        wanted = {f"CAP_{name}" for name in context["capabilities"].get("add", ())}
        assert set(inspected["BoundingCaps"] or ()) == wanted


CASES = [
    *(("exporter-guard", runtime) for runtime in ("podman", "containerd", "CRI-O")),
    ("exporter-user", "any"),
    *(("exporter-mount", runtime) for runtime in ("podman", "containerd", "CRI-O")),
    ("exporter-as-it-is", "containerd"),
    ("dra-driver", "any"),
]


def test_each_manifest_is_played() -> None:
    assert {name for name, _ in CASES} == set(MANIFESTS)


@pytest.mark.parametrize(("name", "runtime"), CASES)
def test_a_manifest_gives_what_it_says(pods: Podman, profiles: Profiles, name: str, runtime: str) -> None:
    said = play(pods, profiles, MANIFESTS[name], runtime)
    container = container_of(MANIFESTS[name])
    has_what_it_asks_for(said, container["securityContext"])
    assert said.get("nvml") == ["0"], said
    assert said["devices"] == ["2"]
    step = next(item["value"] for item in container["env"] if item["name"] == "NVSANDBOX_ISOLATION")
    assert any(f"isolation {step}" in text for text in said["nvsandbox"]), said
    assert (said["size"] == [str(1 << 20)]) is (step != "guard")
    # No driver is loaded, so that a /dev of its own shows no nodes but those that NVML can make itself, with CAP_MKNOD.
    nodes = {"nvidia0", "nvidia1", "nvidiactl"}
    assert set(said.get("node", ())) & nodes == (nodes if name in ("exporter-guard", "dra-driver") else set())


LESS: list[tuple[str, str, dict[str, Any]]] = [
    ("exporter-user", "containerd", {"seccompProfile": {"type": "RuntimeDefault"}}),
    ("exporter-user", "CRI-O", {"seccompProfile": {"type": "RuntimeDefault"}}),
    ("exporter-mount", "containerd", {"capabilities": {"drop": ["ALL"]}}),
    ("exporter-as-it-is", "containerd", {"capabilities": {"drop": ["ALL"]}}),
    ("dra-driver", "podman", {"privileged": False, "capabilities": {"drop": ["ALL"]}}),
]
"""The manifests that ask for something, without it."""


@pytest.mark.parametrize(("name", "runtime", "less"), LESS)
def test_with_less_a_manifest_does_not_do(
    pods: Podman, profiles: Profiles, name: str, runtime: str, less: dict[str, Any]
) -> None:
    manifest = copy.deepcopy(MANIFESTS[name])
    container_of(manifest)["securityContext"] |= less
    said = play(pods, profiles, manifest, runtime)
    assert "nvml" not in said
    assert re.search("in a container use a seccomp profile|needs CAP_SYS_ADMIN", said["nvsandbox"][-1]), said


def test_an_image_with_one_static_program(pods: Podman) -> None:
    """FROM scratch and one file, which makes a node; nvsandbox-run is the other."""
    out = pods.run(
        """
        trap 'rm -f /dev/nvidiactl; tidy' EXIT
        for image in wrapped-bare bare; do
            podman run -d --name $image --privileged -v /dev:/dev --network none $image >/dev/null
            for attempt in $(seq 150); do ! podman logs $image | grep -q ready || break; sleep 0.2; done
            podman logs $image | grep -E '^(nvml|node nvidiactl)'
            podman export $image | tar -t | grep -E '^(bin|lib|usr|nvsandbox|exporter)' | tr '\\n' ' '
            echo; echo host $(ls /dev/nvidiactl 2>/dev/null)
            podman rm -f -t 0 $image >/dev/null
        done
        """
    )
    files = "nvsandbox/ nvsandbox/nvsandbox-run nvsandbox/wrapped"
    made = ["nvml 0", "node nvidiactl"]
    assert [line.strip() for line in out.splitlines()] == [
        *made, f"exporter {files}", "host", *made, "exporter", "host /dev/nvidiactl",
    ]  # fmt: skip


def test_without_a_sandbox_the_node_is_polluted_and_can_be_cleaned(pods: Podman) -> None:
    """The control of the test before, and the commands of the page."""
    manifest = copy.deepcopy(MANIFESTS["dra-driver"])
    container_of(manifest)["env"] = [
        {"name": "NVSANDBOX_SIM", "value": "h100x2"},
        {"name": "LD_LIBRARY_PATH", "value": str(Path(f"/run/nvidia/driver{LIBRARY}").parent)},
    ]
    container_of(manifest)["image"] = "exporter"
    (pods.files / "pod.yaml").write_text(yaml.safe_dump(manifest))
    commands = re.findall(r"^(nvsandbox nodes (?:.*\\\n)*.*)$", PAGE, re.M)
    assert len(commands) == 3
    debug = "podman run --rm --privileged --pid host --network none -v /:/host nvsandbox"
    cleaning = "\n".join(f"{debug} {command.removeprefix('nvsandbox ')} || echo status $?" for command in commands)
    # Whatever happens: this /dev is that of all tests.
    tidy = "rm -rf /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-caps /dev/char/195:* /var/lib/nvsandbox-undo*"
    out = pods.run(f"trap '{tidy}; tidy' EXIT\n{DRIVER}{PLAY}{cleaning}\necho left $(ls -d /dev/nvidia* 2>/dev/null)")
    assert re.search(r"^host .*/dev/nvidia0 /dev/nvidia1 /dev/nvidiactl$", out, re.M)
    assert out.count("status 1") == 2
    assert "removed /host/dev/nvidiactl" in out
    assert out.splitlines()[-1] == "left"
