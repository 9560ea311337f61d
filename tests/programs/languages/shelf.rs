// A counter, an array and a structure, watched in Rust.
struct Node {
    refs: u32,
    next: *mut Node,
}
static mut TOTAL: i64 = 0;
static mut NUMS: [i32; 6] = [1, 2, 3, 4, 5, 6];
static mut HEAD: Node = Node { refs: 7, next: std::ptr::null_mut() };

#[inline(never)]
fn ready() {
    std::hint::black_box(0);
}

#[inline(never)]
fn add(n: i64) {
    unsafe {
        TOTAL += n;
        NUMS[2] += 1;
        HEAD.refs += 1;
    }
}

fn main() {
    ready();
    add(5);
    add(900);
    unsafe {
        HEAD.next = &raw mut HEAD;
        std::process::exit(if TOTAL == 905 { 3 } else { 4 });
    }
}
