//! Vectors and a string that grow, move and go, and a line for each store to what is in them, by its name.
#![allow(static_mut_refs)]

pub struct Item {
    pub count: i32,
    pub more: i64,
}

pub static mut NUMBERS: Vec<i64> = Vec::new();
pub static mut ITEMS: Vec<Item> = Vec::new();
pub static mut TEXT: String = String::new();

#[inline(never)]
fn store<T: std::fmt::Display + Copy>(what: &str, to: *mut T, value: T) {
    unsafe { std::ptr::write_volatile(to, value) };
    println!("{what} {value}");
}

/// Allocates freed memory again, and writes to it.
#[inline(never)]
fn others() {
    let mut all: Vec<Vec<i64>> = (0..20).map(|n| vec![-1; n]).collect();
    for one in all.iter_mut().flatten() {
        unsafe { std::ptr::write_volatile(one, -2) };
    }
}

fn main() {
    unsafe {
        for n in 0..40 {
            NUMBERS.push(n);
            store(&format!("NUMBERS[{}]", n / 2), &mut NUMBERS[n as usize / 2], n * 10);
            ITEMS.push(Item { count: 0, more: 0 });
            let last = ITEMS.len() - 1;
            store(&format!("ITEMS[{last}].count"), &mut ITEMS[last].count, n as i32);
            ITEMS[last].more = n;
            TEXT.push('a');
            let at = TEXT.len() / 2;
            store(&format!("TEXT[{at}]"), TEXT.as_mut_ptr().add(at), b'A' + n as u8 % 20);
            others();
        }
        NUMBERS.truncate(3);
        NUMBERS.shrink_to_fit();
        others();
        store("NUMBERS[2]", &mut NUMBERS[2], 7);
        NUMBERS = Vec::new();
        others();
    }
}
