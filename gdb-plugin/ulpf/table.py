# SPDX-License-Identifier: MIT OR Apache-2.0
"""Columns of text."""

from . import foreign


def lines(rows, right=()):
    """Rows in columns two spaces apart; those in `right` end together."""
    rows = [[foreign.shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(w) if n in right else cell.ljust(w) for n, (cell, w) in enumerate(zip(row, widths))]
        yield "  ".join(cells).rstrip()
