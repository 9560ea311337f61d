//! The place of a variable according to the debug information.

use crate::dwarf::Dwarf;
use crate::slice::Slice;
use gimli::Operation;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Address as linked.
    Address(u64),
    /// Offset in the object's thread-local block.
    ThreadLocal(u64),
    /// Only declared here; the symbol table may have its address.
    Declared,
    /// The compiler kept only its value, not in memory.
    Constant,
    /// Neither memory nor value remains.
    OptimisedOut,
    /// Spread over several places.
    Pieces,
}

/// The meaning of a location.
pub enum Found {
    Static(Place),
    Local { register: bool },
}

/// Evaluates a location's expression (DWARF 5, 2.5 and 2.6).
pub fn place_of(
    dwarf: &Dwarf,
    unit: &gimli::Unit<Slice>,
    expression: gimli::Expression<Slice>,
) -> Found {
    let mut stack: Vec<u64> = Vec::new();
    let mut pieces = 0;
    let mut thread_local = false;
    let mut operations = expression.operations(unit.encoding());
    loop {
        let operation = match operations.next() {
            Ok(Some(operation)) => operation,
            Ok(None) => break,
            Err(_) => return Found::Static(Place::OptimisedOut),
        };
        match operation {
            Operation::Address { address } => stack.push(address),
            Operation::AddressIndex { index } | Operation::ConstantIndex { index } => {
                match dwarf.address(unit, index) {
                    Ok(address) => stack.push(address),
                    Err(_) => return Found::Static(Place::OptimisedOut),
                }
            }
            Operation::UnsignedConstant { value } => stack.push(value),
            Operation::SignedConstant { value } => stack.push(value as u64),
            Operation::PlusConstant { value } => match stack.last_mut() {
                Some(top) => *top = top.wrapping_add(value),
                None => return Found::Static(Place::OptimisedOut),
            },
            Operation::Plus => match (stack.pop(), stack.last_mut()) {
                (Some(a), Some(b)) => *b = b.wrapping_add(a),
                _ => return Found::Static(Place::OptimisedOut),
            },
            Operation::TLS => thread_local = true,
            Operation::Piece { .. } => pieces += 1,
            Operation::ImplicitValue { .. } | Operation::StackValue => {
                return Found::Static(Place::Constant);
            }
            Operation::Register { .. } => return Found::Local { register: true },
            Operation::FrameOffset { .. }
            | Operation::RegisterOffset { .. }
            | Operation::CallFrameCFA => {
                return Found::Local { register: false };
            }
            Operation::EntryValue { .. } | Operation::ImplicitPointer { .. } => {
                return Found::Local { register: true };
            }
            Operation::Nop => {}
            _ => return Found::Static(Place::Pieces),
        }
    }
    Found::Static(match stack.pop() {
        Some(_) if pieces > 0 => Place::Pieces,
        Some(offset) if thread_local => Place::ThreadLocal(offset),
        // The linker removed the section and resolved its address to nothing.
        Some(0 | u64::MAX) | None => Place::OptimisedOut,
        Some(address) => Place::Address(address),
    })
}
