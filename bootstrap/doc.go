// Package bootstrap answers a process's first questions: which rank am I, of
// how many, and which data do the others have for me? It speaks to whatever
// launcher started the process; where there is none that can exchange data,
// the ranks meet over TCP. Nothing else of a launcher is in here, and nothing
// here is on the data path.
//
// # Contract
//
// New joins the job; NewGroup makes one inside the process. Of the resulting
// Bootstrap:
//
//   - Exchange and Barrier are collective: every rank calls the same ones in
//     the same order. Calls of one rank run one after the other; a second
//     goroutine waits for its turn, so let one goroutine make them.
//   - A collective ends with its context. One that fails has failed for the
//     job: every other rank's pending or next collective fails too, with an
//     error that names the rank (LostError), and all later ones as well.
//   - All other methods may be called at any time from any goroutine. Close
//     fails a collective in progress with os.ErrClosed.
//   - Blobs that are passed in are not kept; slices that are returned belong
//     to the caller.
//   - A rank that ends without Close is a loss, and so is one that calls Fail
//     or Leave, or closes after it gave up a collective. Over TCP and in a
//     group all others learn it from Lost and from failed collectives, as long
//     as rank 0 has not closed, since rank 0 sees the deaths. When rank 0
//     itself dies, all others report it, and from then on each rank that the
//     launcher lists as ended (IBCONDUIT_ENDED_FD: under ibrun); under another
//     launcher no other death. PMI reports no death: Hydra and srun -K1
//     end the job, and under srun without -K a collective waits for its context.
//     Under PMIx a collective fails when a rank has ended, with the rank only
//     where the launcher names it; then Lost has it too. A host that vanishes is
//     noticed after about 25 s over TCP.
//
// The first Exchange carries a header of each rank. Every rank compares all of
// them and returns the same MismatchError when builds, jobs, sizes, page
// sizes, byte orders or wire versions differ.
//
// # How a launcher is found
//
// The first row that applies is taken. Rows with half of their variables are
// an error, and so is a rank of a launcher that cannot be used: a process that
// was started as one of many never becomes a job of its own by mistake.
// IBCONDUIT_BOOTSTRAP=self|launch|tcp|pmi1|pmix|slurm leaves only those rows. Row 5 comes before
// row 2 where TORCHELASTIC_RUN_ID is set: torchrun gives its ranks the former, and srun the latter
// to torchrun.
//
//	1  IBCONDUIT_RANK IBCONDUIT_SIZE IBCONDUIT_ADDR     TCP; ibrun sets these
//	2  PMI_FD PMI_RANK PMI_SIZE, or PMI_PORT PMI_ID     PMI-1: Hydra, srun --mpi=pmi2
//	3  PMIX_RANK PMIX_NAMESPACE, and libpmix loads      PMIx: mpirun, srun --mpi=pmix
//	4  OMPI_COMM_WORLD_RANK .._SIZE, IBCONDUIT_ADDR     TCP
//	5  RANK WORLD_SIZE MASTER_ADDR MASTER_PORT          TCP at MASTER_PORT+1 (torchrun)
//	6  JOB_COMPLETION_INDEX IBCONDUIT_SIZE _ADDR        TCP (Kubernetes Indexed Job)
//	7  SLURM_STEP_ID SLURM_PROCID SLURM_STEP_NUM_TASKS  TCP on the first host (srun --mpi=none)
//	8  none                                             one rank, or ErrAlone
//
// The only rank of row 2, with PMI_SIZE=1, or of row 3 is a job of one rank without its launcher,
// so that any number of programs may be it, as with go test.
//
// Row 7 meets at IBCONDUIT_ADDR, else on the first host of SLURM_STEP_NODELIST at the first of
// SLURM_STEP_RESV_PORTS, else at a port made from the step's number.
//
// ErrAlone is the error where a variable names other ranks: SLURM_NTASKS or SLURM_JOB_NUM_NODES
// above 1 outside of srun's steps (SLURM_STEP_ID), PMI_SIZE or OMPI_COMM_WORLD_SIZE above 1,
// PMI_RANK, PMI_ID, PMIX_RANK, PMIX_NAMESPACE, JOB_COMPLETION_INDEX.
//
// Further variables of the TCP rows: IBCONDUIT_ADDR is rank 0's host:port and
// overrides MASTER_ADDR; IBCONDUIT_JOB is the job's id;
// IBCONDUIT_SECRET_FD, _SECRET_FILE or _SECRET (in this order) give the secret;
// IBCONDUIT_LISTEN_FD gives rank 0 a listening socket; IBCONDUIT_SOCKET is the path of a unix
// socket of rank 0, which ranks of its host try before IBCONDUIT_ADDR and may have instead of it,
// and IBCONDUIT_SOCKET_FD that socket; IBCONDUIT_LISTEN is where rank 0 listens if not at
// IBCONDUIT_ADDR, as behind a NAT or a service: an address, a name or an interface of its host,
// with a port or without; IBCONDUIT_LIFE_FD gives a rank the end of a pipe to hold until it ends,
// by which the launcher knows the order of the ends; IBCONDUIT_ENDED_FD is a file to which the
// launcher adds a line for each rank that has ended, as "2 exit status 3", so that New fails at
// once when a rank will never come, or 1 s later where rank 0 does not report it, and deaths are
// found when rank 0 is lost;
// IBCONDUIT_PROGRAMS above 1 says that the ranks' programs differ, so that builds are not compared;
// IBCONDUIT_INSECURE=1 allows other addresses than loopback without a secret. Descriptors are
// written as "4", or as "4:inode" so that a descriptor that has been closed and used again is not
// taken for the launcher's.
//
// # Security
//
// A process that joins a job gets the keys to its memory. PMI and PMIx trust the launcher and
// open no port. TCP needs a secret of at least 16 random bytes, from which
// every rank derives the same ed25519 key; both sides of each connection prove
// possession of it in TLS 1.3, which also encrypts. The certificate shows the
// public key, a function of the secret, to any dialler: a password could be
// guessed from it offline, so use random bytes (openssl rand -hex 32). Job ids
// are no secrets. Without a secret only loopback is allowed, where every user
// of the machine could join. In a Slurm step without a secret both sides of each connection show a
// munge credential, over a number of the TLS connection, the job, the rank and the role, that the
// other takes only from its own user. Without munge too such a step is an error.
//
// Rank 0 binds the addresses of its rendezvous only: of the name in IBCONDUIT_ADDR, and for
// the name of its own host, where that has none but loopback, the one that its default route uses.
// A stranger at the port never ends the job: it has 5 s to authenticate and to say a hello of at
// most 64 kB, at most 64 try at a time, and it is named when ranks are missing. The secret's pipe
// is closed once read, and inherited descriptors are closed on exec; the environment is left as it
// is.
//
// # Wire format over TCP
//
// Little-endian. Inside TLS, each frame is: type u8, length u32, body. str is
// u16 length (at most 1024) and bytes.
//
//	type  name        to      body
//	1     hello       rank 0  magic u32 "IBCJ", protocol u16 = 1, rank u32, pid u32, host str |
//	                          size u32, job str, host id str. Left of | is the same in all protocols.
//	2     welcome     rank    nothing: the hello was accepted, others are awaited
//	3     start       rank    job str, local rank u32, local size u32: all have arrived
//	4     refused     rank    reason u8 (Reason), count u32, ranks at fault u32 each, text str
//	5     contribute  rank 0  op u8 (1 Exchange, 2 Barrier), collective number u32 from 1,
//	                          sealed blob
//	6     outcome     rank    op u8, collective number u32, count u32,
//	                          for each rank: length u32, sealed blob
//	7     failure     both    rank u32, cause u8 (1 death, 2 left, 3 gave up, 4 abort, 5 misuse,
//	                          6 failed), abort code u32, process str (host and pid), text str.
//	                          To rank 0 only about the sender.
//	8     give up     rank 0  collective number u32, text str: the context of the sender ended
//	9     credential  both    of munge, before the hello, in a step without a secret; its payload is
//	                          "ibconduit ROLE NUMBER JOB RANK", where ROLE is "rank" or "root",
//	                          NUMBER is exported from TLS (RFC 8446 §7.5)
//
// A sealed blob is the same over every backend:
//
//	checksum    u32   CRC-32C of all that follows
//	exchange    u32   number of the Exchange, from 1
//	head bytes  u32   length of the header; 0 but in the first Exchange
//	header            magic u32 "IBCH", version u16 = 2, flags u16 (1: big-endian host),
//	                  rank u32, size u32, pid u32 | page size u32, build str,
//	                  job str, host str, host id str.
//	                  Left of | is the same in all versions.
//	blob              to the end
//
// Over PMI-1 a sealed blob is base64url text in values of 512 characters:
// key g<n>.<rank> holds the number of pieces, key g<n>.<rank>.<i> piece i, where
// n counts Exchanges from 0, as servers do not agree on what a second put of
// one key does. Over PMIx it is a byte object under the key ibc.<n>.
package bootstrap
