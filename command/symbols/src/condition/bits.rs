//! Hits of a bit-field, which shares its bytes with other fields.

use super::code::Code;
use crate::types::Bits;
use ulpf_engine::agent::op;
use ulpf_lib::WatchKind;
use ulpf_lib::agent::variable;

/// A condition for writes that change one of the bits, and for all reads if reads are watched: the bits that an
/// instruction reads from a byte are unknown. It equals the plugin's `bytecode.bits_changed`.
pub fn bits_changed(bits: Bits, kind: WatchKind) -> Vec<u8> {
    let mut code = Code::default();
    code.hit(variable::OLD);
    code.hit(variable::NEW);
    code.emit(&[op::BIT_XOR, op::CONST64]);
    let mask = u64::MAX >> (64 - bits.len.clamp(1, 64)) << bits.first;
    code.emit(&mask.to_be_bytes());
    code.emit(&[op::BIT_AND]);
    if kind != WatchKind::Write {
        code.hit(variable::KIND);
        code.emit(&[op::CONST8, 1, op::BIT_AND, op::BIT_OR]);
    }
    code.emit(&[op::END]);
    code.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of gdb-plugin/ulpf/bytecode.py; tests/plugin/test_units.py tests the same ones.
    #[test]
    fn as_the_plugin_has_it() {
        let hex = |kind| -> String {
            let code = bits_changed(Bits { first: 3, len: 7 }, kind);
            code.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(
            hex(WatchKind::Write),
            "2cff002cff01112500000000000003f80f27"
        );
        assert_eq!(
            hex(WatchKind::Access),
            "2cff002cff01112500000000000003f80f2cff0622010f1027"
        );
    }
}
