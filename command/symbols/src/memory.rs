//! What is read of the program itself.

/// The program's memory, as needed for resolving.
pub trait Memory {
    /// Reads memory at `addr` into `buf`. Returns `false` if it is not readable.
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool;
    /// The main thread's thread pointer (fs base), or `None` if it has none yet.
    fn thread_pointer(&self) -> Option<u64>;
}
