package credit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// world is a job of ranks that send one another requests and replies, and whose
// networks do what networks may: messages of a connection arrive in order, once, or not
// at all when it breaks; control messages are lost, repeated and late. It counts
// buffers and messages under way by itself, to compare with.
type world struct {
	rng   *rand.Rand
	ranks []*rank
	pairs [][]*pair // the lower rank first
	wires [][]*wire // from, to
	now   time.Duration
	cfg   PoolConfig
	fault fault
	calm  bool // no losses, nothing breaks
	quiet int  // this rank sends no requests for a while
}

type rank struct {
	pool    *Pool
	senders []*Sender // by peer; nil for itself
	posted  int       // what the device really has
	owed    int       // buffers that fault spareLate posts later
	hand    []op      // messages with a credit that are not sent yet
	blocked *op       // fault replyTakesCredit: a handler that waits for a credit
}

// op is a message that a rank is about to send.
type op struct {
	to         int
	epoch      uint32
	answered   bool // a request that reserved a reply buffer
	replyEpoch uint32
}

type message struct {
	reply, answered bool
	size            int
	header          [ExtendedSize]byte
}

// wire is one direction of a pair.
type wire struct {
	messages []message
	controls []control
	sent     uint64
}

type control struct {
	size   int
	header [ExtendedSize]byte
}

// pair is the connection between two ranks.
type pair struct {
	epoch  uint32
	broken bool
	open   [2]bool // which end, the lower rank first, takes it for open
}

// fault is what is wrong with the users of the accounts, or the accounts.
type fault int

const (
	none fault = iota
	replyTakesCredit
	handlersBeforeSpares // the user runs handlers first
	spareLate            // the user calls Reposted first and posts later
	doubleReturn         // credits come back twice at a peer's death
	recallForgotten      // what is asked back is granted before it is back
	epochUnchecked       // headers of other connections count
	neverAskedAgain      // a lost question is not repeated
	neverRecalled        // a peer that holds credits keeps them
	cancelUnchecked      // a credit of an earlier connection is put back
)

func newWorld(seed uint64, cfg PoolConfig, f fault) (*world, error) {
	w := &world{rng: rand.New(rand.NewPCG(seed, uint64(f))), fault: f}
	cfg.RecallAfter, cfg.Retry = 100, 400 // rounds of the calm world take 100
	if f == neverAskedAgain {
		cfg.Retry = time.Hour
	}
	if f == neverRecalled {
		cfg.RecallAfter = time.Hour
	}
	senders, err := NewSenderConfig(cfg.Config, cfg.Credits)
	if err != nil {
		return nil, err
	}
	for i := range cfg.Peers {
		p, err := NewPool(cfg)
		if err != nil {
			return nil, err
		}
		r := &rank{pool: p, senders: make([]*Sender, cfg.Peers), posted: cfg.Credits + cfg.Replies}
		w.cfg = p.cfg
		w.ranks = append(w.ranks, r)
		w.wires = append(w.wires, make([]*wire, cfg.Peers))
		w.pairs = append(w.pairs, make([]*pair, cfg.Peers))
		for j := range cfg.Peers {
			if i == j {
				continue
			}
			r.senders[j] = NewSender(j, senders)
			w.wires[i][j] = &wire{}
			if i < j {
				w.pairs[i][j] = &pair{epoch: 1}
			}
		}
	}
	return w, nil
}

// pair returns the connection of two ranks and which end i is.
func (w *world) pair(i, j int) (*pair, int) {
	if i < j {
		return w.pairs[i][j], 0
	}
	return w.pairs[j][i], 1
}

// two are two different ranks.
func (w *world) two() (i, j int) {
	i, j = w.rng.IntN(len(w.ranks)), w.rng.IntN(len(w.ranks)-1)
	if j >= i {
		j++
	}
	return i, j
}

func (w *world) chance(of int) bool { return w.rng.IntN(of) == 0 }

// step does one thing at random.
func (w *world) step() error {
	i, j := w.two()
	switch k := w.rng.IntN(100); {
	case k < 40 && i != w.quiet:
		return w.send(i, j, w.chance(3))
	case k < 70:
		return w.deliver(i)
	case k < 82:
		return w.deliverControl(i, j)
	case k < 92:
		w.controls(i)
	case k < 96:
		return w.hand(i)
	case k < 99:
		if w.chance(40) {
			w.quiet = i
		}
		w.now += time.Duration(w.rng.IntN(60))
		w.ranks[i].pool.Tick(w.now)
	case !w.calm:
		return w.connection(i, j)
	}
	return nil
}

// send has rank i send a request, or keep it in hand for a while.
func (w *world) send(i, j int, answered bool) error {
	r := w.ranks[i]
	if r.blocked != nil {
		return w.retry(i)
	}
	o := op{to: j, answered: answered}
	var err error
	if answered {
		if o.replyEpoch, err = r.pool.ReserveReply(j); errors.Is(err, ErrNoReply) || errors.Is(err, ErrNotOpen) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if o.epoch, err = r.senders[j].Take(w.now); err != nil {
		if answered && !r.pool.CancelReply(j, o.replyEpoch) {
			return fmt.Errorf("rank %d: reservation for rank %d vanished", i, j)
		}
		if !errors.Is(err, ErrNoCredit) && !errors.Is(err, ErrNotOpen) {
			return err
		}
		return nil
	}
	if len(r.hand) < 4 && w.chance(8) && !w.calm {
		r.hand = append(r.hand, o)
		return nil
	}
	w.emit(i, j, message{answered: answered})
	w.wires[i][j].sent++
	return nil
}

// hand sends or cancels what rank i has in hand. What belongs to a connection that is
// over can only be cancelled, and that must have no effect.
func (w *world) hand(i int) error {
	r := w.ranks[i]
	if len(r.hand) == 0 {
		return nil
	}
	o := r.hand[0]
	r.hand = r.hand[1:]
	if r.senders[o.to].Epoch() == 0 && !w.calm { // until there is another connection, which is the trap
		r.hand = append(r.hand, o)
		return nil
	}
	live := r.senders[o.to].Epoch() == o.epoch
	if live && w.chance(2) {
		w.emit(i, o.to, message{answered: o.answered})
		return nil
	}
	if w.fault == cancelUnchecked && !live {
		o.epoch = r.senders[o.to].Epoch()
		live = o.epoch != 0
	}
	if got := r.senders[o.to].Cancel(o.epoch); got != live {
		return fmt.Errorf("rank %d: cancel of connection %d to %d is %v", i, o.epoch, o.to, got)
	}
	if o.answered && r.pool.CancelReply(o.to, o.replyEpoch) != live {
		return fmt.Errorf("rank %d: cancelled reply of connection %d to %d", i, o.replyEpoch, o.to)
	}
	return nil
}

func (w *world) emit(i, j int, m message) {
	var h Header
	w.ranks[i].pool.Fill(j, &h, w.now)
	w.ranks[i].senders[j].Fill(&h, w.now)
	m.size = h.Encode(m.header[:])
	if p, _ := w.pair(i, j); !p.broken {
		w.wires[i][j].messages = append(w.wires[i][j].messages, m)
	}
}

// deliver has rank j poll: some messages from anybody, at once.
func (w *world) deliver(j int) error {
	r := w.ranks[j]
	if r.blocked != nil {
		return w.retry(j)
	}
	var replies [8]int
	owed, taken := 0, 0
	for range 1 + w.rng.IntN(4) {
		i := w.rng.IntN(len(w.ranks))
		if i == j || len(w.wires[i][j].messages) == 0 {
			continue
		}
		p, end := w.pair(j, i)
		if !p.open[end] {
			continue
		}
		m := w.wires[i][j].messages[0]
		w.wires[i][j].messages = w.wires[i][j].messages[1:]
		taken++
		if r.posted--; r.posted < 0 {
			return fmt.Errorf("rank %d: a message of rank %d met no buffer", j, i)
		}
		if err := w.arrived(j, i, p.epoch, &m); err != nil {
			return err
		}
		if m.answered {
			replies[owed] = i
			owed++
		}
	}
	if w.fault == handlersBeforeSpares {
		if err := r.pool.BeforeHandlers(); err != nil {
			return err
		}
	}
	if err := r.pool.Reposted(taken, w.now); err != nil {
		return err
	}
	if w.fault == spareLate {
		r.owed += taken
	} else {
		r.posted += taken
	}
	if err := r.pool.BeforeHandlers(); err != nil {
		return err
	}
	for _, i := range replies[:owed] {
		if err := w.reply(j, i); err != nil {
			return err
		}
	}
	return w.check(j)
}

func (w *world) arrived(j, i int, epoch uint32, m *message) error {
	r := w.ranks[j]
	var err error
	if m.reply {
		err = r.pool.ReplyArrived(i, epoch)
	} else {
		err = r.pool.Arrived(i, epoch, w.now)
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", j, err)
	}
	return w.apply(j, i, m.header[:m.size])
}

func (w *world) apply(j, i int, header []byte) error {
	r := w.ranks[j]
	var h Header
	if n, err := h.Decode(header); err != nil || n != len(header) {
		return fmt.Errorf("decoded %d of %d bytes: %v", n, len(header), err)
	}
	if epoch := r.senders[i].Epoch(); w.fault == epochUnchecked && epoch != 0 {
		h.Epoch = uint16(epoch)
	}
	if err := r.pool.Apply(i, &h, w.now); err != nil {
		return fmt.Errorf("rank %d: %w", j, err)
	}
	if err := r.senders[i].Apply(&h, w.now); err != nil {
		return fmt.Errorf("rank %d: %w", j, err)
	}
	return nil
}

// reply is what a handler sends.
func (w *world) reply(j, i int) error {
	r := w.ranks[j]
	if w.fault == replyTakesCredit && r.senders[i].Epoch() != 0 {
		r.blocked = &op{to: i, epoch: r.senders[i].Epoch()}
		return w.retry(j)
	}
	w.emit(j, i, message{reply: true})
	return nil
}

// retry is a handler that waits for a credit, without a poll meanwhile.
func (w *world) retry(j int) error {
	r := w.ranks[j]
	o := *r.blocked
	if r.senders[o.to].Epoch() != o.epoch {
		r.blocked = nil
	} else if _, err := r.senders[o.to].Take(w.now); err == nil {
		r.blocked = nil
		w.emit(j, o.to, message{}) // it counts as a message that took a credit; the reply is never sent
	}
	return nil
}

// controls has rank i send the control messages that are due.
func (w *world) controls(i int) {
	r := w.ranks[i]
	r.posted, r.owed = r.posted+r.owed, 0
	for {
		j, ok := r.pool.NextControl()
		if !ok {
			break
		}
		w.control(i, j)
		if w.fault == recallForgotten {
			if a := r.pool.account(j); a.recalling() {
				n := a.held()
				a.granted -= uint32(n)
				r.pool.held -= n
				r.pool.free += n
				r.pool.emptied(a)
			}
		}
	}
	for j, s := range r.senders {
		if s != nil && s.Asks(w.now) {
			w.control(i, j)
		}
	}
}

func (w *world) control(i, j int) {
	var h Header
	w.ranks[i].pool.Fill(j, &h, w.now)
	w.ranks[i].senders[j].FillControl(&h, w.now)
	var c control
	c.size = h.Encode(c.header[:])
	l := w.wires[i][j]
	if !w.calm && (w.chance(6) || len(l.controls) == 8) {
		return // lost
	}
	l.controls = append(l.controls, c)
}

func (w *world) deliverControl(i, j int) error {
	l := w.wires[i][j]
	if len(l.controls) == 0 || w.ranks[j].blocked != nil {
		return nil
	}
	k := w.rng.IntN(len(l.controls))
	c := l.controls[k]
	if w.calm || !w.chance(8) { // else it comes again
		l.controls = append(l.controls[:k], l.controls[k+1:]...)
	}
	if err := w.apply(j, i, c.header[:c.size]); err != nil {
		return err
	}
	return w.check(j)
}

// connection breaks, ends and makes connections; each end learns it in its own time.
func (w *world) connection(i, j int) error {
	p, end := w.pair(i, j)
	switch {
	case !p.broken && p.open[end]:
		if w.chance(16) {
			p.broken = true
			w.wires[i][j].messages, w.wires[j][i].messages = nil, nil
		}
		return nil
	case p.broken && p.open[end]:
		p.open[end] = false
		return w.close(i, j)
	case p.broken && p.open[1-end]:
		return nil
	case p.broken:
		p.broken = false
		p.epoch++
	}
	return w.open(i, j)
}

// heal makes a connection that both ends take for open.
func (w *world) heal(i, j int) error {
	p, end := w.pair(i, j)
	for k, rank := range [2]int{i, j} {
		e := (end + k) % 2
		if p.broken && p.open[e] {
			p.open[e] = false
			if err := w.close(rank, i+j-rank); err != nil {
				return err
			}
		}
	}
	if p.broken {
		p.broken = false
		p.epoch++
	}
	for k, rank := range [2]int{i, j} {
		if !p.open[(end+k)%2] {
			if err := w.open(rank, i+j-rank); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) open(i, j int) error {
	p, end := w.pair(i, j)
	p.open[end] = true
	r := w.ranks[i]
	// Totals begin shortly before they wrap around.
	if err := r.pool.openAt(j, p.epoch, origin(j, i, p.epoch), w.now); err != nil {
		return err
	}
	return errors.Join(r.senders[j].openAt(p.epoch, origin(i, j, p.epoch)), w.check(i))
}

func origin(from, to int, epoch uint32) uint32 { return -uint32(from*7+to*3+1) - epoch%16 }

func (w *world) close(i, j int) error {
	r := w.ranks[i]
	credits, _ := r.pool.Close(j, w.now)
	if w.fault == doubleReturn {
		r.pool.free += credits
	}
	if c, n := r.pool.Close(j, w.now); c != 0 || n != 0 {
		return fmt.Errorf("rank %d: a second Close of rank %d gave %d credits and %d replies", i, j, c, n)
	}
	r.senders[j].Close()
	if n := r.senders[j].Close(); n != 0 {
		return fmt.Errorf("rank %d: a second Close of the sender to rank %d gave %d credits", i, j, n)
	}
	return w.check(i)
}
