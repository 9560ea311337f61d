//! Published figures: "User Level Page Faults" (Qingyang Li, CMU-CS-20-124, 2020: simulated
//! hardware, slowdowns of the whole loop) and MemTrace (binary translation; its figures from the
//! thesis's table 4.8).

/// A row of table 4.3: one-byte watches at uniformly distributed random addresses in 256 pages.
pub struct Sparse {
    pub watches: usize,
    pub pages: usize,
    pub lookup: f64,
    pub no_lookup: f64,
}

const fn sparse(watches: usize, pages: usize, lookup: f64, no_lookup: f64) -> Sparse {
    Sparse {
        watches,
        pages,
        lookup,
        no_lookup,
    }
}

pub const TABLE_4_3: &[Sparse] = &[
    sparse(1, 1, 1.05, 1.01),
    sparse(2, 2, 1.11, 1.02),
    sparse(3, 3, 1.17, 1.02),
    sparse(4, 4, 1.22, 1.03),
    sparse(8, 8, 1.45, 1.06),
    sparse(16, 16, 1.91, 1.13),
    sparse(32, 32, 2.84, 1.26),
    sparse(64, 55, 4.16, 1.45),
    sparse(128, 101, 6.81, 1.83),
    sparse(256, 156, 9.97, 2.29),
];

/// Table 4.4: watches 256 bytes apart.
pub const TABLE_4_4: &[Sparse] = &[
    sparse(8, 1, 1.05, 1.01),
    sparse(16, 1, 1.05, 1.01),
    sparse(24, 2, 1.11, 1.01),
    sparse(32, 2, 1.11, 1.01),
    sparse(40, 3, 1.16, 1.02),
    sparse(48, 3, 1.16, 1.02),
];

/// Table 4.5: one watch on each page, and every byte.
pub const TABLE_4_5: &[Sparse] = &[
    sparse(256, 256, 15.8, 3.2),
    sparse(1_048_576, 256, 14.5, 3.2),
];

/// A row of table 4.6: 8 pages, compiled with -O0.
pub struct Gdb {
    pub watches: usize,
    pub hardware: Option<f64>,
    pub software: f64,
    pub ulpf: f64,
}

const fn gdb(watches: usize, hardware: Option<f64>, software: f64, ulpf: f64) -> Gdb {
    Gdb {
        watches,
        hardware,
        software,
        ulpf,
    }
}

pub const TABLE_4_6: &[Gdb] = &[
    gdb(1, Some(1.05), 799_600.0, 2.5),
    gdb(2, Some(1.05), 1_018_000.0, 4.2),
    gdb(3, Some(1.03), 1_203_000.0, 6.0),
    gdb(4, None, 1_446_000.0, 6.1),
    gdb(8, None, 2_101_000.0, 8.2),
    gdb(16, None, 3_773_000.0, 12.0),
    gdb(32, None, 6_546_000.0, 17.1),
    gdb(64, None, 13_520_000.0, 19.4),
];

/// Tables 4.7 and 4.8: all of the heap watched.
pub struct Heap {
    pub program: &'static str,
    pub lookup: f64,
    pub no_lookup: f64,
    pub memtrace: f64,
    pub goal: f64,
}

pub const TABLE_4_8: &[Heap] = &[
    Heap {
        program: "libquantum",
        lookup: 6.8,
        no_lookup: 1.8,
        memtrace: 2.01,
        goal: 2.0,
    },
    Heap {
        program: "lbm",
        lookup: 2.1,
        no_lookup: 1.1,
        memtrace: 1.11,
        goal: 1.1,
    },
];

/// Table 4.1, cycles: the proposed hardware (to the handler, lookup, back), and signals (the same, open
/// the page, the store again, close it).
pub const TABLE_4_1_HARDWARE: [f64; 3] = [130.0, 200.0, 85.0];
pub const TABLE_4_1_SIGNALS: [f64; 6] = [8800.0, 210.0, 3500.0, 5200.0, 3600.0, 3600.0];
