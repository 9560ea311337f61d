// SPDX-License-Identifier: GPL-2.0
/*
 * The device: opening it, its calls, its end.
 */
#include <linux/capability.h>
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/time_namespace.h>
#include <linux/uaccess.h>

#include "ulpf_internal.h"

static unsigned short mode = 0660;
module_param(mode, ushort, 0444);
MODULE_PARM_DESC(mode, "permissions of /dev/ulpf (its group is udev's business)");

#define ULPF_FEATURES (ULPF_FEATURE_READ | ULPF_FEATURE_PLI_LOOSEN | \
		       ULPF_FEATURE_STACK | ULPF_FEATURE_KERNEL | ULPF_FEATURE_GUARD | \
		       ULPF_FEATURE_STORE | ULPF_FEATURE_SIGSTACK | ULPF_FEATURE_EFAULT)

/*
 * Memory that cannot be swapped is limited as mlock()'s is (RLIMIT_MEMLOCK), for all processes of a user
 * together. A descriptor's memory may outlive the process that asked for it.
 */
int ulpf_charge(struct ulpf_space *space, unsigned long pages)
{
	atomic_long_t *all = &space->cred->user->locked_vm;

	if (atomic_long_add_return(pages, all) > rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT && !capable(CAP_IPC_LOCK)) {
		atomic_long_sub(pages, all);
		return -ENOMEM;
	}
	atomic_long_add(pages, &space->charged);
	return 0;
}

void ulpf_uncharge(struct ulpf_space *space, unsigned long pages)
{
	atomic_long_sub(pages, &space->charged);
	atomic_long_sub(pages, &space->cred->user->locked_vm);
}

/* Creates the store as memfd_create() would, for ULPF_STORE, except that it cannot be executed. */
static struct file *make_store(void)
{
	/* Sparse: no page of it is accounted before it is there. */
	struct file *file = shmem_file_setup("ulpf", ULPF_STORE_SIZE, VM_NORESERVE);

	if (IS_ERR(file))
		return file;
	file->f_mode |= FMODE_LSEEK | FMODE_PREAD | FMODE_PWRITE;
	file->f_flags |= O_LARGEFILE;
	file_inode(file)->i_mode &= ~0111;
	SHMEM_I(file_inode(file))->seals |= ULPF_SEALS;
	return file;
}

/* Nanoseconds that the caller's time namespace adds to the kernel's CLOCK_MONOTONIC. */
static s64 clock_offset(void)
{
	struct timespec64 offset = { 0 };

	timens_add_monotonic(&offset);
	return timespec64_to_ns(&offset);
}

static int ulpf_open(struct inode *inode, struct file *file)
{
	struct ulpf_space *space;
	int error;

	/* Guarded memory is written, and so are the aliases: a half-open device is of no use. */
	if ((file->f_mode & (FMODE_READ | FMODE_WRITE)) != (FMODE_READ | FMODE_WRITE))
		return -EACCES;
	if (!current->mm)
		return -EPERM;
	space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);
	if (!space)
		return -ENOMEM;
	error = -ENOMEM;
	space->counters = alloc_percpu_gfp(struct ulpf_counters, GFP_KERNEL_ACCOUNT);
	if (!space->counters)
		goto free_space;
	space->store = make_store();
	if (IS_ERR(space->store)) {
		error = PTR_ERR(space->store);
		goto free_counters;
	}
	xa_init_flags(&space->regions, XA_FLAGS_ACCOUNT);
	xa_init_flags(&space->pli, XA_FLAGS_ACCOUNT);
	xa_init_flags(&space->threads, XA_FLAGS_ACCOUNT);
	space->threads_sweep = 64;
	space->streak_page = ~0UL;
	INIT_LIST_HEAD(&space->closers);
	spin_lock_init(&space->closers_lock);
	INIT_DELAYED_WORK(&space->close_work, ulpf_close_overdue);
	mutex_init(&space->ring_lock);
	space->file = file;
	space->mm = current->mm;
	mmgrab(space->mm);
	space->cred = get_current_cred();
	space->pid_ns = get_pid_ns(task_active_pid_ns(current));
	space->clock = clock_offset();
	file->private_data = space;
	return nonseekable_open(inode, file);

free_counters:
	free_percpu(space->counters);
free_space:
	kfree(space);
	return error;
}

static int ulpf_release(struct inode *inode, struct file *file)
{
	struct ulpf_space *space = file->private_data;

	/* Closers hold the file, so none is left. A pending worker would find nothing to do. */
	WARN_ON(!list_empty(&space->closers));
	cancel_delayed_work_sync(&space->close_work);
	ulpf_early_forget(space);
	ulpf_ring_free(space);
	ulpf_threads_free(space);
	ulpf_regions_free(space);
	ulpf_pli_free(space);
	fput(space->store);
	atomic_long_sub(atomic_long_read(&space->charged), &space->cred->user->locked_vm);
	put_cred(space->cred);
	put_pid_ns(space->pid_ns);
	mmdrop(space->mm);
	free_percpu(space->counters);
	kfree(space);
	return 0;
}

/* A descriptor is closed. If the owner has ended with it, readers are woken. */
static int ulpf_close(struct file *file, fl_owner_t id)
{
	ulpf_ring_wake(file->private_data);
	return 0;
}

/*
 * The size is the first field of every structure that is copied in. `least` is where
 * the first version's input ended.
 */
static int ulpf_get(void *to, size_t size, size_t least, const void __user *from)
{
	u32 said;

	if (get_user(said, (const u32 __user *)from))
		return -EFAULT;
	if (said < least)
		return -EINVAL;
	if (said > PAGE_SIZE)
		return -E2BIG;
	return copy_struct_from_user(to, size, from, said);
}

/* Copies out at most as many bytes as the caller's structure has. */
static int ulpf_put(void __user *to, const void *from, size_t size)
{
	u32 said = *(const u32 *)from;

	return copy_to_user(to, from, min_t(size_t, said, size)) ? -EFAULT : 0;
}

static long ulpf_query(void __user *arg)
{
	struct ulpf_query query;
	u32 wanted;
	int error = ulpf_get(&query, sizeof(query), sizeof(query), arg);

	if (error)
		return error;
	if (query.flags)
		return -EINVAL;
	wanted = query.version;
	query.version = ULPF_VERSION;
	query.machine = ULPF_MACHINE_LINUX;
	query.features = ULPF_FEATURES;
	query.batch_max = ULPF_BATCH_MAX;
	query.ring_max = ULPF_RING_MAX;
	error = ulpf_put(arg, &query, sizeof(query));
	if (error)
		return error;
	return wanted == ULPF_VERSION ? 0 : -EPROTONOSUPPORT;
}

static long ulpf_get_counts(struct ulpf_space *space, void __user *arg)
{
	struct ulpf_counts counts;
	u64 *sums = &counts.upcalls;
	int error = ulpf_get(&counts, sizeof(counts), sizeof(counts), arg);
	unsigned int cpu, i;

	BUILD_BUG_ON(sizeof(counts) != offsetof(struct ulpf_counts, upcalls) + ULPF_COUNTERS * 8);
	if (error)
		return error;
	if (counts.flags)
		return -EINVAL;
	for (i = 0; i < ULPF_COUNTERS; i++) {
		sums[i] = 0;
		for_each_possible_cpu(cpu)
			sums[i] += READ_ONCE(per_cpu_ptr(space->counters, cpu)->value[i]);
	}
	return ulpf_put(arg, &counts, sizeof(counts));
}

static long ulpf_set_policy(struct ulpf_space *space, const struct ulpf_policy *policy)
{
	if (policy->flags & ~ULPF_POLICY_EFAULT)
		return -EINVAL;
	if (mmap_write_lock_killable(space->mm))
		return -EINTR;
	space->efault = policy->flags & ULPF_POLICY_EFAULT;
	mmap_write_unlock(space->mm);
	return 0;
}

/* A descriptor of the store; its owner reads and writes there what he could by an alias. */
static long ulpf_get_store(struct ulpf_space *space)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd >= 0)
		fd_install(fd, get_file(space->store));
	return fd;
}

static long ulpf_owner_ioctl(struct ulpf_space *space, unsigned int number, void __user *arg)
{
	union {
		struct ulpf_handler handler;
		struct ulpf_stack stack;
		struct ulpf_batch batch;
		struct ulpf_ring ring;
		struct ulpf_page page;
		struct ulpf_policy policy;
	} u;
	long error, result;

	switch (number) {
	case _IOC_NR(ULPF_HANDLER):
		error = ulpf_get(&u, sizeof(u.handler), sizeof(u.handler), arg);
		return error ?: ulpf_set_handler(space, &u.handler);
	case _IOC_NR(ULPF_STACK):
		error = ulpf_get(&u, sizeof(u.stack), sizeof(u.stack), arg);
		return error ?: ulpf_set_stack(space, &u.stack);
	case _IOC_NR(ULPF_APPLY):
		return ulpf_apply(space, arg);
	case _IOC_NR(ULPF_BATCH):
		error = ulpf_get(&u, sizeof(u.batch), sizeof(u.batch), arg);
		if (error)
			return error;
		result = ulpf_batch(space, &u.batch);
		error = put_user(u.batch.done, &((struct ulpf_batch __user *)arg)->done);
		return result ?: error;
	case _IOC_NR(ULPF_RING):
		error = ulpf_get(&u, sizeof(u.ring), sizeof(u.ring), arg);
		return error ?: ulpf_ring_make(space, &u.ring);
	case _IOC_NR(ULPF_LOOKUP):
		error = ulpf_get(&u, sizeof(u.page), sizeof(u.page), arg);
		error = error ?: ulpf_lookup(space, &u.page);
		return error ?: ulpf_put(arg, &u.page, sizeof(u.page));
	case _IOC_NR(ULPF_POLICY):
		error = ulpf_get(&u, sizeof(u.policy), sizeof(u.policy), arg);
		return error ?: ulpf_set_policy(space, &u.policy);
	case _IOC_NR(ULPF_STORE):
		return ulpf_get_store(space);
	default:
		return -ENOTTY;
	}
}

static long ulpf_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct ulpf_space *space = file->private_data;
	unsigned int number = _IOC_NR(command);

	/* The size in the command is the first version's; the structure tells its own. */
	if (_IOC_TYPE(command) != ULPF_IOC_TYPE || number < _IOC_NR(ULPF_QUERY) ||
	    number > _IOC_NR(ULPF_STORE))
		return -ENOTTY;
	if (number == _IOC_NR(ULPF_QUERY))
		return ulpf_query((void __user *)arg);
	if (number == _IOC_NR(ULPF_COUNTS))
		return ulpf_get_counts(space, (void __user *)arg);
	if (current->mm != space->mm)
		return -EPERM;
	return ulpf_owner_ioctl(space, number, (void __user *)arg);
}

static const struct file_operations ulpf_fops = {
	.owner = THIS_MODULE,
	.open = ulpf_open,
	.release = ulpf_release,
	.flush = ulpf_close,
	.unlocked_ioctl = ulpf_ioctl,
	.mmap = ulpf_mmap,
	.read = ulpf_read,
	.poll = ulpf_poll,
};

static struct miscdevice ulpf_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ulpf",
	.fops = &ulpf_fops,
};

static int __init ulpf_init(void)
{
	ulpf_device.mode = mode & 0666;
	return misc_register(&ulpf_device);
}

static void __exit ulpf_exit(void)
{
	misc_deregister(&ulpf_device);
	ulpf_early_exit();
	/* Threads' records are freed by RCU callbacks of the kernel's own; nothing of ours is left to run. */
}

module_init(ulpf_init);
module_exit(ulpf_exit);

MODULE_LICENSE("GPL");
MODULE_AUTHOR("The ulpf contributors");
MODULE_DESCRIPTION("User-level page faults: forbidden accesses are handled in user space, without signals");
MODULE_VERSION("1");
