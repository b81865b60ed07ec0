"""Many texts as one argument or reply: their sizes, and the texts one after the other.

A client handles each value of a reply in Python, at about the price of everything else that is done
for an entry; cutting one long text into pieces costs a fraction of that.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("pack", "unpack")


def pack(texts: Sequence[str]) -> tuple[str | bytes, str | bytes]:
    """Return the sizes in bytes, separated by spaces, and the texts in UTF-8.

    Surrogates stand for bytes that are no UTF-8, as in :func:`unpack`.
    """
    joined = "".join(texts)
    if joined.isascii():
        return " ".join(map(str, map(len, texts))), joined
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return " ".join(map(str, map(len, encoded))), b"".join(encoded)


def unpack(sizes: bytes, packed: bytes) -> list[str]:
    """Return the texts; bytes that are no UTF-8 become surrogates."""
    texts, start = [], 0
    if packed.isascii():
        whole = packed.decode("ascii")
        for size in map(int, sizes.split()):
            texts.append(whole[start : start + size])
            start += size
        return texts
    for size in map(int, sizes.split()):
        texts.append(packed[start : start + size].decode("utf-8", "surrogateescape"))
        start += size
    return texts
