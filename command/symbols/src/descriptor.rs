//! Arrays whose place, bounds and strides are in an object in memory (DWARF 5, sections 2.19, 5.5 and 5.13; appendix D.2.1):
//! Fortran's allocatable and assumed-shape arrays and its pointers to arrays, dynamic arrays of Pascal.

use crate::dwarf::Entry;
use crate::memory::Memory;
use crate::slice::Slice;
use gimli::{AttributeValue, Encoding, EvaluationResult, Expression, Location, Operation, Value};
use gimli::{DwAt, constants as dw};

/// Limit of operations of one expression.
const MOST_OPERATIONS: u32 = 1000;

/// Why it is not known where the elements are.
#[derive(Debug)]
pub enum Unknown {
    /// The array is not allocated, or the pointer is not associated.
    NotThere,
    /// The object cannot be read.
    Unreadable,
    /// The debug information says it in a way that is not known here.
    Unsupported,
}

impl From<gimli::Error> for Unknown {
    fn from(_: gimli::Error) -> Unknown {
        Unknown::Unsupported
    }
}

/// Where the elements are.
#[derive(Debug)]
pub struct Data {
    pub addr: u64,
    /// Offset in the object of the pointer to them, if `addr` is that pointer and a constant distance.
    pub pointer: Option<u64>,
}

/// One dimension.
#[derive(Debug)]
pub struct Dimension {
    pub first: i64,
    pub count: u64,
    /// Distance of its elements, in bytes; `None`: they are adjacent.
    pub stride: Option<i64>,
}

/// Reads an object.
pub struct Descriptor<'a> {
    pub encoding: Encoding,
    /// Address of the object.
    pub object: u64,
    pub memory: &'a dyn Memory,
}

/// Whether the array is found through an object.
pub fn is_described(entry: &Entry) -> bool {
    let has = |at| matches!(entry.attr_value(at), Ok(Some(_)));
    has(dw::DW_AT_data_location) || has(dw::DW_AT_allocated) || has(dw::DW_AT_associated)
}

impl Descriptor<'_> {
    /// Where the elements of the array `entry` are.
    pub fn data(&self, entry: &Entry) -> Result<Data, Unknown> {
        for at in [dw::DW_AT_allocated, dw::DW_AT_associated] {
            if self.number(entry, at)? == Some(0) {
                return Err(Unknown::NotThere);
            }
        }
        let Some(AttributeValue::Exprloc(place)) = entry.attr_value(dw::DW_AT_data_location)?
        else {
            return Ok(Data {
                addr: self.object,
                pointer: None,
            });
        };
        Ok(Data {
            pointer: pointer(place, self.encoding),
            addr: self.evaluate(place)?,
        })
    }

    /// The dimension that the subrange `entry` describes. `lowest`: the language's first index.
    pub fn dimension(&self, entry: &Entry, lowest: i64) -> Result<Dimension, Unknown> {
        let first = self.number(entry, dw::DW_AT_lower_bound)?.unwrap_or(lowest);
        let count = match self.number(entry, dw::DW_AT_count)? {
            Some(count) => count,
            None => {
                let last = self.number(entry, dw::DW_AT_upper_bound)?;
                let last = last.ok_or(Unknown::Unsupported)?;
                let count = last.checked_sub(first).and_then(|n| n.checked_add(1));
                count.ok_or(Unknown::Unsupported)?
            }
        };
        Ok(Dimension {
            first,
            count: count.max(0) as u64,
            stride: self.number(entry, dw::DW_AT_byte_stride)?,
        })
    }

    /// The value of an attribute: a constant, or an expression about the object.
    fn number(&self, entry: &Entry, at: DwAt) -> Result<Option<i64>, Unknown> {
        let Some(value) = entry.attr_value(at)? else {
            return Ok(None);
        };
        if let AttributeValue::Exprloc(expression) = value {
            return Ok(Some(self.evaluate(expression)? as i64));
        }
        let unsigned = value.udata_value().and_then(|n| i64::try_from(n).ok());
        let number = unsigned.or(value.sdata_value());
        Ok(Some(number.ok_or(Unknown::Unsupported)?))
    }

    fn evaluate(&self, expression: Expression<Slice>) -> Result<u64, Unknown> {
        let mut of = expression.evaluation(self.encoding);
        of.set_object_address(self.object);
        of.set_max_iterations(MOST_OPERATIONS);
        let mut result = of.evaluate()?;
        while let EvaluationResult::RequiresMemory { address, size, .. } = result {
            let mut bytes = [0; 8];
            let wanted = bytes.get_mut(..size.into()).ok_or(Unknown::Unsupported)?;
            if !self.memory.read(address, wanted) {
                return Err(Unknown::Unreadable);
            }
            result = of.resume_with_memory(Value::Generic(u64::from_le_bytes(bytes)))?;
        }
        if !matches!(result, EvaluationResult::Complete) {
            return Err(Unknown::Unsupported);
        }
        match of.as_result() {
            [piece] => match piece.location {
                Location::Address { address } => Ok(address),
                Location::Value { value } => Ok(value.to_u64(u64::MAX)?),
                _ => Err(Unknown::Unsupported),
            },
            _ => Err(Unknown::Unsupported),
        }
    }
}

/// Offset of the pointer that an expression reads, if it only adds constants before and after.
fn pointer(expression: Expression<Slice>, encoding: Encoding) -> Option<u64> {
    let (mut offset, mut read, mut began) = (0, false, false);
    let mut operations = expression.operations(encoding);
    while let Some(operation) = operations.next().ok()? {
        match operation {
            Operation::PushObjectAddress if !began => began = true,
            Operation::PlusConstant { value } if began && !read => offset = value,
            Operation::PlusConstant { .. } if read => {}
            Operation::Deref { size: 8, .. } if began && !read => read = true,
            _ => return None,
        }
    }
    read.then_some(offset)
}
