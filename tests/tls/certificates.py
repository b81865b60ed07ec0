"""A certificate for ``localhost`` and 127.0.0.1, and the authority that signed it.

The certificate is valid for 100 years. Sentinels and cluster nodes announce servers by address, so
the certificate must contain the address. The authority's private key is not stored, so nobody can
sign more certificates with it.
"""

from __future__ import annotations

from pathlib import Path

from tests.certificates import CertificateFiles

__all__ = ("write_for_addresses",)

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBqTCCAU+gAwIBAgIUG4cFzNHZEKe3sbeLim7AYYpkmjwwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjExOTM5
MzdaGA8yMTI2MTAyODE5MzkzN1owITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1
dGhvcml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABMZlwHa3dkQTmiT0VzO7
tAXUUg9XrlSKVmpdfvAA+9B82gvK/P/WwX/6vtqsk6p3VGVZUPklwIXdxC2dpbBx
9XujYzBhMB0GA1UdDgQWBBR7Ei9BsZh1Hq+yHrjWUulHKJURZzAfBgNVHSMEGDAW
gBR7Ei9BsZh1Hq+yHrjWUulHKJURZzAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB
/wQEAwIBBjAKBggqhkjOPQQDAgNIADBFAiA95Am5YNvOpyY0H3DBFNUI+vKaUjMv
a44mq8kwiiCe3AIhAOQ5K/7LsPKXPa+xHnIOQM2vtkyIoTDcg9vXoe8d6DwI
-----END CERTIFICATE-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIB1TCCAXygAwIBAgIUGgkkx8Hm6J/6kDeC8X8qRdmJw6owCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjExOTM5
MzdaGA8yMTI2MTAyODE5MzkzN1owFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAER7Zf2II7pSTvhcLYRNevjcghJRU0LzVDjvJv
uQ/V9t0097hhmf5XgzFgA8oDjUylfpBph8bgiu7T2O00qmr8waOBnDCBmTAaBgNV
HREEEzARgglsb2NhbGhvc3SHBH8AAAEwHQYDVR0lBBYwFAYIKwYBBQUHAwEGCCsG
AQUFBwMCMAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMB0GA1UdDgQWBBT2
+QYmdMsJeEZOBtduzKjkB/E2uDAfBgNVHSMEGDAWgBR7Ei9BsZh1Hq+yHrjWUulH
KJURZzAKBggqhkjOPQQDAgNHADBEAiAZBf4htxUAXvrmeVIyx6nPXlptjnNirxeu
gNWR2SPgDwIgIsdwBEuHtjWL3w7yQ+jIWua0Z35Qjxd34Yi3TqmmrY8=
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIC9BqoHyRnOjda0iN5gVfxYEVrBAD0UQkWRkdx2wc4VDoAoGCCqGSM49
AwEHoUQDQgAER7Zf2II7pSTvhcLYRNevjcghJRU0LzVDjvJvuQ/V9t0097hhmf5X
gzFgA8oDjUylfpBph8bgiu7T2O00qmr8wQ==
-----END EC PRIVATE KEY-----
"""


def write_for_addresses(directory: Path) -> CertificateFiles:
    """Write the certificates of authority and servers, and the key, to ``directory``."""
    names = {"addresses-ca.pem": AUTHORITY, "addresses.pem": CERTIFICATE, "addresses.key": KEY}
    for name, text in names.items():
        (directory / name).write_text(text, encoding="ascii")
    authority, certificate, key = (str(directory / name) for name in names)
    return CertificateFiles(authority, certificate, key, encrypted_key="")
