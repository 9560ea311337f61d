//! Compares reported accesses with the page-fault hardware: with one page closed, the CPU must
//! fault exactly when a reported access lies in that page.
#![allow(unsafe_code)]

use super::differential::*;
use super::machine::*;
use crate::access::{AccessList, Class};
use crate::tests::corpus::{self, Rng, Shape};
use std::collections::BTreeMap;

/// Where the CPU may touch more, or less, than is reported.
fn excepted(class: Class, name: &str) -> bool {
    match class {
        // The flush faults without using data.
        Class::Flush => true,
        // Components in their initial state are not written (xsaveopt, xsavec) or not read.
        Class::Xsave | Class::Xsavec | Class::Xrstor => true,
        // The processor may check disabled elements (SDM, MASKMOVDQU); it touches no data.
        Class::MaskMov => true,
        // Checks the new top of the stack.
        Class::Enter => true,
        // Checked as a whole (class E6NF), written by mask.
        Class::MaskedEvex if name.contains("Vextract") => true,
        // AMD moves 2 bytes where Intel ignores the prefix; we report 8.
        Class::Ret | Class::CallMem | Class::JmpMem
            if name.starts_with("Retnw") || name.ends_with("rm16") =>
        {
            true
        }
        // fxsave leaves the last 48 to 96 bytes alone.
        Class::Plain if name.starts_with("Fx") => true,
        // Their accesses are found by comparing memory (AMX tiles; `Insn::accesses_known`).
        Class::Unsupported => true,
        _ => false,
    }
}

#[test]
fn faults_exactly_where_reported() {
    let m = Machine::new();
    let rounds: u64 = std::env::var("ULPF_TEST_ROUNDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(12);
    let mut rng = Rng(0x1357_9bdf_2468_ace1);
    let pool = Pool::new(&mut rng);
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    let (mut faulted, mut passed) = (0, 0);
    for code in corpus::codes() {
        let name = format!("{code:?}");
        // Emulated by the kernel (UMIP), whose own accesses fault differently.
        if skip(&name)
            || ["Sgdt", "Sidt", "Sldt", "Smsw", "Str_"]
                .iter()
                .any(|p| name.starts_with(p))
        {
            continue;
        }
        for _ in 0..rounds {
            let shape = Shape {
                target: m.base + LEN as u64 / 2 - rng.below(64),
                pc: m.code,
            };
            let Some(bytes) = corpus::make(code, &mut rng, shape) else {
                continue;
            };
            let mut state = random_state(&mut rng, &m);
            if !aim(&m, &bytes, &mut state, &mut rng) {
                continue;
            }
            let Ok(insn) = m.decoder.decode(m.code, &bytes) else {
                continue;
            };
            if excepted(insn.class, &name) {
                continue;
            }
            let mut list = AccessList::new();
            insn.accesses(&state.cpu(), &mut list);
            // The page of some access, or the one behind the operand.
            let at = match rng.below(3) {
                0 => insn
                    .effective(&state.cpu())
                    .wrapping_add(insn.mem.size.into())
                    .wrapping_sub(1),
                1 => insn.effective(&state.cpu()),
                _ => list
                    .get(rng.below(list.len().max(1) as u64) as usize)
                    .map_or(m.base, |a| a.addr.0 + a.len - 1),
            };
            if at < m.base || at >= m.base + LEN as u64 {
                continue;
            }
            let page = (at - m.base) as usize / 4096;
            let writes_only = rng.chance(2);
            let (start, end) = (
                m.base + page as u64 * 4096,
                m.base + page as u64 * 4096 + 4096,
            );
            let expect = list.iter().any(|a| {
                a.addr.0 < end && start < a.addr.0 + a.len && (!writes_only || a.kind.writes())
            });
            m.put(0, pool.fresh(&mut rng));
            m.open_all();
            let mut probe = state.clone();
            let open = m.native(&bytes, &mut probe).signo;
            if open == libc::SIGILL {
                break;
            }
            if open != libc::SIGTRAP {
                continue;
            }
            m.put(0, pool.fresh(&mut rng));
            m.protect(
                page,
                1,
                if writes_only {
                    libc::PROT_READ
                } else {
                    libc::PROT_NONE
                },
            );
            let mut after = state.clone();
            let signal = m.native(&bytes, &mut after);
            m.open_all();
            // A gather that faults after its first element traps (TF) before it faults.
            let partial =
                matches!(insn.class, Class::Gather | Class::Scatter) && after.gprs.rip == m.code;
            let fault =
                partial || signal.signo == libc::SIGSEGV && (start..end).contains(&signal.addr);
            if fault {
                faulted += 1
            } else {
                passed += 1
            }
            if fault != expect && matches!(signal.signo, libc::SIGSEGV | libc::SIGTRAP) {
                let text = iced_x86::Decoder::with_ip(64, &bytes, m.code, 0).decode();
                wrong.entry(name.clone()).or_insert_with(|| format!(
                    "{bytes:02x?} {text}: {signal:x?}, closed {start:x} ({}), {:?} ea {:x} reported {:x?}, k {:x}",
                    if writes_only { "writes" } else { "all" }, insn.class, insn.effective(&state.cpu()), &list[..],
                    state.cpu().opmask(insn.layout.aaa)));
            }
        }
    }
    println!("{faulted} faulted, {passed} passed, {} wrong", wrong.len());
    for (c, w) in &wrong {
        println!("WRONG {c}: {w}");
    }
    assert!(wrong.is_empty());
}
