//! `kernel/include/uapi/ulpf.h` in Rust: the one definition for the users of `/dev/ulpf` (stub, library, command) and for
//! the simulator, which implements such a device. This file has only numbers and layouts; the header specifies their
//! meaning.
//!
//! The tests of this module have the C compiler compare every number, size and offset with the header's, and fail
//! if the header has a name that is missing here.

/// Constants without the header's prefix `ULPF_`, and a table of them for the tests.
macro_rules! numbers {
    ($($(#[$about:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$about])* pub const $name: $type = $value;)*
        #[cfg(test)]
        const NUMBERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

/// The structures with the fields of the header, and a table of their layout for the tests. None of them has
/// padding, which the tests check, too.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident = $c:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
            pub struct $name { $(pub $field: $type,)* }

            impl Structure for $name {
                fn from_bytes(bytes: &[u8]) -> Option<$name> {
                    $(
                        const { assert!(size_of::<$type>() <= 8) }
                        let at = core::mem::offset_of!($name, $field);
                        let $field = bytes.get(at..at + size_of::<$type>())?;
                    )*
                    Some($name { $($field: <$type>::from_le_bytes($field.try_into().ok()?),)* })
                }
                fn write_to(&self, bytes: &mut [u8]) {
                    $(
                        let at = core::mem::offset_of!($name, $field);
                        bytes[at..at + size_of::<$type>()].copy_from_slice(&self.$field.to_le_bytes());
                    )*
                }
            }
        )*
        #[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(&str, usize, usize)])] = &[$((
            $c,
            size_of::<$name>(),
            &[$((stringify!($field), core::mem::offset_of!($name, $field), size_of::<$type>())),*],
        )),*];
    };
}

/// A structure as it lies in the memory of a program.
pub trait Structure: Sized {
    /// Returns `None` if there are fewer bytes than the structure has.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// # Panics
    /// If `bytes` is shorter than the structure.
    fn write_to(&self, bytes: &mut [u8]);
}

/// `_IOC()` of Linux with the type of these calls.
const fn request(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | IOC_TYPE << 8 | number
}
const NO_DATA: u32 = 0;
const WRITE: u32 = 1;
const READ_WRITE: u32 = 3;

numbers! {
    VERSION: u32 = 1;

    /// Offsets for mmap(2): the store, guarded; the store, open; PLI page n; the ring of events.
    MAP_GUARD: u64 = 0;
    MAP_ALIAS: u64 = 1 << 60;
    MAP_PLI: u64 = 2 << 60;
    MAP_RING: u64 = 3 << 60;
    /// Bytes of the store, which is sparse: any user address is an offset into it.
    STORE_SIZE: u64 = 1 << 47;

    PLI_PAGES: u64 = 65536;
    PLI_REGIONS: u64 = 32;
    /// Bytes of a region, and the shift from an address to the prefix that a region governs.
    REGION_SIZE: u64 = 128;
    REGION_SHIFT: u32 = 21;

    /// Permissions of a page.
    RW: u64 = 0;
    RO: u64 = 1;
    EXE: u64 = 2;
    NONE: u64 = 3;

    INFO_WRITE: u64 = 1 << 0;
    INFO_FETCH: u64 = 1 << 1;
    INFO_STACK: u64 = 1 << 2;
    INFO_OPEN: u64 = 1 << 3;
    INFO_PERM_SHIFT: u32 = 8;
    RED_ZONE: u64 = 128;
    /// Bytes.
    STACK_MIN: u64 = 1024;

    MACHINE_LINUX: u32 = 1;
    MACHINE_UNICORN: u32 = 2;
    MACHINE_GEM5: u32 = 3;

    FEATURE_READ: u64 = 1 << 0;
    FEATURE_EXE: u64 = 1 << 1;
    FEATURE_PLI_LOOSEN: u64 = 1 << 2;
    FEATURE_PLI_TIGHTEN: u64 = 1 << 3;
    FEATURE_ONCE: u64 = 1 << 4;
    FEATURE_STACK: u64 = 1 << 5;
    FEATURE_KERNEL: u64 = 1 << 6;
    FEATURE_GUARD: u64 = 1 << 7;
    FEATURE_STORE: u64 = 1 << 8;
    FEATURE_SIGSTACK: u64 = 1 << 9;
    FEATURE_EFAULT: u64 = 1 << 10;

    HANDLER_REPLACE: u32 = 1 << 0;
    HANDLER_ONCE: u32 = 1 << 1;
    HANDLER_SIGSTACK: u32 = 1 << 2;
    POLICY_EFAULT: u32 = 1 << 0;

    OP_SET: u32 = 1;
    OP_SYNC: u32 = 2;
    OP_GUARD: u32 = 3;
    OP_BIND: u32 = 4;
    OP_UNBIND: u32 = 5;

    GUARD_OFF: u32 = 0;
    GUARD_LOG: u32 = 1;
    GUARD_STOP: u32 = 2;

    EVENT_LOST: u16 = 1;
    EVENT_KERNEL_READ: u16 = 2;
    EVENT_KERNEL_WRITE: u16 = 3;
    EVENT_GUARD: u16 = 4;
    EVENT_UNHANDLED: u16 = 5;
    EVENT_UNDELIVERED: u16 = 6;

    PAGE_GUARDED: u32 = 1 << 0;
    PAGE_BOUND: u32 = 1 << 1;

    IOC_TYPE: u32 = 0xde;
    QUERY: u32 = request(READ_WRITE, 0x20, size_of::<Query>());
    HANDLER: u32 = request(WRITE, 0x21, size_of::<Handler>());
    STACK: u32 = request(WRITE, 0x22, size_of::<Stack>());
    APPLY: u32 = request(WRITE, 0x23, size_of::<Op>());
    BATCH: u32 = request(READ_WRITE, 0x24, size_of::<Batch>());
    RING: u32 = request(WRITE, 0x25, size_of::<Ring>());
    LOOKUP: u32 = request(READ_WRITE, 0x26, size_of::<Page>());
    COUNTS: u32 = request(READ_WRITE, 0x27, size_of::<Counts>());
    POLICY: u32 = request(WRITE, 0x28, size_of::<Policy>());
    STORE: u32 = request(NO_DATA, 0x29, 0);
}

structures! {
    /// The frame at the handler's stack pointer.
    Frame = "ulpf_frame" {
        addr: u64,
        info: u64,
        cookie: u64,
        ip: u64,
        cs: u64,
        flags: u64,
        sp: u64,
        ss: u64,
    }

    /// Features and limits of the machine.
    Query = "ulpf_query" {
        size: u32,
        flags: u32,
        version: u32,
        machine: u32,
        features: u64,
        batch_max: u32,
        ring_max: u32,
    }

    Handler = "ulpf_handler" {
        size: u32,
        flags: u32,
        entry: u64,
        cookie: u64,
    }

    Policy = "ulpf_policy" {
        size: u32,
        flags: u32,
    }

    /// The calling thread's exception stack.
    Stack = "ulpf_stack" {
        size: u32,
        flags: u32,
        base: u64,
        length: u64,
    }

    /// One change.
    Op = "ulpf_op" {
        op: u32,
        flags: u32,
        addr: u64,
        length: u64,
        arg: u64,
    }

    Batch = "ulpf_batch" {
        size: u32,
        flags: u32,
        ops: u64,
        count: u32,
        op_size: u32,
        done: u32,
        reserved: u32,
    }

    /// Makes the ring of events.
    Ring = "ulpf_ring" {
        size: u32,
        flags: u32,
        records: u32,
        watermark: u32,
        latency_us: u32,
        reserved: u32,
    }

    /// The first page of the mapped ring. `head` and `dropped` change at any time.
    RingHeader = "ulpf_ring_header" {
        version: u32,
        records: u32,
        data_offset: u32,
        length: u32,
        head: u64,
        dropped: u64,
    }

    Event = "ulpf_event" {
        stamp: u64,
        time: u64,
        addr: u64,
        ip: u64,
        sp: u64,
        pid: u32,
        tid: u32,
        r#type: u16,
        info: u16,
        syscall: i32,
        reserved: u64,
    }

    /// The machine's record of a page.
    Page = "ulpf_page" {
        size: u32,
        flags: u32,
        addr: u64,
        permission: u32,
        guard: u32,
        state: u32,
        reserved: u32,
    }

    /// Counters of events.
    Counts = "ulpf_counts" {
        size: u32,
        flags: u32,
        upcalls: u64,
        kernel_reads: u64,
        kernel_writes: u64,
        guards: u64,
        unhandled: u64,
        undelivered: u64,
        changes: u64,
        flushes: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::string::String;

    const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel/include/uapi");

    /// The C compiler's messages about the assertions; empty if they hold.
    fn refused(assertions: &str) -> String {
        let folder = std::env::temp_dir().join(std::format!("ulpf-header-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("header.c");
        let text = std::format!(
            "#include <stddef.h>\n#include <ulpf.h>\n#define SIZE(s, f) sizeof(((struct s *)0)->f)\n{assertions}"
        );
        std::fs::write(&source, text).unwrap();
        let said = Command::new("cc")
            .args(["-fsyntax-only", "-I", INCLUDE])
            .arg(&source)
            .output();
        let _ = std::fs::remove_dir_all(&folder);
        let said = said.expect("a C compiler");
        assert_eq!(said.status.success(), said.stderr.is_empty());
        String::from_utf8_lossy(&said.stderr).into_owned()
    }

    #[test]
    fn the_header_says_the_same() {
        let mut assertions = String::new();
        let mut holds = |what: String| {
            assertions += &std::format!("_Static_assert({what}, \"see device/abi.rs\");\n");
        };
        for (name, value) in NUMBERS {
            holds(std::format!("ULPF_{name} == {value}ULL"));
        }
        for (structure, size, fields) in LAYOUTS {
            holds(std::format!("sizeof(struct {structure}) == {size}"));
            let mut end = 0;
            for (field, at, length) in *fields {
                let field = field.trim_start_matches("r#");
                holds(std::format!(
                    "offsetof(struct {structure}, {field}) == {at}"
                ));
                holds(std::format!("SIZE({structure}, {field}) == {length}"));
                assert_eq!(end, *at, "padding before {structure}.{field}");
                end = at + length;
            }
            assert_eq!(end, *size, "padding at the end of {structure}");
        }
        assert_eq!(refused(&assertions), "");
        assert!(refused("_Static_assert(ULPF_VERSION == 0, \"no\");").contains("ULPF_VERSION"));
    }

    #[test]
    fn nothing_of_the_header_is_missing() {
        let header = std::fs::read_to_string(std::format!("{INCLUDE}/ulpf.h")).unwrap();
        let mut names = 0;
        for line in header.lines() {
            if let Some(rest) = line.strip_prefix("#define ULPF_") {
                let name = rest.split_whitespace().next().unwrap();
                let known = NUMBERS.iter().any(|(number, _)| *number == name);
                assert!(known || name == "DEVICE", "ULPF_{name}");
                names += 1;
            } else if let Some(rest) = line.strip_prefix("struct ") {
                let name = rest.trim_end_matches(" {");
                assert!(LAYOUTS.iter().any(|(c, ..)| *c == name), "struct {name}");
                names += 1;
            }
        }
        assert_eq!(names, NUMBERS.len() + LAYOUTS.len() + 1);
    }

    #[test]
    fn structures_as_bytes() {
        let event = Event {
            addr: 0x1122,
            tid: 7,
            syscall: -1,
            ..Event::default()
        };
        let mut bytes = [0xff; 64];
        event.write_to(&mut bytes);
        assert_eq!(bytes[16..20], [0x22, 0x11, 0, 0]);
        assert_eq!(Event::from_bytes(&bytes), Some(event));
        assert_eq!(Event::from_bytes(&bytes[..63]), None);
    }
}
