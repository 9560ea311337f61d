//! Floating-point comparisons with integer operations: the evaluator has no others.
//!
//! The bits of two numbers of one sign are in the order of the numbers (IEEE 754). So each is made a
//! signed integer, with the negative ones turned round and both zeros the same:
//!
//! ```text
//! sign = bits >> 63 (all ones if negative);  key = (bits ^ (sign & MAX)) - sign
//! ```
//!
//! NaN compares false with everything, also with itself, and unequal.

use super::code::Code;
use super::tree::{Binary, Wrong};
use ulpf_engine::agent::op;

/// Compares the value of `size` bytes that is on the stack with a number, which stands at `at`.
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

/// Two values of `size` bytes are on the stack.
pub fn compare_values(c: &mut Code, operator: Binary, size: u8) {
    if size == 4 {
        // As the upper half of 64 bits they have sign and order where those of a double are.
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

/// Is the number on top none?
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
