//! One line of `/proc/PID/maps` (proc_pid_maps(5); `show_map_vma` in fs/proc/task_mmu.c).
//!
//! ```text
//! 55d0c0a01000-55d0c0a02000 rw-p 00001000 fe:01 1234      /usr/bin/cat (deleted)
//! start        end          │    offset   │     inode     path         │
//!                           permissions   device                       the file has lost its name
//! ```
//! The header lines of `/proc/PID/smaps` have the same format. Nothing is allocated: names are borrowed from the text.
//! The caller interprets a mapping (heap, a device, another owner's memory).

use linux_raw_sys::general as k;

/// Suffix of the path of a file without a name (`d_path` in fs/d_path.c). A file's real name may end so as well; the text
/// does not distinguish the two.
const DELETED: &[u8] = b" (deleted)";

/// The kernel's form of a newline, the one byte of a path that it escapes (`seq_file_path`). It does not escape a
/// backslash, so a path may contain these four bytes itself.
const NEWLINE: &[u8] = b"\\012";

/// One mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// First address; a multiple of the page size, as the kernel writes it.
    pub start: u64,
    /// One past the last; more than `start`.
    pub end: u64,
    /// `PROT_*` bits (mman.h).
    pub prot: u8,
    /// MAP_SHARED.
    pub shared: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Device of the file, major and minor number; both 0: no file, or one that no block device has.
    pub device: (u32, u32),
    /// Number of the file on the device; 0: no file.
    pub inode: u64,
    /// Text behind the inode: a path, a name in brackets as `[heap]`, or nothing. Any bytes but newlines and NUL.
    pub name: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// Parses a line without its newline. Returns `None` if it has another form, or a number that its field cannot hold.
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let mut rest = line;
        let start = number(&mut rest, 16, b'-')?;
        let end = number(&mut rest, 16, b' ')?;
        let (prot, shared) = permissions(field(&mut rest, b' ')?)?;
        let offset = number(&mut rest, 16, b' ')?;
        let major = number(&mut rest, 16, b':')?.try_into().ok()?;
        let minor = number(&mut rest, 16, b' ')?.try_into().ok()?;
        let inode = match rest.contains(&b' ') {
            true => number(&mut rest, 10, b' ')?,
            false => value(core::mem::take(&mut rest), 10)?,
        };
        // The kernel fills up with spaces; no name begins with one.
        let name = rest
            .iter()
            .position(|b| *b != b' ')
            .map_or(0..0, |n| n..rest.len());
        (start < end).then_some(Mapping {
            start,
            end,
            prot,
            shared,
            offset,
            device: (major, minor),
            inode,
            name: rest.get(name)?,
        })
    }

    /// The name without ` (deleted)`. A newline in it is `\012`: see [`Mapping::is_of`].
    pub fn path(&self) -> &'a [u8] {
        path_of(self.name)
    }

    /// Whether the file has no name: it was removed, or another file has taken its name, or it never had one
    /// (memfd_create(2)).
    pub fn is_deleted(&self) -> bool {
        self.name.ends_with(DELETED)
    }

    /// Whether it is a mapping of the file with this path. `path` is as system calls take it, with plain newlines.
    pub fn is_of(&self, path: &[u8]) -> bool {
        let mut rest = self.path();
        rest == path
            || path.iter().all(|&byte| {
                let written = match byte {
                    b'\n' => NEWLINE,
                    ref other => core::slice::from_ref(other),
                };
                let found = rest.strip_prefix(written);
                rest = found.unwrap_or(rest);
                found.is_some()
            }) && rest.is_empty()
    }
}

/// A path as the kernel prints it, here or as the target of a link such as `/proc/PID/exe`, without ` (deleted)`.
pub fn path_of(name: &[u8]) -> &[u8] {
    name.strip_suffix(DELETED).unwrap_or(name)
}

/// The mappings in a text. Other lines are skipped: those of smaps, or a truncated one.
pub fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    text.split(|b| *b == b'\n').filter_map(Mapping::parse)
}

/// `rw-p`
fn permissions(letters: &[u8]) -> Option<(u8, bool)> {
    let &[r, w, x, share] = letters else {
        return None;
    };
    let bit = |letter, is, bit| match letter {
        b'-' => Some(0),
        _ if letter == is => Some(bit),
        _ => None,
    };
    let prot =
        bit(r, b'r', k::PROT_READ)? | bit(w, b'w', k::PROT_WRITE)? | bit(x, b'x', k::PROT_EXEC)?;
    matches!(share, b'p' | b's').then_some((prot as u8, share == b's'))
}

/// Takes the bytes before `stop`, and `stop`.
fn field<'a>(rest: &mut &'a [u8], stop: u8) -> Option<&'a [u8]> {
    let n = rest.iter().position(|&b| b == stop)?;
    let (field, after) = (rest.get(..n)?, rest.get(n + 1..)?);
    *rest = after;
    Some(field)
}

fn number(rest: &mut &[u8], radix: u32, stop: u8) -> Option<u64> {
    value(field(rest, stop)?, radix)
}

fn value(digits: &[u8], radix: u32) -> Option<u64> {
    let add = |n: u64, b: &u8| {
        let digit = char::from(*b).to_digit(radix)?;
        n.checked_mul(radix.into())?.checked_add(digit.into())
    };
    digits
        .iter()
        .try_fold(0, add)
        .filter(|_| !digits.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Mapping<'_> {
        Mapping::parse(line.as_bytes()).unwrap_or_else(|| panic!("{line}"))
    }

    #[test]
    fn all_fields() {
        let line =
            "55d0c0a01000-55d0c0a02000 rw-p 00001000 fe:01 1234                       /usr/bin/a b";
        assert_eq!(
            parse(line),
            Mapping {
                start: 0x55d0c0a01000,
                end: 0x55d0c0a02000,
                prot: 3,
                shared: false,
                offset: 0x1000,
                device: (0xfe, 1),
                inode: 1234,
                name: b"/usr/bin/a b",
            }
        );
        let last =
            "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";
        let last = parse(last);
        assert_eq!(
            (last.start, last.prot, last.name),
            (0xffff_ffff_ff60_0000, 4, &b"[vsyscall]"[..])
        );
    }

    #[test]
    fn permissions_are_four_letters() {
        for (letters, prot, shared) in [
            ("---p", 0, false),
            ("r-xp", 5, false),
            ("rwxs", 7, true),
            ("-w-s", 2, true),
        ] {
            let line = format!("1000-2000 {letters} 0 0:0 0");
            assert_eq!((parse(&line).prot, parse(&line).shared), (prot, shared));
        }
    }

    #[test]
    fn names() {
        let of = |name: &'static str| {
            let line: &'static str = format!("1000-2000 r--p 0 0:0 7 {name}").leak();
            parse(line)
        };
        assert_eq!(parse("1000-2000 r--p 0 0:0 0").name, b"");
        assert_eq!(of("").name, b"");
        assert_eq!(
            of("    [anon: glibc: malloc]").name,
            b"[anon: glibc: malloc]"
        );
        let gone = of("/memfd:a (deleted)");
        assert!(
            gone.is_deleted() && gone.name == b"/memfd:a (deleted)" && gone.path() == b"/memfd:a"
        );
        let there = of("/tmp/a\t ");
        assert!(!there.is_deleted() && there.path() == b"/tmp/a\t ");
        assert_eq!(
            Mapping::parse(b"1-2 r--p 0 0:0 0 /\xff").unwrap().path(),
            b"/\xff"
        );
    }

    #[test]
    fn newlines_in_paths() {
        let of = |name: &str, path: &str| {
            let line = format!("1000-2000 r--p 0 0:0 7 {name}");
            parse(&line).is_of(path.as_bytes())
        };
        assert!(of("/tmp/a", "/tmp/a") && of("/tmp/a (deleted)", "/tmp/a"));
        assert!(!of("/tmp/a", "/tmp/ab") && !of("/tmp/ab", "/tmp/a") && !of("", "/"));
        assert!(of("/tmp/a\\012b", "/tmp/a\nb") && of("/tmp/\\012 (deleted)", "/tmp/\n"));
        // The same text, a file with another name.
        assert!(of("/tmp/a\\012b", "/tmp/a\\012b"));
        assert!(!of("/tmp/a\\011b", "/tmp/a\tb"));
    }

    #[test]
    fn broken_lines_are_none() {
        for line in [
            "",
            "-",
            "1-",
            "1-2",
            "1-2 r",
            "g-2 rw-p 0 0:0 0",
            "-2 rw-p 0 0:0 0",
            "1-2 rw-p 0 0",
            "1-2 rw-p 0 0:0",
            "1-2 rw-p 0 0:0 ",
            "1-2 rw-p 0 0:0 x",
            "1-2 rw-p  0:0 0",
            "1-2 rw-pp 0 0:0 0",
            "1-2 wr-p 0 0:0 0",
            "1-2 rw-x 0 0:0 0",
            "2-2 rw-p 0 0:0 0",
            "3-2 rw-p 0 0:0 0",
            "Size:   4 kB",
            "VmFlags: rd wr mr mw me ac sd",
            "1-11111111111111111 rw-p 00000000 00:00 0",
            "1-2 rw-p 0 100000000:0 0",
            "1-2 rw-p 0 0:0 18446744073709551616",
        ] {
            assert_eq!(Mapping::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn other_lines_are_passed_over() {
        let text = b"1000-2000 r--p 0 0:0 0 \nSize:  4 kB\n2000-3000 rw-p 0 0:0 0\n3000-40";
        assert!(mappings(text).map(|m| m.start).eq([0x1000, 0x2000]));
        assert_eq!(mappings(b"").count(), 0);
    }

    #[test]
    fn every_line_of_our_own() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        assert_eq!(mappings(&text).count(), lines.count());
        let here = &text as *const _ as u64;
        assert!(mappings(&text).any(|m| (m.start..m.end).contains(&here) && m.prot == 3));
        let exe = std::env::current_exe().unwrap();
        let exe = exe.as_os_str().as_encoded_bytes();
        assert!(mappings(&text).any(|m| m.is_of(exe) && m.prot == 5));
    }
}
