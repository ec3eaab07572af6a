/* A logger that can be used where malloc and stdio cannot: in a hook. One line, one write(2). */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <stdarg.h>

struct line { char text[256]; uint32_t n; };

static void put(struct line *l, char c)
{
	if (l->n < sizeof l->text - 1) /* room for the newline */
		l->text[l->n++] = c;
}

static void put_string(struct line *l, const char *s)
{
	for (s = s ? s : "(null)"; *s; s++)
		put(l, *s);
}

static void put_number(struct line *l, unsigned long v, unsigned base)
{
	char digits[24];
	int n = 0;

	do
		digits[n++] = "0123456789abcdef"[v % base];
	while (v /= base);
	while (n)
		put(l, digits[--n]);
}

/* %s %d %u %lu %x %lx %#lx %p and %%, which the messages of this package use. */
static const char *put_verb(struct line *l, const char *f, va_list *args)
{
	int wide = 0;

	for (; *f == 'l' || *f == '#'; f++) {
		if (*f == '#')
			put_string(l, "0x");
		else
			wide = 1;
	}
	switch (*f) {
	case 's':
		put_string(l, va_arg(*args, const char *));
		break;
	case 'd': {
		long v = wide ? va_arg(*args, long) : va_arg(*args, int);

		if (v < 0)
			put(l, '-');
		put_number(l, v < 0 ? 0ul - (unsigned long)v : (unsigned long)v, 10);
		break;
	}
	case 'u':
	case 'x':
		put_number(l, wide ? va_arg(*args, unsigned long) : va_arg(*args, unsigned), *f == 'u' ? 10 : 16);
		break;
	case 'p':
		put_string(l, "0x");
		put_number(l, (unsigned long)va_arg(*args, void *), 16);
		break;
	case '%':
		put(l, '%');
		break;
	case 0:
		return f;
	}
	return f + 1;
}

IBC_HIDDEN void ibc_mem_log(struct ibc_mem *m, uint32_t level, const char *format, ...)
{
	static const char *const names[] = {"", "error: ", "warning: ", "", "debug: "};
	struct line l = {.n = 0};
	va_list args;

	if (level > __atomic_load_n(&m->log_level, __ATOMIC_RELAXED))
		return;
	put_string(&l, "memevents: ");
	put_string(&l, names[level]);
	va_start(args, format);
	for (const char *f = format; *f;) {
		if (*f == '%')
			f = put_verb(&l, f + 1, &args);
		else
			put(&l, *f++);
	}
	va_end(args);
	l.text[l.n++] = '\n';
	ibc_sys(SYS_write, 2, (long)l.text, l.n, 0, 0, 0);
}
