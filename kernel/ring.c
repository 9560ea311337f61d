// SPDX-License-Identifier: GPL-2.0
/*
 * The event ring.
 *
 * Writers are threads in a page fault. They take a number with one cmpxchg, and never wait. A
 * writer owns a slot if the event of the round before is complete. It is not if that event's
 * writer was interrupted while others went once around; then the new event is dropped and
 * counted. Readers never delay writers.
 *
 *	stamp of slot n:  0  →  number + 1  →  0  →  number + records + 1  → ...
 *	                  being written          being written
 *
 * A reader is woken when `watermark` events wait, or by a timer. (The paper's logger
 * polled its device, and cost 61 to 103 %.)
 */
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/pid_namespace.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include <asm/ptrace.h>

#include "compat.h"
#include "ulpf_internal.h"

/**
 * struct ulpf_ring_buffer - the ring, as the kernel sees it
 * @header: Shared, read only for user space
 * @slot: ... and the events
 * @mask: Slots - 1
 * @watermark: Events that wait before a reader is woken
 * @latency: Jiffies that the first of them waits; zero: any time
 * @pages: That it occupies
 * @next: The number that read() gives next (@lock)
 * @expired: The latency is over
 * @lock: Among readers
 * @readers: They wait here
 * @timer: For the latency
 */
struct ulpf_ring_buffer {
	struct ulpf_ring_header *header;
	struct ulpf_event *slot;
	u64 mask;
	u32 watermark;
	unsigned long latency;
	unsigned long pages;
	u64 next;
	bool expired;
	struct mutex lock;
	wait_queue_head_t readers;
	struct timer_list timer;
};

static struct ulpf_ring_buffer *ring_of(struct ulpf_space *space)
{
	/* Pairs with its making. */
	return smp_load_acquire(&space->ring);
}

static void ring_expired(struct timer_list *timer)
{
	struct ulpf_ring_buffer *ring = container_of(timer, struct ulpf_ring_buffer, timer);

	WRITE_ONCE(ring->expired, true);
	wake_up_interruptible(&ring->readers);
}

int ulpf_ring_make(struct ulpf_space *space, const struct ulpf_ring *arg)
{
	struct ulpf_ring_buffer *ring;
	size_t size;
	int error;

	if (arg->flags || arg->reserved || !is_power_of_2(arg->records) || arg->records < 64 ||
	    arg->records > ULPF_RING_MAX || !arg->watermark || arg->watermark > arg->records / 2 ||
	    arg->latency_us > 10000000)
		return -EINVAL;
	size = PAGE_ALIGN(PAGE_SIZE + arg->records * sizeof(struct ulpf_event));
	mutex_lock(&space->ring_lock);
	error = -EBUSY;
	if (space->ring)
		goto unlock;
	error = -ENOMEM;
	ring = kzalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);
	if (!ring)
		goto unlock;
	ring->pages = size >> PAGE_SHIFT;
	error = ulpf_charge(space, ring->pages);
	if (error)
		goto free;
	error = -ENOMEM;
	ring->header = __vmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!ring->header)
		goto uncharge;
	ring->slot = (void *)ring->header + PAGE_SIZE;
	ring->mask = arg->records - 1;
	ring->watermark = arg->watermark;
	ring->latency = arg->latency_us ? usecs_to_jiffies(arg->latency_us) : 0;
	mutex_init(&ring->lock);
	init_waitqueue_head(&ring->readers);
	timer_setup(&ring->timer, ring_expired, 0);
	ring->header->version = ULPF_VERSION;
	ring->header->records = arg->records;
	ring->header->data_offset = PAGE_SIZE;
	ring->header->length = size;
	/* A reader that finds the pointer finds the ring initialised. */
	smp_store_release(&space->ring, ring);
	mutex_unlock(&space->ring_lock);
	return 0;

uncharge:
	ulpf_uncharge(space, ring->pages);
free:
	kfree(ring);
unlock:
	mutex_unlock(&space->ring_lock);
	return error;
}

void ulpf_ring_free(struct ulpf_space *space)
{
	struct ulpf_ring_buffer *ring = space->ring;

	if (!ring)
		return;
	del_timer_sync(&ring->timer);
	vfree(ring->header);
	kfree(ring);
}

static vm_fault_t ring_fault(struct vm_fault *vmf)
{
	struct ulpf_space *space = vmf->vma->vm_file->private_data;
	pgoff_t n = vmf->pgoff - (ULPF_MAP_RING >> PAGE_SHIFT);
	struct page *page = vmalloc_to_page((void *)space->ring->header + (n << PAGE_SHIFT));

	get_page(page);
	vmf->page = page;
	return 0;
}

static const struct vm_operations_struct ring_ops = {
	.fault = ring_fault,
};

int ulpf_ring_mmap(struct ulpf_space *space, struct vm_area_struct *vma)
{
	struct ulpf_ring_buffer *ring = ring_of(space);

	if (!ring)
		return -ENXIO;
	if (vma->vm_pgoff != ULPF_MAP_RING >> PAGE_SHIFT || vma_pages(vma) > ring->pages ||
	    vma->vm_flags & VM_WRITE)
		return -EINVAL;
	ulpf_flags(vma, VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE);
	vma->vm_ops = &ring_ops;
	return 0;
}

/* The number of the next event, with its slot, or NULL if there is no slot for it. */
static struct ulpf_event *ring_claim(struct ulpf_ring_buffer *ring, u64 *number)
{
	u64 head = READ_ONCE(ring->header->head);

	for (;;) {
		struct ulpf_event *slot = ring->slot + (head & ring->mask);
		u64 before = head > ring->mask ? head - ring->mask : 0, seen;

		if (READ_ONCE(slot->stamp) != before) {
			/* Has another writer taken it? Then the head has moved on. */
			seen = READ_ONCE(ring->header->head);
			if (seen == head)
				return NULL;
			head = seen;
			continue;
		}
		seen = cmpxchg(&ring->header->head, head, head + 1);
		if (seen == head) {
			*number = head;
			return slot;
		}
		head = seen;
	}
}

/* CLOCK_MONOTONIC, as it is where the space was opened. */
static u64 now(const struct ulpf_space *space)
{
	return ktime_get_ns() + space->clock;
}

static u64 waiting(struct ulpf_ring_buffer *ring)
{
	return READ_ONCE(ring->header->head) - READ_ONCE(ring->next);
}

static void arm_timer(struct ulpf_ring_buffer *ring)
{
	if (ring->latency && !timer_pending(&ring->timer))
		mod_timer(&ring->timer, jiffies + ring->latency);
}

/**
 * ulpf_event - writes an event, if the space has a ring
 * @space: Where
 * @type: ULPF_EVENT_*
 * @addr: First byte touched
 * @info: ULPF_INFO_*
 * @user: The access was made by the program's own instruction
 *
 * For a thread that is not the program's, the event has no registers. It has the thread's number
 * only if that exists in the pid namespace of the opener.
 */
void ulpf_event(struct ulpf_space *space, unsigned int type, unsigned long addr,
		unsigned int info, bool user)
{
	struct ulpf_ring_buffer *ring = ring_of(space);
	struct ulpf_event *slot;
	const struct pt_regs *regs = ulpf_is_ours(space) ? task_pt_regs(current) : NULL;
	u64 number;

	if (!ring)
		return;
	/* Not interrupted by other threads here, writers seldom find a slot that is not free. */
	preempt_disable();
	slot = ring_claim(ring, &number);
	if (!slot) {
		preempt_enable();
		/* No number, so no place in the ring; an atomic of a shared page. */
		atomic64_inc((atomic64_t *)&ring->header->dropped);
		return;
	}
	WRITE_ONCE(slot->stamp, 0);
	/* Readers see that it is being written before they see what. */
	smp_wmb();
	slot->time = now(space);
	slot->addr = addr;
	slot->type = type;
	slot->info = info;
	slot->pid = task_tgid_nr_ns(current, space->pid_ns);
	slot->tid = task_pid_nr_ns(current, space->pid_ns);
	slot->reserved = 0;
	slot->ip = regs ? regs->ip : 0;
	slot->sp = regs ? regs->sp : 0;
	slot->syscall = regs && !user && (long)regs->orig_ax >= 0 ? regs->orig_ax : -1;
	/* ... and that it is complete after all of it. */
	smp_store_release(&slot->stamp, number + 1);
	preempt_enable();
	if (!wq_has_sleeper(&ring->readers))
		return;
	if (waiting(ring) >= ring->watermark)
		wake_up_interruptible(&ring->readers);
	else
		arm_timer(ring);
}

/* The memory may be gone: readers look. */
void ulpf_ring_wake(struct ulpf_space *space)
{
	struct ulpf_ring_buffer *ring = ring_of(space);

	if (ring)
		wake_up_interruptible_all(&ring->readers);
}

static bool ring_ready(struct ulpf_space *space, struct ulpf_ring_buffer *ring)
{
	u64 count = waiting(ring);

	return count >= ring->watermark || (count && READ_ONCE(ring->expired)) || !ulpf_alive(space);
}

/*
 * Takes the event with number @ring->next, or one that says how many were lost; false if none is
 * complete.
 */
static bool ring_take(struct ulpf_space *space, struct ulpf_ring_buffer *ring, struct ulpf_event *event)
{
	for (;;) {
		u64 head = READ_ONCE(ring->header->head), next = ring->next, stamp;
		struct ulpf_event *slot = ring->slot + (next & ring->mask);

		if (next == head)
			return false;
		/* The event after its stamp, ... */
		stamp = smp_load_acquire(&slot->stamp);
		if (head - next <= ring->mask + 1 && stamp == next + 1) {
			memcpy(event, slot, sizeof(*event));
			/* ... and the stamp once more after the event. */
			smp_rmb();
			if (READ_ONCE(slot->stamp) == stamp) {
				WRITE_ONCE(ring->next, next + 1);
				return true;
			}
		}
		/* Being written: for the first time, or by the round that overtakes us? */
		head = READ_ONCE(ring->header->head);
		if (head - next <= ring->mask + 1)
			return false;
		*event = (struct ulpf_event){
			.time = now(space),
			.type = ULPF_EVENT_LOST,
			.addr = head - next - (ring->mask + 1),
			.syscall = -1,
		};
		WRITE_ONCE(ring->next, head - (ring->mask + 1));
		return true;
	}
}

ssize_t ulpf_read(struct file *file, char __user *buffer, size_t count, loff_t *position)
{
	struct ulpf_space *space = file->private_data;
	struct ulpf_ring_buffer *ring = ring_of(space);
	struct ulpf_event event;
	ssize_t done = 0;
	bool gone;

	if (!ring)
		return -ENXIO;
	if (count < sizeof(event))
		return -EINVAL;
	do {
		if (!(file->f_flags & O_NONBLOCK)) {
			if (waiting(ring))
				arm_timer(ring);
			if (wait_event_interruptible(ring->readers, ring_ready(space, ring)))
				return -ERESTARTSYS;
		}
		/* Checked before reading: all events are in the ring once the mm has ended. */
		gone = !ulpf_alive(space);
		if (mutex_lock_interruptible(&ring->lock))
			return -ERESTARTSYS;
		WRITE_ONCE(ring->expired, false);
		while (count - done >= sizeof(event) && ring_take(space, ring, &event)) {
			if (copy_to_user(buffer + done, &event, sizeof(event))) {
				mutex_unlock(&ring->lock);
				return done ?: -EFAULT;
			}
			done += sizeof(event);
			/*
			 * Writers may be as fast as this reader, so the loop must be
			 * interruptible.
			 */
			if (signal_pending(current))
				break;
			cond_resched();
		}
		mutex_unlock(&ring->lock);
		if (!done && file->f_flags & O_NONBLOCK && !gone)
			return -EAGAIN;
		/* Another reader may have been faster, or the one event is not complete yet. */
	} while (!done && !gone);
	return done;
}

__poll_t ulpf_poll(struct file *file, struct poll_table_struct *wait)
{
	struct ulpf_space *space = file->private_data;
	struct ulpf_ring_buffer *ring = ring_of(space);
	__poll_t events = 0;

	if (!ring)
		return EPOLLERR;
	poll_wait(file, &ring->readers, wait);
	if (waiting(ring))
		arm_timer(ring);
	if (!ulpf_alive(space))
		events |= EPOLLHUP;
	if (ring_ready(space, ring))
		events |= EPOLLIN | EPOLLRDNORM;
	return events;
}
