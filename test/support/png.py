"""PNG images for tests, written without a library that a machine may not have."""

import struct
import zlib


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows, channels=3, n_bytes=None):
    """The file of an image with 8 bits per channel: 3 channels for RGB, 1 for grey.

    Each of `rows` has width x channels bytes. With n_bytes, a chunk that readers ignore makes the file that large.
    """
    header = struct.pack(">IIBBBBB", len(rows[0]) // channels, len(rows), 8, 2 if channels == 3 else 0, 0, 0, 0)
    begin = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)
    end = _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + _chunk(b"IEND", b"")
    if n_bytes is None:
        return begin + end
    n_padding = n_bytes - len(begin + _chunk(b"teSt", b"") + end)
    return begin + _chunk(b"teSt", bytes(n_padding)) + end
