//! The state components of this machine, which decide what registers a client sees.

use super::packet::ClientFeatures;
use core::arch::x86_64::_xgetbv;
use ulpf_engine::access::state::cpuid;
use ulpf_rsp::registers::component::*;
use ulpf_rsp::registers::{Components, Layout};

/// The registers that a client accepts in a description, or else knows: those of every x86-64.
pub fn layout_for(client: ClientFeatures) -> Layout {
    let machine = match client.descriptions {
        true => of_this_machine(),
        false => Components::default(),
    };
    Layout::new(machine, client.small_floats)
}

fn of_this_machine() -> Components {
    const OSXSAVE: u32 = 1 << 27;
    if cpuid(1, 0).ecx & OSXSAVE == 0 {
        return Components::default();
    }
    // SAFETY: OSXSAVE says that the system has enabled XGETBV.
    #[allow(unsafe_code)]
    let xcr0 = unsafe { xcr0() };
    let at = |bit: u8| {
        let leaf = cpuid(0xd, u32::from(bit));
        (xcr0 >> bit & 1 == 1 && leaf.eax != 0).then_some(leaf.ebx as usize)
    };
    Components {
        avx: at(AVX),
        avx512: at(OPMASK)
            .zip(at(ZMM_HI256))
            .zip(at(HI16_ZMM))
            .map(|((k, z), h)| (k, z, h)),
        pkru: at(PKRU),
    }
}

/// # Safety
/// The machine must have OSXSAVE.
#[target_feature(enable = "xsave")]
#[allow(unsafe_code)]
unsafe fn xcr0() -> u64 {
    // SAFETY: register 0 always exists where XGETBV does.
    unsafe { _xgetbv(0) }
}
