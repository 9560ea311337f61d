use super::*;

struct Context {
    regs: [u64; 18],
    at: u64,
    memory: Vec<u8>,
}

impl AgentContext for Context {
    fn reg(&mut self, number: u16) -> Option<u64> {
        self.regs.get(usize::from(number)).copied()
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        let Some(from) = addr
            .checked_sub(self.at)
            .and_then(|o| self.memory.get(o as usize..))
        else {
            return false;
        };
        match from.get(..buf.len()) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        (number == variable::NEW).then_some(42)
    }
}

fn context() -> Context {
    let mut regs = [0; 18];
    for (i, r) in regs.iter_mut().enumerate() {
        *r = 100 + i as u64;
    }
    Context {
        regs,
        at: 0x1000,
        memory: vec![0x80, 0xff, 1, 2, 3, 4, 5, 6, 7],
    }
}

fn run(code: &[u8]) -> Result<u64, AgentError> {
    eval(code, &mut context())
}

#[test]
fn arithmetic() {
    let two = |op, a: u8, b: u8| run(&[0x22, a, 0x16, 8, 0x22, b, 0x16, 8, op, 0x27]);
    let minus = |n: i64| Ok(n as u64);
    assert_eq!(two(op::ADD, 2, 3), Ok(5));
    assert_eq!(two(op::SUB, 2, 3), minus(-1));
    assert_eq!(two(op::MUL, 0xff, 3), minus(-3));
    assert_eq!(two(op::DIV_SIGNED, 0xf9, 2), minus(-3));
    assert_eq!(two(op::DIV_UNSIGNED, 9, 2), Ok(4));
    assert_eq!(two(op::REM_SIGNED, 0xf9, 2), minus(-1));
    assert_eq!(two(op::REM_UNSIGNED, 9, 2), Ok(1));
    assert_eq!(two(op::LSH, 1, 63), Ok(1 << 63));
    assert_eq!(two(op::LSH, 1, 64), Ok(0));
    assert_eq!(two(op::RSH_SIGNED, 0x80, 100), minus(-1));
    assert_eq!(two(op::RSH_UNSIGNED, 0xff, 63), Ok(1));
    assert_eq!(two(op::BIT_XOR, 6, 3), Ok(5));
    assert_eq!(two(op::LESS_SIGNED, 0xff, 0), Ok(1));
    assert_eq!(two(op::LESS_UNSIGNED, 0xff, 0), Ok(0));
    assert_eq!(two(op::EQUAL, 7, 7), Ok(1));
}

#[test]
fn errors_are_values() {
    assert_eq!(run(&[]), Err(AgentError::Truncated));
    assert_eq!(run(&[op::CONST16, 1]), Err(AgentError::Truncated));
    assert_eq!(run(&[op::END]), Err(AgentError::StackUnderflow));
    assert_eq!(
        run(&[op::CONST8, 1, op::ADD]),
        Err(AgentError::StackUnderflow)
    );
    assert_eq!(
        run(&[op::CONST8, 1, op::CONST8, 0, op::DIV_SIGNED]),
        Err(AgentError::DivisionByZero)
    );
    assert_eq!(run(&[op::CONST8, 1, op::REF8]), Err(AgentError::Memory(1)));
    assert_eq!(run(&[op::REG, 1, 0]), Err(AgentError::Register(256)));
    assert_eq!(run(&[op::GOTO, 0, 0]), Err(AgentError::TooLong));
    assert_eq!(run(&[op::GOTO, 9, 9]), Err(AgentError::Truncated));
    assert_eq!(
        run(&[op::CONST8, 1, op::GOTO, 0, 0]),
        Err(AgentError::StackOverflow)
    );
    assert_eq!(run(&[0x34]), Err(AgentError::Unsupported(0x34)));
    // i64::MIN / -1 does not trap
    let min = [
        op::CONST8,
        1,
        op::CONST8,
        63,
        op::LSH,
        op::CONST8,
        0,
        op::BIT_NOT,
        op::DIV_SIGNED,
        op::END,
    ];
    assert_eq!(run(&min), Ok(1 << 63));
}

#[test]
fn stack_and_jumps() {
    let abc =
        |tail: &[u8]| run(&[&[op::CONST8, 1, op::CONST8, 2, op::CONST8, 3][..], tail].concat());
    assert_eq!(abc(&[op::ROT, op::END]), Ok(2));
    assert_eq!(abc(&[op::ROT, op::POP, op::END]), Ok(1));
    assert_eq!(abc(&[op::ROT, op::POP, op::POP, op::END]), Ok(3));
    assert_eq!(abc(&[op::PICK, 2, op::END]), Ok(1));
    assert_eq!(
        abc(&[op::PICK, 3, op::END]),
        Err(AgentError::StackUnderflow)
    );
    assert_eq!(abc(&[op::SWAP, op::SUB, op::END]), Ok(1));
    // if (1) 7 else 9
    assert_eq!(
        run(&[
            op::CONST8,
            1,
            op::IF_GOTO,
            0,
            8,
            op::CONST8,
            9,
            op::END,
            op::CONST8,
            7,
            op::END
        ]),
        Ok(7)
    );
}

#[test]
fn memory_is_little_endian_and_extends() {
    assert_eq!(run(&[op::CONST16, 0x10, 0, op::REF16, op::END]), Ok(0xff80));
    assert_eq!(
        run(&[op::CONST16, 0x10, 0, op::REF8, op::EXT, 8, op::END]),
        Ok((-128i64) as u64)
    );
    assert_eq!(
        run(&[op::CONST16, 0x10, 0, op::REF64, op::END]),
        Ok(0x0605_0403_0201_ff80)
    );
    assert_eq!(
        run(&[op::CONST16, 0x10, 2, op::REF64, op::END]),
        Err(AgentError::Memory(0x1002))
    );
    assert_eq!(run(&[op::CONST8, 0xff, op::ZERO_EXT, 4, op::END]), Ok(15));
}

#[test]
fn variables_of_a_hit() {
    assert_eq!(run(&[op::GETV, 0xff, 1, op::END]), Ok(42));
    assert_eq!(
        run(&[op::GETV, 0xff, 0, op::END]),
        Err(AgentError::Variable(variable::OLD))
    );
    let seen = |code: &[u8]| {
        let mut seen = Vec::new();
        variables(code, |n| seen.push(n)).then_some(seen)
    };
    let code = [
        op::CONST16,
        op::GETV,
        0,
        op::GETV,
        0xff,
        1,
        op::ADD,
        op::END,
    ];
    assert_eq!(seen(&code), Some(vec![variable::NEW]));
    assert_eq!(seen(&[op::GETV, 0xff]), None);
    assert_eq!(seen(&[op::CONST32, 0, 0]), None);
    assert_eq!(seen(&[0x30, op::END]), None);
    assert_eq!(seen(&[]), None);
}

#[test]
fn errors_fit_in_a_word() {
    for error in [
        AgentError::Truncated,
        AgentError::StackOverflow,
        AgentError::StackUnderflow,
        AgentError::DivisionByZero,
        AgentError::Memory(0),
        AgentError::Memory(0x7fff_ffff_f000),
        AgentError::Register(58),
        AgentError::Variable(variable::OLD),
        AgentError::Unsupported(0x30),
        AgentError::TooLong,
    ] {
        assert_ne!(error.pack(), 0);
        assert_eq!(AgentError::unpack(error.pack()), Some(error));
    }
    assert_eq!(AgentError::unpack(0), None);
}
