"""Files that want more than they are: makers of PNG, JPEG, tar and IDX files with any header, for test_hostile_inputs.py."""
import gzip
import io
import struct
import tarfile
import zlib


def png(width, height, depth=8, colour=0, rows=None, chunks=(), interlace=0, compression=0, right_sums=True):
    """A PNG file. `rows`: what is compressed as image data, by default as much as the header asks for."""
    def chunk(kind, content):
        summed = zlib.crc32(kind + content) ^ (0 if right_sums else 1)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", summed)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, compression, 0, interlace)
    if rows is None:
        channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1)
        rows = bytes(1 + (width * channels * depth + 7) // 8) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunk(*extra) for extra in chunks) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def zeros(mib):
    """So many MiB of zeros, compressed by gzip to a thousandth."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for _ in range(mib):
            file.write(bytes(1 << 20))
    return out.getvalue()


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg(width, height, progressive=False, scans=0, data=None, precision=8, components=1, table=1):
    """A grey JPEG file. Its code tables have one code, the bit 0: no difference, end of block. `data`: of the first scan."""
    frame = struct.pack(">BHHB", precision, height, width, components)
    frame += b"".join(bytes([1 + i, 0x11, 0]) for i in range(components))
    codes = bytes([1] + [0] * 15) + b"\0"
    blocks = ((width + 7) // 8) * ((height + 7) // 8)
    out = b"\xFF\xD8" + segment(0xDB, b"\0" + bytes([table] * 64)) + segment(0xC2 if progressive else 0xC0, frame)
    out += segment(0xC4, b"\x00" + codes + b"\x10" + codes)
    def scan(first, last, content):
        return segment(0xDA, bytes([components]) + b"".join(bytes([1 + i, 0]) for i in range(components)) +
                       bytes([first, last, 0])) + content
    if data is None:
        data = bytes((blocks * (1 if progressive else 2) + 7) // 8)
    out += scan(0, 0 if progressive else 63, data)
    for number in range(scans):
        out += scan(1 + number % 63, 1 + number % 63, bytes((blocks + 7) // 8))
    return out + b"\xFF\xD9"


def idx(dimensions, content, magic=None):
    magic = 0x800 + len(dimensions) if magic is None else magic
    return struct.pack(">I", magic) + struct.pack(f">{len(dimensions)}I", *dimensions) + content


def tar(*entries):
    """A tar archive of (name, content) or (name, content, type)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content, *kind in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if kind:
                info.type, info.size, info.linkname = kind[0], 0, "elsewhere"
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tar_header(name="cat/a.png", size=b"00000000010\0", kind=b"0", magic=b"ustar\00000"):
    """A header with a right checksum and any field."""
    header = bytearray(512)
    header[0:len(name)] = name.encode()
    header[100:108], header[124:136], header[156:157], header[257:265] = b"0000644\0", size, kind, magic
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
