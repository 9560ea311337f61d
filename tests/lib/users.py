"""Other users of the machine, for tests in which ulpf is root and its target or its neighbour is not.

They have numbers and no names: nothing is written to /etc/passwd, and nothing is left behind.
"""

import os
import shutil
import tempfile
import unittest

# Two strangers, far from any number that a system gives out by itself.
ALICE, BOB = 54321, 54322


def no_other_users():
    """Why no process of another user can be started here."""
    if os.geteuid() != 0:
        return "only root can start processes of other users"
    if not os.stat("/").st_mode & 1:
        return "the root folder is closed to other users (mode {:o}): they can start nothing".format(os.stat("/").st_mode & 0o7777)
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
