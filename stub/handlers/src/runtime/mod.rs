//! Threads of the program: their records, how they park, and access to their memory.

pub mod areas;
pub mod asm;
pub mod clock;
pub mod debug_registers;
pub mod debug_traps;
pub mod deferred;
pub mod events;
pub mod handler_frames;
pub mod keys;
pub mod library_link;
pub mod library_state;
pub mod mapped;
pub mod memory;
pub mod park;
pub mod robust;
pub mod seccomp_filters;
pub mod sequences;
pub mod thread;
pub mod tracer;
pub mod waiting;

pub use ulpf_engine::frame;
