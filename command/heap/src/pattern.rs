//! Lines of a suppression, and the functions that they match.

use ulpf_host::foreign::text::Text;

/// One function of the call stack of an error.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Its possible names: linker's and source names.
    pub names: Vec<String>,
    /// The file that it was loaded from.
    pub object: Option<String>,
    /// Its address in that file.
    pub linked: u64,
    pub source: Option<String>,
    pub line: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Function(String),
    Object(String),
    Source(String),
    At(String, u64),
    /// Any number of frames.
    Any,
}

impl Pattern {
    /// Parses a line.
    pub fn of(line: &str) -> Result<Pattern, String> {
        if line == "..." {
            return Ok(Pattern::Any);
        }
        let known = line.split_once(':');
        match known {
            Some(("fun", name)) => Ok(Pattern::Function(name.into())),
            Some(("obj", name)) => Ok(Pattern::Object(name.into())),
            Some(("src", name)) => Ok(Pattern::Source(name.into())),
            Some(("at", place)) => {
                let parts = place.rsplit_once("+0x");
                let at = parts.and_then(|(o, hex)| Some((o, u64::from_str_radix(hex, 16).ok()?)));
                let (object, at) = at.ok_or_else(|| {
                    format!("expected at:MODULE+0xADDRESS, and here is {}", Text(line))
                })?;
                Ok(Pattern::At(object.into(), at))
            }
            _ => Err(format!(
                "expected fun:, obj:, src:, at: or ..., and here is {}",
                Text(line)
            )),
        }
    }

    fn fits(&self, frame: &Frame) -> bool {
        let object = |pattern: &str| {
            let file = |path: &String| {
                let name = path.rsplit('/').next().unwrap_or(path);
                glob(pattern, path) || !pattern.contains('/') && glob(pattern, name)
            };
            // (Code outside of all files matches only `*`.)
            frame.object.as_ref().map_or(pattern == "*", file)
        };
        match self {
            Pattern::Function(pattern) => {
                pattern == "*" || frame.names.iter().any(|name| glob(pattern, name))
            }
            Pattern::Object(pattern) => object(pattern),
            Pattern::Source(pattern) => frame.source.as_ref().is_some_and(|file| {
                let name = file.rsplit('/').next().unwrap_or(file);
                let line = frame.line.unwrap_or_default();
                [name, file]
                    .iter()
                    .any(|f| glob(pattern, f) || glob(pattern, &format!("{f}:{line}")))
            }),
            Pattern::At(of, at) => *at == frame.linked && frame.object.is_some() && object(of),
            Pattern::Any => true,
        }
    }
}

/// Whether the patterns match the innermost frames; the frames after them do not matter.
pub fn fit(patterns: &[Pattern], frames: &[Frame]) -> bool {
    // As in `glob`: only the last `...` may have to take one more frame.
    let (mut p, mut f) = (0, 0);
    let mut again = None;
    loop {
        match (patterns.get(p), frames.get(f)) {
            (None, _) => return true,
            (Some(Pattern::Any), _) => {
                again = Some((p + 1, f));
                p += 1;
            }
            (Some(pattern), Some(frame)) if pattern.fits(frame) => (p, f) = (p + 1, f + 1),
            (Some(_), _) => match again {
                Some((after, from)) if from < frames.len() => {
                    again = Some((after, from + 1));
                    (p, f) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// Whether a pattern with `*` and `?` matches the whole text.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut again = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || text.get(t) == Some(c) => (p, t) = (p + 1, t + 1),
            _ => match again {
                Some((after, from)) => {
                    again = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}
