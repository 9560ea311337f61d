/* The thesis's structures. */
#include "checks.h"

static void nothing(void) {}
CASE(plis)
{
	char *p = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	p = (char *)(((unsigned long)p + (2 << 20)) & ~((2ul << 20) - 1));
	OK(register_user_handler(nothing));
	EQ(check_virt_prefix(p), 0);
	OK(set_permissions(p + 5 * PAGE + 17, 3, USER_RO));
	unsigned long region = check_virt_prefix(p);
	CHECK(region && region % 128 == 0 && region % PAGE, "%#lx", region);
	EQ(check_virt_prefix(p + (2 << 20) - 1), region);
	EQ(check_virt_prefix(p + (2 << 20)), 0);
	/* Page 5: bits 10 and 11. */
	EQ(((unsigned char *)region)[1], 1 << 2);
	unsigned free_regions = *(unsigned *)(region & ~(PAGE - 1ul));
	EQ(free_regions, 3);
	OK(set_permissions(p + (2 << 20) - 1, 2, USER_WO));
	EQ(*(unsigned *)(region & ~(PAGE - 1ul)), 7);
	EQ(((unsigned char *)region)[127], 3 << 6);
	/* A page's bits by hand: faults, and false positives, for nothing on it is watched. */
	OK(modify_pli(p + 9 * PAGE, USER_RO, region));
	struct ulpf_stats before = stats();
	p[9 * PAGE] = 1;
	EQ(stats().false_positives, before.false_positives + 1);
	OK(modify_pli(p + 9 * PAGE, USER_RW, region));
	p[9 * PAGE] = 2;
	EQ(stats().faults, before.faults + 1);
}
