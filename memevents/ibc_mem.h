/* Memory events: shared by the hooks, the table of watched ranges and the Go side.
 *
 * All state is one static struct, so that a hook needs no allocation and works before any
 * constructor. Fields that two threads touch are read and written with the __atomic builtins only
 * (cgo knows no _Atomic); Go reads some of them with sync/atomic, which is sequentially consistent
 * like the code here. */
#ifndef IBC_MEM_H
#define IBC_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what can be configured at build time ---- */

/* Of the layout below; two images share a table only if it is equal */
#define IBC_MEM_VERSION 6u
#define IBC_MEM_SLOTS 16384u        /* watched ranges; 64 bytes each */
/* Slots kept for the self-test, which must find room in a full table */
#define IBC_MEM_SPARE 8u
#define IBC_MEM_HEADS_LOG2 15       /* lists of the grid */
#define IBC_MEM_HEADS (1u << IBC_MEM_HEADS_LOG2)
#define IBC_MEM_WINDOWS 128u        /* calls that change memory at once before they count as "everything" */
/* Ranges of discards that userfaultfd reports before they happen */
#define IBC_MEM_LINGER 32u
#define IBC_MEM_WATCHERS 64u        /* bits of one word */
/* The owner of the self-test's entries: never VALID, so on no dead list */
#define IBC_MEM_NO_OWNER IBC_MEM_WATCHERS
#define IBC_MEM_PROTECTED 64u       /* ranges that may not be unmapped */
#define IBC_MEM_SEGMENTS 256u       /* attached System V segments whose size is remembered */
#define IBC_MEM_LEVELS 16u          /* cell sizes 4 KiB * 8^k: the last holds any address */
#define IBC_MEM_CELL_SHIFT(level) (12u + 3u * (level))

/* Hidden: every image (executable, libmemevents.so, a plugin) has its own, and means its own. */
#define IBC_HIDDEN __attribute__((visibility("hidden")))
#define IBC_EXPORT __attribute__((visibility("default")))

/* ---- events and handlers ---- */

enum ibc_mem_event_type {
	IBC_MEM_MMAP,
	IBC_MEM_MUNMAP,
	IBC_MEM_MREMAP,
	IBC_MEM_SHMAT,
	IBC_MEM_SHMDT,
	IBC_MEM_BRK,
	IBC_MEM_SBRK,
	IBC_MEM_MADVISE,
	IBC_MEM_PROCESS_MADVISE,
	IBC_MEM_REMAP_FILE_PAGES,
	IBC_MEM_NATIVE,                        /* number of the calls above */
	IBC_MEM_VM_MAPPED = IBC_MEM_NATIVE,    /* memory came */
	IBC_MEM_VM_UNMAPPED,                   /* memory goes: reported before it does */
	IBC_MEM_EVENTS
};

struct ibc_mem_range { uintptr_t lo, hi; };

/* One call on its way. A handler may change the parameters, or answer in the kernel's place by
 * setting done, result and err (0, or the errno of a failure). */
struct ibc_mem_call {
	uint32_t event; /* IBC_MEM_MMAP ... */
	uint32_t done;
	uint32_t raw;   /* came by the libc's patched text: the kernel is next */
	int32_t err;
	intptr_t result;
	union {
		intptr_t args[6]; /* of any call, in their order */
		struct { void *addr; size_t len; intptr_t prot, flags, fd; off_t off; } mmap;
		struct { void *addr; size_t len; } munmap;
		struct { void *old; size_t old_len, new_len; intptr_t flags; void *to; } mremap;
		struct { intptr_t id; const void *addr; intptr_t flags; } shmat;
		struct { const void *addr; } shmdt;
		struct { void *addr; } brk;
		struct { intptr_t by; } sbrk;
		struct { void *addr; size_t len; intptr_t advice; } madvise;
		struct { intptr_t pidfd; const void *iov; size_t n; intptr_t advice, flags; } process_madvise;
		struct { void *addr; size_t len; intptr_t prot; size_t pgoff; intptr_t flags; } remap;
		struct ibc_mem_range vm; /* IBC_MEM_VM_MAPPED, IBC_MEM_VM_UNMAPPED: page-rounded */
	} u;
};

/* Handlers run on any thread, inside the Go runtime's own mmap and inside signal handlers.
 * Forbidden to them: Go, malloc, stdio, dlsym, locks that others hold while they (un)map,
 * ibv_dereg_mr, changing errno. Handlers of priority < 0 run before the kernel's part, the others
 * after it, in ascending order. One that answers before it is the last of its part, and the kernel
 * is not called; those after it run all the same, and there the first that answers a call that none
 * had answered is the last. VM_UNMAPPED is reported before the call: to handlers of priority < 0
 * before anything is invalidated, and they may refuse the call (done, err); to the others when the
 * range is closed and its entries are stale. VM_MAPPED is reported after success. A handler that
 * maps or unmaps meets itself there: it calls the kernel (syscall(2)), or knows its own calls. A
 * handler stays in place for good (a hook may stand on it); events = 0 switches it off. */
struct ibc_mem_handler {
	struct ibc_mem_handler *next;
	uint64_t events; /* bit per ibc_mem_event_type */
	int32_t priority;
	void (*fn)(struct ibc_mem_call *call, void *arg);
	void *arg;
};

/* ---- the table ---- */

enum { IBC_MEM_FREE, IBC_MEM_PENDING, IBC_MEM_VALID, IBC_MEM_STALE }; /* low 2 bits of a state word */

struct ibc_mem_entry {
	uint64_t state;        /* generation << 2 | IBC_MEM_FREE ... */
	uint32_t refs;
	uint32_t tag;          /* the owner's name for it */
	uint64_t lo, hi;       /* page-rounded; change only while FREE */
	uint32_t dead_next;    /* slot + 1 on the owner's dead list */
	uint8_t watcher, level, nodes;
	uint8_t uffd;          /* userfaultfd reports it */
	uint32_t next[2];      /* node + 1; a node is slot * 2 + {0, 1} */
	uint32_t head[2];      /* the lists the nodes are on */
};

/* A change of the address space in progress. lo: 0 free, 1 being filled in. */
struct ibc_mem_window { uint64_t lo, hi; uint64_t pad[6]; };
struct ibc_mem_linger { uint64_t lo, hi, until_ns; };

struct ibc_mem_watcher {
	uint32_t used, signalled;
	/* Eventfd + 1, 0 until first used; never closed, for a hook may be about to write to it */
	int32_t efd;
	uint32_t dead_head;    /* slot + 1 */
	uint64_t dead_bytes, dead_limit, dead_count;
	uint64_t pad[3];
};

struct ibc_mem_stats {
	uint64_t calls[IBC_MEM_EVENTS];
	uint64_t invalidated, invalidated_in_use, invalidated_pending, scans, overflows;
	uint64_t uffd_unmap, uffd_remove, uffd_remap;
	uint64_t refused;      /* claims of ranges that were changing */
	uint64_t spared;       /* calls that would have unmapped protected memory */
};

/* All zero is a usable state: hooks run before the constructor that fills in version and size. */
struct ibc_mem {
	uint32_t version, size;
	uint32_t standby;      /* another image's hooks do the work */
	uint32_t forked;       /* this is the child of a fork: nothing here is true any more */
	uint32_t taken;        /* Go has come: there may be watchers, and a reader */
	uint32_t let_go;       /* the reader of userfaultfd is at its end */
	uint64_t page;         /* 0: not known yet */
	uint64_t gate;         /* odd while userfaultfd events are being taken */
	int32_t uffd;          /* descriptor + 1; 0 none */
	uint32_t uffd_delay_us; /* tests make the reader slow */
	uint64_t uffd_dev, uffd_ino; /* of the descriptor: another file may come to have its number */

	uint32_t live, high;   /* entries not FREE; slots ever used */
	uint32_t levels;       /* bit per level with entries */
	uint32_t free_head;    /* slot + 1, linked by dead_next */
	uint64_t epoch;        /* counts insertions into the grid */
	uint32_t level_count[IBC_MEM_LEVELS];
	uint64_t lock[8];      /* a pthread_mutex_t, of ibc_mem_table.c only */

	uint64_t signal;       /* bit per watcher to be woken when the call is over */
	uint32_t overflow;     /* windows that found no slot: "everything" */
	/* A library has come with calls that may not come by: the next claim tests anew */
	uint32_t doubt;
	struct ibc_mem_linger linger[IBC_MEM_LINGER];

	struct ibc_mem_handler *handlers;
	uint64_t handler_lock; /* held while a handler is added */
	struct ibc_mem_range protect[IBC_MEM_PROTECTED]; /* hi 0: free */
	uint64_t huge_min;     /* bytes; 0: no advice */
	void *hook[IBC_MEM_NATIVE]; /* where this image's hooks stand */
	uint32_t log_level;
	struct { uint64_t lo, len; } segment[IBC_MEM_SEGMENTS];

	uint32_t test_tid;     /* thread that tests whether calls arrive here; 0 none */
	uint32_t test_order, test_at; /* these and test_addr: only in builds with IBC_MEM_TEST_MODES */
	uint64_t test_addr;
	uint32_t test_seen[IBC_MEM_EVENTS];

	uint64_t event_dev, event_ino; /* of eventfds, which all have one inode */

	struct ibc_mem_stats stats;
	struct ibc_mem_window window[IBC_MEM_WINDOWS] __attribute__((aligned(64)));
	struct ibc_mem_watcher watcher[IBC_MEM_WATCHERS];
	uint32_t heads[IBC_MEM_HEADS];
	struct ibc_mem_entry entry[IBC_MEM_SLOTS + IBC_MEM_SPARE] __attribute__((aligned(64)));
};

/* ---- the data path (ibc_mem_path.h says what may stand there); besides, the libc's names ---- */

extern IBC_HIDDEN struct ibc_mem ibc_mem_own;
/* The table that counts: own, or the preloaded library's */
extern IBC_HIDDEN struct ibc_mem *ibc_mem_use;
/* The next definition of the call; NULL: the kernel */
extern IBC_HIDDEN void *ibc_mem_next[IBC_MEM_NATIVE];
/* Our definitions, wherever the symbols lead */
extern IBC_HIDDEN void *const ibc_mem_hook[IBC_MEM_NATIVE];
extern IBC_HIDDEN void *const ibc_mem_patched[IBC_MEM_NATIVE]; /* the same, ending in the kernel */

IBC_HIDDEN void ibc_mem_invalidate(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN uint32_t ibc_mem_window_open(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN void ibc_mem_window_close(struct ibc_mem *m, uint32_t id);
IBC_HIDDEN void ibc_mem_signal(struct ibc_mem *m);

/* ---- ibc_mem_start.c: other definitions; resolved at start ---- */

IBC_EXPORT struct ibc_mem *ibc_mem_root_v1(void);
IBC_HIDDEN struct ibc_mem *ibc_mem_adopt(void);
IBC_HIDDEN int ibc_mem_adopted(void);
extern IBC_HIDDEN const char *const ibc_mem_name[IBC_MEM_NATIVE];

/* ---- ibc_mem_table.c: claiming and retiring slots ---- */

enum { IBC_MEM_OK, IBC_MEM_FULL, IBC_MEM_CHANGING, IBC_MEM_FORKED, IBC_MEM_UNWATCHED };

IBC_HIDDEN int ibc_mem_watcher_open(struct ibc_mem *m, uint64_t dead_limit);
IBC_HIDDEN int ibc_mem_watcher_close(struct ibc_mem *m, uint32_t watcher);

/* Which changes in progress forbid a claim. */
enum ibc_mem_look {
	IBC_MEM_LOOK_NOT,   /* none: the claimer mapped the range itself, without a hook */
	IBC_MEM_LOOK_CALLS, /* those inside a hook, of which beginning and end are known */
	IBC_MEM_LOOK_ALL,   /* also discards that userfaultfd reported, of which the end is not known */
};
IBC_HIDDEN int ibc_mem_claim(struct ibc_mem *m, uint32_t watcher, uint64_t lo, uint64_t hi, uint32_t tag, int uffd,
	int look, uint32_t *slot);
IBC_HIDDEN int ibc_mem_changing(struct ibc_mem *m, uint64_t lo, uint64_t hi, int look);
IBC_HIDDEN const char *ibc_mem_verify(struct ibc_mem *m);
IBC_HIDDEN void ibc_mem_retire(struct ibc_mem *m, uint32_t slot);
IBC_HIDDEN uint32_t ibc_mem_drain(struct ibc_mem *m, uint32_t watcher, uint32_t *slots, uint32_t cap);
IBC_HIDDEN uint32_t ibc_mem_hash(uint32_t level, uint64_t cell);

/* ---- ibc_mem_handlers.c ---- */

IBC_EXPORT void ibc_mem_add_handler(struct ibc_mem *m, struct ibc_mem_handler *h);
IBC_HIDDEN void ibc_mem_lock_handlers(struct ibc_mem *m);
IBC_HIDDEN void ibc_mem_advise_huge(struct ibc_mem *m, uint64_t min);
IBC_HIDDEN int ibc_mem_protect(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN void ibc_mem_unprotect(struct ibc_mem *m, int id);

/* ---- ibc_mem_log.c: needs no malloc ---- */

enum { IBC_MEM_LOG_OFF, IBC_MEM_LOG_ERROR, IBC_MEM_LOG_WARN, IBC_MEM_LOG_INFO, IBC_MEM_LOG_DEBUG };
IBC_HIDDEN void ibc_mem_log(struct ibc_mem *m, uint32_t level, const char *text, const struct ibc_mem_range *r);

/* ---- ibc_mem_reloc.c: the second way in, where symbols do not lead here ---- */

IBC_HIDDEN int ibc_mem_reloc_start(uint32_t *slots);
IBC_HIDDEN uint32_t ibc_mem_targets(uint32_t event, void **out, uint32_t cap);

/* ---- ibc_mem_patch.c: the libc's text ---- */

IBC_HIDDEN int ibc_mem_patch_state(const char **why);

/* ---- ibc_mem_uffd.c: the kernel reports, by userfaultfd ---- */

IBC_HIDDEN int ibc_mem_uffd_start(struct ibc_mem *m, const char **step);
IBC_HIDDEN int ibc_mem_uffd_alive(struct ibc_mem *m);
IBC_HIDDEN void ibc_mem_uffd_in_child(struct ibc_mem *m);
IBC_HIDDEN int ibc_mem_uffd_watch(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN void ibc_mem_uffd_unwatch(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN void ibc_mem_uffd_settled(struct ibc_mem *m, uint64_t lo, uint64_t hi);
IBC_HIDDEN void ibc_mem_gate_wait(struct ibc_mem *m);

/* ---- ibc_mem_selftest.c ---- */

enum ibc_mem_try {
	IBC_MEM_TRY_MUNMAP, IBC_MEM_TRY_MMAP, IBC_MEM_TRY_MREMAP, IBC_MEM_TRY_MADVISE, IBC_MEM_TRY_BRK, IBC_MEM_TRY_SHM,
	IBC_MEM_TRY_REMAP, IBC_MEM_TRY_GUARD, IBC_MEM_TRY_FREE, IBC_MEM_TRY_LIBC_BRK,
};
IBC_HIDDEN int ibc_mem_try(struct ibc_mem *m, uint32_t what, int raw, int uffd, int own, void *target, int *err);
IBC_HIDDEN intptr_t ibc_mem_call(void *definition, uint32_t event, const intptr_t *args, int *err);
IBC_HIDDEN void ibc_mem_cycles(struct ibc_mem *m, uint64_t n, int mapped, uint64_t *ns);
IBC_HIDDEN void *ibc_mem_symbol(const char *name);

#ifdef __cplusplus
}
#endif

#endif
