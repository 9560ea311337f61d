//! The token that a client of a port must give first. The adapter prints it, or reads it from a file. The user
//! writes it into the IDE's configuration.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use ulpf_host::sys;

/// Minimum length in characters of a token chosen by a user. Generated tokens are twice as long.
const SHORTEST: usize = 16;
const LONGEST: u64 = 4096;

#[derive(Debug)]
pub struct Token(String);

impl Token {
    /// Generates 128 random bits.
    pub fn new() -> Result<Token, String> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut bytes))
            .map_err(|e| format!("There is no token, because /dev/urandom cannot be read: {e}."))?;
        Ok(Token(ulpf_rsp::to_hex(&bytes)))
    }

    /// Reads the token of a file that only its owner may read. Creates the file with a new token if it does not exist.
    /// The error is text for the user.
    pub fn of_file(path: &Path) -> Result<Token, String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        match make(path) {
            Ok(token) => return token,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(&format!("no token can be written there: {e}."))),
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path).map_err(|e| failed(&e))?;
        let meta = file.metadata().map_err(|e| failed(&e))?;
        let owners = meta.uid() == sys::user() && meta.mode() & 0o077 == 0;
        if !meta.is_file() || !owners {
            return Err(failed(
                &"the token has to be in a file of yours that nobody else can read: chmod 600.",
            ));
        }
        let mut text = String::new();
        let read = file.take(LONGEST).read_to_string(&mut text);
        read.map_err(|e| failed(&e))?;
        match text.trim() {
            token if token.len() >= SHORTEST => Ok(Token(token.to_string())),
            _ => Err(failed(&format!(
                "this token has fewer than {SHORTEST} characters. Remove the file, and a new one is made."
            ))),
        }
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, whatever the position of a difference.
    pub fn is(&self, given: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), given.as_bytes());
        let differing = ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b));
        ours.len() == theirs.len() && std::hint::black_box(differing) == 0
    }
}

/// Creates a new file with a new token.
fn make(path: &Path) -> io::Result<Result<Token, String>> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    let token = match Token::new() {
        Ok(token) => token,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(e) = writeln!(file, "{}", token.text()) {
        let _ = fs::remove_file(path);
        return Err(e);
    }
    Ok(Ok(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_same_one() {
        let token = Token::new().unwrap();
        assert_ne!(token.text(), Token::new().unwrap().text());
        assert!(token.is(token.text()));
        assert!(!token.is("") && !token.is(&token.text()[1..]) && !token.is(&"0".repeat(32)));
        assert!(!token.is(&format!("{} ", token.text())));
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let made = Token::of_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Token::of_file(&path).unwrap().is(made.text()));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(
            Token::of_file(&path)
                .unwrap_err()
                .contains("nobody else can read")
        );
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(Token::of_file(&path).unwrap_err().contains("fewer than 16"));
        assert!(
            Token::of_file(folder.path())
                .unwrap_err()
                .contains("nobody else can read")
        );
    }
}
