"""A file system that does not answer: it has one file, and a read of it waits until the file system is gone."""

import contextlib
import ctypes
import os
import struct
import threading

MNT_FORCE, MNT_DETACH = 1, 2
# linux/fuse.h: struct fuse_in_header; operations; struct fuse_attr without padding.
HEAD = struct.Struct("<IIQQIIII")
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 27, 42
ENOSYS, ENOENT = 38, 2
NAME, LENGTH = "silent", 1 << 16


def attributes(node):
    mode = 0o40755 if node == 1 else 0o100666
    return struct.pack("<6Q10I", node, LENGTH, LENGTH // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextlib.contextmanager
def silent(folder):
    """Mounts it at `folder`, for all users. Yields the path of its file, and an event that is set when a process waits for it.

    OSError where the kernel permits no such mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"ulpf-tests", folder.encode(), b"fuse", ctypes.c_ulong(0), options):
        error = ctypes.get_errno()
        os.close(device)
        raise OSError(error, f"mount a FUSE file system: {os.strerror(error)}")
    waits = threading.Event()

    def answer(unique, body=b"", error=0):
        os.write(device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)

    def serve():
        while True:
            try:
                request = os.read(device, 1 << 18)
            except OSError:
                return  # unmounted
            _, operation, unique, node, *_ = HEAD.unpack_from(request)
            body = request[HEAD.size:]
            if operation == INIT:
                major, minor, readahead, _ = struct.unpack_from("<4I", body)
                answer(unique, struct.pack("<4I2H2I2H8I", major, min(minor, 31), readahead, 0, 1, 1, 1 << 16, 1, 0, 0, *[0] * 8)[:64])
            elif operation == LOOKUP:
                known = body.rstrip(b"\0").decode() == NAME
                answer(unique, struct.pack("<4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2) if known else b"", 0 if known else ENOENT)
            elif operation == GETATTR:
                answer(unique, struct.pack("<Q2I", 60, 0, 0) + attributes(node))
            elif operation in (OPEN, OPENDIR):
                answer(unique, struct.pack("<Q2I", 1, 0, 0))
            elif operation == READ:
                waits.set()
            elif operation not in (FORGET, BATCH_FORGET):
                answer(unique, error=ENOSYS)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield os.path.join(folder, NAME), waits
    finally:
        # Waiting processes get an error (MNT_FORCE). The mount goes when its file is no longer open.
        libc.umount2(folder.encode(), MNT_FORCE)
        libc.umount2(folder.encode(), MNT_DETACH)
        thread.join(1)
        os.close(device)
