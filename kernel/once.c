// SPDX-License-Identifier: GPL-2.0
#include "ulpf_internal.h"
int ulpf_once_pass(struct ulpf_space *space, struct vm_fault *vmf) { return 0; }
void ulpf_once_arm(struct ulpf_space *space, struct vm_fault *vmf, u64 *flags) { }
bool ulpf_once_is_open(struct ulpf_space *space, const struct vm_fault *vmf) { return false; }
int ulpf_once_init(void) { return 0; }
void ulpf_once_exit(void) { }
