"""Cases of one test, several at once: for those that wait most of the time."""

import traceback
from concurrent.futures import ThreadPoolExecutor

# More keep each other from the processors until their time limits are over.
TOGETHER = 6


def failures(check, cases):
    """Calls check(*case) for each case, in threads. Returns the failures of all as a text, empty if all have passed."""
    def failure(case):
        try:
            check(*case)
        except Exception:  # told with the others'
            return f"{case}:\n{traceback.format_exc()}"
        return ""
    with ThreadPoolExecutor(TOGETHER) as pool:
        return "\n".join(filter(None, pool.map(failure, cases)))
