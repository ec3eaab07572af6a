/* A C program: loads Go, has a range watched, loads another library and lets that unmap the
 * range. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | (getenv("IBC_TEST_DEEPBIND") ? RTLD_DEEPBIND : 0));

	if (!lib)
		printf("%s\n", dlerror());
	return lib;
}

int main(int argc, char **argv)
{
	unsigned char (*watch)(uintptr_t, uintptr_t), (*valid)(void);
	long (*unmap)(long, long), (*counter)(long), counted;
	void *p, *go, *other;
	char place[32];

	if (argc < 3) /* "exit": only begins and ends */
		return 0;
	if (getenv("IBC_TEST_FORK")) { /* a server that goes into the background, or a worker of one */
		int status;
		pid_t pid = fork();

		if (pid)
			return waitpid(pid, &status, 0) == pid && !status ? 0 : 1;
	}
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	go = load(argv[1]);
	if (!go)
		return 1;
	*(void **)&watch = dlsym(go, "IbcWatch");
	*(void **)&valid = dlsym(go, "IbcValid");
	if (!watch((uintptr_t)p, 4096)) {
		puts("later library: refused");
		fflush(stdout);
		_exit(0);
	}
	snprintf(place, sizeof place, "%p", p);
	setenv("IBC_TEST_UNMAP", place, 1); /* for a library whose constructor unmaps */
	other = load(argv[2]);
	if (!other)
		return 1;
	if (dlsym(other, "ibc_ctor_unmapped")) {
		puts(valid() ? "constructor: missed" : "constructor: noticed");
		fflush(stdout);
		_exit(0);
	}
	*(void **)&unmap = dlsym(other, "ibc_foreign_munmap");
	*(void **)&counter = dlsym(RTLD_DEFAULT, "ibc_counter"); /* an interposer that counts munmap */
	counted = counter ? counter(0) : 0;
	if (unmap((long)p, 4096))
		return 1;
	if (counter)
		printf("interposer: %ld\n", counter(0) - counted);
	puts(valid() ? "later library: missed" : "later library: noticed");
	fflush(stdout);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	puts(watch((uintptr_t)p, 4096) ? "watched again" : "no longer watched");
	fflush(stdout);
	_exit(0);
}
