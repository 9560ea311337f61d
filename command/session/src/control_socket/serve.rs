//! The serving side: one task takes requests and hands them to the owner of the process's session.

use super::{Ask, LONGEST, name, refusal};
use std::collections::HashMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as Bound};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use ulpf_host::sys;

/// Limit of the connections at a time; each of them costs a descriptor.
const MOST: usize = 32;
/// Limit for a whole request to arrive, and for an answer to be taken.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A request, and the channel for its answer (one line of JSON).
pub struct Asked {
    /// The request.
    pub ask: Ask,
    /// The client waits for this answer.
    pub reply: oneshot::Sender<String>,
}

/// The requests about one process.
pub type Requests = mpsc::Receiver<Asked>;

type Owners = Arc<Mutex<HashMap<i32, mpsc::Sender<Asked>>>>;

static OWNERS: OnceLock<Owners> = OnceLock::new();
static STARTED: Once = Once::new();

/// Directs requests about `pid` to the returned channel. From here on clients can connect. Without a socket no client can
/// ask, and the session goes on.
pub fn open(pid: i32) -> Requests {
    let (sender, requests) = mpsc::channel(16);
    let owners = OWNERS.get_or_init(Owners::default);
    if let Ok(mut owners) = owners.lock() {
        owners.insert(pid, sender);
    }
    STARTED.call_once(|| start(owners.clone()));
    requests
}

fn start(owners: Owners) {
    match bind() {
        Ok(listener) => {
            // A thread of its own: the first session may end long before the last.
            let thread = std::thread::Builder::new().name("control".into());
            let _ = thread.spawn(move || keep(listener, owners));
        }
        Err(e) => {
            let taken = match e.kind() {
                io::ErrorKind::AddrInUse => {
                    "another process has taken its name (`ss -xlp` shows which one)".to_string()
                }
                _ => e.to_string(),
            };
            ulpf_host::say::message!(
                "ulpf: the control socket @{} cannot be made: {taken}. `ulpf top` and others can look, but change no watches of this session.",
                name(std::process::id() as i32)
            );
        }
    }
}

fn bind() -> io::Result<Bound> {
    let name = name(std::process::id() as i32);
    let bound = Bound::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

fn keep(listener: Bound, owners: Owners) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        if let Ok(listener) = UnixListener::from_std(listener) {
            accept(listener, owners).await;
        }
    });
}

async fn accept(listener: UnixListener, owners: Owners) {
    let free = Arc::new(Semaphore::new(MOST));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // A lack of descriptors may be temporary.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        // Connections of other users are refused at once, without waiting for their request.
        let user = stream.peer_cred().map(|c| c.uid());
        if !matches!(user, Ok(user) if user == 0 || user == sys::user()) {
            turn_away(&stream, "this session belongs to another user");
            continue;
        }
        let Ok(place) = free.clone().try_acquire_owned() else {
            turn_away(&stream, "too many ask at once; try again");
            continue;
        };
        let owners = owners.clone();
        tokio::spawn(async move {
            serve(stream, owners).await;
            drop(place);
        });
    }
}

/// Sends a refusal; it fits into the buffer of a new connection.
fn turn_away(stream: &UnixStream, why: &str) {
    let _ = stream.try_write(format!("{}\n", refusal(why)).as_bytes());
}

async fn serve(stream: UnixStream, owners: Owners) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut read).take(LONGEST as u64);
        let request = limited.read_until(b'\n', &mut line);
        let (answer, last) = match timeout(TIMEOUT, request).await {
            Ok(Ok(1..)) if line.ends_with(b"\n") => {
                let answer = match Ask::parse(&String::from_utf8_lossy(&line)) {
                    Ok((pid, ask)) => answer(pid, ask, &owners).await,
                    Err(why) => refusal(why),
                };
                (answer, false)
            }
            Ok(Ok(n)) if n >= LONGEST => (refusal("the request is too long"), true),
            _ => return,
        };
        let answer = format!("{answer}\n");
        let written = timeout(TIMEOUT, write.write_all(answer.as_bytes())).await;
        if last || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

async fn answer(pid: i32, ask: Ask, owners: &Owners) -> String {
    let owner = owners.lock().ok().and_then(|o| o.get(&pid).cloned());
    let (reply, answer) = oneshot::channel();
    let handed_on = match owner {
        Some(owner) => owner.send(Asked { ask, reply }).await.is_ok(),
        None => return refusal(format!("process {pid} is not watched here")),
    };
    match answer.await {
        Ok(answer) if handed_on => answer,
        _ => refusal(format!("process {pid} has ended, or is about to")),
    }
}
