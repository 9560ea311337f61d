//! The side that serves: one task takes requests and hands them to whoever owns the process's session.

use super::{Ask, LONGEST, address, refusal};
use crate::inject::sys;
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixListener as Bound;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// A request on its way, and where its answer (one line of JSON) goes.
pub struct Asked {
    pub ask: Ask,
    pub reply: oneshot::Sender<String>,
}

pub type Requests = mpsc::Receiver<Asked>;

type Owners = Arc<Mutex<HashMap<i32, mpsc::Sender<Asked>>>>;

static OWNERS: OnceLock<Owners> = OnceLock::new();

/// From now on requests about `pid` arrive at the returned end. Where the door cannot be opened nobody can
/// ask, and all else goes on.
pub fn open(pid: i32) -> Requests {
    let (sender, requests) = mpsc::channel(16);
    let owners = OWNERS.get_or_init(|| {
        let owners = Owners::default();
        let served = owners.clone();
        // A thread of its own: whoever opens the door first may be gone long before the last.
        let thread = std::thread::Builder::new().name("door".into());
        let _ = thread.spawn(move || keep(served));
        owners
    });
    if let Ok(mut owners) = owners.lock() {
        owners.insert(pid, sender);
    }
    requests
}

fn keep(owners: Owners) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        if let Ok(listener) = bind() {
            accept(listener, owners).await;
        }
    });
}

fn bind() -> io::Result<UnixListener> {
    let bound = Bound::bind_addr(&address(std::process::id() as i32)?)?;
    bound.set_nonblocking(true)?;
    UnixListener::from_std(bound)
}

async fn accept(listener: UnixListener, owners: Owners) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, owners.clone()));
            }
            // A lack of descriptors may pass.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
        }
    }
}

async fn serve(stream: UnixStream, owners: Owners) {
    let user = stream.peer_cred().map(|c| c.uid());
    let ours = matches!(user, Ok(user) if user == 0 || user == sys::user());
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut read).take(LONGEST as u64);
        match limited.read_until(b'\n', &mut line).await {
            Ok(1..) if line.ends_with(b"\n") => {}
            Ok(n) if n >= LONGEST => {
                let why = refusal("the request is too long");
                let _ = write.write_all(format!("{why}\n").as_bytes()).await;
                return;
            }
            _ => return,
        }
        // Who is refused has been heard: an end with unread bytes would take the answer back.
        if !ours {
            let why = refusal("this session belongs to another user");
            let _ = write.write_all(format!("{why}\n").as_bytes()).await;
            return;
        }
        let answer = match Ask::parse(&String::from_utf8_lossy(&line)) {
            Ok((pid, ask)) => answer(pid, ask, &owners).await,
            Err(why) => refusal(why),
        };
        if write
            .write_all(format!("{answer}\n").as_bytes())
            .await
            .is_err()
        {
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
