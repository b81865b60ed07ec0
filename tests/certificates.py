"""A certificate for ``localhost`` and the authority that signed it, valid for 100 years.

The authority's private key was deleted, so nobody can sign another certificate with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KEY_PASSWORD = "key-secret"

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBqDCCAU+gAwIBAgIUSwZetp/dY7htQjzwPTdnMCgQhBowCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjEwMTQw
MzFaGA8yMTI2MTAyODAxNDAzMVowITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1
dGhvcml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABP1rEni+G8SQZ9Kd3aPE
C84WjDdMNqpZQWY5ZZ05MLY8poSJKM+wVWzygdhFEUjxOnC/rDgNgNLpfWimffV6
7jyjYzBhMB0GA1UdDgQWBBQmmsXjOzkiv5iJKd3U99j7ETe5hDAfBgNVHSMEGDAW
gBQmmsXjOzkiv5iJKd3U99j7ETe5hDAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB
/wQEAwICBDAKBggqhkjOPQQDAgNHADBEAiBS41qvCbLRoL+UrUiu56Bx5pkOsIlL
2FUOc75iDh/omAIgfYWRzAVXQDOzArg8dGRqUB1yiGbPCqEu2Q61A7gXiUI=
-----END CERTIFICATE-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIB0DCCAXagAwIBAgIUOQ6X9pVsKzDi5OGppp0cEudpK+wwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWUmVkQmVhdCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjEwMTQw
MzFaGA8yMTI2MTAyODAxNDAzMVowFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAE0m18ntTZUJAnt7QaEw4w9wQL36yuHtQX7epq
I32ScZeO1V4eND4pMjICrKNqokcLmmamkYxWaUtPYjG1DJN/6KOBljCBkzAUBgNV
HREEDTALgglsb2NhbGhvc3QwHQYDVR0lBBYwFAYIKwYBBQUHAwEGCCsGAQUFBwMC
MAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMB0GA1UdDgQWBBTw+0ad4vtv
oZkdIPEKfTfTWiTVazAfBgNVHSMEGDAWgBQmmsXjOzkiv5iJKd3U99j7ETe5hDAK
BggqhkjOPQQDAgNIADBFAiAwMD42D0ialwFiPiQ0f3Dljo1DLD7LE5S2H//Ov4tb
pAIhALROkNRFQT5Ufkm5UqNo1O04tDvcMNyC4nk6mPcYHr4K
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIOr/5ok0zbshmp/lTweIEYmSAuLEL9XTSdTVEFcJsUMKoAoGCCqGSM49
AwEHoUQDQgAE0m18ntTZUJAnt7QaEw4w9wQL36yuHtQX7epqI32ScZeO1V4eND4p
MjICrKNqokcLmmamkYxWaUtPYjG1DJN/6A==
-----END EC PRIVATE KEY-----
"""

ENCRYPTED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgF3gacc7nTEQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEC9tzXZ5+qVXZRRZgLrpeYsEgZCO
BRrm5L9qTYu5cBfq8/l8JFfz5sDRbBgfAssykimet2Nmpc0TV9WUlU4XMuBY9Tir
CkQExKqBbyxfmehmr1sY94AnE4J0OKYfDWS+LtmIBMgW1rrmeM4rGHYQvWJLV3Hj
P6W6T8xmj3nGQaUWTJ8TrPtHkuFONvM3yI5N9x8MsxPO+s7Ns76UczaxkDExPsk=
-----END ENCRYPTED PRIVATE KEY-----
"""


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of the certificate files. :data:`KEY_PASSWORD` decrypts ``encrypted_key``."""

    authority: str
    certificate: str
    key: str
    encrypted_key: str


def write_certificates(directory: Path) -> CertificateFiles:
    """Write the four files of the certificate into ``directory``, and return their paths."""
    return CertificateFiles(
        authority=_write(directory / "ca.pem", AUTHORITY),
        certificate=_write(directory / "server.pem", CERTIFICATE),
        key=_write(directory / "server.key", KEY),
        encrypted_key=_write(directory / "encrypted.key", ENCRYPTED_KEY),
    )


def _write(path: Path, text: str) -> str:
    path.write_text(text, encoding="ascii")
    return str(path)
