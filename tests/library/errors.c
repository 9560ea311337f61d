/* Bad input. */
#include "checks.h"

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += syscall(SYS_fcntl, fd, 1) >= 0;
	return n;
}
static void nothing(void) {}
CASE(bad_input)
{
	char *p = pages(4);
	munmap(p + 3 * PAGE, PAGE);
	REFUSED(set_permissions(p, 1, USER_RO), EPERM);
	REFUSED(register_user_handler(NULL), EINVAL);
	REFUSED(register_user_handler(0xffffffff81000000), EFAULT);
	REFUSED(register_user_handler(0x10000), EFAULT);
	REFUSED(register_user_handler(p), EFAULT);
	OK(register_user_handler(nothing));
	REFUSED(register_user_handler(nothing), EBUSY);
	long id = insert_watchpoint(p, 8, ULPF_WRITE);
	OK(id);
	int open = descriptors();
	for (int i = 0; i < 50; i++) {
		REFUSED(set_permissions(p, 1, 2), EINVAL);
		REFUSED(set_permissions(p, 0, USER_RO), EINVAL);
		REFUSED(set_permissions(p + 3 * PAGE, 1, USER_RO), EFAULT);
		REFUSED(set_permissions(p + 3 * PAGE - 1, 2, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)0xffffffff81000000, 8, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)0x7fffffffeff0, 1ul << 40, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)-16, 32, USER_RO), EFAULT);
		REFUSED(set_permissions(NULL, 8, USER_RO), EFAULT);
		REFUSED(insert_watchpoint(p + 3 * PAGE, 1, ULPF_WRITE), EFAULT);
		REFUSED(insert_watchpoint(p, 0, ULPF_WRITE), EINVAL);
		REFUSED(insert_watchpoint(p, 8, 0), EINVAL);
		REFUSED(insert_watchpoint(p, 8, 4), EINVAL);
		REFUSED(insert_watchpoint((void *)bad_input, 8, ULPF_ACCESS), EOPNOTSUPP);
		REFUSED(delete_watchpoint(0), ENOENT);
		REFUSED(delete_watchpoint(-1), ENOENT);
		REFUSED(delete_watchpoint(1l << 40), ENOENT);
		REFUSED(ulpf_insert(NULL, 1, NULL), EINVAL);
		REFUSED(modify_pli(p, USER_RO, 12345), EINVAL);
		REFUSED(modify_pli(p, 5, check_virt_prefix(p)), EINVAL);
		/* All of them or none. */
		struct ulpf_watchpoint two[2] = { ULPF_WATCHPOINT_INIT, ULPF_WATCHPOINT_INIT };
		two[0].addr = p + PAGE, two[0].len = 8, two[1].addr = p + 3 * PAGE, two[1].len = 8;
		REFUSED(ulpf_insert(two, 2, NULL), EFAULT);
		two[1].addr = p, two[1].flags = 64;
		REFUSED(ulpf_insert(two, 2, NULL), EINVAL);
		two[1].flags = 0, two[1].size = 3;
		REFUSED(ulpf_insert(two, 2, NULL), EINVAL);
		mprotect(p + 2 * PAGE, PAGE, PROT_READ);
		REFUSED(insert_watchpoint(p + 2 * PAGE, 8, ULPF_WRITE), EACCES);
		mprotect(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE);
	}
	EQ(descriptors(), open);
	/* Refused watches have left nothing behind. */
	struct ulpf_stats before = stats();
	p[PAGE] = 1, p[2 * PAGE] = 1;
	EQ(stats().faults, before.faults);
	p[0] = 1;
	EQ(counts(id).hits, 1);
	OK(delete_watchpoint(id));
	REFUSED(delete_watchpoint(id), ENOENT);
	p[0] = 1;
	EQ(stats().faults, before.faults + 1);
	errno = EXDEV;
	OK(ulpf_unregister());
	EQ(errno, EXDEV);
}

CASE(bad_back_ends)
{
	WITH_THE_USUAL_BACKEND();
	REFUSED(ulpf_use_backend(NULL), EINVAL);
	REFUSED(ulpf_use_backend("telepathy"), EINVAL);
	CHECK(strstr(ulpf_error(), "`signal`"), "%s", ulpf_error());
	OK(ulpf_use_backend("auto"));
	CHECK(strlen(ulpf_backend_reason()) > 20, "%s", ulpf_backend_reason());
	OK(ulpf_use_backend("signal"));
	char *p = pages(1);
	OK(insert_watchpoint(p, 1, ULPF_WRITE));
	CHECK(!strcmp(ulpf_backend_name(), "signal"), "%s", ulpf_backend_name());
	REFUSED(ulpf_suspend(), EOPNOTSUPP);
	REFUSED(ulpf_resume(), EOPNOTSUPP);
	REFUSED(ulpf_use_backend("debug-registers"), EBUSY);
	OK(ulpf_use_backend("auto"));
}
