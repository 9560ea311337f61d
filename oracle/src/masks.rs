//! Accesses of instructions whose elements are selected by a mask. They are derived from iced-x86's
//! operand sizes and the exception classes of the SDM, independently of ulpf.

use crate::tracee::Vectors;
use iced_x86::*;

/// Whether elements are selected by a mask.
pub fn masked(i: &Instruction) -> bool {
    use Mnemonic::*;
    i.op_mask() != Register::None
        || i.is_vsib()
        || matches!(
            i.mnemonic(),
            Maskmovq | Maskmovdqu | Vmaskmovdqu | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq
        )
}

/// Address and length of each part that is touched. `address` gives that of an element.
pub fn parts(
    i: &Instruction,
    v: &Vectors,
    size: u64,
    address: &dyn Fn(usize) -> u64,
) -> Vec<(u64, u64)> {
    let element = i.memory_size().element_type().size() as u64;
    if i.is_vsib() {
        return (0..lanes(i, element))
            .filter(|n| enabled(i, v, *n, element))
            .map(|n| (address(n as usize), element))
            .collect();
    }
    let at = address(0);
    let name = format!("{:?}", i.mnemonic());
    if i.op_mask() == Register::None {
        let (grain, size) = by_vector(i, size);
        return (0..size / grain)
            .filter(|n| enabled(i, v, *n, grain))
            .map(|n| (at + n * grain, grain))
            .collect();
    }
    let mask = v.mask(i.op_mask().number());
    if reads_all_elements(&name) || shift_count(i) {
        return vec![(at, size)];
    }
    let register = |n: u32| i.op_register(n).size() as u64;
    let bits = |count: u64| mask & u64::MAX >> (64 - count.clamp(1, 64));
    if name.contains("compress") || name.contains("expand") {
        // As many elements as there are bits, one behind the other.
        let element = match name.as_bytes() {
            [.., b'p', b's'] | [.., b'd'] if !name.ends_with("pd") => 4,
            [.., b'b'] => 1,
            [.., b'w'] => 2,
            _ => 8,
        };
        let vector = register(0).max(register(1));
        let count = u64::from(bits(vector / element).count_ones());
        return if count == 0 {
            vec![]
        } else {
            vec![(at, count * element)]
        };
    }
    if name.starts_with("Vbroadcast") || name.starts_with("Vpbroadcast") {
        let grain = match &name {
            n if n.contains("32x") => 4,
            n if n.contains("64x") => 8,
            _ => size,
        };
        let lanes = register(0) / grain;
        let period = size / grain;
        return (0..period)
            .filter(|j| {
                (*j..lanes)
                    .step_by(period as usize)
                    .any(|n| mask >> n & 1 != 0)
            })
            .map(|j| (at + j * grain, grain))
            .collect();
    }
    let op = i.code().op_code();
    let grain = if op.can_broadcast() {
        op.broadcast_memory_size().size() as u64
    } else {
        element
    };
    let count = op.memory_size().size() as u64 / grain;
    if i.is_broadcast() {
        // One element for all.
        return if bits(count) != 0 {
            vec![(at, size)]
        } else {
            vec![]
        };
    }
    (0..count)
        .filter(|n| mask >> n & 1 != 0)
        .map(|n| (at + n * grain, grain))
        .collect()
}

/// Exception classes E4NF, E5NF, E6NF: the operand is read whatever the mask says, because its elements
/// cross lanes.
fn reads_all_elements(name: &str) -> bool {
    [
        "Vunpck",
        "Vpunpck",
        "Vpack",
        "Vshuf",
        "Vpshufd",
        "Vpshufb",
        "Vpshufhw",
        "Vpshuflw",
        "Vpalignr",
        "Valign",
        "Vperm",
        "Vmovddup",
        "Vmovshdup",
        "Vmovsldup",
        "Vinsert",
        "Vdbpsadbw",
        "Vpmultishift",
        "Vgf2p8affine",
        "Vpmadd",
        "Vpconflict",
    ]
    .iter()
    .any(|p| name.starts_with(p))
        && !name.starts_with("Vpmadd52")
        && name != "Vpshufbitqmb"
}

/// Whether the operand is the count of a shift, the same for all elements.
fn shift_count(i: &Instruction) -> bool {
    use Mnemonic::*;
    let shift = matches!(
        i.mnemonic(),
        Vpsllw | Vpslld | Vpsllq | Vpsrlw | Vpsrld | Vpsrlq | Vpsraw | Vpsrad | Vpsraq
    );
    shift && i.op2_kind() == OpKind::Memory
}

/// Bytes for each element of a vector mask, and bytes of the operand.
fn by_vector(i: &Instruction, size: u64) -> (u64, u64) {
    use Mnemonic::*;
    match i.mnemonic() {
        Maskmovq => (1, 8),
        Maskmovdqu | Vmaskmovdqu => (1, 16),
        Vmaskmovps | Vpmaskmovd => (4, size),
        _ => (8, size),
    }
}

/// Elements of a gather or scatter.
fn lanes(i: &Instruction, element: u64) -> u64 {
    let vector = (0..i.op_count())
        .map(|n| i.op_register(n))
        .chain([i.memory_index()])
        .filter(|r| r.is_vector_register());
    let index = if i.is_vsib32() { 4 } else { 8 };
    // The wider of indices and elements fills its register.
    let widest = vector.map(|r| r.size() as u64).max().unwrap_or(16);
    widest / element.max(index)
}

fn enabled(i: &Instruction, v: &Vectors, n: u64, element: u64) -> bool {
    if i.op_mask() != Register::None {
        return v.mask(i.op_mask().number()) >> n & 1 != 0;
    }
    let (reg, bit) = match i.mnemonic() {
        Mnemonic::Maskmovq => return v.mmx(i.op2_register().number()) >> (n * 8 + 7) & 1 != 0,
        Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => (i.op2_register(), n),
        // VEX gathers: the mask comes last; masked moves: in the middle.
        _ if i.is_vsib() => (i.op2_register(), n * element + element - 1),
        _ => (i.op1_register(), n * element + element - 1),
    };
    v.element(reg.number(), bit as usize, 1) & 0x80 != 0
}
