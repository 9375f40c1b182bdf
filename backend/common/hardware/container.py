"""Detection of containers."""

from __future__ import annotations

from backend.common.hardware.host import Host


def container(host: Host) -> str | None:
    """Return the container runtime (`docker`, `podman`, `kubernetes`, `lxc` …), None outside a container."""
    if "KUBERNETES_SERVICE_HOST" in host.environment:
        return "kubernetes"
    if host.path("run/.containerenv").exists():
        return "podman"
    if host.path(".dockerenv").exists():
        return "docker"
    declared = host.environment.get("container", "") or host.read("run/systemd/container")
    if declared:
        return declared
    groups = host.read("proc/1/cgroup")
    return next((name for name in ("docker", "kubepods", "lxc", "containerd") if f"/{name}" in groups), None)
