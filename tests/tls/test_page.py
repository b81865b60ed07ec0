"""The configurations for Sentinel and Cluster over TLS, run as the manual has them."""

from __future__ import annotations

from typing import Any

from tests.pages import configurations
from tests.security.test_deployment_pages import run
from tests.tls.conftest import Place
from tests.unit.certificates import CertificateFiles


def settings_on_page(scheme: str, hosts: dict[str, str], files: CertificateFiles) -> Any:
    """Return the one configuration with URLs of a scheme."""
    replace = {
        "/etc/ssl/redis-ca.pem": files.authority,
        "/etc/ssl/beat.pem": files.certificate,
        "/etc/ssl/beat.key": files.key,
        **hosts,
    }
    found = configurations("tls.rst", replace)
    (settings,) = [one for one in found if one["redbeat_redis_url"] == f"{scheme}://"]
    return settings


def written(place: Place, name: str, port: int) -> dict[str, str]:
    """Return how the manual writes the addresses of a group, each with the one of the test."""
    return {
        f'"{name}-{number}.example.com", {port}': f'"{host}", {own}'
        for number, (host, own) in enumerate(place.group.addresses, 1)
    }


def test_sentinel(sentinels: Place, files: CertificateFiles) -> None:
    run(settings_on_page("redis-sentinel", written(sentinels, "sentinel", 26379), files))


def test_cluster(cluster: Place, files: CertificateFiles) -> None:
    run(settings_on_page("redis-cluster", written(cluster, "redis", 6379), files))
