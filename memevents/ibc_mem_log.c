/* A logger that can be used where malloc and stdio cannot: in a hook. One line, one write(2). */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

struct line { char text[256]; uint32_t n; };

static void put(struct line *l, const char *s)
{
	while (*s && l->n < sizeof l->text - 1) /* room for the newline */
		l->text[l->n++] = *s++;
}

static void put_hex(struct line *l, uint64_t v)
{
	char digits[19] = {0}, *at = &digits[18];

	do
		*--at = "0123456789abcdef"[v & 15];
	while (v >>= 4);
	*--at = 'x';
	*--at = '0';
	put(l, at);
}

IBC_HIDDEN void ibc_mem_log(struct ibc_mem *m, uint32_t level, const char *text, const struct ibc_mem_range *r)
{
	static const char *const names[] = {"", "error: ", "warning: ", "", "debug: "};
	struct line l = {.n = 0};

	if (level > __atomic_load_n(&m->log_level, __ATOMIC_RELAXED))
		return;
	put(&l, "memevents: ");
	put(&l, names[level]);
	put(&l, text);
	if (r) {
		put(&l, " [");
		put_hex(&l, r->lo);
		put(&l, ",");
		put_hex(&l, r->hi);
		put(&l, ")");
	}
	l.text[l.n++] = '\n';
	ibc_sys(SYS_write, 2, (long)l.text, l.n, 0, 0, 0);
}
