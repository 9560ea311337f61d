//! Collections, threads, channels and a caught panic.
#![allow(clippy::print_stdout)]
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

#[unsafe(no_mangle)]
pub static mut WATCHED: u64 = 0;

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ready() {
    std::hint::black_box(());
}

fn main() {
    ready();
    let totals = Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()));
    let (send, receive) = mpsc::channel();
    let workers: Vec<_> = (0..8u64)
        .map(|id| {
            let (totals, send) = (totals.clone(), send.clone());
            thread::spawn(move || {
                let mut words = HashMap::new();
                for i in 0..5_000u64 {
                    *words
                        .entry(format!("w{}", (i * 7 + id) % 311))
                        .or_insert(0u64) += i;
                }
                let sum = words.values().sum::<u64>();
                *totals.lock().unwrap().entry(id % 3).or_insert(0) += sum;
                send.send(words.len()).unwrap();
            })
        })
        .collect();
    drop(send);
    let sizes: usize = receive.iter().sum();
    for worker in workers {
        worker.join().unwrap();
    }
    for i in 0..10 {
        // SAFETY: every other thread has been joined.
        unsafe { WATCHED += i };
    }
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| {
        let empty: Vec<u32> = Vec::new();
        std::hint::black_box(&empty)[3]
    })
    .is_err();
    // SAFETY: as above.
    let watched = unsafe { WATCHED };
    println!(
        "rusty: sizes {sizes}, totals {:?}, watched {watched}, caught {caught}",
        totals.lock().unwrap()
    );
}
