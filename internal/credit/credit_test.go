package credit

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// ends are a pool of rank 0 and the sender of rank 1 to it, connected.
type ends struct {
	t      testing.TB
	pool   *Pool
	sender *Sender
	back   *Sender // the sender of rank 0 to rank 1, which fills the other half of headers
	there  *Pool   // rank 1's pool
}

func connect(t testing.TB, cfg PoolConfig) *ends {
	t.Helper()
	if cfg.Peers == 0 {
		cfg.Peers = 2
	}
	e := &ends{t: t, pool: newPool(t, cfg), there: newPool(t, cfg)}
	e.sender, e.back = newSender(t, 0, cfg), newSender(t, 1, cfg)
	if err := errors.Join(e.pool.Open(1, 1, 0), e.there.Open(0, 1, 0), e.sender.Open(1), e.back.Open(1)); err != nil {
		t.Fatal(err)
	}
	return e
}

func newPool(t testing.TB, cfg PoolConfig) *Pool {
	t.Helper()
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if t, ok := t.(*testing.T); ok {
		t.Cleanup(func() {
			if err := p.Check(); err != nil && !t.Failed() {
				t.Error(err)
			}
		})
	}
	return p
}

// openPool is a pool with connections to peers 1 to cfg.Peers-1.
func openPool(t testing.TB, cfg PoolConfig) *Pool {
	t.Helper()
	p := newPool(t, cfg)
	for peer := 1; peer < cfg.Peers; peer++ {
		must(t, p.Open(peer, 1, 0))
	}
	return p
}

// holds compares what a peer holds with what it should.
func holds(t testing.TB, p *Pool, peer, want int) {
	t.Helper()
	if got := p.account(peer).held(); got != want {
		t.Errorf("peer %d holds %d credits, want %d", peer, got, want)
	}
}

func newSender(t testing.TB, peer int, cfg PoolConfig) *Sender {
	t.Helper()
	c, err := NewSenderConfig(cfg.Config, cfg.Credits)
	if err != nil {
		t.Fatal(err)
	}
	return NewSender(peer, c)
}

// fromSender carries a control message from the sender to the pool.
func (e *ends) fromSender(now time.Duration) Header {
	e.t.Helper()
	var h Header
	e.there.Fill(0, &h, now)
	e.sender.FillControl(&h, now)
	must(e.t, e.pool.Apply(1, &h, now))
	must(e.t, e.back.Apply(&h, now))
	return h
}

// fromPool carries a control message from the pool to the sender.
func (e *ends) fromPool(now time.Duration) Header {
	e.t.Helper()
	var h Header
	e.pool.Fill(1, &h, now)
	e.back.FillControl(&h, now)
	must(e.t, e.sender.Apply(&h, now))
	must(e.t, e.there.Apply(0, &h, now))
	return h
}

// send carries one request.
func (e *ends) send(now time.Duration) Header {
	e.t.Helper()
	epoch, err := e.sender.Take(now)
	must(e.t, err)
	var h Header
	e.there.Fill(0, &h, now)
	e.sender.Fill(&h, now)
	must(e.t, e.pool.Arrived(1, epoch, now))
	must(e.t, e.pool.Apply(1, &h, now))
	must(e.t, e.pool.Reposted(1, now))
	must(e.t, e.pool.BeforeHandlers())
	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func violates(t *testing.T, err error, peer int, rule string) {
	t.Helper()
	var v *ViolationError
	if !errors.As(err, &v) || v.Peer != peer || !strings.Contains(v.Error(), rule) {
		t.Errorf("got %v, want that peer %d %s", err, peer, rule)
	}
}

func TestWantGoesBelowHalfAnswerBelowAQuarter(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 64, Config: Config{Initial: 8, Window: 8}})
	e.fromPool(0)
	var wants, answers []int
	for i := 1; i <= 8; i++ {
		h := e.send(0)
		if h.Want != 0 {
			wants = append(wants, i)
		}
		if h.Answer {
			answers = append(answers, i)
		}
		if _, ok := e.pool.NextControl(); ok != h.Answer && len(answers) < 2 && i < 7 {
			t.Errorf("after message %d, which asks %v, a control message is due: %v", i, h.Answer, ok)
		}
	}
	if len(wants) != 5 || wants[0] != 4 || len(answers) != 1 || answers[0] != 6 {
		t.Errorf("wishes on messages %v, answers wanted on %v: want from 4 (half of 8 left) and once on 6 (a quarter)", wants, answers)
	}
	if _, err := e.sender.Take(0); !errors.Is(err, ErrNoCredit) {
		t.Errorf("the ninth of eight credits: %v", err)
	}
	e.fromPool(0)
	if e.sender.Balance() == 0 {
		t.Error("the answer brought nothing")
	}
}

func TestDrySenderAsksAtOnceThenBacksOff(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 8, Config: Config{Initial: -1, Retry: 10}})
	if e.sender.Asks(0) {
		t.Error("asks though nobody wants to send")
	}
	if _, err := e.sender.Take(5); !errors.Is(err, ErrNoCredit) {
		t.Fatalf("Take: %v", err)
	}
	var asked []time.Duration
	for now := time.Duration(5); now < 1000; now++ {
		if e.sender.Asks(now) {
			asked = append(asked, now)
			var h Header
			e.sender.FillControl(&h, now) // and it is lost
			if !h.Answer || h.Want == 0 {
				t.Fatalf("question %+v", h)
			}
		}
	}
	// 10 << 1 after the first, doubling up to 10 << 5.
	want := []time.Duration{5, 25, 65, 145, 305, 625, 945}
	if len(asked) != len(want) || asked[6] != want[6] || asked[1] != want[1] {
		t.Errorf("asked at %v, want %v", asked, want)
	}
	var no *NoCreditError
	if err := e.sender.Explain(1000); !errors.As(err, &no) || !errors.Is(err, ErrNoCredit) || no.For != 995 || no.Asked != 55 || no.Asks != 7 {
		t.Errorf("explained as %+v (%v)", no, err)
	}
	e.fromSender(1000)
	e.fromPool(1000)
	if e.sender.Balance() == 0 || e.sender.Asks(1e9) {
		t.Errorf("after the answer the balance is %d, asks %v", e.sender.Balance(), e.sender.Asks(1e9))
	}
}

// Both ends are dry and ask for answers. If each answer asked again, they would go on at
// the speed of the wire.
func TestTwoDryEndsStopAnsweringEachOther(t *testing.T) {
	e := connect(t, PoolConfig{Peers: 3, Credits: 1, Config: Config{Initial: -1, Retry: 1000}})
	for _, p := range []*Pool{e.pool, e.there} { // another rank has the only credit
		must(t, p.Open(2, 1, 0))
		must(t, p.Apply(2, &Header{Epoch: 1, Want: 1}, 0))
	}
	e.sender.Take(0)
	e.back.Take(0)
	e.fromSender(0)
	e.fromPool(0)
	for range 10 {
		_, here := e.pool.NextControl()
		_, there := e.there.NextControl()
		if !here && !there && !e.sender.Asks(0) && !e.back.Asks(0) {
			return
		}
		e.fromSender(0)
		e.fromPool(0)
	}
	t.Error("there is always something more to say")
}

func TestLostRepeatedAndLateHeadersChangeNothing(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 16, Config: Config{Initial: 4, Window: 8}})
	var first, second Header
	e.pool.Fill(1, &first, 0)
	must(t, e.pool.Apply(1, &Header{Epoch: 1, Want: 8}, 0))
	e.pool.Fill(1, &second, 0)
	for i, h := range []Header{second, first, second, second, first} {
		must(t, e.sender.Apply(&h, 0))
		if e.sender.Balance() != 8 {
			t.Fatalf("balance %d after header %d, want 8", e.sender.Balance(), i)
		}
	}
	// A return that arrives twice, and once more after it was granted again.
	e.pool.recall(e.pool.account(1), 3, 0)
	e.fromPool(0)
	var back, old Header
	old = Header{Epoch: 1}
	e.sender.FillControl(&back, 0)
	for _, h := range []Header{back, old, back} {
		must(t, e.pool.Apply(1, &h, 0))
	}
	if a := e.pool.account(1); a.held() != 5 || a.recalling() {
		t.Errorf("the pool thinks that %d are held, want 5", a.held())
	}
	must(t, Reconcile(e.pool.Account(1), e.sender.Account(), 0))
}

func TestCreditIsGrantedAfterItsBufferIsPosted(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 1, Config: Config{Initial: 1}})
	e.fromPool(0)
	epoch, err := e.sender.Take(0)
	must(t, err)
	must(t, e.pool.Arrived(1, epoch, 0))
	must(t, e.pool.Apply(1, &Header{Epoch: 1, Want: 1, Answer: true}, 0))
	holds(t, e.pool, 1, 0)
	var missing *NotPostedError
	if err := e.pool.BeforeHandlers(); !errors.As(err, &missing) || missing.Buffers != 1 {
		t.Errorf("handlers may run: %v", err)
	}
	must(t, e.pool.Reposted(1, 0))
	must(t, e.pool.BeforeHandlers())
	holds(t, e.pool, 1, 1)
	if e.pool.Reposted(1, 0) == nil {
		t.Error("a buffer that no message took counted as posted again")
	}
}

func TestReplyBuffersBoundUnansweredRequests(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 4, Replies: 2})
	epoch, err := e.pool.ReserveReply(1)
	must(t, err)
	_, err = e.pool.ReserveReply(1)
	must(t, err)
	if _, err := e.pool.ReserveReply(1); !errors.Is(err, ErrNoReply) {
		t.Errorf("a third of two: %v", err)
	}
	must(t, e.pool.ReplyArrived(1, 1))
	if _, err := e.pool.ReserveReply(1); !errors.Is(err, ErrNoReply) {
		t.Errorf("reserved before its buffer was posted again: %v", err)
	}
	must(t, e.pool.Reposted(1, 0))
	if !e.pool.CancelReply(1, epoch) {
		t.Error("not cancelled")
	}
	violates(t, e.pool.ReplyArrived(1, 1), 1, "sent a reply to no request")
	must(t, e.pool.Reposted(1, 0))
	if e.pool.replies.free != 2 {
		t.Errorf("%d reply buffers free at the end, want 2", e.pool.replies.free)
	}
}

func TestAPeersDeathReturnsEverythingOnce(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 8, Replies: 2, Config: Config{Initial: 4}})
	e.fromPool(0)
	epoch, err := e.sender.Take(0)
	must(t, err)
	replyEpoch, err := e.pool.ReserveReply(1)
	must(t, err)
	if credits, replies := e.pool.Close(1, 0); credits != 4 || replies != 1 {
		t.Errorf("%d credits and %d replies came back, want 4 and 1", credits, replies)
	}
	if credits, replies := e.pool.Close(1, 0); credits != 0 || replies != 0 {
		t.Errorf("a second time %d and %d", credits, replies)
	}
	if n := e.sender.Close(); n != 3 || e.sender.Close() != 0 {
		t.Errorf("%d unused credits ended, want 3, once", n)
	}
	if e.sender.Cancel(epoch) || e.pool.CancelReply(1, replyEpoch) {
		t.Error("cancelled after the end")
	}
	if _, err := e.sender.Take(0); !errors.Is(err, ErrNotOpen) {
		t.Errorf("Take: %v", err)
	}
	// The next connection owes nothing to the last.
	must(t, errors.Join(e.pool.Open(1, 2, 0), e.sender.Open(2)))
	if e.sender.Cancel(epoch) || e.pool.CancelReply(1, replyEpoch) || e.sender.Balance() != 0 {
		t.Error("something of connection 1 counts in connection 2")
	}
	if err := e.pool.Arrived(1, 1, 0); !errors.Is(err, ErrStale) {
		t.Errorf("message of connection 1: %v", err)
	}
	must(t, e.pool.Apply(1, &Header{Epoch: 1, Want: 8, Extended: true, Returned: 4}, 0))
	must(t, e.sender.Apply(&Header{Epoch: 1, Granted: 8}, 0))
	if e.sender.Balance() != 0 || e.pool.account(1).held() != 4 {
		t.Error("headers of connection 1 were believed")
	}
	if p, s := e.pool.Stats().Stale, e.sender.Stats().Stale; p != 2 || s != 1 {
		t.Errorf("stale counted %d and %d times, want 2 and 1", p, s)
	}
	must(t, e.pool.Reposted(1, 0))
	if e.pool.Open(1, 2, 0) == nil || e.sender.Open(2) == nil || e.sender.Open(1) == nil {
		t.Error("a number was used twice")
	}
}

func TestConfigurationsAreChecked(t *testing.T) {
	for _, c := range []PoolConfig{
		{}, {Peers: 1}, {Credits: 1}, {Peers: 1, Credits: -1}, {Peers: 1, Credits: 1 << 31}, {Peers: 1, Credits: 1, Replies: -1},
		{Peers: 1, Credits: 1, Config: Config{Window: MaxWindow + 1}}, {Peers: 1, Credits: 1, Config: Config{Window: -1}},
		{Peers: 1, Credits: 9, Config: Config{Window: 2, Initial: 3}}, {Peers: 1, Credits: 9, Config: Config{Initial: -2}},
		{Peers: 1, Credits: 9, Config: Config{Retry: -1}}, {Peers: 1, Credits: 9, Config: Config{RecallAfter: -1}},
	} {
		if _, err := NewPool(c); err == nil || !strings.HasPrefix(err.Error(), "credit: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	p := newPool(t, PoolConfig{Peers: 1, Credits: 1000})
	if c := p.cfg; c.Window != 64 || c.Initial != 2 || c.RecallAfter != time.Millisecond || c.Retry != 4*time.Millisecond {
		t.Errorf("defaults %+v", c)
	}
}

// Memory must not grow with peers that a rank has no connection to.
func TestPeerWithoutConnectionCostsNothing(t *testing.T) {
	const peers = 1 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := newPool(t, PoolConfig{Peers: peers, Credits: 1})
	must(t, p.Open(peers-1, 1, 0))
	must(t, p.Check())
	runtime.ReadMemStats(&after)
	if n := float64(after.TotalAlloc-before.TotalAlloc) / peers; n > 0.5 {
		t.Errorf("%.2f bytes for each of %d", n, peers)
	}
	if n := unsafe.Sizeof(entry{}); n > 16 {
		t.Errorf("one without a connection costs %d bytes in a page that others use", n)
	}
	if n := unsafe.Sizeof(account{}) + unsafe.Sizeof(Sender{}); n > 320 {
		t.Errorf("a connected one costs %d", n)
	}
}

func TestMessagesAllocateNothing(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 4, Replies: 4})
	e.fromPool(0)
	var wire [ExtendedSize]byte
	if n := testing.AllocsPerRun(1000, func() { roundTrip(e, &wire) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	e.pool.Close(1, 0)
	e.sender.Close()
	must(t, e.sender.Open(2))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.sender.Take(0); err == nil {
			t.Fatal("a credit from nowhere")
		}
	}); n != 0 {
		t.Errorf("%v allocations without credit", n)
	}
}

// roundTrip is a request and its reply, with all that both ends do about credits.
func roundTrip(e *ends, wire *[ExtendedSize]byte) {
	epoch, err := e.sender.Take(0)
	if err != nil {
		e.t.Fatal(err)
	}
	_, err = e.there.ReserveReply(0)
	var h, got Header
	e.there.Fill(0, &h, 0)
	e.sender.Fill(&h, 0)
	n := h.Encode(wire[:])
	_, err2 := got.Decode(wire[:n])
	err3 := e.pool.Arrived(1, epoch, 0)
	if err != nil || err2 != nil || err3 != nil || e.pool.Apply(1, &got, 0) != nil || e.back.Apply(&got, 0) != nil || e.pool.Reposted(1, 0) != nil || e.pool.BeforeHandlers() != nil {
		e.t.Fatal("request")
	}
	var r Header
	e.pool.Fill(1, &r, 0)
	e.back.Fill(&r, 0)
	n = r.Encode(wire[:])
	_, err = got.Decode(wire[:n])
	if err != nil || e.there.ReplyArrived(0, epoch) != nil || e.there.Apply(0, &got, 0) != nil || e.sender.Apply(&got, 0) != nil || e.there.Reposted(1, 0) != nil {
		e.t.Fatal("reply")
	}
}

func BenchmarkTake(b *testing.B) {
	e := connect(b, PoolConfig{Credits: 4})
	e.fromPool(0)
	b.ReportAllocs()
	for b.Loop() {
		epoch, _ := e.sender.Take(0)
		e.sender.Cancel(epoch)
	}
}

// One message at its receiver: arrival, want, repost, grant.
func BenchmarkArrived(b *testing.B) {
	p := newPool(b, PoolConfig{Peers: 2, Credits: 64})
	must(b, p.Open(1, 1, 0))
	h := Header{Epoch: 1, Want: 32}
	must(b, p.Apply(1, &h, 0))
	b.ReportAllocs()
	for b.Loop() {
		if p.Arrived(1, 1, 0) != nil || p.Apply(1, &h, 0) != nil || p.Reposted(1, 0) != nil {
			b.Fatal("refused")
		}
	}
}

// The same when 1000 peers share 64 credits, each arrival from the next in turn.
func BenchmarkArrivedOfMany(b *testing.B) {
	const peers = 1000
	p := newPool(b, PoolConfig{Peers: peers, Credits: 64, Config: Config{Initial: -1, RecallAfter: time.Hour}})
	h := Header{Epoch: 1, Want: 8}
	for i := range peers {
		must(b, errors.Join(p.Open(i, 1, 0), p.Apply(i, &h, 0)))
	}
	b.ReportAllocs()
	for b.Loop() {
		i := int(p.holders.First().peer)
		if p.Arrived(i, 1, 0) != nil || p.Apply(i, &h, 0) != nil || p.Reposted(1, 0) != nil {
			b.Fatal("refused")
		}
	}
}

func BenchmarkRequestAndReply(b *testing.B) {
	e := connect(b, PoolConfig{Credits: 4, Replies: 4})
	e.fromPool(0)
	var wire [ExtendedSize]byte
	b.ReportAllocs()
	for b.Loop() {
		roundTrip(e, &wire)
	}
}
