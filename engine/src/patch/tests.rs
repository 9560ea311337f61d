//! Jumps and marks. The oracle tests what trampolines do: it runs every instruction patched.

use super::*;
use crate::access::Decoder;

const AT: u64 = 0x5555_5555_1000;

fn group(code: &[u8]) -> Result<Group, Refusal> {
    let decoder = Decoder::new().unwrap();
    let mut padded = code.to_vec();
    padded.resize(40, 0x90);
    Group::new(
        &decoder.decode(AT, &padded).unwrap(),
        &padded,
        &mut |_, _| None,
    )
}

/// As `group`, with every access of it looked at.
fn group_of_all(code: &[u8]) -> Group {
    let decoder = Decoder::new().unwrap();
    let mut padded = code.to_vec();
    padded.resize(40, 0x90);
    let first = decoder.decode(AT, &padded).unwrap();
    Group::new(&first, &padded, &mut |at, code| {
        decoder.decode(at, &code[..code.len().min(15)]).ok()
    })
    .unwrap()
}

fn target(at: u64) -> Target {
    Target {
        at,
        idle_count: 0x1100,
        hit: 0x7ea1_2345_0000,
        step: 192,
        asks: 0x7ea1_2345_0100,
        asking: None,
        leaving: 0x7ea1_2345_0040,
        before_access: false,
        over_read: false,
        heap: None,
        whole: false,
        writers: None,
        counts: true,
        tables: Tables::default(),
    }
}

#[test]
fn instructions_that_begin_under_a_jump_begin_with_a_trap() {
    // mov %al,(%rdi); inc %rdi; … / mov %eax,(%rdi); ret; nop; nop / mov %rax,8(%rdi); push %rbx
    for code in [
        &[0x88, 0x07, 0x48, 0xff, 0xc7][..],
        &[0x89, 0x07, 0xc3, 0x90, 0x90],
        &[0x48, 0x89, 0x47, 0x08, 0x53],
    ] {
        let group = group(code).unwrap();
        assert_eq!(group.bytes.len(), 5);
        let mut jumps = 0;
        for n in 0..1 << 20 {
            let to = (AT - (1 << 30) + n * 0x9e37_79b1 % (1 << 31)) & !15;
            let Some(jump) = group.jump(to) else { continue };
            jumps += 1;
            let distance = i32::from_le_bytes(jump[1..].try_into().unwrap());
            assert_eq!((AT + 5).wrapping_add_signed(distance.into()), to);
            for part in &group.parts[1..] {
                let byte = jump[(part.at - AT) as usize];
                let is_ret = code[(part.at - AT) as usize] == 0xc3;
                assert!(if is_ret {
                    byte == 0xc3
                } else {
                    TRAPS.contains(&byte)
                });
            }
        }
        assert!(jumps > 10, "{code:x?}: {jumps}");
    }
}

#[test]
fn every_access_under_a_jump_may_be_looked_at() {
    let group = group_of_all(&[0x89, 0x07, 0x89, 0x0e, 0x83, 0x47, 0x04, 0x01]);
    let at: Vec<u64> = group.parts.iter().map(|p| p.at - AT).collect();
    assert_eq!(at, [0, 2, 4]);
    assert!(group.parts.iter().all(|p| group.checks(p.at)));
    assert!(!group.checks(AT + 1) && !group.checks(AT + 8));
}

/// A group that begins before its access, so that nothing behind that moves.
#[test]
fn what_stands_before_moves_as_well() {
    let decoder = Decoder::new().unwrap();
    // xor %eax,%eax; jne +4; or $4,%eax; mov %rax,-8(%rdi); ret
    let code = [
        0x31, 0xc0, 0x75, 0x04, 0x83, 0xc8, 0x04, 0x48, 0x89, 0x47, 0xf8, 0xc3,
    ];
    let store = decoder.decode(AT + 7, &code[7..]).unwrap();
    let starts = Group::starts(&store, AT, &code);
    assert_eq!(starts, [AT + 4, AT + 2, AT]);
    for (start, parts, mine) in [(AT + 4, 2, 1), (AT + 2, 3, 2)] {
        let from = (start - AT) as usize;
        let group = Group::from(start, 0, &store, &code[from..], &mut |_, _| None).unwrap();
        assert_eq!((group.start(), group.end()), (start, AT + 11));
        assert_eq!(group.parts.len(), parts);
        assert!(group.checks(AT + 7) && !group.checks(start));
        let at = group.next(AT - 0x1000_0000, 16).unwrap();
        let trampoline = Trampoline::new(&group, target(at)).unwrap();
        assert_eq!(trampoline.after.iter().filter(|a| **a != 0).count(), 1);
        assert!(trampoline.after[mine] > trampoline.parts[mine]);
    }
    let more = Group::from(AT + 4, AT + 11, &store, &code[4..], &mut |_, _| None);
    assert_eq!(more.unwrap().end(), AT + 12);
    // In the middle of an instruction; from another one's middle; behind what never leads there.
    assert!(Group::starts(&store, AT + 1, &code).is_empty());
    let middle = Group::from(AT + 5, 0, &store, &code[5..], &mut |_, _| None);
    assert!(middle.is_err());
    let returns = [0x90, 0xc3, 0x90, 0x48, 0x89, 0x47, 0xf8, 0xc3];
    assert_eq!(Group::starts(&store, AT + 4, &returns), [AT + 6]);
}

/// Padding up to the next function may be overwritten, if the code before never reaches it.
#[test]
fn padding_has_room_for_a_jump() {
    let ret = group_of_all(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]);
    assert_eq!((ret.bytes.len(), ret.parts.len()), (5, 5));
    let at = ret.next(AT - 0x1000_0000, 1).unwrap();
    let jump = ret.jump(at).unwrap();
    assert!(jump[1..].iter().all(|b| TRAPS.contains(b)), "{jump:x?}");
    let trampoline = Trampoline::new(&ret, target(at)).unwrap();
    assert!((1..5).all(|n| trampoline.code[usize::from(trampoline.parts[n])] == 0xcc));
    // mov %rax,(%rdi); int3; int3: traps on purpose
    assert!(group(&[0x48, 0x89, 0x07, 0xcc, 0xcc]).is_err());
    // call *(%rdi); int3; int3; int3: as here, for all that is known
    assert!(group(&[0xff, 0x17, 0xcc, 0xcc, 0xcc]).is_err());
}

/// 1: cmp $0,%eax; je 2f; xor %eax,%eax; jmp 3f; 2: inc %eax; jne 1b; nop; 3: add $8,%rsp; pop %rbp
#[test]
fn branch_targets_follow_from_what_is_known() {
    let code = [
        0x83, 0xf8, 0x00, 0x74, 0x04, 0x31, 0xc0, 0xeb, 0x05, 0xff, 0xc0, 0x75, 0xf3, 0x90, 0x48,
        0x83, 0xc4, 0x08,
    ];
    let from = |at: u64| stretch(AT, &code, [AT + at].into_iter());
    // From behind its jump on, which is a branch target.
    assert_eq!(from(0), Some(AT + 9));
    assert_eq!(from(9), Some(AT + 9));
    // Code from here jumps over the bytes between.
    assert_eq!(from(5), Some(AT + 14));
    let cut = &code[..17];
    assert_eq!(stretch(AT, cut, [AT].into_iter()), None);
    // Data among it: what is known lies in the middle of what is reached.
    let known = [AT, AT + 15];
    assert_eq!(stretch(AT, &code, known.into_iter()), None);
    assert_eq!(stretch(AT, &code, [].into_iter()), None);
}

/// 1: mov %al,(%rdi); inc %rdi; cmp %rsi,%rdi; jne 1b: the jump displaces two of them, but all are copied.
#[test]
fn a_small_loop_stays_in_its_trampoline() {
    let code = [
        0x88, 0x07, 0x48, 0xff, 0xc7, 0x48, 0x39, 0xf7, 0x75, 0xf6, 0xc3,
    ];
    let looped = group(&code).unwrap();
    assert!(looped.loops() && looped.is_relocated());
    assert_eq!((looped.parts.len(), looped.end()), (4, AT + 10));
    let trampoline = Trampoline::new(&looped, target(AT - 0x400_0000)).unwrap();
    let at = usize::from(trampoline.parts[3]);
    assert_eq!(trampoline.code[at..at + 2], [0x0f, 0x85]);
    let distance = i32::from_le_bytes(trampoline.code[at + 2..at + 6].try_into().unwrap());
    assert_eq!(at as i32 + 6 + distance, i32::from(trampoline.parts[0]));
    // Code behind the jump's bytes is not displaced, so it does not trap.
    assert_eq!(looped.clone().displaced().end(), AT + 5);
    assert!(!looped.displaced().loops());
    // Loops that jump elsewhere, end before they close, or go round without the access.
    for code in [
        [0x88, 0x07, 0x48, 0xff, 0xc7, 0x75, 0xf0, 0xc3].as_slice(),
        &[0x88, 0x07, 0x48, 0xff, 0xc7, 0xc3, 0x75, 0xf8],
        &[0x88, 0x07, 0x48, 0xff, 0xc7, 0x48, 0x39, 0xf7, 0x75, 0xfb],
    ] {
        let group = group(code).unwrap();
        assert!(!group.loops() && group.end() == AT + 5, "{code:x?}");
    }
}

/// mov %al,(%rdi); jmp +2; mov %cl,(%rdi): the second one becomes hot, too.
#[test]
fn both_ends_of_an_else() {
    let decoder = Decoder::new().unwrap();
    let code = [0x88, 0x07, 0xeb, 0x02, 0x88, 0x0f, 0xc3];
    let store = decoder.decode(AT + 4, &code[4..]).unwrap();
    let mut also = |at, code: &[u8]| (at == AT).then(|| decoder.decode(at, code).unwrap());
    let group = Group::from(AT, AT + 4, &store, &code, &mut also).unwrap();
    assert!(group.checks(AT) && group.checks(AT + 4));
}

/// je +1; lock; cmpxchg %rcx,(%rdi)
#[test]
fn jumps_past_a_lock() {
    let decoder = Decoder::new().unwrap();
    let code = [0x74, 0x01, 0xf0, 0x48, 0x0f, 0xb1, 0x0f, 0xc3];
    let locked = decoder.decode(AT + 2, &code[2..]).unwrap();
    let group = Group::from(AT, AT, &locked, &code, &mut |_, _| None).unwrap();
    let entered = [0, 2, 3, 4].map(|n| group.entered(AT + n));
    assert_eq!(entered, [Some(0), Some(1), Some(1), None]);
    let jump = group.jump(group.next(AT + 0x10000, 16).unwrap()).unwrap();
    assert!(TRAPS.contains(&jump[2]) && TRAPS.contains(&jump[3]));
}

#[test]
fn places_in_order() {
    for code in [
        &[0x88, 0x07, 0x48, 0xff, 0xc7][..],
        &[0x89, 0x07, 0xc3, 0x90, 0x90],
        &[0x48, 0x89, 0x47, 0x08, 0x53],
        &[0xc7, 0x87, 0, 1, 0, 0, 1, 0, 0, 0],
    ] {
        let group = group(code).unwrap();
        // Addresses that `next` skips fit no trampoline.
        let from = AT - 0x1c80_0000;
        let mut at = from;
        for _ in 0..1000 {
            let next = group.next(at, 16).unwrap();
            assert!(group.jump(next).is_some() && next.is_multiple_of(16));
            for to in (at..next.min(at + 0x1000)).filter(|to| to.is_multiple_of(16)) {
                assert!(group.jump(to).is_none(), "{code:x?}: {to:#x}");
            }
            at = next + 16;
        }
        assert!(group.next(AT + (1 << 32), 16).is_none());
        let last = group.next(AT, 16).unwrap();
        assert!(last >= AT && group.jump(last).is_some());
    }
}

/// mov %cl,(%rdi); ret; nopl 0(%rax,%rax,1): a branch to the ret still finds one.
#[test]
fn a_ret_stays() {
    let group = group(&[0x88, 0x0f, 0xc3, 0x0f, 0x1f, 0x44, 0, 0]).unwrap();
    let mut at = AT - 0x1c80_0000;
    for _ in 0..1000 {
        at = group.next(at, 16).unwrap();
        let jump = group.jump(at).unwrap();
        assert_eq!(jump[2], 0xc3);
        assert!(TRAPS.contains(&jump[3]));
        at += 16;
    }
}

/// mov %rax,(%rdi); stos; rep movsb; ret
#[test]
fn string_instructions_are_made_elsewhere() {
    let code = [0x48, 0xab, 0xf3, 0xa4, 0xc3, 0x90];
    let group = group_of_all(&code);
    assert!(group.checks(AT) && group.checks(AT + 2));
    let trampoline = Trampoline::new(&group, target(AT - 0x400_0000)).unwrap();
    for (n, bytes) in [(0, &code[..2]), (1, &code[2..4])] {
        let native = usize::from(trampoline.native[n]);
        assert_eq!(&trampoline.code[native..native + 2], bytes);
        assert_eq!(trampoline.mark(native as u16).unwrap().phase, Phase::Before);
        assert_eq!(usize::from(trampoline.after[n]), native + 2);
    }
}

#[test]
fn a_long_store_leads_anywhere() {
    // movl $1, 0x100(%rdi)
    let group = group(&[0xc7, 0x87, 0, 1, 0, 0, 1, 0, 0, 0]).unwrap();
    assert_eq!(group.parts.len(), 1);
    assert!((0..1000).all(|n| group.jump(AT + 0x10000 + n * 77).is_some()));
    assert!(group.jump(AT + (1 << 32)).is_none());
}

#[test]
fn what_cannot_be_patched() {
    use Refusal::*;
    let refused = |code: &[u8]| group(code).err();
    assert_eq!(refused(&[0xac]), Some(Instruction)); // lods
    assert_eq!(refused(&[0x64, 0xf3, 0xa4]), Some(Instruction)); // rep movsb %fs:(%rsi)
    assert_eq!(refused(&[0x66, 0x50]), Some(Instruction)); // push %ax
    assert_eq!(refused(&[0x54]), Some(Instruction)); // push %rsp
    assert_eq!(refused(&[0x0f, 0xa0]), Some(Instruction)); // push %fs
    assert_eq!(refused(&[0x65, 0xff, 0x20]), Some(Instruction)); // jmp *%gs:(%rax)
    assert_eq!(refused(&[0x65, 0x89, 0x07]), Some(Instruction)); // gs:
    assert_eq!(refused(&[0xdd, 0x37]), Some(Instruction)); // fnsave
    assert_eq!(refused(&[0x89, 0x07, 0xff, 0xd0, 0x90]), Some(Successor)); // call *%rax
    assert_eq!(refused(&[0x89, 0x07, 0x0f, 0x05, 0x90]), Some(Successor)); // syscall
    assert_eq!(refused(&[0x89, 0x07, 0xe2, 0xfc, 0x90]), Some(Successor)); // loop
}

#[test]
fn every_byte_of_a_trampoline_has_a_meaning() {
    for code in [
        &[0x88, 0x07, 0x48, 0xff, 0xc7][..],
        &[0x48, 0x01, 0x04, 0xcf, 0x75, 0xf0],
        &[0x89, 0x07, 0xe8, 1, 2, 3, 0],
        &[0x48, 0x89, 0x05, 0x10, 0, 0, 0],
        &[0x62, 0xf1, 0xfd, 0x48, 0x7f, 0x07],
        // mov %ebp,%fs:(%rbx)
        &[0x64, 0x89, 0x2b, 0x48, 0x83, 0xc4, 0x18],
        // cmp %rsp,16(%r14); jbe
        &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x20],
        // push %rbp; push $1; push %rcx; pushq 8(%rsp)
        &[0x55, 0x6a, 0x01, 0x51, 0xff, 0x74, 0x24, 0x08],
        // pop %rbp; pop %rcx; ret / leave; ret $16
        &[0x5d, 0x59, 0xc3, 0x90, 0x90],
        &[0xc9, 0xc2, 0x10, 0x00, 0x90],
        // call, through rcx, through memory; jmp through the GOT
        &[0xe8, 1, 2, 3, 0],
        &[0x57, 0x90, 0x90, 0xff, 0xd1],
        &[0x8b, 0x07, 0xff, 0x50, 0x10],
        &[0xff, 0x25, 1, 2, 3, 0],
        // rep stosq; ret
        &[0xf3, 0x48, 0xab, 0xc3],
        // mov %eax,(%rdi); mov %ecx,(%rsi); addl $1,4(%rdi)
        &[0x89, 0x07, 0x89, 0x0e, 0x83, 0x47, 0x04, 0x01],
        // fldt (%rsi); fstpt (%rdi); fnstcw (%rdi)
        &[0xdb, 0x2e, 0xdb, 0x3f, 0xd9, 0x3f],
    ] {
        let mut free = group_of_all(code);
        free.find_free_flags(|_| true);
        has_a_meaning(&free, checked);
        for (most_are_whole, counts) in [(false, true), (true, true), (false, false)] {
            let target = |at| Target {
                whole: most_are_whole,
                counts,
                ..target(at)
            };
            has_a_meaning(&group_of_all(code), target);
        }
    }
}

/// Only a heap is checked.
fn checked(at: u64) -> Target {
    Target {
        heap: Some(0x1_0000_0000),
        counts: false,
        ..target(at)
    }
}

/// Where nothing reads the flags, an access to a checked heap that finds nothing takes few instructions, and one register at
/// most goes to memory.
#[test]
fn where_flags_are_free_a_body_is_short() {
    // (code, whether a register is loaded again)
    for (code, saves) in [
        (&[0x8b, 0x07, 0x90, 0x90, 0x90][..], false), // mov (%rdi),%eax
        (&[0x0f, 0xb6, 0x34, 0x0f, 0x90], false),     // movzbl (%rdi,%rcx),%esi
        (&[0x48, 0x8b, 0x00, 0x90, 0x90], true),      // mov (%rax),%rax
        (&[0x4c, 0x8b, 0x07, 0x90, 0x90], true),      // mov (%rdi),%r8
        (&[0x66, 0x8b, 0x07, 0x90, 0x90], true),      // mov (%rdi),%ax
        (&[0x48, 0x89, 0x47, 0x08, 0x90], true),      // mov %rax,8(%rdi)
        (&[0x48, 0x89, 0x0c, 0xf7, 0x90], true),      // mov %rcx,(%rdi,%rsi,8)
        (&[0x83, 0x47, 0x04, 0x01, 0x90], true),      // addl $1,4(%rdi)
        (&[0x0f, 0x11, 0x07, 0x90, 0x90], true),      // movups %xmm0,(%rdi)
        (&[0xdb, 0x3f, 0x90, 0x90, 0x90], true),      // fstpt (%rdi)
    ] {
        let mut group = group(code).unwrap();
        group.find_free_flags(|at| at == AT);
        let trampoline = Trampoline::new(&group, checked(AT - 0x400_0000)).unwrap();
        let decoder =
            iced_x86::Decoder::with_ip(64, &trampoline.code, 0, iced_x86::DecoderOptions::NONE);
        let way: Vec<_> = decoder
            .into_iter()
            .take_while(|i| i.mnemonic() != iced_x86::Mnemonic::Jmp)
            .collect();
        assert_eq!(way.len(), if saves { 16 } else { 15 }, "{code:x?}");
        let area = |i: &&iced_x86::Instruction| i.segment_prefix() == iced_x86::Register::GS;
        assert_eq!(way.iter().filter(area).count(), if saves { 3 } else { 2 });
        let phase = |at: u64| trampoline.mark(at as u16).unwrap().phase;
        let kept = if saves { Phase::Address } else { Phase::Own };
        let branches: Vec<_> = way.iter().filter(|i| i.is_jcc_short_or_near()).collect();
        assert_eq!(branches.len(), 2);
        for i in branches {
            // Both lead to the body, which has all of its cases.
            assert_eq!((phase(i.ip()), phase(i.near_branch64())), (kept, kept));
        }
    }
}

fn has_a_meaning(group: &Group, target: impl Fn(u64) -> Target) {
    let trampoline = Trampoline::new(group, target(AT - 0x400_0000)).unwrap();
    assert!(trampoline.marks.is_sorted_by_key(|m| m.end));
    assert_eq!(
        trampoline.marks.last().unwrap().end as usize,
        trampoline.code.len()
    );
    assert_eq!(trampoline.parts.len(), group.parts.len());
    assert_eq!(trampoline.parts[0], 0);
    assert_eq!(trampoline.mark(0).unwrap().phase, Phase::Before);
    assert!(
        trampoline
            .looks
            .iter()
            .all(|c| trampoline.code[*c as usize] == 0xcc)
    );
    // It is as long wherever it is.
    let elsewhere = Trampoline::new(group, target(AT + 0x1000_0000)).unwrap();
    assert_eq!(elsewhere.code.len(), trampoline.code.len());
}

/// Where most pages are watched as a whole, most accesses have a short way before their body.
#[test]
fn accesses_to_whole_pages_have_a_short_way() {
    // (code, whether it has one)
    for (code, has) in [
        (&[0x8b, 0x07, 0x90, 0x90, 0x90][..], true), // mov (%rdi),%eax
        (&[0x48, 0x8b, 0x0c, 0xcf, 0x90], true),     // mov (%rdi,%rcx,8),%rcx
        (&[0x48, 0x89, 0x47, 0x08, 0x90], true),     // mov %rax,8(%rdi)
        (&[0x83, 0x47, 0x04, 0x01, 0x90], true),     // addl $1,4(%rdi)
        (&[0x48, 0x89, 0x4f, 0x08, 0x90], true),     // mov %rcx,8(%rdi)
        (&[0x66, 0xc7, 0x07, 0x01, 0x00], true),     // movw $1,(%rdi)
        (&[0x53, 0x90, 0x90, 0x90, 0x90], true),     // push %rbx
        (&[0x51, 0x90, 0x90, 0x90, 0x90], true),     // push %rcx
        (&[0x5b, 0x90, 0x90, 0x90, 0x90], true),     // pop %rbx
        (&[0xe8, 0x10, 0x00, 0x00, 0x00], true),     // call
        (&[0xff, 0xd1, 0x90, 0x90, 0x90], true),     // call *%rcx
        (&[0xff, 0x57, 0x08, 0x90, 0x90], false),    // call *8(%rdi): it pushes, too
        (&[0xc2, 0x08, 0x00, 0x90, 0x90], true),     // ret $8
        (&[0x88, 0x0f, 0x90, 0x90, 0x90], false),    // mov %cl,(%rdi): its rcx takes too much code
        (&[0x0f, 0x11, 0x07, 0x90, 0x90], true),     // movups %xmm0,(%rdi)
        (&[0xc5, 0xfc, 0x11, 0x07, 0x90], true),     // vmovups %ymm0,(%rdi)
        (&[0x62, 0xf1, 0x7c, 0x48, 0x11, 0x07], true), // vmovups %zmm0,(%rdi)
        (&[0x64, 0x8b, 0x07, 0x90, 0x90], false),    // mov %fs:(%rdi),%eax
    ] {
        let group = group(code).unwrap();
        let length = |whole| {
            let target = Target {
                whole,
                ..target(AT - 0x400_0000)
            };
            Trampoline::new(&group, target).unwrap().code.len()
        };
        // (That a page is asked whether it is whole moves within the others.)
        assert_eq!(length(true) > length(false) + 100, has, "{code:x?}");
    }
}

/// In a checked heap, an access without a hit takes no branch up to the jump back. Rare cases are reached by jumps behind
/// that one, or within an instruction that does nothing. At such a jump the registers are in the area; the straight path has
/// restored them.
#[test]
fn accesses_that_find_nothing_take_no_branch() {
    for code in [
        // mov %rax,8(%rdi); nop / mov %al,(%rdi); inc %rdi / addl $1,4(%rdi); ret
        &[0x48, 0x89, 0x47, 0x08, 0x90][..],
        &[0x88, 0x07, 0x48, 0xff, 0xc7],
        &[0x83, 0x47, 0x04, 0x01, 0xc3],
        // movups %xmm0,(%rdi); nop; nop / movabs-like: movq $1,0x100(%rdi)
        &[0x0f, 0x11, 0x07, 0x90, 0x90],
        &[
            0x48, 0xc7, 0x87, 0x00, 0x01, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        ],
        // mov (%rax),%rax; mov 8(%rax),%ecx; mov %al,(%rdx) / mov (%rdi),%eax; call *0x10(%rax)
        &[0x48, 0x8b, 0x00, 0x8b, 0x48, 0x08, 0x88, 0x02],
        &[0x8b, 0x07, 0xff, 0x50, 0x10],
    ] {
        let group = group_of_all(code);
        let unchecked = target(AT - 0x400_0000);
        let checked = Target {
            counts: false,
            ..unchecked
        };
        let trampoline = Trampoline::new(&group, checked).unwrap();
        let mut decoder =
            iced_x86::Decoder::with_ip(64, &trampoline.code, 0, iced_x86::DecoderOptions::NONE);
        let (mut rare, mut nops) = (0, 0);
        loop {
            let insn = decoder.decode();
            let at = insn.ip() as u16;
            match insn.mnemonic() {
                iced_x86::Mnemonic::Jrcxz => {
                    let to = insn.near_branch64() as u16;
                    assert_eq!(
                        trampoline.code[usize::from(to)],
                        0xe9,
                        "{code:x?} at {at:#x}"
                    );
                    let (from, to) = (trampoline.mark(at).unwrap(), trampoline.mark(to).unwrap());
                    assert_eq!((to.part, to.phase), (from.part, Phase::Saved));
                    rare += 1;
                }
                // (Its operand is the jump.)
                iced_x86::Mnemonic::Nop if insn.len() == 8 => {
                    assert_eq!(trampoline.code[usize::from(at) + 3], 0xe9);
                    let phase = |at| trampoline.mark(at).unwrap().phase;
                    let implicit = phase(at) == Phase::Saved;
                    assert!(
                        implicit || phase(at) == Phase::After,
                        "{code:x?} at {at:#x}"
                    );
                    assert_eq!(phase(at + 3), Phase::Saved);
                    nops += 1;
                }
                // Back, or where it calls.
                iced_x86::Mnemonic::Jmp => break,
                _ => assert!(!insn.is_invalid(), "{code:x?} at {at:#x}"),
            }
        }
        let looked_at = group.parts.iter().filter(|p| p.is_looked_at()).count();
        assert_eq!((rare, nops), (2 * looked_at, nops), "{code:x?}");
        assert_eq!(nops > 0, looked_at > 1, "{code:x?}");
    }
}

/// For a debugger, a hit reaches an `int3` before it is made; the state there is the one before the instruction.
#[test]
fn hits_may_be_looked_at_before_they_are_made() {
    // mov %al,(%rdi); inc %rdi
    let group = group(&[0x88, 0x07, 0x48, 0xff, 0xc7]).unwrap();
    let trampoline = |before_access| {
        let target = Target {
            before_access,
            ..target(AT + 0x1_0000)
        };
        Trampoline::new(&group, target).unwrap()
    };
    let (made, before_access) = (trampoline(false), trampoline(true));
    assert!(before_access.code.len() < made.code.len());
    let at = *before_access.looks.last().unwrap();
    assert_eq!(before_access.code[usize::from(at)], 0xcc);
    let mark = before_access.mark(at).unwrap();
    assert_eq!((mark.part, mark.phase), (0, Phase::Saved));
}

/// vmovdqu8 %zmm16,(%rax){%k1}; vmovups %ymm3,0x20(%rdi){%k2}
#[test]
fn what_a_masked_store_would_store_is_kept() {
    let stores = [
        (
            &[0x62, 0xe1, 0x7f, 0x49, 0x7f, 0x00][..],
            // vmovups %zmm16,%gs:old; kmovq %k1,%rcx
            &[0x65, 0x62, 0xe1, 0x7c, 0x48, 0x11, 0x04, 0x25][..],
            &[0xc4, 0xe1, 0xfb, 0x93, 0xc9][..],
        ),
        (
            &[0x62, 0xf1, 0x7c, 0x2a, 0x11, 0x5f, 0x01],
            &[0x65, 0x62, 0xf1, 0x7c, 0x28, 0x11, 0x1c, 0x25],
            &[0xc5, 0xf8, 0x93, 0xca],
        ),
    ];
    for (code, vector, mask) in stores {
        let store = group(code).unwrap();
        assert!(store.checks(AT));
        let trampoline = Trampoline::new(&store, target(AT - 0x400_0000)).unwrap();
        let before = &trampoline.code[..usize::from(trampoline.native[0])];
        for part in [vector, mask] {
            assert!(before.windows(part.len()).any(|w| w == part), "{before:x?}");
        }
        let native = &trampoline.code[usize::from(trampoline.native[0])..];
        assert_eq!(native[..code.len()], *code);
    }
    // One that compresses what it stores.
    assert!(group(&[0x62, 0xf2, 0x7d, 0x49, 0x63, 0x00]).is_err());
}

/// vmovdqu8 (%rax),%zmm16{%k1}; vmovdqu32 (%rsi),%ymm3{%k2}{z}: the mask is kept for what it selects, a word's for bytes.
#[test]
fn a_masked_load_is_looked_at_by_what_it_selects() {
    const PDEP_RCX: [u8; 5] = [0xc4, 0xc2, 0xf3, 0xf5, 0xc8];
    let loads = [
        (
            &[0x62, 0xe1, 0x7f, 0x49, 0x6f, 0x00][..],
            &[0xc4, 0xe1, 0xfb, 0x93, 0xc9][..],
        ),
        (
            &[0x62, 0xf1, 0x7e, 0xaa, 0x6f, 0x1e],
            &[0xc5, 0xf8, 0x93, 0xca],
        ),
    ];
    for (code, mask) in loads {
        let load = group(code).unwrap();
        assert!(load.checks(AT));
        for (whole, counts) in [(false, true), (true, true), (false, false)] {
            let target = Target {
                whole,
                counts,
                ..target(AT - 0x400_0000)
            };
            let trampoline = Trampoline::new(&load, target).unwrap();
            let has = |part: &[u8]| trampoline.code.windows(part.len()).any(|w| w == part);
            assert!(has(mask));
            // A mask of 64 elements of one byte needs no spreading.
            assert_eq!(has(&PDEP_RCX), code[3] & 0x60 == 0x20);
            assert_eq!(
                counts,
                trampoline.marks.iter().any(|m| m.phase == Phase::Runs)
            );
        }
    }
    // One that reads a broadcast element.
    assert!(group(&[0x62, 0xf1, 0x75, 0x59, 0xfe, 0x10]).is_err());
}

/// mov %eax,(%r10); mov 0x18(%r10),%rax: both are jumped to.
#[test]
fn a_punned_jump_leaves_what_stands_behind() {
    let code = [0x41, 0x89, 0x02, 0x49, 0x8b, 0x42, 0x18, 0xc3];
    let decoder = Decoder::new().unwrap();
    let store = decoder.decode(AT, &code).unwrap();
    let group = |last| Group::from(AT, last, &store, &code, &mut |_, _| None).unwrap();
    assert!(group(0).punned(Pun::Plain).is_some() && group(0).bytes.len() == 7);
    for (pun, first, kept) in [
        (Pun::Plain, &[0xe9][..], &[0x49, 0x8b][..]),
        (Pun::Prefixed, &[0x48, 0xe9], &[0x49, 0x8b, 0x42]),
    ] {
        let group = group(AT + 5).punned(pun).unwrap();
        let at = group.next(AT - (1 << 31) + (1 << 20), 16);
        let to = at
            .or_else(|| group.next(AT - (1 << 31) + (1 << 20), 1))
            .unwrap();
        let jump = group.jump(to).unwrap();
        assert!(jump.starts_with(first), "{jump:x?}");
        let whole = [&jump[..], &code[5..6]].concat();
        assert_eq!(whole[3..3 + kept.len()], *kept);
        let distance = &whole[first.len()..first.len() + 4];
        let distance = i32::from_le_bytes(distance.try_into().unwrap());
        let after = AT + (first.len() + 4) as u64;
        assert_eq!(after.wrapping_add_signed(distance.into()), to);
        assert!(group.jump(to + 0x1_0000).is_none());
    }
    // No room for both bytes of the opcode; a jump that ends behind the group.
    let short = [0xab, 0x48, 0x89, 0xc3, 0x90, 0x90];
    let stos = decoder.decode(AT, &short).unwrap();
    let stos = Group::from(AT, 0, &stos, &short, &mut |_, _| None).unwrap();
    assert!(stos.clone().punned(Pun::Plain).is_some());
    assert!(stos.punned(Pun::Prefixed).is_none());
    let five = [0x89, 0x07, 0x48, 0x89, 0xc3, 0x90];
    let five_store = decoder.decode(AT, &five).unwrap();
    let five = Group::from(AT, 0, &five_store, &five, &mut |_, _| None).unwrap();
    assert!(five.bytes.len() == 5 && five.punned(Pun::Prefixed).is_none());
}

#[test]
fn what_runtimes_read_of_their_code_is_no_jumps_place() {
    let store = [0x48, 0x89, 0x37]; // mov %rsi,(%rdi)
    for (spared, behind) in [
        (true, &[0x48, 0x83, 0xc7, 0x08][..]),          // add $8,%rdi
        (true, &[0x0f, 0x84, 0x00, 0x01, 0x00, 0x00]),  // je, far away
        (true, &[0xeb, 0x10]),                          // jmp, near by
        (true, &[0x0f, 0x18, 0x83, 0x80, 0x01, 0, 0]),  // prefetchnta 0x180(%rbx)
        (true, &[0x81, 0xe3, 0xff, 0x00, 0x00, 0x00]),  // and $0xff,%ebx
        (false, &[0x81, 0xfb, 0x80, 0x64, 0x13, 0x00]), // cmp $…,%ebx
        (false, &[0xe9, 0x00, 0x01, 0x00, 0x00]),       // jmp, far away
        (false, &[0xe8, 0x00, 0x01, 0x00, 0x00]),       // call
        (false, &[0xb8, 0x01, 0x02, 0x03, 0x04]),       // mov $…,%eax
        (false, &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]), // movabs $…,%rax
        (false, &[0xc3, 0x90]),                         // ret, and anything
    ] {
        let code = [&store[..], behind].concat();
        let group = group(&code).unwrap();
        assert_eq!(group.spares_operands(), spared, "{behind:x?}");
        assert!(group.punned(Pun::Plain).unwrap().spares_operands());
    }
    // A poll: a runtime that goes on behind it reads how long it is.
    for poll in [&[0x41, 0x85, 0x02][..], &[0x85, 0x82, 0, 1, 0, 0]] {
        let code = [poll, &[0x48, 0x83, 0xc7, 0x08]].concat();
        let group = group(&code).unwrap();
        assert!(!group.spares_operands());
        assert!(!group.punned(Pun::Plain).unwrap().spares_operands());
    }
}

#[test]
fn what_has_an_index_asks_where_its_pointer_leads() {
    let asking = |at| Target {
        asking: Some(Blocks {
            heap: 0x7ff0_0000_0000,
            owners: 0x7e90_0000_0000,
            lines: 0x7ea0_0000_0000,
        }),
        ..target(at)
    };
    // mov %eax,(%rdi,%rcx,4) / mov %sil,(%r11,%rax) / mov 0x10(%rsi,%rsi,8),%rcx / vmovups %zmm1,(%rbx,%r11,2)
    for code in [
        &[0x89, 0x04, 0x8f][..],
        &[0x41, 0x88, 0x34, 0x03],
        &[0x48, 0x8b, 0x4c, 0xf6, 0x10],
        &[0x62, 0xb1, 0x7c, 0x48, 0x11, 0x0c, 0x5b],
    ] {
        let group = group_of_all(code);
        let without = Trampoline::new(&group, target(AT)).unwrap();
        let with = Trampoline::new(&group, asking(AT)).unwrap();
        let more = with.code.len() - without.code.len();
        assert_eq!(usize::from(with.asked[0]), more, "{code:x?}");
        assert!(with.mark(with.asked[0] - 1).unwrap().phase == Phase::Saved);
        assert!(with.mark(with.asked[0]).unwrap().phase == Phase::Before);
    }
    // mov %eax,0x40(%rdi) / mov %eax,(%rsp,%rcx,4) / mov %eax,%fs:(%rdi,%rcx,4)
    for code in [
        &[0x89, 0x47, 0x40][..],
        &[0x89, 0x04, 0x8c],
        &[0x64, 0x89, 0x04, 0x8f],
    ] {
        let group = group_of_all(code);
        let without = Trampoline::new(&group, target(AT)).unwrap();
        let with = Trampoline::new(&group, asking(AT)).unwrap();
        assert_eq!(with.code, without.code, "{code:x?}");
    }
}
