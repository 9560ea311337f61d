// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own accesses to guarded memory, and work on the way back to user mode.
 *
 * A system call that reads or writes a forbidden page must succeed. So the page is mapped for it, and the
 * access becomes an event. Before the thread returns to user mode, the page is taken out of the page table
 * again.
 *
 * The last fput() of a file runs its release as task work, which is just that moment. So the work to be done
 * is the release of a file that no process can open. (task_work_add() would be the direct way, but few
 * kernels export it.) For kernel threads the release runs from a work queue, a moment later. If the page is
 * closed too early, the access faults again, and is logged again.
 */
#include <linux/anon_inodes.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "ulpf_internal.h"

#define CLOSER_PAGES	8

/*
 * Closers per task. Once a task has that many, its oldest closer is reused: the pages in it are closed first.
 */
#define TASK_CLOSERS	16

/* Jiffies after which an open page is closed: while the call sleeps, and in any case. */
#define OPEN_ASLEEP	1
#define OPEN_AWAKE	HZ

/**
 * struct closer - pages that one task's system call has opened
 * @space: Guarded address space
 * @list: In @space->closers
 * @task: The task that made the accesses
 * @since: Jiffies when the last of them was opened
 * @count: Number of pages; all of them are closed on the way back
 * @closed: Number of those that were closed early
 * @at: Offsets in the store, and whether for writing
 */
struct closer {
	struct ulpf_space *space;
	struct list_head list;
	struct task_struct *task;
	unsigned long since;
	unsigned int count;
	unsigned int closed;
	struct {
		pgoff_t page;
		bool write;
	} at[CLOSER_PAGES];
};

static int closer_release(struct inode *inode, struct file *file)
{
	struct closer *closer = file->private_data;
	struct ulpf_space *space = closer->space;
	unsigned int i;

	spin_lock(&space->closers_lock);
	list_del(&closer->list);
	spin_unlock(&space->closers_lock);
	for (i = 0; i < closer->count; i++)
		ulpf_flush(space, closer->at[i].page, 1);
	put_task_struct(closer->task);
	kfree(closer);
	fput(space->file);
	return 0;
}

static const struct file_operations closer_fops = {
	.owner = THIS_MODULE,
	.release = closer_release,
};

/*
 * Has `fops->release` run with `data` on the way back to user mode. The caller must not
 * touch `data` afterwards.
 */
static int later(const struct file_operations *fops, void *data)
{
	struct file *file = anon_inode_getfile("[ulpf]", fops, data, O_RDONLY);

	if (IS_ERR(file))
		return PTR_ERR(file);
	fput(file);
	return 0;
}

/* Returns whether the page is open for this task already. Notes a write to one opened for reading. */
static bool find_open(struct ulpf_space *space, pgoff_t page, bool write, struct closer **room)
{
	struct closer *closer;
	unsigned int i;

	lockdep_assert_held(&space->closers_lock);
	list_for_each_entry(closer, &space->closers, list) {
		if (closer->task != current)
			continue;
		for (i = closer->closed; i < closer->count; i++)
			if (closer->at[i].page == page && closer->at[i].write >= write)
				return true;
		if (room && closer->count < CLOSER_PAGES)
			*room = closer;
	}
	return false;
}

/*
 * The oldest closer of a task that has enough of them, with room, or NULL; its pages, which the caller has to close.
 * Else one call that touches much memory would have them without end, and each fault would search them.
 */
static struct closer *empty_oldest(struct ulpf_space *space, pgoff_t page[CLOSER_PAGES], unsigned int *count)
{
	struct closer *closer, *oldest = NULL;
	unsigned int all = 0;

	lockdep_assert_held(&space->closers_lock);
	list_for_each_entry(closer, &space->closers, list) {
		if (closer->task != current)
			continue;
		oldest = closer;
		all++;
	}
	if (all < TASK_CLOSERS)
		return NULL;
	while (oldest->closed < oldest->count)
		page[(*count)++] = oldest->at[oldest->closed++].page;
	oldest->count = 0;
	oldest->closed = 0;
	list_move(&oldest->list, &space->closers);
	return oldest;
}

bool ulpf_find_open_for_kernel(struct ulpf_space *space, pgoff_t page)
{
	bool open;

	spin_lock(&space->closers_lock);
	open = find_open(space, page, true, NULL);
	spin_unlock(&space->closers_lock);
	return open;
}

static bool is_overdue(const struct closer *closer)
{
	/*
	 * A task that is about to sleep, or has just woken up, may lose its pages needlessly: it then opens
	 * them again.
	 */
	bool asleep = READ_ONCE(closer->task->__state) != TASK_RUNNING;

	return time_after_eq(jiffies, closer->since + (asleep ? OPEN_ASLEEP : OPEN_AWAKE));
}

/*
 * Takes the open pages of one overdue closer; returns how many. Sets @more if other closers have open pages.
 */
static unsigned int take_overdue(struct ulpf_space *space, pgoff_t page[CLOSER_PAGES], bool *more)
{
	struct closer *closer;
	unsigned int count = 0;

	*more = false;
	spin_lock(&space->closers_lock);
	list_for_each_entry(closer, &space->closers, list) {
		if (closer->closed == closer->count)
			continue;
		if (count || !is_overdue(closer)) {
			*more = true;
			continue;
		}
		while (closer->closed < closer->count)
			page[count++] = closer->at[closer->closed++].page;
	}
	spin_unlock(&space->closers_lock);
	return count;
}

void ulpf_close_overdue(struct work_struct *work)
{
	struct ulpf_space *space = container_of(to_delayed_work(work), struct ulpf_space, close_work);
	pgoff_t page[CLOSER_PAGES];
	unsigned int count, i;
	bool more;

	while ((count = take_overdue(space, page, &more)))
		for (i = 0; i < count; i++)
			ulpf_flush(space, page[i], 1);
	if (more)
		schedule_delayed_work(&space->close_work, OPEN_ASLEEP);
}

static struct closer *closer_make(struct ulpf_space *space)
{
	struct closer *closer = kzalloc(sizeof(*closer), GFP_KERNEL_ACCOUNT);
	int error;

	if (!closer)
		return NULL;
	closer->space = space;
	closer->task = get_task_struct(current);
	get_file(space->file);
	spin_lock(&space->closers_lock);
	list_add(&closer->list, &space->closers);
	spin_unlock(&space->closers_lock);
	error = later(&closer_fops, closer);
	if (!error)
		return closer;
	spin_lock(&space->closers_lock);
	list_del(&closer->list);
	spin_unlock(&space->closers_lock);
	fput(space->file);
	put_task_struct(closer->task);
	kfree(closer);
	return NULL;
}

static void closer_add(struct closer *closer, pgoff_t page, bool write)
{
	lockdep_assert_held(&closer->space->closers_lock);
	closer->at[closer->count].page = page;
	closer->at[closer->count++].write = write;
	closer->since = jiffies;
}

/**
 * ulpf_open_for_kernel - a forbidden access that is not the program's
 * @space: Where
 * @vmf: The fault
 * @write: Whether it is a store
 *
 * Tells it, and arranges that the page is closed again. The caller lets the access pass.
 *
 * Return: 0, or -ENOMEM: then it must not pass.
 */
int ulpf_open_for_kernel(struct ulpf_space *space, struct vm_fault *vmf, bool write)
{
	struct closer *room = NULL;
	pgoff_t page[CLOSER_PAGES];
	unsigned int count = 0;
	u32 info = 0;
	bool known;

	spin_lock(&space->closers_lock);
	known = find_open(space, vmf->pgoff, write, &room);
	if (!known && !room)
		room = empty_oldest(space, page, &count);
	if (!known && room)
		closer_add(room, vmf->pgoff, write);
	spin_unlock(&space->closers_lock);
	while (count)
		ulpf_flush(space, page[--count], 1);
	if (known)
		return 0;
	if (!room) {
		room = closer_make(space);
		if (!room)
			return -ENOMEM;
		/*
		 * Ours alone until this task is back in user mode. (A kernel thread's may be gone by
		 * now, so it is looked for again.)
		 */
		spin_lock(&space->closers_lock);
		room = NULL;
		find_open(space, vmf->pgoff, write, &room);
		if (room)
			closer_add(room, vmf->pgoff, write);
		spin_unlock(&space->closers_lock);
		if (!room)
			return -ENOMEM;
	}
	if (!delayed_work_pending(&space->close_work))
		schedule_delayed_work(&space->close_work, OPEN_ASLEEP);
	if (write)
		info |= ULPF_INFO_WRITE;
	if (atomic_read(&space->mm->mm_users) > 1)
		info |= ULPF_INFO_OPEN;
	/* The event is in the ring before the counter shows it. */
	ulpf_event(space, write ? ULPF_EVENT_KERNEL_WRITE : ULPF_EVENT_KERNEL_READ, vmf->real_address, info, false);
	ulpf_count(space, write ? ULPF_COUNT_KERNEL_WRITES : ULPF_COUNT_KERNEL_READS);
	return 0;
}

/* A frame's memory that has to be brought in, where page faults are allowed again. */
struct fault_in {
	struct ulpf_space *space;
	unsigned long addr;
	size_t size;
};

static int fault_in_release(struct inode *inode, struct file *file)
{
	struct fault_in *work = file->private_data;

	/*
	 * It writes zeros, below the red zone: where the frame will be. It lets a stack grow, as
	 * its gentler sister does not. An exiting thread has no memory, and no further instruction.
	 */
	if (current->mm == work->space->mm && !(current->flags & PF_EXITING) &&
	    fault_in_writeable((char __user *)work->addr, work->size)) {
		ulpf_count(work->space, ULPF_COUNT_UNDELIVERED);
		ulpf_event(work->space, ULPF_EVENT_UNDELIVERED, work->addr, ULPF_INFO_WRITE, true);
		force_sig(SIGSEGV);
	}
	fput(work->space->file);
	kfree(work);
	return 0;
}

static const struct file_operations fault_in_fops = {
	.owner = THIS_MODULE,
	.release = fault_in_release,
};

int ulpf_fault_in_later(struct ulpf_space *space, unsigned long addr, size_t size)
{
	struct fault_in *work = kmalloc(sizeof(*work), GFP_KERNEL_ACCOUNT);
	int error;

	if (!work)
		return -ENOMEM;
	*work = (struct fault_in){ .space = space, .addr = addr, .size = size };
	get_file(space->file);
	error = later(&fault_in_fops, work);
	if (error) {
		fput(space->file);
		kfree(work);
	}
	return error;
}
