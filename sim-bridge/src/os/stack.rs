// SPDX-License-Identifier: GPL-2.0-or-later
//! The program's first stack.

use crate::elf::Elf;
use crate::memory::{PAGE, STACK_TOP};
use crate::state::Uc;
use anyhow::{Result, anyhow, ensure};

/// Arguments, environment and auxiliary vector, as Linux leaves them; returns the stack pointer.
pub fn first_stack(uc: &mut Uc, elf: &Elf, args: &[String], environment: &[String]) -> Result<u64> {
    let total: usize = args.iter().chain(environment).map(|s| s.len() + 9).sum();
    ensure!(
        total < 1 << 20,
        "arguments and environment have {total} bytes; the machine takes a mebibyte"
    );
    let mut at = STACK_TOP - 64;
    let mut put = |bytes: &[u8]| {
        at -= bytes.len() as u64;
        uc.mem_write(at, bytes)
            .map(|()| at)
            .map_err(|e| anyhow!("unicorn: {e:?}"))
    };
    let mut strings = |all: &[String]| -> Result<Vec<u64>> {
        all.iter()
            .map(|s| put(&[s.as_bytes(), &[0]].concat()))
            .collect()
    };
    let argv = strings(args)?;
    let envp = strings(environment)?;
    let random = put(&[0x5a; 16])?;
    let name = argv.first().copied().unwrap_or(random);
    let auxv = [
        [3, elf.headers_at],
        [4, 56],
        [5, elf.headers.into()],
        [6, PAGE],
        [9, elf.entry],
        [11, 0],
        [12, 0],
        [13, 0],
        [14, 0],
        [16, 0],
        [17, 100],
        [23, 0],
        [25, random],
        [31, name],
        [0, 0],
    ];
    let mut words = vec![argv.len() as u64];
    words.extend(argv.iter().chain(&[0]).chain(&envp).chain(&[0]));
    words.extend(auxv.iter().flatten());
    let sp = (random - 8 * words.len() as u64) & !15;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    uc.mem_write(sp, &bytes)
        .map_err(|e| anyhow!("unicorn: {e:?}"))?;
    Ok(sp)
}
