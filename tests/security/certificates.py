"""Another authority, and a certificate for ``localhost`` that expired in 2020.

The private key of the authority is not stored, so nobody can sign more certificates with it.
"""

from __future__ import annotations

from pathlib import Path

from tests.certificates import CertificateFiles

__all__ = ("write_expired",)

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBrDCCAVGgAwIBAgIUQzJ1TxcniVxAiGdpDikyRMBqih4wCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXUmVkQmVhdCBvdGhlciBhdXRob3JpdHkwIBcNMjAwMTAxMDAw
MDAwWhgPMjEyNjAxMDEwMDAwMDBaMCIxIDAeBgNVBAMMF1JlZEJlYXQgb3RoZXIg
YXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE15fenNJLOWbkeXkT
DNGrgwzMnA1lX41mtVMWRtBOrSBVaXhR3sI/Eawjmu1xDBk7SIs96Kqva1Wii/Wk
7HC/xKNjMGEwHQYDVR0OBBYEFKMbzPIqi381xp0IKnU6aH/ShiJiMB8GA1UdIwQY
MBaAFKMbzPIqi381xp0IKnU6aH/ShiJiMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0P
AQH/BAQDAgIEMAoGCCqGSM49BAMCA0kAMEYCIQD5sjFo+V4pC9E/w6VLe0P0KSRG
65BGedgoOV5tU7IhYQIhAKdUAEJpCDOHPmvxHWnxs37Tt58ys+Cj+SptWnsW6bDV
-----END CERTIFICATE-----
"""

EXPIRED = """\
-----BEGIN CERTIFICATE-----
MIIBvjCCAWWgAwIBAgIUfC0cugKQtGCxXJaIbgNonvcsK4EwCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXUmVkQmVhdCBvdGhlciBhdXRob3JpdHkwHhcNMjAwMTAxMDAw
MDAwWhcNMjAwMjAxMDAwMDAwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcq
hkjOPQIBBggqhkjOPQMBBwNCAAT/P288o7nsjwV65EYA1J4gzKvhTiqKaHkQbE5x
kk8c1VeDDLVYyHQ6ZNoWXWA4+9bvGkFwdnNtMZzEC4jlpvsgo4GGMIGDMBQGA1Ud
EQQNMAuCCWxvY2FsaG9zdDAdBgNVHSUEFjAUBggrBgEFBQcDAQYIKwYBBQUHAwIw
DAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQUrm7Zb1mP7GAFB5DPM9ID1F5O/hwwHwYD
VR0jBBgwFoAUoxvM8iqLfzXGnQgqdTpof9KGImIwCgYIKoZIzj0EAwIDRwAwRAIg
KD1ueiqh6IS1yz9N2qDBu1vwu2QBCDobNKHguMliVFICIFLiXNv0EQVs8PfG1t+J
Tp1JdZCmqW+sb1yrjrlJpB5f
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIFLElgTSye1XLmf5YznkvBvKnazz3htkhT8DhQIAjXZJoAoGCCqGSM49
AwEHoUQDQgAE/z9vPKO57I8FeuRGANSeIMyr4U4qimh5EGxOcZJPHNVXgwy1WMh0
OmTaFl1gOPvW7xpBcHZzbTGcxAuI5ab7IA==
-----END EC PRIVATE KEY-----
"""


def write_expired(directory: Path) -> CertificateFiles:
    """Write the authority, the expired certificate and its key into ``directory``."""
    names = {"other-ca.pem": AUTHORITY, "expired.pem": EXPIRED, "expired.key": KEY}
    for name, text in names.items():
        (directory / name).write_text(text, encoding="ascii")
    authority, certificate, key = (str(directory / name) for name in names)
    return CertificateFiles(authority, certificate, key, encrypted_key="")
