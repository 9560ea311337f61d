"""Debug information that a server has, asked for by build ID: `DEBUGINFOD_URLS`."""

import functools
import http.server
import os
import re
import subprocess
import tempfile
import threading
import unittest

from lib.env import needs, ulpf_only
from lib.run import Json, run

SOURCE = """struct pair { int x, y; };
struct pair pairs[4];
int main(void) {
    pairs[2].y = 7;
    return 0;
}
"""


class Files(http.server.SimpleHTTPRequestHandler):
    """As a debuginfod serves them: /buildid/ID/debuginfo."""

    def log_message(self, *words):
        pass


@ulpf_only
@needs("debuginfod-find")
class Debuginfod(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.served = os.path.join(self.folder, "served")
        os.mkdir(self.served)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=self.served))
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.env = {**os.environ, "DEBUGINFOD_URLS": f"http://127.0.0.1:{server.server_port}", "no_proxy": "127.0.0.1",
                    "DEBUGINFOD_CACHE_PATH": os.path.join(self.folder, "cache")}

    def build(self, source=SOURCE, name="pairs"):
        """A program without any debug information, and the file that has it."""
        program = os.path.join(self.folder, name)
        subprocess.run(["cc", "-g", "-Wl,--build-id", "-x", "c", "-", "-o", program], input=source.encode(), check=True)
        subprocess.run(["objcopy", "--only-keep-debug", program, program + ".sent"], check=True)
        subprocess.run(["strip", program], check=True)
        return program, program + ".sent"

    def serve(self, what, sent):
        """From now on the server has this for the build ID of `what`."""
        notes = subprocess.run(["readelf", "-n", what], check=True, stdout=subprocess.PIPE, text=True).stdout
        place = os.path.join(self.served, "buildid", re.search(r"Build ID: ([0-9a-f]+)", notes)[1])
        os.makedirs(place)
        os.link(sent, os.path.join(place, "debuginfo"))

    def refused(self, program, **env):
        status, _, err = run(["pairs[2].y"], program, env={**self.env, **env})
        self.assertEqual(status, 2)
        self.assertIn("there is no variable `pairs`", err)
        return err

    def watched(self, program):
        said = Json(["pairs[2].y"], program, env=self.env)
        self.assertEqual(said.changes(), [("pairs[2].y", "0", "7")])
        self.assertEqual((said.hits[0]["function"], said.hits[0]["line"]), ("main", 4))

    def test_names_types_and_lines(self):
        program, sent = self.build()
        self.serve(program, sent)
        self.assertIn("no debug information", self.refused(program, DEBUGINFOD_URLS=""))
        self.watched(program)
        # It is in the cache now, and the server is asked no more.
        os.rename(self.served, self.served + ".gone")
        self.watched(program)

    def test_a_server_that_does_not_have_it_or_is_not_there(self):
        program, _ = self.build()
        self.refused(program)
        self.refused(program, DEBUGINFOD_URLS="http://127.0.0.1:9")

    def test_what_belongs_to_another_program_is_not_believed(self):
        program, _ = self.build()
        _, other = self.build(SOURCE.replace("pairs[4]", "pairs[5]"), "other")
        self.serve(program, other)
        self.refused(program)

    def test_without_the_client(self):
        program, sent = self.build()
        self.serve(program, sent)
        self.assertIn("debuginfod-find is not installed", self.refused(program, PATH="/nowhere"))

    @needs("dwz")
    def test_what_several_files_share(self):
        """dwz has moved it to a file of its own, which the server has, too."""
        program, sent = self.build()
        _, other = self.build(SOURCE.replace("= 7", "= 8"), "other")
        shared = os.path.join(self.folder, "shared")
        subprocess.run(["dwz", "-m", shared, sent, other], check=True)
        self.assertIn("debugaltlink", subprocess.run(["readelf", "-SW", sent], check=True, stdout=subprocess.PIPE, text=True).stdout)
        self.serve(program, sent)
        self.serve(shared, shared)
        # It can be found by its build ID only.
        os.rename(shared, shared + ".elsewhere")
        self.watched(program)


if __name__ == "__main__":
    unittest.main()
