package sim

// datagram is a note, or a part of a handshake, on its way.
type datagram struct {
	w        *World
	timer    timer
	kind     datagramKind
	from, to int32
	endpoint int32
	n        int32
	ticket   uint64
	data     [maxNote]byte
}

type datagramKind uint8

const (
	note    datagramKind = iota
	request              // connect with me
	reply                // I will
	rtu                  // ready to use: your reply came
	later                // that endpoint is not open yet
)

// datagram sends one, perhaps two, perhaps none.
func (p *endpoint) datagram(kind datagramKind, to int32, ticket uint64, data []byte) {
	w := p.n.r.w
	d := w.newDatagram()
	d.kind, d.from, d.to, d.endpoint, d.ticket = kind, p.n.r.id, to, int32(p.num), ticket
	d.n = int32(copy(d.data[:], data))
	d.launch()
}

// launch sends copies of d, as the configuration has it.
func (d *datagram) launch() {
	w := d.w
	notes := &w.cfg.Notes
	copies := 1
	if w.rng.chance(notes.Dup) {
		copies = 2
	}
	at := w.paths.transit(d.from, d.to, headerBytes+int(d.n))
	for range copies {
		if w.rng.chance(notes.Loss) {
			w.emit(markNoteLost, d.from, d.to, uint64(d.endpoint), uint64(d.kind))
			continue
		}
		c := w.newDatagram()
		c.kind, c.from, c.to, c.endpoint, c.ticket, c.n = d.kind, d.from, d.to, d.endpoint, d.ticket, d.n
		copy(c.data[:], d.data[:d.n])
		w.arm(&c.timer, at+w.rng.upTo(notes.Jitter))
	}
	d.recycle()
}

func (w *World) newDatagram() *datagram {
	if k := len(w.spare); k > 0 {
		d := w.spare[k-1]
		w.spare = w.spare[:k-1]
		return d
	}
	d := &datagram{w: w}
	d.timer.owner = d
	return d
}

func (d *datagram) recycle() {
	scribble(d.data[:d.n])
	d.n = 0
	d.w.spare = append(d.w.spare, d)
}
