"""Assigns tests to workers of pytest-xdist, in order.

    together   most tests: the next one goes to any free worker
    idle       tests that wait: one worker runs all of them, one by one, beside the others
    alone      tests that need the machine for themselves: at the end, one by one, in one worker

A worker starts a test only when it knows what comes next: another test, or the end (`shutdown`). So each is given
one test ahead.
"""


class Scheduling:
    """Scheduler interface of pytest-xdist. `kinds()`: {test: "idle" or "alone"}, known once all workers have collected.

    With a single worker everything runs there, one after the other.
    """

    def __init__(self, workers, kinds):
        self._workers, self._read_kinds, self._kinds = workers, kinds, {}
        # The tests that each worker has, by their numbers in the collection; the first of them is running.
        self._given = {}
        self._collections = {}
        self._collection = None
        self._together, self._idle, self._alone = [], [], []
        self._beside = None

    # ---- what xdist asks ----

    @property
    def nodes(self):
        return list(self._given)

    @property
    def collection_is_completed(self):
        return len(self._collections) >= self._workers

    @property
    def has_pending(self):
        return bool(self._together or self._idle or self._alone or any(self._given.values()))

    @property
    def tests_finished(self):
        """Nothing is left to give."""
        return self.collection_is_completed and not (self._together or self._idle or self._alone) and all(
            len(given) < 2 for given in self._given.values())

    # ---- what xdist tells ----

    def add_node(self, node):
        self._given[node] = []

    def add_node_collection(self, node, collection):
        self._collections[node] = list(collection)

    def schedule(self):
        """All workers have collected; or one has, in place of one that has died."""
        first = self._collection is None
        if first:
            self._collection = next(iter(self._collections.values()))
            self._kinds = self._read_kinds()
            self._put_back(range(len(self._collection)))
        if any(collection != self._collection for collection in self._collections.values()):
            raise RuntimeError("the workers have not collected the same tests")
        if self._beside is None and self._workers > 1 and (first or self._idle):
            self._beside = self.nodes[-1]
        self._give()

    def mark_test_complete(self, node, item_index, duration=0):
        self._given[node].remove(item_index)
        self._give()

    def remove_node(self, node):
        """A worker has ended; the test during which it has died, if it has."""
        given = self._given.pop(node)
        if node is self._beside:
            self._beside = None
        if not given:
            return None
        self._put_back(given[1:])
        return self._collection[given[0]]

    # ---- assignment of tests to workers ----

    def _put_back(self, tests):
        idle = self._idle if self._workers > 1 else self._together
        queues = {None: self._together, "idle": idle, "alone": self._alone}
        for number in tests:
            queues[self._kind(number)].append(number)

    def _send(self, node, queue, count=None):
        tests = queue[:count]
        del queue[:count]
        if tests:
            self._given[node] += tests
            node.send_runtest_some(tests)

    def _end(self, node):
        """A worker that knows that nothing follows runs its last test, and ends."""
        if not node.shutting_down:
            node.shutdown()

    def _give(self):
        ready = [node for node in self._given if node in self._collections and not node.shutting_down]
        if self._beside in ready:
            self._send(self._beside, self._idle)
            self._end(self._beside)
        free = [node for node in ready if node is not self._beside]
        # One each, then one ahead each: few tests are spread over all workers.
        for ahead in 0, 1:
            for node in free:
                if len(self._given[node]) == ahead:
                    self._send(node, self._together, 1)
        if self._together or not free:
            return
        last, *others = free
        for node in others:
            self._end(node)
        if not self._alone:
            self._end(last)
        elif not any(given for node, given in self._given.items() if node is not last):
            self._send(last, self._alone)
            self._end(last)
        elif len(self._given[last]) == 1 and self._kind(self._given[last][0]) != "alone":
            # The worker runs what it has, as it knows what follows; what follows waits.
            self._send(last, self._alone, 1)

    def _kind(self, number):
        return self._kinds.get(self._collection[number])
