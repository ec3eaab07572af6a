// The peer of ibbench coll --peer mpi: the same operations on MPI_COMM_WORLD, measured and checked
// as package measure does (coll.go there). It is compiled with mpicc.
//
//   coll SAMPLES WARMUP OP:SIZE:LOOP...
//
// Each sample is the time of LOOP operations without a barrier between them, behind a barrier. Rank
// 0 prints "OP SIZE ERRORS NS..." for each point: how many of the checked operations of all ranks
// left something wrong, and for each sample the time of the slowest rank in ns.
#define _POSIX_C_SOURCE 200809L // clock_gettime
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum op { BARRIER, ALLREDUCE, ALLTOALL, BCAST, OPS };
static const char *const names[OPS] = {"barrier", "allreduce", "alltoall", "bcast"};

// Checked operations in front of the samples and behind them.
enum { CHECKED = 2 };

struct point {
  enum op op;
  size_t size; // bytes of a rank's buffer, of alltoall for each rank
  long loop;
  double *sum;
  unsigned char *in, *out;
};

static int me, ranks;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *memory(size_t n) {
  void *p = malloc(n > 0 ? n : 1);
  if (p == NULL) {
    fprintf(stderr, "coll: no %zu bytes of memory\n", n);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
  }
  memset(p, 1, n); // the loops meet no page for the first time
  return p;
}

static void once(const struct point *p) {
  switch (p->op) {
  case BARRIER:
    MPI_Barrier(MPI_COMM_WORLD);
    break;
  case ALLREDUCE:
    MPI_Allreduce(MPI_IN_PLACE, p->sum, (int)(p->size / sizeof *p->sum), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    break;
  case ALLTOALL:
    MPI_Alltoall(p->in, (int)p->size, MPI_BYTE, p->out, (int)p->size, MPI_BYTE, MPI_COMM_WORLD);
    break;
  default:
    MPI_Bcast(p->out, (int)p->size, MPI_BYTE, 0, MPI_COMM_WORLD);
  }
}

static unsigned char mark_at(size_t i, uint64_t round, int from, int to) {
  return (unsigned char)(i + (i >> 8) + 7 * round + 31 * (uint64_t)from + 101 * (uint64_t)to);
}

static void mark(unsigned char *b, size_t n, uint64_t round, int from, int to) {
  for (size_t i = 0; i < n; i++) b[i] = mark_at(i, round, from, to);
}

static int marked(const unsigned char *b, size_t n, uint64_t round, int from, int to) {
  for (size_t i = 0; i < n; i++)
    if (b[i] != mark_at(i, round, from, to)) return 0;
  return 1;
}

static double base(size_t i, uint64_t round) { return (double)(i % 1021 + round); }

// barrier_holds does a barrier that no rank may leave before all have entered it. All ranks run on
// one machine, whose monotonic clock they share.
static int barrier_holds(const struct point *p) {
  int64_t in = now(), last;
  once(p);
  int64_t out = now();
  MPI_Allreduce(&in, &last, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return out >= last;
}

// checked does an operation with a content of its own and tells whether it left what it must.
static int checked(const struct point *p, uint64_t round) {
  size_t n = p->size / sizeof *p->sum;
  switch (p->op) {
  case BARRIER:
    return barrier_holds(p);
  case ALLREDUCE:
    for (size_t i = 0; i < n; i++) p->sum[i] = base(i, round) * (me + 1);
    once(p);
    for (size_t i = 0; i < n; i++)
      if (p->sum[i] != base(i, round) * (ranks * (ranks + 1) / 2)) return 0;
    return 1;
  case ALLTOALL:
    for (int r = 0; r < ranks; r++) mark(p->in + (size_t)r * p->size, p->size, round, me, r);
    once(p);
    for (int r = 0; r < ranks; r++)
      if (!marked(p->out + (size_t)r * p->size, p->size, round, r, me)) return 0;
    return 1;
  default:
    mark(p->out, p->size, round, me, me);
    once(p);
    return marked(p->out, p->size, round, 0, 0);
  }
}

static long check(const struct point *p, uint64_t *round) {
  long errors = 0;
  for (int i = 0; i < CHECKED; i++) errors += !checked(p, ++*round);
  return errors;
}

// sample returns the time of the slowest rank in ns, on rank 0.
static int64_t sample(const struct point *p) {
  MPI_Barrier(MPI_COMM_WORLD);
  int64_t begin = now();
  for (long i = 0; i < p->loop; i++) once(p);
  int64_t took = now() - begin, slowest = 0;
  MPI_Reduce(&took, &slowest, 1, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
  return slowest;
}

static int parse(const char *text, struct point *p) {
  char name[16];
  if (sscanf(text, "%15[a-z]:%zu:%ld", name, &p->size, &p->loop) != 3 || p->loop < 1) return 0;
  for (int i = 0; i < OPS; i++)
    if (strcmp(name, names[i]) == 0) {
      p->op = (enum op)i;
      return 1;
    }
  return 0;
}

static void measure(struct point *p, long samples, long warmup) {
  uint64_t round = 0;
  int64_t *ns = memory((size_t)samples * sizeof *ns);
  p->sum = memory(p->size);
  p->in = memory(p->size * (size_t)ranks);
  p->out = memory(p->size * (size_t)ranks);
  for (long i = 0; i < warmup; i++) sample(p);
  long wrong = check(p, &round), errors = 0;
  for (long i = 0; i < samples; i++) ns[i] = sample(p);
  wrong += check(p, &round);
  MPI_Reduce(&wrong, &errors, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (me == 0) {
    printf("%s %zu %ld", names[p->op], p->size, errors);
    for (long i = 0; i < samples; i++) printf(" %lld", (long long)ns[i]);
    printf("\n");
  }
  free(ns);
  free(p->sum);
  free(p->in);
  free(p->out);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 4) {
    if (me == 0) fprintf(stderr, "usage: coll SAMPLES WARMUP OP:SIZE:LOOP...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  long samples = strtol(argv[1], NULL, 10), warmup = strtol(argv[2], NULL, 10);
  for (int i = 3; i < argc; i++) {
    struct point p = {0};
    if (samples < 1 || warmup < 0 || !parse(argv[i], &p)) {
      if (me == 0) fprintf(stderr, "coll: wrong argument %s\n", argv[i]);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    measure(&p, samples, warmup);
  }
  return MPI_Finalize();
}
