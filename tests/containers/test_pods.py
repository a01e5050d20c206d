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
from podman import ROOT, Podman, containerd_profile

import nvsandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MANIFESTS = {
    manifest["metadata"]["name"]: manifest
    for manifest in map(
        yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "kubernetes.md").read_text(), re.M | re.S)
    )
}
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
        ! grep -qE '^(ready|nvsandbox: .*(not possible|needs))' /tmp/log || break
        sleep 0.2
    done
    cat /tmp/log
done
echo host $(ls -d /dev/nvidia* 2>/dev/null)
podman kube down --force /files/pod.yaml >/dev/null
"""


@pytest.fixture(scope="module")
def pods(podman: Podman) -> Podman:
    """With an exporter in its image, and the same wrapped by containers/wrapped.Dockerfile."""
    require(shutil.which("cc"), "needs a C compiler")
    program = podman.files / "exporter"
    subprocess.run(["cc", "-o", program, Path(__file__).with_name("exporter.c")], check=True)
    shutil.copy(Path(nvsandbox.__file__).parent / "sim" / "libnvidia-ml.so.1", podman.files)
    (podman.files / "nvidia.json").write_text(json.dumps(CDI))
    (podman.files / "Dockerfile").write_text(
        'FROM localhost/base\nCOPY exporter /usr/bin/gpu-exporter\nENTRYPOINT ["gpu-exporter"]\n'
    )
    podman.run(
        """
        podman build -q -t exporter -f /files/Dockerfile /files >/dev/null
        podman build -q --network host --build-arg IMAGE=exporter --build-arg COMMAND=/usr/bin/gpu-exporter \\
            -t gpu-exporter -f /files/src/containers/wrapped.Dockerfile /files/src/containers >/dev/null
        """
    )
    return podman


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return container


def play(pods: Podman, manifest: dict[str, Any], profile: str, **changes: Any) -> dict[str, list[str]]:
    """What the exporter in the pod said, by the first word of its lines; ``host``: the stand-in's nodes after it."""
    manifest = copy.deepcopy(manifest)
    container = container_of(manifest)
    container |= changes
    container["env"] += [{"name": "NVSANDBOX_SIM", "value": "h100x2"}, {"name": "NVSANDBOX_DEBUG", "value": "1"}]
    if "runtimeClassName" in manifest["spec"]["template"]["spec"]:
        # In place of the limits of memory and CPU, whose controllers may be missing where tests run
        container["resources"] = {"limits": {"nvidia.com/gpu=all": 1}}
    (pods.files / "pod.yaml").write_text(yaml.safe_dump(manifest))
    context = container["securityContext"]
    seccomp = None
    if context.get("seccompProfile", {}).get("type") == "Unconfined" or context.get("privileged"):
        seccomp = {"defaultAction": "SCMP_ACT_ALLOW"}
    elif profile == "containerd":
        seccomp = containerd_profile(set(context["capabilities"].get("add", ())))
    said: dict[str, list[str]] = {}
    for line in pods.run(DRIVER + PLAY, seccomp=seccomp).splitlines():
        word, _, rest = line.partition(" ")
        said.setdefault(word.rstrip(":").split(":")[0], []).append(rest.strip())
    return said


CASES = [
    ("exporter-guard", "podman"),
    ("exporter-guard", "containerd"),
    ("exporter-user", "none"),
    ("exporter-mount", "podman"),
    ("exporter-mount", "containerd"),
    ("dra-driver", "none"),
]


def test_each_manifest_is_played() -> None:
    assert {name for name, _ in CASES} == set(MANIFESTS)


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_manifest_gives_what_it_says(pods: Podman, name: str, profile: str) -> None:
    said = play(pods, MANIFESTS[name], profile)
    assert said.get("nvml") == ["0"], said
    assert said["devices"] == ["2"]
    step = next(item["value"] for item in container_of(MANIFESTS[name])["env"] if item["name"] == "NVSANDBOX_ISOLATION")
    assert any(f"isolation {step}" in text for text in said["nvsandbox"]), said
    assert (said["size"] == [str(1 << 20)]) is (step != "guard")
    # No driver is loaded, so that a /dev of its own shows no nodes but those that NVML can make itself, with CAP_MKNOD.
    nodes = {"nvidia0", "nvidia1", "nvidiactl"}
    assert set(said.get("node", ())) & nodes == (nodes if name in ("exporter-guard", "dra-driver") else set())
    assert said["host"] == [""]


def test_without_a_sandbox_the_node_is_polluted_and_can_be_cleaned(pods: Podman) -> None:
    """The control of the test before, and the commands of the page."""
    manifest = copy.deepcopy(MANIFESTS["dra-driver"])
    container_of(manifest)["env"] = [
        {"name": "NVSANDBOX_SIM", "value": "h100x2"},
        {"name": "LD_LIBRARY_PATH", "value": str(Path(f"/run/nvidia/driver{LIBRARY}").parent)},
    ]
    container_of(manifest)["image"] = "exporter"
    (pods.files / "pod.yaml").write_text(yaml.safe_dump(manifest))
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    commands = re.findall(r"^(nvsandbox nodes (?:.*\\\n)*.*)$", page, re.M)
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
