//! The libraries that a compiler links to every program of a language. A hit inside one of them (`memcpy`, `strcpy`,
//! `read`) is attributed to its caller.

/// Names of their files and their sonames, up to the version.
const NAMES: [&[u8]; 15] = [
    b"libc",
    b"libc.musl-x86_64",
    b"ld-musl-x86_64",
    b"ld-linux-x86-64",
    b"ld",
    b"libm",
    b"libmvec",
    b"libpthread",
    b"libstdc++",
    b"libc++",
    b"libc++abi",
    b"libgcc_s",
    b"libunwind",
    b"libasan",
    b"libtsan",
];

/// Whether the file is one of them. `name` has no folders: `libc.so.6`, `libc-2.31.so`.
pub fn is_runtime(name: &[u8]) -> bool {
    NAMES.iter().any(|known| {
        let version = name.strip_prefix(*known);
        version.is_some_and(|v| {
            let old = v.first() == Some(&b'-') && v.get(1).is_some_and(u8::is_ascii_digit);
            v.starts_with(b".so") || old && v.ends_with(b".so")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name() {
        for name in [
            "libc.so.6",
            "libc-2.31.so",
            "libstdc++.so.6.0.30",
            "ld-linux-x86-64.so.2",
            "ld-2.31.so",
            "ld-musl-x86_64.so.1",
            "libc.musl-x86_64.so.1",
        ] {
            assert!(is_runtime(name.as_bytes()), "{name}");
        }
        for name in [
            "libcurl.so.4",
            "libc-client.so.2007",
            "libcc.so",
            "prog",
            "libm-tools.so",
        ] {
            assert!(!is_runtime(name.as_bytes()), "{name}");
        }
    }
}
