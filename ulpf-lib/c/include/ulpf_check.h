/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Client requests by which a program describes its memory to a checker: `ulpf check`, and Valgrind's memcheck, which has
 * the same requests (MAKE_MEM_NOACCESS, MAKE_MEM_UNDEFINED). Without a checker a request costs some ten instructions and
 * has no effect. This file needs no library. See ulpf(3); ulpf_poison and ulpf_unpoison are the same as functions.
 */
#ifndef ULPF_CHECK_H
#define ULPF_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* Declares these bytes inaccessible, until ULPF_UNPOISON or until their block is freed. */
#define ULPF_POISON(addr, len) ulpf_check_request(0x4d430000, (addr), (len))
/* Declares them accessible again. */
#define ULPF_UNPOISON(addr, len) ulpf_check_request(0x4d430001, (addr), (len))

static inline void ulpf_check_request(uint64_t what, const volatile void *addr, size_t len)
{
	volatile uint64_t request[6] = { what, (uint64_t)(uintptr_t)addr, len, 0, 0, 0 };
	uint64_t result = 0;

	__asm__ volatile(
		"rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
		: "+d"(result)
		: "a"(&request[0])
		: "cc", "memory");
}

#endif
