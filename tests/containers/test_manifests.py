# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/kubernetes.md are what Kubernetes takes, without a cluster."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
from manifests import MANIFESTS, Manifest, container_of, pod_of

# The first release with the field appArmorProfile, which the page names, and the newest that the package knows
RELEASES = ("1.30", kubernetes_validate.latest_version())

MISTAKES: list[dict[str, Any]] = [
    {"securityContext": {"runAsNonroot": True}},
    {"securityContext": {"capabilities": {"add": "SYS_ADMIN"}}},
    {"env": {"NVSANDBOX_ISOLATION": "guard"}},
    {"volumeMounts": [{"name": "nvsandbox"}]},
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", MANIFESTS)
def test_the_schema_of_kubernetes_takes_it(name: str, release: str) -> None:
    """No unknown field, no value of a wrong type, none missing, in the OpenAPI schemas that Kubernetes publishes."""
    kubernetes_validate.validate(MANIFESTS[name], release, strict=True)
    for mistake in MISTAKES:
        wrong = copy.deepcopy(MANIFESTS[name])
        container_of(wrong).update(mistake)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, release, strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_what_the_schema_does_not_say(manifest: Manifest) -> None:
    """References within it, and words that are strings to the schema.

    Source: the API server's validation of pods and daemon sets, Kubernetes' pkg/apis/core/validation.
    """
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pod = pod_of(manifest)
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    assert len({container["name"] for container in containers}) == len(containers)
    for container in containers:
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        context = container["securityContext"]
        capabilities = context.get("capabilities", {"drop": ["ALL"]})
        assert not any(name.startswith("CAP_") for names in capabilities.values() for name in names)
        assert context.get("seccompProfile", {"type": "Unconfined"})["type"] in ("RuntimeDefault", "Unconfined")
        more = context.get("privileged") or "SYS_ADMIN" in capabilities.get("add", ())
        assert ("allowPrivilegeEscalation" in context) is not more, "Kubernetes means to refuse both together"
        for mount in container.get("volumeMounts", ()):
            assert mount.get("mountPropagation", "None") in ("None", "HostToContainer")


def test_gpu_nodes_are_chosen_and_their_taint_tolerated() -> None:
    for name, manifest in MANIFESTS.items():
        pod = pod_of(manifest)
        assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}, name
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], name


def restricted(manifest: Manifest) -> bool:
    """Whether the pod fits the Pod Security Standard *restricted*.

    Source: Kubernetes' page "Pod Security Standards", as far as its rules are about fields that the manifests have.
    """
    pod = pod_of(manifest)
    return all(
        container["securityContext"].get("runAsNonRoot") is True
        and container["securityContext"].get("runAsUser") != 0
        and container["securityContext"].get("allowPrivilegeEscalation") is False
        and not container["securityContext"].get("privileged")
        and container["securityContext"].get("capabilities") == {"drop": ["ALL"]}
        and container["securityContext"].get("seccompProfile", {}).get("type") == "RuntimeDefault"
        for container in [*pod.get("initContainers", ()), *pod["containers"]]
    ) and not any("hostPath" in volume for volume in pod.get("volumes", ()))


def test_which_of_them_are_restricted() -> None:
    assert [name for name, manifest in MANIFESTS.items() if restricted(manifest)] == ["exporter-guard"]
