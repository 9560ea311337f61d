//! Details of one hit or one site: its facts, the callers, the source line, the instructions. Instructions come from
//! the file instead of memory, so that patches are not visible.

use super::app::Subject;
use super::view::Details;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};
use std::collections::VecDeque;
use ulpf_host::foreign::text::Text;
use ulpf_lib::ring::hit_flags;
use ulpf_session::hit::{Call, Line};
use ulpf_session::names::Names;
use ulpf_session::snapshot::Snapshot;
use ulpf_session::words::Seconds;

/// Number of lines before and after the current one.
const AROUND: usize = 5;
/// Functions longer than this number of bytes are not decoded from their start.
const FAR: u64 = 1 << 16;

pub fn of(names: &mut Names, session: &Snapshot, subject: &Subject) -> Details {
    match subject {
        Subject::Hit(line) => hit(names, line),
        Subject::Site(pc) => site(names, session, *pc),
    }
}

fn hit(names: &mut Names, line: &Line) -> Details {
    let h = &line.hit;
    let mut facts = vec![
        ("value", line.change.clone()),
        ("where", line.place.to_string()),
        ("thread", line.tid.to_string()),
        ("time", format!("{} s", Seconds(line.nanos))),
        ("bytes", format!("{} at {:#x}", h.len, h.addr)),
    ];
    if let Some(c) = &h.call {
        facts.push(("by", format!("the kernel, for {}", Call(c))));
    }
    if h.flags & hit_flags::TRUNCATED != 0 {
        facts.push(("note", "only the first bytes of the value were kept".into()));
    }
    let mut stack: Vec<String> = Vec::new();
    for frame in &h.frames {
        stack.push(format!(
            "#{} {}",
            stack.len() + 1,
            names.program.locate_caller(*frame)
        ));
    }
    if stack.is_empty() {
        stack.push("not recorded (ulpf run -b 8 does)".into());
    }
    Details {
        title: format!("{} of {}", line.verb, line.name),
        facts,
        stack,
        ..code(names, h.pc)
    }
}

fn site(names: &mut Names, session: &Snapshot, pc: u64) -> Details {
    let place = names.place(pc);
    let row = session.sites.iter().find(|s| s.pc == pc).cloned();
    let mut facts = vec![
        ("where", place.text.to_string()),
        ("address", format!("{pc:#x}")),
    ];
    if let Some(s) = row {
        facts.push(("served", s.served.word().into()));
        if !s.why.is_empty() {
            facts.push(("because", s.why));
        }
        if let Some((traps, beside)) = s.traps {
            facts.push((
                "traps",
                format!("{traps}, {beside} of them beside every watch"),
            ));
        }
    }
    let hits = session.feed.iter().rev().filter(|l| l.hit.pc == pc);
    let mut last: Vec<&str> = hits.map(|l| &*l.name).collect();
    last.sort_unstable();
    last.dedup();
    if !last.is_empty() {
        let lines = last.chunks(3).take(4).enumerate();
        facts.extend(lines.map(|(n, names)| (["touches", ""][n.min(1)], names.join(", "))));
    }
    Details {
        title: place.function.to_string(),
        facts,
        ..code(names, pc)
    }
}

fn code(names: &Names, pc: u64) -> Details {
    let at = names.program.locate(pc);
    let mut details = Details::default();
    if let (Some(file), Some(line)) = (&at.file, at.line) {
        details.source_title = format!("{}:{line}", at.short_file().unwrap_or(file));
        details.source = match names.program.source(file) {
            Ok(text) => around(&text, line as usize),
            Err(e) => vec![(false, format!("{file}: {e}"))],
        };
    }
    let start = match at.offset {
        offset if at.function.is_some() && offset < FAR => pc - offset,
        _ => pc,
    };
    let mut bytes = vec![0; (pc - start) as usize + 15 * (AROUND + 1)];
    match file_code(names, start, &mut bytes) {
        n if n > 0 => details.code = disassemble(&bytes[..n], start, pc),
        _ => details.code = vec![(false, format!("the code at {pc:#x} cannot be read"))],
    }
    details
}

/// Reads code from the object's file, or otherwise from memory (JIT code) if permitted. Returns the number of bytes.
fn file_code(names: &Names, start: u64, to: &mut [u8]) -> usize {
    if let Some(module) = names.program.module_at(start) {
        return module.object.code(start.wrapping_sub(module.bias), to);
    }
    let mut n = to.len();
    while n > 0 && !names.code(start, &mut to[..n]) {
        n /= 2;
    }
    n
}

fn disassemble(bytes: &[u8], start: u64, pc: u64) -> Vec<(bool, String)> {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(false);
    let mut before = VecDeque::new();
    let mut out = Vec::new();
    let mut insn = Instruction::default();
    while decoder.can_decode() && out.len() < 2 * AROUND + 1 {
        decoder.decode_out(&mut insn);
        // An instruction that spans `pc` shows that decoding began at a wrong boundary.
        if insn.ip() < pc && insn.next_ip() > pc {
            before.clear();
            let _ = decoder.set_position((pc - start) as usize);
            decoder.set_ip(pc);
            continue;
        }
        let mut text = String::new();
        formatter.format(&insn, &mut text);
        let line = (insn.ip() == pc, format!("{:#x}  {text}", insn.ip()));
        if insn.ip() < pc {
            if before.len() == AROUND {
                before.pop_front();
            }
            before.push_back(line);
        } else {
            out.extend(before.drain(..));
            if insn.is_invalid() {
                break;
            }
            out.push(line);
        }
    }
    out
}

fn around(text: &str, line: usize) -> Vec<(bool, String)> {
    let first = line.saturating_sub(AROUND).max(1);
    let lines = text.lines().enumerate().skip(first - 1);
    let lines = lines.take(line + AROUND + 1 - first);
    let shown = lines.map(|(n, text)| {
        let text = text.replace('\t', "    ");
        (n + 1 == line, format!("{:>4}  {}", n + 1, Text(&text)))
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_around_one() {
        // push %rbp; mov %rsp,%rbp; mov %edi,(%rsi); pop %rbp; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x89, 0x3e, 0x5d, 0xc3];
        let text = disassemble(&code, 0x1000, 0x1004);
        let lines: Vec<&str> = text.iter().map(|(_, l)| l.as_str()).collect();
        assert_eq!(
            lines,
            [
                "0x1000  push %rbp",
                "0x1001  mov %rsp,%rbp",
                "0x1004  mov %edi,(%rsi)",
                "0x1006  pop %rbp",
                "0x1007  ret"
            ]
        );
        assert_eq!(text.iter().position(|(here, _)| *here), Some(2));
        // At a wrong boundary: the instruction itself is decoded correctly.
        let text = disassemble(&[0x48, 0xb8, 0x89, 0x3e, 0, 0, 0, 0, 0, 0], 0x1000, 0x1002);
        assert_eq!(text[0], (true, "0x1002  mov %edi,(%rsi)".into()));
    }

    #[test]
    fn source_around_a_line() {
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let lines = around(&text, 2);
        assert_eq!(
            (lines.len(), &lines[1]),
            (7, &(true, "   2  line 2".into()))
        );
        assert_eq!(around(&text, 30).len(), 6);
        assert!(around("", 3).is_empty());
    }
}
