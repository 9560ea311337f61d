// SPDX-License-Identifier: GPL-2.0
/*
 * Permissions: two bits for each page, 512 pages to a region. The layout is the same for the module's own
 * regions and for those in PLI pages.
 */
#include <linux/log2.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "ulpf_internal.h"

/* Pages described by one byte of permissions. */
#define BYTE_PAGES	4

/*
 * Regions that a space has free of charge, and regions per page of locked memory after that. Regions
 * cannot be swapped, and the OOM killer cannot attribute them to a process.
 */
#define REGIONS_FREE	64
#define PAGE_REGIONS	(PAGE_SIZE / roundup_pow_of_two(sizeof(struct ulpf_region)))

static int charge_region(struct ulpf_space *space)
{
	if (space->regions_count < REGIONS_FREE || space->regions_count % PAGE_REGIONS)
		return 0;
	return ulpf_charge(space, 1);
}

static void uncharge_region(struct ulpf_space *space)
{
	if (space->regions_count >= REGIONS_FREE && space->regions_count % PAGE_REGIONS == 0)
		ulpf_uncharge(space, 1);
}

struct ulpf_region *ulpf_region_make(struct ulpf_space *space, unsigned long addr)
{
	struct ulpf_region *region = ulpf_region(space, addr);

	if (region)
		return region;
	if (charge_region(space))
		return NULL;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		goto uncharge;
	region->prefix = addr >> ULPF_REGION_SHIFT;
	region->bits = region->own;
	if (xa_err(xa_store(&space->regions, addr >> ULPF_REGION_SHIFT, region, GFP_KERNEL_ACCOUNT))) {
		kfree(region);
		goto uncharge;
	}
	space->regions_count++;
	return region;

uncharge:
	uncharge_region(space);
	return NULL;
}

/* Changes the masked bits; true if something is forbidden now that was permitted. */
static bool change_byte(u8 *byte, u8 mask, u8 value)
{
	u8 old = READ_ONCE(*byte), seen;

	/* The user may store to a PLI page at the same time. */
	while ((seen = cmpxchg(byte, old, (old & ~mask) | (value & mask))) != old)
		old = seen;
	return value & mask & ~old;
}

/**
 * ulpf_region_fill - gives the pages of [@addr, @end), within one region, a permission
 * @region: the region
 * @addr: first page
 * @end: behind the last page
 * @permission: ULPF_RW ...
 *
 * Return: true if processors must forget what they know of these pages.
 */
bool ulpf_region_fill(struct ulpf_region *region, unsigned long addr, unsigned long end,
		      unsigned int permission)
{
	unsigned int k = ulpf_index(addr), last = k + ((end - addr) >> PAGE_SHIFT);
	/* A PLI region may hold a change that has not been synced yet. */
	bool tighter = region->slot;
	u8 value = permission * 0x55;

	while (k < last) {
		unsigned int within = k % BYTE_PAGES;
		unsigned int count = min(BYTE_PAGES - within, last - k);

		tighter |= change_byte(&region->bits[k / BYTE_PAGES],
				       ((1 << 2 * count) - 1) << 2 * within, value);
		k += count;
	}
	return tighter;
}

/* Mappings have gone. Regions of the user's stay as they are. */
void ulpf_regions_clear(struct ulpf_space *space, unsigned long addr, unsigned long end)
{
	struct ulpf_region *region;

	while ((region = ulpf_region_next(space, &addr, end))) {
		unsigned long to = ulpf_region_end(addr, end);

		if (!region->slot)
			ulpf_region_fill(region, addr, to, ULPF_RW);
		if (region->guarded) {
			unsigned int k = ulpf_index(addr), n = (to - addr) >> PAGE_SHIFT;

			/* Faults elsewhere in the region may take bits away meanwhile. */
			for (; n; k++, n--) {
				clear_bit(k, region->log);
				clear_bit(k, region->stop);
			}
		}
		addr = to;
		cond_resched();
	}
}

void ulpf_regions_free(struct ulpf_space *space)
{
	struct ulpf_region *region;
	unsigned long prefix;

	xa_for_each(&space->regions, prefix, region) {
		kfree(region);
		cond_resched();
	}
	xa_destroy(&space->regions);
}
