/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libulpf: watchpoints for a program that watches itself. Any number, any size, no debugger, no
 * privilege; Linux x86-64. ulpf(3) is the overview; each function has a manual page.
 *
 * Calls answer 0 or a number, or -1 with errno set and a sentence in ulpf_error(). Every call may be
 * made in any thread, and in a handler, unless the fault happened inside another call.
 */
#ifndef ULPF_H
#define ULPF_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- user-level page faults (Li, "User Level Page Faults", 2020, Listings 3.4 and 4.1) ---- */

/* Accesses to a range that succeed without a fault. */
#define ULPF_USER_RW  0x0  /* everything */
#define ULPF_USER_RO  0x1  /* reads; writes are reported */
#define ULPF_USER_EXE 0x10 /* execution; reads and writes are reported */
#define ULPF_USER_WO  0x11 /* writes; reads are reported */

/* Registers the handler, void handler(void), of all faults on guarded pages. It runs on the faulting thread, before the
 * access. When it returns, the access is made without opening the page. */
int ulpf_register_user_handler(void *handler_addr);
/* Gives a range its permission, in place of the one it has. Ranges that touch are merged. */
long ulpf_set_permissions(void *addr, size_t range, int perms);
/* The address that has faulted; 0 outside a handler. */
unsigned long ulpf_read_fault_addr(void);
/* 1: the access touches watched bytes. 0: a false positive. */
int ulpf_lookup_wp(void);
/* Base of the PLI region that holds the permissions around an address, or 0 without one. */
unsigned long ulpf_check_virt_prefix(void *addr);
/* Sets the permission of one page. */
int ulpf_modify_pli(void *vm_addr, int perms, unsigned long pli_region);
/* Ends everything: watches, guards, handlers. */
int ulpf_unregister(void);

/* ---- watchpoints (Shriraman and Dwarkadas, "Sentry", 2010, section 4.4) ---- */

#define ULPF_READ   1
#define ULPF_WRITE  2
#define ULPF_ACCESS 3

/* One hit: what an access shares with one watchpoint. */
struct ulpf_hit {
	size_t size;              /* of this structure: later versions may add to its end */
	long watch;
	void *addr;               /* first watched byte that was touched */
	size_t len;
	int access;               /* ULPF_READ, ULPF_WRITE or both */
	pid_t thread;
	void *pc;                 /* the instruction; of a system call, the C library's function */
	const void *old_value;    /* before it … */
	const void *new_value;    /* … and after it */
	size_t value_len;         /* len, or less of a very long access */
	uint64_t count;           /* hits of the watchpoint so far, with this one */
	int silent;               /* a write that has left the value as it was */
	int syscall;              /* the system call that has made the access; -1: an instruction has */
	const void *context;      /* the ucontext_t of the signal; NULL in a system call */
};

/* Called after the access. It runs inside a signal handler: see ulpf(3). */
typedef void (*ulpf_handler)(const struct ulpf_hit *hit, void *data);

/* Flags. Without a handler a watchpoint counts. */
#define ULPF_ONE_SHOT 1  /* ends with its first hit */
#define ULPF_STOP     2  /* SIGTRAP behind the instruction: a debugger stops */
#define ULPF_CHANGED  4  /* silent stores are only counted */
#define ULPF_OTHERS   8  /* for all threads but `thread` */
#define ULPF_NESTED   16 /* the handler is called for what handlers do, too */

struct ulpf_watchpoint {
	size_t size;              /* of this structure */
	void *addr;
	size_t len;
	int access;
	uint32_t flags;
	pid_t thread;             /* the only one whose accesses count; 0: all */
	int reserved;
	ulpf_handler handler;     /* NULL: the one of ulpf_set_handler */
	void *data;
};
#define ULPF_WATCHPOINT_INIT { sizeof(struct ulpf_watchpoint), NULL, 0, ULPF_WRITE, 0, 0, 0, NULL, NULL }

struct ulpf_counts {
	uint64_t hits;
	uint64_t silent;
	uint64_t last;            /* time of the last hit: CLOCK_MONOTONIC, nanoseconds */
};

/* The handler of watchpoints without one of their own. */
int ulpf_set_handler(ulpf_handler handler, void *data);
/* Sets a watchpoint for all threads; its number, from 1 on. */
long ulpf_insert_watchpoint(void *addr, size_t len, int access);
/* Sets many in one go, all of them or none; `ids` (or NULL) receives their numbers. */
int ulpf_insert(const struct ulpf_watchpoint *watchpoints, size_t count, long *ids);
int ulpf_delete_watchpoint(long id);
int ulpf_watchpoint_counts(long id, struct ulpf_counts *counts);

/* ---- around it ---- */

/* An address at which a range can be accessed without a fault or a hit, also by a system call. */
void *ulpf_alias(void *addr, size_t len);
/* Returns 1 if a system call that accesses the range (ULPF_READ: reads it) would fail with EFAULT because of a guard;
 * ulpf_error() then names the guard and the remedy. Returns 0 if no guard prevents it. */
int ulpf_is_guarded(const void *addr, size_t len, int access);
/* Gives the calling thread its exception stack now. A thread needs that if another one watches its stack. */
int ulpf_thread_init(void);
/* The calling thread's accesses succeed without hits until ulpf_resume (back end protection-keys only, without a system
 * call). */
int ulpf_suspend(void);
int ulpf_resume(void);
/* Whether a handler is running on the calling thread: 1 or 0. */
int ulpf_in_handler(void);
/* Requests a back end (ulpf(3) lists them), before the first handler or watchpoint. */
int ulpf_use_backend(const char *name);
/* Name and reason of the back end that is in use, or would be. */
const char *ulpf_backend_name(void);
const char *ulpf_backend_reason(void);
/* Declare bytes inaccessible, and accessible again. `ulpf check` and Valgrind's memcheck report accesses to inaccessible
 * bytes; without them the calls have no effect. Neither a watchpoint nor a handler is needed. ulpf_check.h has the same
 * as macros, without the library. */
void ulpf_poison(const volatile void *addr, size_t len);
void ulpf_unpoison(const volatile void *addr, size_t len);
/* The reason why the calling thread's last call has failed. */
const char *ulpf_error(void);

struct ulpf_stats {
	uint64_t faults;
	uint64_t false_positives; /* faults that concerned no watch */
	uint64_t nested;          /* hits of handlers, for which none was called */
	uint64_t opened;          /* steps with open pages: other threads' accesses went unseen */
	uint64_t unreported;      /* counted, but not handed to a handler */
	uint64_t kernel;          /* accesses of system calls to guarded pages (back end device) */
};
void ulpf_statistics(struct ulpf_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
