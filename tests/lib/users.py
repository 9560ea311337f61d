"""Other users of the machine, for tests in which ulpf is root and its target or its neighbour is not.

They have numbers and no names: nothing is written to /etc/passwd, and nothing is left behind.
"""

import ctypes
import functools
import os
import shutil
import tempfile
import unittest

# Two strangers, far from any number that a system gives out by itself.
ALICE, BOB = 54321, 54322


# linux/sched.h, linux/mount.h
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2


def open_root():
    """Gives this process a root folder that other users may enter; what lies in it stays the same.

    In a chroot the root folder can be closed (mode 700); then other users reach no file at all. The new root is a tmpfs
    with a bind mount of each folder, in a mount namespace of this thread and its children. Nothing outside changes: no
    mount propagates, and no file's mode is changed. OSError if the kernel permits no mounts; then the root stays.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, kind, flags, data=None):
        if libc.mount(source and source.encode(), target.encode(), kind, ctypes.c_ulong(flags), data):
            raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")

    def bind(source, target, flags):
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            open(target, "xb").close()
        mount(source, target, None, MS_BIND | flags)
        mount(None, target, None, MS_PRIVATE | MS_REC)

    here = os.getcwd()
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    # The root of a chroot is seldom a mount, and only a mount can be made private. /proc is one: it carries the new root.
    mount(None, "/proc", None, MS_PRIVATE | MS_REC)
    os.chdir("/proc")
    mount("ulpf-tests", "/proc", b"tmpfs", 0, b"mode=755")
    try:
        # Not with what is mounted below it: that is the new root itself.
        bind(".", "/proc/proc", 0)
        for entry in os.scandir("/"):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), f"/proc{entry.path}")
            elif entry.name != "proc":
                bind(entry.path, f"/proc{entry.path}", MS_REC)
        os.chroot("/proc")
    except OSError:
        libc.umount2(b"/proc", MNT_DETACH)
        raise
    finally:
        os.chdir(here)


@functools.cache
def no_other_users():
    """Why no process of another user can be started here."""
    if os.geteuid() != 0:
        return "only root can start processes of other users"
    if not os.stat("/").st_mode & 1:
        try:
            open_root()
        except OSError as why:
            return "the root folder is closed to other users (mode {:o}), and another one cannot be made: {}".format(
                os.stat("/").st_mode & 0o7777, why)
    return None


# For classes and functions.
as_root = unittest.skipIf(no_other_users(), no_other_users() or "")


def becomes(uid):
    """Options for subprocess: the process is this user's, with no other group."""
    return {"user": uid, "group": uid, "extra_groups": []}


class Place:
    """A folder that every user can read (a checkout may lie where only root can), with copies of files.

    As a context manager it goes away at the end.
    """

    def __init__(self, *files, owner=None):
        self.path = tempfile.mkdtemp(prefix="ulpf-test-", dir="/tmp")
        os.chmod(self.path, 0o755)
        for file in files:
            self.add(file)
        if owner is not None:
            os.chown(self.path, owner, owner)

    def add(self, file):
        """A copy that all may read and run; its path."""
        copy = os.path.join(self.path, os.path.basename(file))
        shutil.copy(file, copy)
        os.chmod(copy, 0o755)
        return copy

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
