"""How pytest runs these tests: their limits and order, which of them share the machine, what they leave behind.

Attributes of a test or of its class say how the test is run:

    limit   seconds, times ULPF_TEST_PATIENCE; a test that exceeds them is stopped and fails (90 if nothing is said)
    idle    the test waits for most of its time: with pytest-xdist, such tests run one by one, beside the others
    alone   the test needs the machine for itself: with pytest-xdist, it runs when all others are done
    night   why the test is a part of `make nightly` and not of `make test` (a text)
    larger  by night the test runs a second time, with a larger workload (lib.env.LONG)
    costs   why the test may take more than 20 seconds (a text)

tests/costs.json has the seconds of each test that takes more than one (`tests/run --record`). With pytest-xdist, the
longest test starts first.

The whole text of a failed test is in target/failed-tests; what is shown is cut to its ends.
"""

import faulthandler
import json
import os
import shutil
import signal
import tempfile
import time
import warnings

import pytest

from lib import leftovers
from lib.env import PATIENCE

# Of a failed test's output, this many lines are shown, and this many characters of each.
LINES, COLUMNS = 60, 400

# A test that does not stop at its time limit has this many more seconds; then its worker ends.
GRACE = 30


def dotted(nodeid):
    """tests/gdb/test_watch.py::Watch::test_five is gdb.test_watch.Watch.test_five: the form that docs/guarantees uses."""
    return nodeid.removeprefix("tests/").replace(".py", "").replace("::", ".").replace("/", ".")


def says(item, name, default):
    """An attribute of a test or of its class."""
    return getattr(item.function, name, getattr(item.cls, name, default))


COSTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "costs.json")


def costs():
    """{test: seconds}, as recorded; a test that is not named takes less than a second."""
    if not os.path.exists(COSTS):
        return {}
    with open(COSTS) as file:
        return json.load(file)


def limit(item):
    return says(item, "limit", 90) * PATIENCE


def worker(config):
    """The name of the pytest-xdist worker that this process is, or None."""
    return config.workerinput["workerid"] if hasattr(config, "workerinput") else None


# ---- selection and order of tests ----

def pytest_addoption(parser):
    parser.addoption("--named", metavar="WORD", action="append", default=[],
                     help="only tests with this in their names, such as gdb.test_watch or Watch.test_five (may be repeated); "
                          "by day and by night")
    parser.addoption("--nightly", action="store_true", help="the tests of `make nightly`, and only those")


def pytest_collection_modifyitems(config, items):
    words = [dotted(word) for word in config.getoption("--named")]
    if words:
        wanted, others = [], []
        for item in items:
            (wanted if any(word in dotted(item.nodeid) for word in words) else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = wanted
    elif all("::" not in argument for argument in config.args):
        by_night = lambda item: bool(says(item, "night", None))
        nightly = config.getoption("--nightly")
        wanted = [item for item in items if (by_night(item) or says(item, "larger", False) if nightly else not by_night(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(wanted)])
        items[:] = wanted
    for item in items:
        item.add_marker(pytest.mark.timeout(limit(item)))
    if worker(config):
        # A long test that starts last keeps one processor busy and all others idle.
        seconds = costs()
        items.sort(key=lambda item: -seconds.get(dotted(item.nodeid), 0))
    if worker(config) == "gw0":
        kinds = {item.nodeid: kind for kind in ("idle", "alone") for item in items if says(item, kind, False)}
        with open(os.path.join(config.workerinput["shared"], "kinds"), "w") as file:
            json.dump(kinds, file)


# ---- pytest-xdist ----

def pytest_configure(config):
    # Tests that share a machine's boot (lib/vm.py) know by it what belongs to this run.
    run = os.environ.setdefault("ULPF_TEST_RUN", f"{os.getpid()}-{time.time():.0f}")
    # The hot cache of one test's program must not change another one's faults (command/test_hot.py).
    os.environ["ULPF_HOT_CACHE"] = "off"
    if worker(config):
        # A process group and a session of its own, so that processes left by a test are found.
        os.setsid()
        # A shell's background jobs ignore SIGINT and SIGQUIT, what nohup starts ignores SIGHUP; the programs under test
        # would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for ignored in signal.SIGHUP, signal.SIGQUIT:
            signal.signal(ignored, signal.SIG_DFL)
    else:
        config.pluginmanager.register(Failures(os.path.join(config.rootpath, "target", "failed-tests")))
    if not worker(config) and config.getoption("dist", "no") != "no":
        config.shared = tempfile.mkdtemp(prefix="ulpf-tests-")
        if len(config.option.tx) > 1:
            # One more, for the tests that idle.
            config.option.tx.append("popen")
    leftovers.mark(f"{run}/{worker(config) or 'main'}/", session=bool(worker(config)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["shared"] = node.config.shared


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config):
    from lib.scheduling import Scheduling

    def kinds():
        with open(os.path.join(config.shared, "kinds")) as file:
            return json.load(file)
    return Scheduling(len(config.option.tx), kinds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    leftovers.end(f"{os.environ['ULPF_TEST_RUN']}/{node.gateway.id}/")


def pytest_unconfigure(config):
    if hasattr(config, "shared"):
        shutil.rmtree(config.shared, ignore_errors=True)
        # Workers may have been ended in the middle of their tests.
        leftovers.end(f"{os.environ['ULPF_TEST_RUN']}/")


# ---- one test ----

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    if worker(item.config):
        faulthandler.dump_traceback_later(limit(item) + GRACE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    left = leftovers.end(leftovers.own(), grace=1)
    if left:
        warnings.warn(pytest.PytestWarning(f"left behind, and ended: {', '.join(left)}"), stacklevel=1)


def ends(text, first=LINES // 3, last=LINES - LINES // 3):
    """The first and the last lines."""
    lines = [line if len(line) <= COLUMNS else f"{line[:COLUMNS]} … ({len(line) - COLUMNS} more)" for line in text.rstrip().splitlines()]
    if len(lines) > first + last:
        lines[first:-last] = [f"… ({len(lines) - first - last} lines)"]
    return "\n".join(lines)


class Failures:
    """Writes down what failed tests have said, and cuts what is shown."""

    def __init__(self, folder):
        self.folder = folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        if not report.failed:
            return
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, dotted(report.nodeid)), "w") as file:
            file.write("\n".join([report.longreprtext, *(f"---- {title}\n{text}" for title, text in report.sections)]))
        # The assertion stands at the head or the foot of the one, what led to it at the foot of the other.
        if ends(report.longreprtext) != report.longreprtext.rstrip():
            report.longrepr = ends(report.longreprtext)
        report.sections = [(title, ends(text, 0, LINES)) for title, text in report.sections]
