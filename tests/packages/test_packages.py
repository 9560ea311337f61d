"""The packages that `make tarball` and `make deb` make: unpacked, or installed into a root of their own, and used."""

import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from lib import console
from lib.env import PATIENCE, ROOT, ULPF, needs, ulpf_only

BUILD = os.path.join(ROOT, "packaging", "build")
# Packages that are made once in a run of the tests.
MADE = os.path.join(ROOT, "target", "test-packages")
README = os.path.join(ROOT, "README.md")
LIBRARY = os.path.join(ROOT, "docs", "tutorial", "library.md")


def run(*command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300 * PATIENCE, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


class Case(unittest.TestCase):
    """Packages of the binary that is tested; stripping and linking apart they are those that users get."""

    limit = 900
    what = ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-packages-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.made = cls.made_once()

    @classmethod
    def made_once(cls):
        """As `make`, by whichever worker comes first in this run of the tests."""
        os.makedirs(MADE, exist_ok=True)
        with open(os.path.join(MADE, f"{cls.what}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out = os.path.join(MADE, f"{cls.what}-{os.environ['ULPF_TEST_RUN']}")
            if not os.path.exists(out):
                for old in glob.glob(os.path.join(MADE, f"{cls.what}-*")):
                    shutil.rmtree(old)
                cls.make(out + ".new")
                os.rename(out + ".new", out)
        return cls.files(out)

    @classmethod
    def make(cls, out):
        run(sys.executable, BUILD, "--binary", ULPF, "--out", out, "-z1", cls.what, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        return cls.files(out)

    @staticmethod
    def files(folder):
        """Their names, and where they are."""
        return {os.path.basename(path): path for path in glob.glob(f"{folder}/*")}

    def session(self, ulpf, examples, library):
        """The sessions of the README and of the library's tutorial, with the files unpacked here."""
        self.assertNotEqual(os.path.realpath(ulpf), os.path.realpath(ULPF))
        for page in README, LIBRARY:
            if missing := console.missing(page):
                self.skipTest(f"{os.path.relpath(page, ROOT)} needs {', '.join(missing)}")
            with self.subTest(page):
                self.assertGreater(console.try_page(page, examples, ulpf, library), 1)

    def same_again(self):
        again = self.make(os.path.join(self.folder, "again"))
        self.assertEqual(sorted(again), sorted(self.made))
        for name, path in again.items():
            with open(path, "rb") as new, open(self.made[name], "rb") as old:
                self.assertTrue(new.read() == old.read(), f"{name} has other bytes the second time")


@ulpf_only
@needs("strip")
class Tarball(Case):
    what = "tarball"

    def unpacked(self):
        (name, path), = self.made.items()
        self.assertRegex(name, r"^ulpf-\d+\.\d+\.\d+-x86_64-linux\.tar\.xz$")
        place = tempfile.TemporaryDirectory(prefix="somewhere else ", dir=self.folder)
        self.addCleanup(place.cleanup)
        run("tar", "-C", place.name, "-xf", path)
        return os.path.join(place.name, name.removesuffix(".tar.xz"))

    @needs("gdb")
    def test_a_session_from_where_it_was_unpacked(self):
        top = self.unpacked()
        # pkg-config does not quote.
        os.rename(top, plain := os.path.join(self.folder, "elsewhere"))
        self.session(os.path.join(plain, "bin", "ulpf"), os.path.join(plain, "examples"), os.path.join(plain, "lib"))

    def test_what_is_in_it(self):
        top = self.unpacked()
        self.assertRegex(run(os.path.join(top, "bin", "ulpf"), "--version"), r"^ulpf \d")
        self.assertEqual(os.readlink(os.path.join(top, "bin", "ulpf-gdb")), "ulpf")
        for name in ("README.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE", "docs/SUMMARY.md", "share/man/man1/ulpf-run.1",
                     "share/man/man3/ulpf.3", "share/man/man3/ulpf_unpoison.3", "share/bash-completion/completions/ulpf",
                     "share/zsh/site-functions/_ulpf", "share/fish/vendor_completions.d/ulpf.fish", "include/ulpf.h", "lib/libulpf.so"):
            self.assertTrue(os.path.exists(os.path.join(top, name)), name)
        (path,) = self.made.values()
        with tarfile.open(path) as tar:
            for entry in tar:
                self.assertEqual((entry.mtime, entry.uid, entry.gid, entry.mode & 0o022), (1700000000, 0, 0, entry.issym() and 0o022), entry.name)
        self.assertNotIn("debug_info", run("readelf", "-SW", os.path.join(top, "bin", "ulpf")))

    def test_licences_of_all_that_is_linked(self):
        with open(os.path.join(self.unpacked(), "LICENSES-dependencies.txt")) as file:
            head, *texts = file.read().split("=" * 100)
        names = re.findall(r"(?m)^([\w-]+) (\d\S*): ", head)
        self.assertGreater(len(names), 50)
        # Well-known components: of the command, of the stub, and C code.
        self.assertLessEqual({"clap", "tokio", "gdbstub", "capstone-sys", "cpp_demangle"}, {name for name, _ in names})
        having = {name for text in texts for name in re.findall(r"(?m)^([\w-]+) \d\S*, ", text.split("-" * 100)[0])}
        for name, _ in names:
            # A crate without a licence text has a licence whose text the package contains anyway.
            if name not in having:
                self.assertRegex(head, rf"(?m)^{re.escape(name)} .*: .*(MIT|Apache-2\.0)")
        self.assertNotIn("GPL", head.replace("LGPL", ""))

    def test_the_same_bytes_again(self):
        self.same_again()
    test_the_same_bytes_again.night = "each package is built twice"


@ulpf_only
@needs("strip")
@needs("buildah")
@unittest.skipUnless(os.geteuid() == 0, "only root can look into an image without a user namespace")
class Image(Case):
    """The recipe of the image for containers, with the tarball."""

    what = "tarball"

    def buildah(self, *command):
        store = os.path.join(self.folder, "store")
        return run("buildah", "--root", os.path.join(store, "root"), "--runroot", os.path.join(store, "run"), "--storage-driver", "vfs", *command)

    def test_it_begins_with_ulpf(self):
        ((name, path),) = self.made.items()
        version = re.fullmatch(r"ulpf-(.*)-x86_64-linux\.tar\.xz", name)[1]
        recipe = os.path.join(ROOT, "packaging", "Containerfile")
        self.buildah("build", "--isolation", "chroot", "--build-arg", f"VERSION={version}", "-t", "ulpf", "-f", recipe, os.path.dirname(path))
        container = self.buildah("from", "--pull-never", "localhost/ulpf").split()[-1]
        root = self.buildah("mount", container).split()[-1]
        try:
            image = json.loads(self.buildah("inspect", container))["OCIv1"]
            self.assertEqual((image["config"]["Entrypoint"], image["config"]["Labels"]["org.opencontainers.image.version"]), (["ulpf"], version))
            (folder,) = [entry for entry in image["config"]["Env"] if entry.startswith("PATH=")]
            command = root + os.path.join(folder.removeprefix("PATH="), "ulpf")
            self.assertRegex(run(command, "--version"), rf"^ulpf {re.escape(version)}\b")
            self.assertEqual(sorted(os.listdir(root)), ["opt"])
            # The build that is usually tested needs the C library of the machine.
            if "INTERP" not in run("readelf", "-lW", command):
                said = self.buildah("run", "--isolation", "chroot", container, "ulpf", "--version")
                self.assertRegex(said, rf"ulpf {re.escape(version)}\b")
        finally:
            self.buildah("umount", container)


@ulpf_only
@needs("dpkg-deb")
class Deb(Case):
    what = "deb"

    def package(self, name):
        return next(path for file, path in self.made.items() if file.startswith(f"{name}_"))

    @needs("gdb")
    def test_a_session_with_what_was_unpacked(self):
        root = os.path.join(self.folder, "unpacked")
        for name in "ulpf", "libulpf-dev":
            run("dpkg-deb", "-x", self.package(name), root)
        usr = os.path.join(root, "usr")
        for name in ("share/zsh/vendor-completions/_ulpf", "share/man/man1/ulpf-run.1.gz", "share/doc/ulpf/copyright", "share/doc/libulpf-dev/copyright"):
            self.assertTrue(os.path.exists(os.path.join(usr, name)), name)
        # The paths of pkg-config are valid below the root only.
        config = os.path.join(usr, "lib/x86_64-linux-gnu/pkgconfig/ulpf.pc")
        with open(config) as file:
            text = file.read()
        self.assertIn("prefix=/usr\n", text)
        with open(config, "w") as file:
            file.write(text.replace("=/usr", f"={usr}"))
        self.session(os.path.join(usr, "bin/ulpf"), os.path.join(usr, "share/doc/ulpf/examples"), os.path.join(usr, "lib/x86_64-linux-gnu"))

    @unittest.skipUnless(os.geteuid() == 0, "only root installs packages")
    def test_it_is_installed_and_purged_without_a_trace(self):
        """By dpkg itself, into a root of their own."""
        root = os.path.join(self.folder, "root")
        os.makedirs(os.path.join(root, "var/lib/dpkg"))
        for name in "status", "available":
            open(os.path.join(root, "var/lib/dpkg", name), "w").close()
        dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless", "--log=/dev/null"]
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        run(*dpkg, "--install", self.package("ulpf"), self.package("libulpf-dev"), env=environment)
        self.assertRegex(run(os.path.join(root, "usr/bin/ulpf"), "--version"), r"^ulpf \d")
        run(*dpkg, "--purge", "ulpf", "libulpf-dev", env=environment)
        self.assertEqual([name for _, _, names in os.walk(os.path.join(root, "usr")) for name in names], [])

    def test_what_it_says_of_itself(self):
        said = run("dpkg-deb", "-I", self.package("ulpf"))
        static = "INTERP" not in run("readelf", "-lW", ULPF)
        depends = r"Depends: libc6 \(>= 2\.\d+\), libgcc-s1\n"
        (self.assertNotRegex if static else self.assertRegex)(said, depends)
        self.assertRegex(run("dpkg-deb", "-I", self.package("libulpf-dev")), depends)
        self.assertRegex(said, r"Architecture: amd64\n")
        self.assertRegex(run("dpkg-deb", "-c", self.package("ulpf")), r"-rwxr-xr-x root/root +\d+ \S+ \S+ \./usr/bin/ulpf\n")

    def test_the_same_bytes_again(self):
        self.same_again()
    test_the_same_bytes_again.night = "each package is built twice"


@ulpf_only
@needs("dpkg-deb", "make")
class Dkms(Case):
    """The kernel module's package. That DKMS builds what `make -C kernel dkms` lays is tested in tests/kernel."""

    what = "dkms"

    def unpacked(self):
        (name, path), = self.made.items()
        self.assertRegex(name, r"^ulpf-dkms_\d+\.\d+\.\d+_all\.deb$")
        place = tempfile.TemporaryDirectory(prefix="module-", dir=self.folder)
        self.addCleanup(place.cleanup)
        root = os.path.join(place.name, "tree")
        run("dpkg-deb", "-R", path, root)
        return root

    def test_the_sources_are_whole(self):
        """As DKMS builds them: alone, against the headers of a kernel."""
        root = self.unpacked()
        headers = sorted(glob.glob("/usr/src/linux-headers-*-cloud-amd64"))
        if not headers:
            self.skipTest("no linux-headers-cloud-amd64 here")
        (source,) = glob.glob(os.path.join(root, "usr/src/ulpf-*"))
        with open(os.path.join(source, "dkms.conf")) as file:
            self.assertIn(f'PACKAGE_VERSION="{source.rpartition("-")[2]}"', file.read())
        run("make", "-C", headers[-1], f"M={source}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
        self.assertTrue(os.path.exists(os.path.join(source, "ulpf.ko")))

    def test_what_it_does_on_the_machine(self):
        root = self.unpacked()
        self.assertTrue(os.path.exists(os.path.join(root, "usr/lib/udev/rules.d/90-ulpf.rules")))
        for name in "postinst", "prerm":
            script = os.path.join(root, "DEBIAN", name)
            self.assertTrue(os.access(script, os.X_OK), name)
            run("sh", "-n", script)
        with open(os.path.join(root, "usr/share/doc/ulpf-dkms/copyright")) as file:
            self.assertIn("GPL-2.0-only", file.readline())

    def test_the_same_bytes_again(self):
        self.same_again()
    test_the_same_bytes_again.night = "each package is built twice"


@ulpf_only
@needs("dpkg-deb", "strip")
@unittest.skipUnless(os.path.exists(os.path.join(ROOT, "target", "release", "ulpf-sim")), "ulpf-sim is not built (make sim)")
class Simulator(Case):
    what = "sim"

    def test_it_runs_and_names_its_licences(self):
        (name, path), = self.made.items()
        self.assertRegex(name, r"^ulpf-sim_\d+\.\d+\.\d+_amd64\.deb$")
        root = os.path.join(self.folder, "simulator")
        run("dpkg-deb", "-x", path, root)
        self.assertRegex(run(os.path.join(root, "usr/bin/ulpf-sim"), "--version"), r"^ulpf-sim \d")
        self.assertRegex(run("dpkg-deb", "-I", path), r"Depends: libc6 \(>= 2\.\d+\)")
        with open(os.path.join(root, "usr/share/doc/ulpf-sim/LICENSES-dependencies.txt")) as file:
            self.assertRegex(file.read(), r"(?m)^unicorn-engine(-sys)? .*GPL-2\.0")
        with open(os.path.join(root, "usr/share/doc/ulpf-sim/copyright")) as file:
            self.assertIn("GPL-2.0-or-later", file.readline())

    def test_the_same_bytes_again(self):
        self.same_again()
    test_the_same_bytes_again.night = "each package is built twice"
