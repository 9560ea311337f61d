//! Source of hits: rings and their clock.

use std::time::Duration;
use ulpf_area::SharedArea;
use ulpf_host::sys;
use ulpf_lib::ring::Rings;

/// Rings with a writer.
pub trait Source: Rings {
    /// The clock of the hits' times.
    fn now(&self) -> u64;
    /// Waits until `any()` may be true, at most for `limit`.
    fn wait(&self, any: impl Fn() -> bool, limit: Duration);
    /// Slots of the ring before `slot` are not read again.
    fn has_read(&self, _ring: usize, _slot: u64) {}
    /// Called again and again, however long the log takes.
    fn alive(&self) {}
}

impl Source for SharedArea {
    fn now(&self) -> u64 {
        sys::tsc()
    }
    fn wait(&self, any: impl Fn() -> bool, limit: Duration) {
        SharedArea::wait(self, any, limit);
    }
    fn has_read(&self, ring: usize, slot: u64) {
        if self.is_lossless() {
            SharedArea::has_read(self, ring, slot);
        }
    }
    fn alive(&self) {
        SharedArea::alive(self);
    }
}
