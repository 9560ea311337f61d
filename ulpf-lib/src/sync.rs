//! Atomic cells as a trait, and the protocols between threads that are written on top of it.
//!
//! The product uses the cells of `core`. The crate `models/` uses loom's, and so runs the same code through many
//! interleavings and values that a load may return. Only what a model runs needs the trait.

pub mod futex;
pub mod lock;
pub mod stop_the_world;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic cell that holds a `T`. Methods mean what `core::sync::atomic` says of their namesakes.
pub trait Atomic<T> {
    /// Reads the cell.
    fn load(&self, order: Ordering) -> T;
    /// Writes the cell.
    fn store(&self, value: T, order: Ordering);
    /// Writes the cell and returns what it held.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Writes `new` if the cell holds `current`.
    ///
    /// # Errors
    /// The value that the cell holds, if it is another one.
    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;
    /// Adds to the cell, wrapping around, and returns what it held.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Orders the calling thread's accesses to cells of this family.
    fn fence(order: Ordering);
}

macro_rules! atomic {
    ($($cell:ty: $of:ty,)*) => {$(
        impl Atomic<$of> for $cell {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $of {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: $of, order: Ordering) {
                self.store(value, order)
            }
            #[inline(always)]
            fn swap(&self, value: $of, order: Ordering) -> $of {
                self.swap(value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.compare_exchange(current, new, success, failure)
            }
            #[inline(always)]
            fn fetch_add(&self, value: $of, order: Ordering) -> $of {
                self.fetch_add(value, order)
            }
            #[inline(always)]
            fn fence(order: Ordering) {
                core::sync::atomic::fence(order)
            }
        }
    )*};
}

atomic! {
    AtomicU32: u32,
    AtomicU64: u64,
}
