//! The bits of eflags (Intel SDM vol. 1, 3.4.3).

/// Carry.
pub const CF: u64 = 1;
/// Parity.
pub const PF: u64 = 1 << 2;
/// Carry out of the lower four bits.
pub const AF: u64 = 1 << 4;
/// Zero.
pub const ZF: u64 = 1 << 6;
/// Sign.
pub const SF: u64 = 1 << 7;
/// Trap: a single step.
pub const TF: u64 = 1 << 8;
/// Interrupts are taken.
pub const IF: u64 = 1 << 9;
/// Direction: strings go down.
pub const DF: u64 = 1 << 10;
/// Overflow.
pub const OF: u64 = 1 << 11;
/// Nested task.
pub const NT: u64 = 1 << 14;
/// Resume: no breakpoint at the next instruction.
pub const RF: u64 = 1 << 16;
/// Virtual 8086 mode.
pub const VM: u64 = 1 << 17;
/// Alignment is checked.
pub const AC: u64 = 1 << 18;
/// CPUID is there.
pub const ID: u64 = 1 << 21;

/// Reserved, and always 1.
pub const ALWAYS: u64 = 1 << 1;

/// Bits that arithmetic sets.
pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// Bits that user mode may change: `popf` at privilege level 3 (Intel SDM vol. 2, POPF/POPFD/POPFQ).
pub const USER: u64 = STATUS | TF | DF | NT | AC | ID;

/// Bits that are clear in a signal's handler (Linux's `handle_signal`).
pub const CLEAR_IN_HANDLER: u64 = TF | DF | RF;

/// Initial value of a program (Linux's `start_thread`).
pub const INITIAL: u64 = ALWAYS | IF;

/// The bits with the names that GDB has for them, lowest first: name, number. The nameless one is always 1.
pub const NAMES: [(&str, u32); 17] = [
    ("CF", CF.trailing_zeros()),
    ("", ALWAYS.trailing_zeros()),
    ("PF", PF.trailing_zeros()),
    ("AF", AF.trailing_zeros()),
    ("ZF", ZF.trailing_zeros()),
    ("SF", SF.trailing_zeros()),
    ("TF", TF.trailing_zeros()),
    ("IF", IF.trailing_zeros()),
    ("DF", DF.trailing_zeros()),
    ("OF", OF.trailing_zeros()),
    ("NT", NT.trailing_zeros()),
    ("RF", RF.trailing_zeros()),
    ("VM", VM.trailing_zeros()),
    ("AC", AC.trailing_zeros()),
    ("VIF", 19),
    ("VIP", 20),
    ("ID", ID.trailing_zeros()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(NAMES.is_sorted_by_key(|(_, bit)| bit));
        assert_eq!((STATUS, USER, INITIAL), (0x8d5, 0x24_4dd5, 0x202));
        assert_eq!((NAMES[6], NAMES[16]), (("TF", 8), ("ID", 21)));
    }
}
