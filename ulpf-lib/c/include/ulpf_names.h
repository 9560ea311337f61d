/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libulpf under the names of the papers: Listings 3.4, 4.1 and 4.2 of "User Level Page Faults", and
 * section 4.4 of "Sentry".
 */
#ifndef ULPF_NAMES_H
#define ULPF_NAMES_H

#include "ulpf.h"

#define USER_RW  ULPF_USER_RW
#define USER_RO  ULPF_USER_RO
#define USER_EXE ULPF_USER_EXE
#define USER_WO  ULPF_USER_WO

/* The listing's attributes are the compiler's that the thesis has changed: here a handler is a function. */
#define ulihandler void

#define register_user_handler(handler) ulpf_register_user_handler((void *)(handler))
#define set_permissions ulpf_set_permissions
#define read_fault_addr ulpf_read_fault_addr
#define lookup_wp ulpf_lookup_wp
#define check_virt_prefix ulpf_check_virt_prefix
#define modify_pli ulpf_modify_pli

#define insert_watchpoint ulpf_insert_watchpoint
#define delete_watchpoint ulpf_delete_watchpoint
#define set_handler ulpf_set_handler

#endif
