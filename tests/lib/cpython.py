"""CPython's own test modules: what is quick of them. Whole, they take minutes each (tests/run --long)."""

CPYTHON = {
    "test_fork1": [""],
    "test_mmap": [""],
    "test_os": ["FileTests", "EnvironTests", "MakedirTests", "PidTests", "SpawnTests", "MemfdCreateTests", "EventfdTests"],
    "test_signal": ["PosixTests", "SiginterruptTest.test_siginterrupt_on", "ItimerTest.test_setitimer_tiny", "ItimerTest.test_itimer_real",
                    "PendingSignalsTests.test_sigpending", "PendingSignalsTests.test_sigwait", "PendingSignalsTests.test_sigtimedwait",
                    "StressTest.test_stress_delivery_dependent"],
    "test_subprocess": ["POSIXProcessTestCase.test_terminate", "POSIXProcessTestCase.test_kill",
                        "ProcessTestCase.test_communicate", "RunFuncTestCase.test_capture_output"],
    "test_threading": ["ThreadTests.test_various_ops", "ThreadTests.test_foreign_thread", "LockTests", "SemaphoreTests"],
}

# Those of `make test`: threads, signals and processes. `make nightly` has all of them.
BY_DAY = {"test_signal", "test_subprocess", "test_threading"}
