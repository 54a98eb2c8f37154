"""A file system in memory over the kernel's FUSE protocol that finds entries as VFAT,
NTFS and SMB shares do: whatever the case, by an 8.3 name (`ENV~1` is `.env`), with dots or
blanks at the end, and with `::$DATA`. A list has each entry once, under its own name.

    alias_fs.py MOUNTPOINT [nfs]

With `nfs` it knows hard links and no flags of a rename, as NFS does. It prints `ready` when it is mounted, and ends when it is unmounted.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

ROOT = 1
MINOR = 31
LIBC = ctypes.CDLL(None, use_errno=True)
IS_NFS = sys.argv[2:] == ["nfs"]


class Node:
    """A file, directory or link."""

    def __init__(self, mode, uid, gid):
        self.mode, self.uid, self.gid = mode, uid, gid
        self.data, self.entries, self.names = bytearray(), {}, 0
        self.times = 1_700_000_000


NODES = {ROOT: Node(stat.S_IFDIR | 0o755, os.getuid(), os.getgid())}


class Refused(Exception):
    """The errno of a reply."""


def own(name):
    """The name under which an entry is made."""
    if name.lower().endswith(b"::$data"):
        name = name[: -len(b"::$DATA")]
    return name.rstrip(b". ")


def short(name):
    """The 8.3 name of an entry whose own name is none."""
    stem, dot, ending = name.lstrip(b".").rpartition(b".")
    if not dot:
        stem, ending = ending, b""
    if len(stem) <= 8 and len(ending) <= 3 and not name.startswith(b"."):
        return name
    return stem.replace(b".", b"")[:6] + b"~1" + (b"." + ending[:3] if ending else b"")


def find(directory, name):
    """The own name of the entry that `name` finds."""
    entries = NODES[directory].entries
    if name in entries:
        return name
    wanted = own(name).lower()
    for entry in entries:
        if wanted in (entry.lower(), short(entry).lower()):
            return entry
    raise Refused(errno.ENOENT)


def attributes(number):
    node = NODES[number]
    size = 4096 if stat.S_ISDIR(node.mode) else len(node.data)
    links = 2 if stat.S_ISDIR(node.mode) else node.names
    times = (node.times,) * 3 + (0,) * 3
    who = (node.mode, links, node.uid, node.gid, 0, 4096, 0)
    return struct.pack("<6Q10I", number, size, -(-size // 512), *times, *who)


def entry(number):
    # Nothing is valid for any time: each lookup comes here.
    return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + attributes(number)


def make(directory, name, mode, head):
    name = own(name)
    try:
        find(directory, name)
    except Refused:
        pass
    else:
        raise Refused(errno.EEXIST)
    number = max(NODES) + 1
    NODES[number] = Node(mode, head[0], head[1])
    put(directory, name, number)
    return number


def put(directory, name, number):
    NODES[directory].entries[name] = number
    NODES[number].names += 1
    NODES[directory].times += 1


def take(directory, name):
    number = NODES[directory].entries.pop(find(directory, name))
    NODES[number].names -= 1
    NODES[directory].times += 1
    return number


def rename(directory, to, flags, names):
    old, new = names.split(b"\0")[:2]
    try:
        there = NODES[to].entries[find(to, new)]
    except Refused:
        there = None
    moving = NODES[directory].entries[find(directory, old)]
    if flags & 2:  # RENAME_EXCHANGE
        if there is None:
            raise Refused(errno.ENOENT)
        one, other = find(directory, old), find(to, new)
        NODES[directory].entries[one], NODES[to].entries[other] = there, moving
        return b""
    if there is not None and flags & 1:  # RENAME_NOREPLACE
        raise Refused(errno.EEXIST)
    take(directory, old)
    if there is not None:
        take(to, new)
    put(to, own(new), moving)
    return b""


def listing(number, offset, size):
    out = b""
    for at, (name, child) in enumerate(list(NODES[number].entries.items())[offset:], offset):
        kind = NODES[child].mode >> 12
        one = struct.pack("<2Q2I", child, at + 1, len(name), kind) + name
        one += b"\0" * (-len(one) % 8)
        if len(out) + len(one) > size:
            break
        out += one
    return out


def set_attributes(number, body):
    node = NODES[number]
    valid, _, _, size = struct.unpack_from("<2I2Q", body)
    mode, _, uid, gid = struct.unpack_from("<4I", body, 68)
    if valid & 1:
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
    if valid & 2:
        node.uid = uid
    if valid & 4:
        node.gid = gid
    if valid & 8:
        node.data = node.data[:size].ljust(size, b"\0")
    return struct.pack("<Q2I", 0, 0, 0) + attributes(number)


def write(number, body):
    _, offset, size = struct.unpack_from("<2QI", body)
    data, content = NODES[number].data, body[40 : 40 + size]
    data.extend(b"\0" * (offset - len(data)))
    data[offset : offset + size] = content
    NODES[number].times += 1
    return struct.pack("<2I", size, 0)


def answer(opcode, number, head, body):
    """The reply to a request; None where there is none."""
    name = body.split(b"\0")[0]
    match opcode:
        case 1:
            return entry(NODES[number].entries[find(number, name)])
        case 2 | 42 | 36:
            return None
        case 3:
            return struct.pack("<Q2I", 0, 0, 0) + attributes(number)
        case 4:
            return set_attributes(number, body)
        case 5:
            return bytes(NODES[number].data)
        case 6:
            made = make(number, name, stat.S_IFLNK | 0o777, head)
            NODES[made].data += body.split(b"\0")[1]
            return entry(made)
        case 8:
            mode = struct.unpack_from("<I", body)[0]
            return entry(make(number, body[16:].split(b"\0")[0], mode, head))
        case 9:
            mode = struct.unpack_from("<I", body)[0] | stat.S_IFDIR
            return entry(make(number, body[8:].split(b"\0")[0], mode, head))
        case 10:
            take(number, name)
            return b""
        case 11:
            if NODES[NODES[number].entries[find(number, name)]].entries:
                raise Refused(errno.ENOTEMPTY)
            take(number, name)
            return b""
        case 12:
            return rename(number, struct.unpack_from("<Q", body)[0], 0, body[8:])
        case 13 if IS_NFS:
            linked = struct.unpack_from("<Q", body)[0]
            put(number, own(body[8:].split(b"\0")[0]), linked)
            return entry(linked)
        case 45 if not IS_NFS:
            return rename(number, *struct.unpack_from("<QI", body), body[16:])
        case 14 | 27:
            return struct.pack("<Q2I", number, 0, 0)
        case 15:
            _, offset, size = struct.unpack_from("<2QI", body)
            return bytes(NODES[number].data[offset : offset + size])
        case 16:
            return write(number, body)
        case 17:
            return struct.pack("<5Q4I24x", 9000, 9000, 9000, 900, 900, 4096, 255, 4096, 0)
        case 28:
            _, offset, size = struct.unpack_from("<2QI", body)
            return listing(number, offset, size)
        case 35:
            mode = struct.unpack_from("<2I", body)[1]
            made = make(number, body[16:].split(b"\0")[0], stat.S_IFREG | mode, head)
            return entry(made) + struct.pack("<Q2I", made, 0, 0)
        case 18 | 20 | 25 | 29 | 30 | 34:
            return b""
        case 26:
            ahead = struct.unpack_from("<I", body, 8)[0]
            return struct.pack("<4I2H2I2HI24x", 7, MINOR, ahead, 0, 12, 9, 1 << 17, 1, 0, 0, 0)
    raise Refused(errno.ENOSYS)


def serve(device):
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            return  # ENODEV: it is unmounted.
        opcode, unique, number, *head = struct.unpack_from("<4xI2Q3I", request)
        code, reply = 0, b""
        try:
            reply = answer(opcode, number, head, request[40:])
            if reply is None:
                continue
        except Refused as refused:
            code = refused.args[0]
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(reply), -code, unique) + reply)
        except OSError as error:
            if error.errno != errno.ENOENT:  # Nobody waits any more.
                raise


def main():
    place = sys.argv[1].encode()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other"
    options %= (device, os.getuid(), os.getgid())
    if LIBC.mount(b"alias", place, b"fuse", 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("ready", flush=True)
    serve(device)


main()
