"""Systems of Debian and Ubuntu that have nothing of ours, in folders: made by debootstrap once, in target/bare, and copied."""

import glob
import os
import shutil
import subprocess

from .env import PATIENCE, ROOT, find_tool

DEBOOTSTRAP = find_tool("debootstrap", "/usr/sbin/debootstrap")
DEBIAN = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
UBUNTU = os.environ.get("UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu")
# debootstrap's script for every Ubuntu.
GUTSY = "/usr/share/debootstrap/scripts/gutsy"
# The mounts end with the namespace.
ENTER = """mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
"""


def run(*command, seconds=900, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=seconds * PATIENCE, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"
"""


def bare(suite, packages, ubuntu=False):
    """A bare system of that suite with these packages beside, made if need be."""
    base = os.path.join(ROOT, "target", "bare", suite)
    if not os.path.exists(f"{base}.made"):
        shutil.rmtree(base, ignore_errors=True)
        os.makedirs(base)
        # Debian has no keys of Ubuntu's: nothing of such a system leaves its folder.
        how = ["--no-check-gpg", "--components=main,universe"] if ubuntu else []
        where = [UBUNTU, GUTSY] if ubuntu else [DEBIAN]
        run(DEBOOTSTRAP, "--variant=minbase", "--include=ca-certificates", *how, suite, base, *where)
        settle(base)
        run(*inside(base), "sh", "-c", INSTALL, "sh", *packages)
        open(f"{base}.made", "w").close()
    return base


def copy(base, root):
    run("cp", "-a", f"{base}/.", root)
    settle(root)


def settle(root):
    """Writes the files that an installer would have written."""
    for name in glob.glob("/etc/apt/apt.conf.d/*"):
        shutil.copy(name, os.path.join(root, "etc/apt/apt.conf.d"))
    for name in "resolv.conf", "hosts":
        shutil.copy(f"/etc/{name}", os.path.join(root, "etc", name))


def inside(root):
    """The words before a command that runs there."""
    return ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", ENTER, root]
