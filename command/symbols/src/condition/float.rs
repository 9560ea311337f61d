//! Floating-point comparisons by integer operations, because the evaluator has no others.
//!
//! The bit patterns of two numbers with the same sign have the order of the numbers (IEEE 754). So each number becomes
//! a signed integer; negative ones are inverted, and both zeros become equal:
//!
//! ```text
//! sign = bits >> 63 (all ones if negative);  key = (bits ^ (sign & MAX)) - sign
//! ```
//!
//! NaN is unequal to everything, also to itself, and all other comparisons with it are false.

use super::code::Code;
use super::tree::{Binary, Wrong};
use ulpf_engine::agent::op;

/// Compares the value of `size` bytes on top of the stack with a number. `at` is the number's position in the text.
pub fn compare_number(
    c: &mut Code,
    operator: Binary,
    size: u8,
    number: f64,
    at: usize,
) -> Result<(), Wrong> {
    if size == 8 {
        c.constant(number.to_bits());
    } else {
        let single = number as f32;
        if f64::from(single) != number {
            return Err(Wrong::new(
                at,
                format!(
                    "a float cannot be exactly {number}: compare with a number near by that it can be, as {single:?}f would be"
                ),
            ));
        }
        c.constant(single.to_bits().into());
    }
    compare_values(c, operator, size);
    Ok(())
}

/// Compares the two values of `size` bytes on top of the stack.
pub fn compare_values(c: &mut Code, operator: Binary, size: u8) {
    if size == 4 {
        // In the upper half of 64 bits, a float has its sign and order at the same place as a double.
        let up = [op::CONST8, 32, op::LSH, op::SWAP];
        c.emit(&up);
        c.emit(&up);
    }
    // l r → nan l r
    c.emit(&[op::PICK, 1]);
    nan(c, size);
    c.emit(&[op::PICK, 1]);
    nan(c, size);
    c.emit(&[op::BIT_OR, op::ROT]);
    // → nan key(l) key(r)
    key(c);
    c.emit(&[op::SWAP]);
    key(c);
    c.emit(&[op::SWAP]);
    let code: &[u8] = match operator {
        Binary::Less => &[op::LESS_SIGNED],
        Binary::Greater => &[op::SWAP, op::LESS_SIGNED],
        Binary::LessEqual => &[op::SWAP, op::LESS_SIGNED, op::LOG_NOT],
        Binary::GreaterEqual => &[op::LESS_SIGNED, op::LOG_NOT],
        Binary::Equal => &[op::EQUAL],
        _ => &[op::EQUAL, op::LOG_NOT],
    };
    c.emit(code);
    match operator {
        Binary::NotEqual => c.emit(&[op::BIT_OR]),
        _ => c.emit(&[op::SWAP, op::LOG_NOT, op::BIT_AND]),
    }
}

/// Whether the value on top of the stack is a NaN.
fn nan(c: &mut Code, size: u8) {
    c.constant(i64::MAX as u64);
    c.emit(&[op::BIT_AND]);
    c.constant(match size {
        4 => u64::from(f32::INFINITY.to_bits()) << 32,
        _ => f64::INFINITY.to_bits(),
    });
    c.emit(&[op::SWAP, op::LESS_UNSIGNED]);
}

fn key(c: &mut Code) {
    c.emit(&[op::DUP, op::CONST8, 63, op::RSH_SIGNED]);
    // bits sign → sign bits sign & MAX
    c.emit(&[op::SWAP, op::PICK, 1]);
    c.constant(i64::MAX as u64);
    c.emit(&[op::BIT_AND, op::BIT_XOR, op::SWAP, op::SUB]);
}
