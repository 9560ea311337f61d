/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a program says of its memory to whoever checks it: `ulpf check`, and Valgrind's memcheck, which knows the same
 * request (MAKE_MEM_NOACCESS, MAKE_MEM_UNDEFINED). Without them it costs some ten instructions and does nothing. This file
 * alone is enough: no library is needed. ulpf(3) says more; ulpf_poison and ulpf_unpoison are the same as functions.
 */
#ifndef ULPF_CHECK_H
#define ULPF_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* Nobody may touch these bytes, until they are told to be usable again or their block is freed. */
#define ULPF_POISON(addr, len) ulpf_check_request(0x4d430000, (addr), (len))
/* The program may touch them again. */
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
