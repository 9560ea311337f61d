//! Copies of handler frames, to return on another stack.

use super::frame::{SigFrame, UContext, fpstate_len};

/// Copies the handler's frame (context, siginfo, fpstate) to the top of another stack; `None` if it has more than
/// `room` bytes.
///
/// # Safety
/// `uc` is a handler's own frame. The uppermost `room` bytes and 512 more of that stack are unused.
pub unsafe fn copy_frame<'a>(uc: &UContext, stack_top: u64, room: u64) -> Option<&'a mut UContext> {
    let from = (uc as *const UContext as u64) - 8;
    // SAFETY: our own frame.
    let (fp_len, _) = unsafe { fpstate_len(uc.fpstate) };
    let end = if uc.fpstate.is_null() {
        from + size_of::<SigFrame>() as u64
    } else {
        uc.fpstate as u64 + fp_len as u64
    };
    let total = end - from;
    if total > room {
        return None;
    }
    // Same position within a cache line, so that the XSAVE image stays aligned to 64.
    let to = ((stack_top - 256 - total) & !63) - 64 + (from & 63);
    // SAFETY: both ranges are ours, `total` bytes long.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, total as usize) };
    // SAFETY: the copy of a ucontext.
    let copy = unsafe { &mut *((to + 8) as *mut UContext) };
    if !uc.fpstate.is_null() {
        copy.fpstate = (uc.fpstate as u64 - from + to) as *mut u8;
    }
    Some(copy)
}
