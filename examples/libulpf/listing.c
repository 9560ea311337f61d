/* Listing 4.2 of the thesis, with a few stores as the "regular program code". */
#include <stdio.h>
#include <stdlib.h>
#include <ulpf_names.h>

#define PAGE_SIZE 4096

static volatile int hits, false_positives;
static char *volatile last;

ulihandler user_handler()
{
	char *addr = (char *)read_fault_addr();
	int found = lookup_wp();
	if (found) {
		hits++;
		last = addr;
	} else {
		false_positives++;
	}
}

int main(void)
{
	int ret = register_user_handler(&user_handler);
	if (ret < 0) {
		fprintf(stderr, "%s\n", ulpf_error());
		return 1;
	}

	char *mm_addr = aligned_alloc(PAGE_SIZE, 2 * PAGE_SIZE);
	mm_addr[0] = 'a';

	if (set_permissions(mm_addr, PAGE_SIZE, USER_RO) < 0) {
		fprintf(stderr, "%s\n", ulpf_error());
		return 1;
	}

	/* Regular program code */
	for (int i = 0; i < 10; i++)
		mm_addr[i * 100] = i;
	int sum = 0;
	for (int i = 0; i < 10; i++)
		sum += mm_addr[i * 100];
	printf("%d hits, %d false positives, sum %d, last at +%ld\n", hits, false_positives, sum,
	       (long)(last - mm_addr));

	/* One byte: its neighbours on the page are false positives. */
	set_permissions(mm_addr, PAGE_SIZE, USER_RW);
	set_permissions(mm_addr + 8, 1, USER_RO);
	hits = false_positives = 0;
	for (int i = 0; i < 16; i++)
		mm_addr[i] = 'x';
	printf("%d hit, %d false positives, %.16s\n", hits, false_positives, mm_addr);

	/* A store that begins before it and runs into it. */
	hits = false_positives = 0;
	*(volatile int *)(mm_addr + 6) = 0x41414141;
	printf("%d hit, %d false positives, %.16s\n", hits, false_positives, mm_addr);
	set_permissions(mm_addr, PAGE_SIZE, USER_RW);
	mm_addr[8] = 'y';
	printf("%d hit after USER_RW, %s\n", hits, ulpf_unregister() == 0 ? "unregistered" : ulpf_error());
	free(mm_addr);
	return 0;
}
