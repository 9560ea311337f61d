//! The CPU is the judge: every instruction runs natively on open memory, single-stepped, and then
//! through the engine on guarded memory, from the same registers and bytes.

mod cases;
mod differential;
mod edges;
mod machine;
