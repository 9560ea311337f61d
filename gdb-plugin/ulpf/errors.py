# SPDX-License-Identifier: MIT OR Apache-2.0
"""Refusals for the user: what, why, what to do."""


class UlpfError(Exception):
    def __init__(self, what, why, what_to_do):
        super().__init__(f"{what}: {why}; {what_to_do}.")
        self.what, self.why, self.what_to_do = what, why, what_to_do
