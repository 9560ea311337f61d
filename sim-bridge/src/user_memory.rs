// SPDX-License-Identifier: GPL-2.0-or-later
//! What a system call reads and writes of the program's memory.

use crate::errno::{E2BIG, EFAULT, EINVAL};
use crate::memory::PAGE;
use crate::state::{State, Uc};
use std::ffi::CString;
use ulpf_lib::device::abi::Structure;

/// Reads memory for a system call: EFAULT where the program itself could not.
pub fn read_bytes(uc: &Uc, s: &mut State, at: u64, len: u64) -> Result<Vec<u8>, i64> {
    if len > 0 && !s.space.permits(at, len, 1) {
        return Err(EFAULT);
    }
    s.kernel_touches(uc, at, len, false)?;
    uc.mem_read_as_vec(at, len as usize).map_err(|_| EFAULT)
}

/// Writes memory for a system call.
pub fn write_bytes(uc: &mut Uc, s: &mut State, at: u64, bytes: &[u8]) -> Result<(), i64> {
    let len = bytes.len() as u64;
    if len > 0 && !s.space.permits(at, len, 2) {
        return Err(EFAULT);
    }
    s.kernel_touches(uc, at, len, true)?;
    s.space.stale_code |= len > 0 && s.space.may_hold_code(at, len);
    uc.mem_write(at, bytes).map_err(|_| EFAULT)
}

/// A path, with its end.
pub fn string(uc: &Uc, at: u64) -> Result<CString, i64> {
    let mut bytes = vec![];
    for n in 0..4096 {
        let mut b = [0];
        uc.mem_read(at.wrapping_add(n), &mut b)
            .map_err(|_| EFAULT)?;
        if b[0] == 0 {
            return CString::new(bytes).map_err(|_| EINVAL);
        }
        bytes.push(b[0]);
    }
    Err(-36)
}

/// The little-endian word there.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// A structure of the program's that begins with its size. A longer one is accepted if what is not known is zero.
pub fn read_structure<T: Structure>(uc: &Uc, s: &mut State, at: u64) -> Result<T, i64> {
    let ours = size_of::<T>();
    let size = read_bytes(uc, s, at, 4)?;
    let size = u32::from_le_bytes(size.try_into().unwrap_or_default()) as usize;
    if size < ours || size > PAGE as usize {
        return Err(if size < ours { EINVAL } else { E2BIG });
    }
    let bytes = read_bytes(uc, s, at, size as u64)?;
    if bytes[ours..].iter().any(|&b| b != 0) {
        return Err(E2BIG);
    }
    T::from_bytes(&bytes).ok_or(EFAULT)
}

pub fn write_structure<T: Structure>(
    uc: &mut Uc,
    s: &mut State,
    at: u64,
    value: &T,
) -> Result<(), i64> {
    let mut bytes = vec![0; size_of::<T>()];
    value.write_to(&mut bytes);
    write_bytes(uc, s, at, &bytes)
}
