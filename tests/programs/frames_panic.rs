//! Functions that are left by panics; each notes what it stores to `mine`.

use std::hint::black_box;

static mut NOTED: Vec<u64> = Vec::new();

#[inline(never)]
#[allow(static_mut_refs)]
fn store(to: &mut u64, value: u64) {
    unsafe {
        std::ptr::write_volatile(to, value);
        NOTED.push(value);
    }
}

#[inline(never)]
fn use_the_stack() {
    let mut all = [0u8; 16384];
    all.iter_mut().for_each(|byte| *byte = 7);
    black_box(&all);
}

#[inline(never)]
fn take(left: u64) -> u64 {
    let mut mine: u64;
    #[allow(invalid_value)]
    unsafe {
        mine = std::mem::MaybeUninit::uninit().assume_init();
    }
    store(&mut mine, left);
    if left == 0 {
        panic!("nothing is left");
    }
    let more = take(left - 1);
    store(&mut mine, more);
    mine
}

#[allow(static_mut_refs)]
fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    for left in 0..3 {
        let _ = std::panic::catch_unwind(|| take(left));
        use_the_stack();
    }
    unsafe { NOTED.iter().for_each(|value| println!("{value}")) };
}
