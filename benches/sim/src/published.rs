// SPDX-License-Identifier: GPL-2.0-or-later
//! What was published: "User Level Page Faults" (Qingyang Li, CMU-CS-20-124, 2020), its tables; and what
//! gdb's software watchpoints cost on the machine of docs/notes/measurements.md.

/// Watches, pages spanned, slowdown with lookup, and without.
pub type Row = (u64, u64, f64, f64);

pub const TABLE_4_3: [Row; 10] = [
    (1, 1, 1.05, 1.01),
    (2, 2, 1.11, 1.02),
    (3, 3, 1.17, 1.02),
    (4, 4, 1.22, 1.03),
    (8, 8, 1.45, 1.06),
    (16, 16, 1.91, 1.13),
    (32, 32, 2.84, 1.26),
    (64, 55, 4.16, 1.45),
    (128, 101, 6.81, 1.83),
    (256, 156, 9.97, 2.29),
];

pub const TABLE_4_4: [Row; 6] = [
    (8, 1, 1.05, 1.01),
    (16, 1, 1.05, 1.01),
    (24, 2, 1.11, 1.01),
    (32, 2, 1.11, 1.01),
    (40, 3, 1.16, 1.02),
    (48, 3, 1.16, 1.02),
];

pub const TABLE_4_5: [Row; 2] = [(256, 256, 15.8, 3.2), (1_048_576, 256, 14.5, 3.2)];

/// Watches; slowdown with gdb's hardware and software watchpoints, and with ULPF; gdb's software
/// watchpoints measured with `ulpf-bench --only debuggers` (docs/notes/measurements.md, 2026-11-21).
pub const TABLE_4_6: [(u64, Option<f64>, f64, f64, f64); 8] = [
    (1, Some(1.05), 799_600., 2.5, 1_441_859.),
    (2, Some(1.05), 1_018_000., 4.2, 1_486_896.),
    (3, Some(1.03), 1_203_000., 6.0, 1_452_060.),
    (4, None, 1_446_000., 6.1, 1_577_682.),
    (8, None, 2_101_000., 8.2, 1_899_652.),
    (16, None, 3_773_000., 12.0, 2_069_533.),
    (32, None, 6_546_000., 17.1, 2_689_954.),
    (64, None, 13_520_000., 19.4, 4_416_885.),
];

/// Program, hits, false positives, nodes, slowdown with lookup, and without.
pub const TABLE_4_7: [(&str, u64, u64, u64, f64, f64); 2] = [
    ("libquantum", 7_249_859, 348, 95, 6.8, 1.8),
    ("lbm", 4_611_909, 3930, 2, 2.1, 1.1),
];
