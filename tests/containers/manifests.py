# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/kubernetes.md, as they stand there, by their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()

Manifest = dict[str, Any]

MANIFESTS: dict[str, Manifest] = {
    manifest["metadata"]["name"]: manifest
    for manifest in map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
}


def pod_of(manifest: Manifest) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def container_of(manifest: Manifest) -> dict[str, Any]:
    container: dict[str, Any]
    (container,) = pod_of(manifest)["containers"]
    return container
