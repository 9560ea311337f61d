//! Where the parts of an instruction's encoding lie: prefixes, opcode, ModRM, immediates.
//!
//! Capstone says what an instruction *is*. Rewriting its memory operand requires the position of the operand's bits,
//! which capstone reports only in part (and not for VEX, EVEX and XOP). Source: Intel SDM vol. 2, chapter 2; AMD64
//! manual vol. 3, chapter 1 and 6 (XOP).
//!
//! ```text
//! legacy   [66 67 F2 F3 F0 seg]* [REX]  [0F | 0F 38 | 0F 3A] op  ModRM [SIB] [disp] [imm]
//! VEX      [67 seg]*  C5 RvvvvLpp       op  ModRM ...      C4 RXBmmmmm WvvvvLpp op ModRM ...
//! EVEX     [67 seg]*  62 RXBR'0mmm Wvvvv1pp zLLbV'aaa      op  ModRM ...
//! XOP      [67 seg]*  8F RXBmmmmm WvvvvLpp                 op  ModRM ...
//! ```

/// How the opcode is wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrap {
    /// No prefix but legacy ones and REX.
    Legacy,
    /// C4 or C5.
    Vex,
    /// 62.
    Evex,
    /// 8F (AMD).
    Xop,
}

/// The mandatory (or operand-size) prefix that selects among instructions of one opcode byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pp {
    /// None.
    None,
    /// 66.
    P66,
    /// F3.
    PF3,
    /// F2.
    PF2,
}

/// Offsets are in bytes from the first byte of the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// How the opcode is wrapped.
    pub wrap: Wrap,
    /// 0: one-byte opcodes, 1: 0F, 2: 0F 38, 3: 0F 3A, 4: 3DNow! (0F 0F), 5 and 6: EVEX only,
    /// 8 to 10: XOP only.
    pub map: u8,
    /// The mandatory prefix.
    pub pp: Pp,
    /// The opcode's last byte.
    pub opcode: u8,
    /// Number of legacy prefixes, REX not counted (a REX that a later prefix cancels is).
    pub prefixes: u8,
    /// Where that is.
    pub opcode_at: u8,
    /// Zero when the instruction has no ModRM byte.
    pub modrm_at: u8,
    pub modrm: u8,
    /// First byte after the displacement.
    pub tail_at: u8,
    /// Zero when absent.
    pub rex: u8,
    /// REX.W, VEX.W or EVEX.W.
    pub w: bool,
    /// Vector length: 0 is 128 bits, 1 is 256, 2 is 512.
    pub l: u8,
    /// `ModRM.reg` with all its extension bits (0 to 31).
    pub reg: u8,
    /// `ModRM.rm` with B as its fourth bit, when it names a register.
    pub rm: u8,
    /// Second source or destination of VEX and EVEX (0 to 31); 0 for legacy encodings.
    pub vvvv: u8,
    /// EVEX opmask register; 0 is "no masking".
    pub aaa: u8,
    /// EVEX.z: masked elements become 0, instead of staying as they are.
    pub zeroing: bool,
    /// EVEX.b: broadcast when the operand is memory.
    pub bcast: bool,
    /// Prefix 66 as an operand size.
    pub opsize16: bool,
    /// Prefix 67.
    pub addr32: bool,
    /// Prefix F0.
    pub lock: bool,
    /// F3 seen (rep, repe, or a mandatory prefix), F2 seen (repne).
    pub rep: bool,
    /// See `rep`.
    pub repne: bool,
    /// 0x64, 0x65, or 0.
    pub segment: u8,
}

const fn has_modrm_0(op: u8) -> bool {
    match op {
        0x00..=0x3f => op & 7 < 4,
        0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc6 | 0xc7 => true,
        0xd0..=0xd3 | 0xd8..=0xdf | 0xf6 | 0xf7 | 0xfe | 0xff => true,
        _ => false,
    }
}

const fn has_modrm_1(op: u8) -> bool {
    !matches!(op, 0x04..=0x0c | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f | 0xa0..=0xa2
        | 0xa8..=0xaa | 0xc8..=0xcf)
}

impl Layout {
    /// `None` when the bytes end too early or no opcode follows 14 prefixes.
    pub fn parse(bytes: &[u8]) -> Option<Layout> {
        let at = |i: usize| bytes.get(i).copied();
        let mut l = Layout {
            wrap: Wrap::Legacy,
            map: 0,
            pp: Pp::None,
            opcode: 0,
            prefixes: 0,
            opcode_at: 0,
            modrm_at: 0,
            modrm: 0,
            tail_at: 0,
            rex: 0,
            w: false,
            l: 0,
            reg: 0,
            rm: 0,
            vvvv: 0,
            aaa: 0,
            zeroing: false,
            bcast: false,
            opsize16: false,
            addr32: false,
            lock: false,
            rep: false,
            repne: false,
            segment: 0,
        };
        let mut i = 0;
        let mut last_rep = 0;
        loop {
            if i >= 15 {
                return None;
            }
            let b = at(i)?;
            match b {
                0x40..=0x4f => l.rex = b,
                0x66 => l.opsize16 = true,
                0x67 => l.addr32 = true,
                0xf0 => l.lock = true,
                0xf2 => {
                    l.repne = true;
                    last_rep = b;
                }
                0xf3 => {
                    l.rep = true;
                    last_rep = b;
                }
                // In 64-bit mode the other segment prefixes are ignored (SDM vol. 1, 3.3.7.1),
                // also when they come after an fs or gs prefix.
                0x64 | 0x65 => l.segment = b,
                0x2e | 0x36 | 0x3e | 0x26 => {}
                _ => break,
            }
            if !matches!(b, 0x40..=0x4f) {
                l.rex = 0;
            }
            i += 1;
        }
        l.prefixes = if l.rex != 0 { i as u8 - 1 } else { i as u8 };
        let mut r;
        let mut b = 0;
        let first = at(i)?;
        let second = at(i + 1);
        match (first, second) {
            (0xc5, Some(p)) => {
                l.wrap = Wrap::Vex;
                r = !p >> 7 & 1;
                l.vex_tail(p);
                l.w = false;
                l.map = 1;
                i += 2;
            }
            (0xc4, Some(p)) => {
                l.wrap = Wrap::Vex;
                (r, b) = (!p >> 7 & 1, !p >> 5 & 1);
                l.map = p & 0x1f;
                l.vex_tail(at(i + 2)?);
                i += 3;
            }
            (0x8f, Some(p)) if p & 0x1f >= 8 => {
                l.wrap = Wrap::Xop;
                (r, b) = (!p >> 7 & 1, !p >> 5 & 1);
                l.map = p & 0x1f;
                l.vex_tail(at(i + 2)?);
                i += 3;
            }
            (0x62, Some(p0)) => {
                l.wrap = Wrap::Evex;
                let (p1, p2) = (at(i + 2)?, at(i + 3)?);
                (r, b) = (!p0 >> 7 & 1, !p0 >> 5 & 1);
                r |= (!p0 >> 4 & 1) << 1;
                l.map = p0 & 7;
                l.vex_tail(p1);
                l.l = p2 >> 5 & 3;
                l.zeroing = p2 & 0x80 != 0;
                l.bcast = p2 & 0x10 != 0;
                l.vvvv |= (!p2 >> 3 & 1) << 4;
                l.aaa = p2 & 7;
                i += 4;
            }
            _ => {
                (r, b) = (l.rex >> 2 & 1, l.rex & 1);
                l.w = l.rex & 8 != 0;
                l.pp = match last_rep {
                    0xf3 => Pp::PF3,
                    0xf2 => Pp::PF2,
                    _ if l.opsize16 => Pp::P66,
                    _ => Pp::None,
                };
                if first == 0x0f {
                    i += 1;
                    l.map = match second? {
                        0x38 => 2,
                        0x3a => 3,
                        0x0f => 4,
                        _ => 1,
                    };
                    if l.map > 1 {
                        i += 1;
                    }
                }
            }
        }
        l.opcode_at = i as u8;
        let has_modrm = if l.map == 4 {
            // 3DNow!: the opcode is the last byte, ModRM takes its place.
            i -= 1;
            true
        } else {
            l.opcode = at(i)?;
            match (l.wrap, l.map) {
                (Wrap::Legacy, 0) => has_modrm_0(l.opcode),
                (Wrap::Legacy, 1) => has_modrm_1(l.opcode),
                (Wrap::Vex, 1) => l.opcode != 0x77,
                _ => true,
            }
        };
        i += 1;
        if has_modrm {
            l.modrm = at(i)?;
            l.modrm_at = i as u8;
            l.reg = l.modrm >> 3 & 7 | r << 3;
            l.rm = l.modrm & 7 | b << 3;
            i += 1;
            if l.has_mem() {
                let rm = l.modrm & 7;
                let mut disp = match l.modrm >> 6 {
                    0 if rm == 5 => 4,
                    0 => 0,
                    1 => 1,
                    _ => 4,
                };
                if rm == 4 {
                    let sib = at(i)?;
                    i += 1;
                    if l.modrm >> 6 == 0 && sib & 7 == 5 {
                        disp = 4;
                    }
                }
                i += disp;
            }
        }
        l.tail_at = i as u8;
        if i > 15 || i > bytes.len() {
            return None;
        }
        Some(l)
    }

    /// How long the instruction is, by the length of its immediate operand: much faster than to decode it. `None`: where
    /// processors differ, and for the rarest encodings.
    pub fn length(&self) -> Option<usize> {
        use Wrap::{Evex, Legacy, Vex};
        // Operands of the size that prefix 66 chooses, of up to four bytes.
        let sized = match self.opsize16 && !self.w {
            true => 2,
            false => 4,
        };
        // Branches with that prefix have two bytes on some processors, and four on others.
        let branch = (!self.opsize16 || self.w).then_some(4);
        let test = self.ext() < 2;
        let immediate = match (self.wrap, self.map, self.opcode) {
            (Legacy, 0, op) => match op {
                0x00..=0x3f if op & 7 == 4 => 1,
                0x00..=0x3f if op & 7 == 5 => sized,
                0x68 | 0x69 | 0x81 | 0xa9 => sized,
                0x6a | 0x6b | 0x70..=0x80 | 0x83 | 0xa8 | 0xb0..=0xb7 | 0xc0 | 0xc1 => 1,
                0xa0..=0xa3 if self.addr32 => 4,
                0xa0..=0xa3 => 8,
                0xb8..=0xbf if self.w => 8,
                0xb8..=0xbf => sized,
                0xc2 | 0xca => 2,
                0xc6 if self.modrm != 0xf8 => 1,
                0xc7 if self.modrm != 0xf8 => sized,
                0xc6 | 0xc7 => return None,
                0xc8 => 3,
                0xcd | 0xe0..=0xe7 | 0xeb => 1,
                0xe8 | 0xe9 => branch?,
                0xf6 if test => 1,
                0xf7 if test => sized,
                _ => 0,
            },
            (Legacy, 1, op) => match op {
                0x80..=0x8f => branch?,
                0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => 1,
                0x78 => return None,
                _ => 0,
            },
            (Vex | Evex, 1, op) => u8::from(matches!(op, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6)),
            (Legacy | Vex | Evex, 2, _) => 0,
            (Legacy | Vex | Evex, 3, _) => 1,
            _ => return None,
        };
        let length = usize::from(self.tail_at) + usize::from(immediate);
        (length <= 15).then_some(length)
    }

    /// Whether the processor continues behind the instruction, if it does not fault. (Calls return.)
    pub fn goes_on(&self) -> bool {
        let legacy = self.wrap == Wrap::Legacy;
        !match (self.map, self.opcode) {
            (0, 0xc2 | 0xc3 | 0xca | 0xcb | 0xcc | 0xcf | 0xe9 | 0xeb | 0xf4) => legacy,
            (0, 0xff) => legacy && matches!(self.ext(), 4 | 5),
            (1, 0x0b | 0xb9 | 0xff) => legacy,
            _ => false,
        }
    }

    fn vex_tail(&mut self, p: u8) {
        self.w = p & 0x80 != 0;
        self.vvvv = !p >> 3 & 15;
        self.l = p >> 2 & 1;
        self.pp = match p & 3 {
            0 => Pp::None,
            1 => Pp::P66,
            2 => Pp::PF3,
            _ => Pp::PF2,
        };
    }

    /// Whether ModRM names memory.
    pub fn has_mem(&self) -> bool {
        // Moves from and to control and debug registers ignore the mod bits.
        let always_register = self.legacy() && self.map == 1 && matches!(self.opcode, 0x20..=0x23);
        self.modrm_at != 0 && self.modrm >> 6 != 3 && !always_register
    }

    /// `ModRM.reg` as an opcode extension.
    pub fn ext(&self) -> u8 {
        self.modrm >> 3 & 7
    }

    /// Whether it is neither VEX, EVEX nor XOP.
    pub fn legacy(&self) -> bool {
        self.wrap == Wrap::Legacy
    }

    /// Operand size of general instructions without a byte form: 8, 4 or 2.
    pub fn opsize(&self) -> u8 {
        if self.w {
            8
        } else if self.opsize16 {
            2
        } else {
            4
        }
    }

    /// The repeat prefix that counts, the last one, is F2.
    pub fn pp_rep_is_f2(&self) -> bool {
        self.pp == Pp::PF2
    }

    /// Vector length in bytes.
    pub fn vl(&self) -> u16 {
        16 << self.l.min(2)
    }
}
