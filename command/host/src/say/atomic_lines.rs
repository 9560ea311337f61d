//! Writes lines that are never torn, though other processes write to the same place.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// A pipe takes this much in one piece (PIPE_BUF, pipe(7)); another writer's output may split a longer write.
const AT_ONCE: usize = 4096;
/// Delay before a write to a non-blocking descriptor is repeated.
const AGAIN: Duration = Duration::from_millis(1);

/// Writes whole lines, as many as a pipe takes at once; a longer line is written alone.
pub fn put_pieces(to: &mut (impl Write + ?Sized), text: &str) -> io::Result<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(piece(rest));
        put(to, piece.as_bytes())?;
        rest = more;
    }
    Ok(())
}

fn piece(text: &str) -> usize {
    let Some(fits) = text.as_bytes().get(..AT_ONCE) else {
        return text.len();
    };
    if text.len() == AT_ONCE {
        return AT_ONCE;
    }
    match fits.iter().rposition(|b| *b == b'\n') {
        Some(end) => end + 1,
        None => text.find('\n').map_or(text.len(), |end| end + 1),
    }
}

/// Writes all bytes. The program may have made a shared descriptor non-blocking.
pub fn put(to: &mut (impl Write + ?Sized), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
            Err(error) => return Err(error),
        }
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Pipe {
        writes: Vec<Vec<u8>>,
        full: bool,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.full, true) {
                self.full = false;
                return Err(ErrorKind::WouldBlock.into());
            }
            self.writes.push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_piece_fits_and_ends_with_a_line() {
        for len in [1, 7, 80, 1000, 4095, 4096, 4097, 9000] {
            let line = "x".repeat(len - 1) + "\n";
            let text = line.repeat(20);
            let mut pipe = Pipe::default();
            put_pieces(&mut pipe, &text).unwrap();
            assert_eq!(pipe.writes.concat(), text.as_bytes());
            for piece in &pipe.writes {
                assert_eq!(piece.last(), Some(&b'\n'));
                assert!(piece.len() <= AT_ONCE || piece.len() == len, "{len}");
            }
        }
    }
}
