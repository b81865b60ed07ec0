"""Many texts as one argument or reply: their sizes, and the texts one after the other.

A client handles each value of a reply in Python, at about the price of everything else that is done
for an entry; cutting one long text into pieces costs a fraction of that. Sizes are numbers,
separated by spaces, or of four bytes each where it matters how long Redis takes for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

__all__ = ("pack", "pack_binary", "unpack", "unpack_binary")


def pack(texts: Sequence[str]) -> tuple[str | bytes, str | bytes]:
    """Return the sizes in bytes, separated by spaces, and the texts in UTF-8.

    Surrogates stand for bytes that are no UTF-8, as in :func:`unpack`.
    """
    sizes, joined = _join(texts)
    return " ".join(map(str, sizes)), joined


def pack_binary(texts: Sequence[str]) -> tuple[bytes, str | bytes]:
    """As :func:`pack`, but that a size is four bytes, the highest first."""
    sizes, joined = _join(texts)
    return struct.pack(f">{len(texts)}I", *sizes), joined


def unpack(sizes: bytes, packed: bytes) -> list[str]:
    """Return the texts; bytes that are no UTF-8 become surrogates."""
    return _cut(map(int, sizes.split()), packed)


def unpack_binary(sizes: bytes, packed: bytes) -> list[str]:
    """As :func:`unpack`, for sizes as :func:`pack_binary` writes them."""
    return _cut(struct.unpack(f">{len(sizes) // 4}I", sizes), packed)


def _join(texts: Sequence[str]) -> tuple[Iterable[int], str | bytes]:
    joined = "".join(texts)
    if joined.isascii():
        return map(len, texts), joined
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return map(len, encoded), b"".join(encoded)


def _cut(sizes: Iterable[int], packed: bytes) -> list[str]:
    ends = list(accumulate(sizes))
    pieces = zip(chain((0,), ends), ends)  # noqa: B905 - the last end begins nothing
    if packed.isascii():
        text = packed.decode("ascii")
        return [text[begin:end] for begin, end in pieces]
    return [packed[begin:end].decode("utf-8", "surrogateescape") for begin, end in pieces]
