//! Is a loop what we say it is? One store instruction a byte, found in the program's own code.

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::path::Path;

/// Refuses a function that is not a single loop with one store of one byte (at `-O0` also stores to its
/// own frame), without vector and string instructions, without calls. Returns the number of instructions a byte.
pub fn check(program: &Path, function: &str) -> Result<usize> {
    let (start, code) = function_of(program, function)?;
    let decoder = Decoder::with_ip(64, &code, start, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    let mut back = Vec::new();
    for insn in &all {
        let at = insn.ip();
        ensure!(
            !insn.is_invalid(),
            "{function} has unknown bytes at {at:#x}"
        );
        ensure!(
            !insn.is_string_instruction(),
            "{function} has a string instruction at {at:#x}"
        );
        let call = matches!(
            insn.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        ensure!(!call, "{function} calls somebody at {at:#x}");
        // A jump to somewhere else is a call, too.
        let jump = insn.is_jmp_short_or_near() || insn.is_jcc_short_or_near();
        let end = start + code.len() as u64;
        let inside = (start..end).contains(&insn.near_branch_target());
        ensure!(!jump || inside, "{function} leaves at {at:#x}");
        ensure!(!vector(insn), "{function} uses vectors at {at:#x}");
        if jump && insn.near_branch_target() <= at {
            back.push(insn);
        }
    }
    let [back] = back.as_slice() else {
        bail!("{function} has {} loops, not one", back.len());
    };
    let body = || {
        let range = back.near_branch_target()..=back.ip();
        all.iter().filter(move |i| range.contains(&i.ip()))
    };
    let mut info = InstructionInfoFactory::new();
    let mut stores = 0;
    for insn in body() {
        use OpAccess::*;
        for memory in info.info(insn).used_memory() {
            let writes = matches!(
                memory.access(),
                Write | CondWrite | ReadWrite | ReadCondWrite
            );
            let frame = matches!(memory.base(), Register::RSP | Register::RBP);
            if writes && !frame {
                let size = memory.memory_size().size();
                ensure!(
                    size == 1,
                    "{function} stores {size} bytes at once at {:#x}",
                    insn.ip()
                );
                stores += 1;
            }
        }
    }
    ensure!(
        stores == 1,
        "{function}'s loop has {stores} stores, not one"
    );
    Ok(body().count())
}

fn vector(insn: &Instruction) -> bool {
    (0..insn.op_count()).any(|n| {
        let register = insn.op_register(n);
        register.is_vector_register() || register.is_mm() || register.is_k() || register.is_st()
    })
}

/// Where a function is, and its code.
fn function_of(program: &Path, name: &str) -> Result<(u64, Vec<u8>)> {
    let data =
        std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file = object::File::parse(&*data)?;
    let symbol = file
        .symbols()
        .find(|s| s.name() == Ok(name))
        .with_context(|| format!("{} has no function {name}", program.display()))?;
    let section = file.section_by_index(symbol.section_index().context("no section")?)?;
    let code = section.data_range(symbol.address(), symbol.size())?;
    Ok((symbol.address(), code.context("no code")?.to_vec()))
}

/// The address of a variable or function, before the program is loaded somewhere.
pub fn address_of(program: &Path, name: &str) -> Result<u64> {
    let data = std::fs::read(program)?;
    let file = object::File::parse(&*data)?;
    let symbol = file.symbols().find(|s| s.name() == Ok(name));
    Ok(symbol
        .with_context(|| format!("{} has no {name}", program.display()))?
        .address())
}

#[cfg(test)]
mod tests {
    use super::super::programs::Programs;
    use super::*;

    #[test]
    fn our_loop_is_honest() {
        let programs = Programs::new().unwrap();
        assert_eq!(check(&programs.sweep("-O2").unwrap(), "fill").unwrap(), 4);
        assert!(check(&programs.sweep("-O0").unwrap(), "fill").unwrap() > 4);
    }

    /// Without `volatile` the compiler makes a call of memset of it, or vectors, or eight bytes at once.
    #[test]
    fn what_is_not_one_store_a_byte_is_refused() {
        let programs = Programs::new().unwrap();
        let why = |name: &str, flags: &[&str]| {
            let program = programs.built("sweep", name, flags).unwrap();
            check(&program, "fill").unwrap_err().to_string()
        };
        let memset = why("memset", &["-O3", "-DSTORED="]);
        assert!(
            memset.contains("leaves") || memset.contains("calls"),
            "{memset}"
        );
        let plain = ["-O3", "-DSTORED=", "-fno-tree-loop-distribute-patterns"];
        let vectors = why("vectors", &plain);
        assert!(
            vectors.contains("vectors") || vectors.contains("loops"),
            "{vectors}"
        );
        let unrolled = why("unrolled", &["-O2", "-funroll-all-loops"]);
        assert!(
            unrolled.contains("stores, not one") || unrolled.contains("loops"),
            "{unrolled}"
        );
    }

    #[test]
    fn a_function_that_is_not_there() {
        let programs = Programs::new().unwrap();
        let program = programs.get("lbm").unwrap();
        assert!(check(&program, "nothing").is_err());
    }
}
