package metrics

import (
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
)

// teller gives figures of one network.
type teller struct {
	network string
	prefix  string // of the names
	add     func(Figure)
}

func (t teller) figure(kind Kind, name, help string, v float64, labels ...string) {
	t.add(Figure{Name: t.prefix + name, Help: help, Kind: kind, Value: v,
		Labels: append([]string{"network", t.network}, labels...)})
}

func (t teller) count(name, help string, v uint64) { t.figure(Counter, name, help, float64(v)) }

func (t teller) gauge(name, help string, v int) { t.figure(Gauge, name, help, float64(v)) }

// sample is a counter under one value of its label.
type sample struct {
	labelValue string
	count      uint64
}

func (t teller) counts(name, help, label string, samples ...sample) {
	for _, s := range samples {
		t.figure(Counter, name, help, float64(s.count), label, s.labelValue)
	}
}

// messages are the counters of the program's active messages over one network, library the
// library's own: series of the same names behind the prefix library_.
func messages(network string, s am.Stats, add func(Figure)) { tell(teller{network, "", add}, s) }

func library(network string, s am.Stats, add func(Figure)) {
	tell(teller{network, "library_", add}, s)
}

func tell(t teller, s am.Stats) {
	sentMessages(t, &s)
	arrivedMessages(t, &s)
	largePayloads(t, &s.Large)
	messageProgress(t, &s)
	messageCredits(t, &s.Pool)
	messagePorts(t, &s.Network)
}

// sentMessages are this rank's requests and replies.
func sentMessages(t teller, s *am.Stats) {
	t.counts("message_requests_sent_total", "Requests sent: calls, which want a reply, and posts, which do not.",
		"kind", sample{"call", s.Calls}, sample{"post", s.Posts})
	t.counts("message_calls_ended_total",
		"Calls by how they ended: with a reply, with a failure of the handler, because the rank died or was cut off, "+
			"or because the lane was closed.",
		"how", sample{"reply", s.Replied}, sample{"failure", s.Failed}, sample{"peer_down", s.Dead},
		sample{"closed", s.Ended})
	t.count("message_replies_late_total", "Calls that ended when nobody waited any more.", s.Late)
	t.gauge("message_calls_in_flight", "Calls without a reply so far.", s.CallsInFlight)
	t.count("message_writes_total", "Payloads of Long messages written into segments.", s.Writes)
	t.gauge("message_writes_in_flight", "Payloads of Long messages that the network may still read.", s.WritesInFlight)
	t.gauge("message_sends_prepared", "Send buffers in the program's hands.", s.Prepared)

	t.count("message_replies_wanted_total", "Requests arrived that want a reply.", s.Wanted)
	t.counts("message_replies_total",
		"Replies and failures by where they went: sent, nowhere because the rank died or the lane was closed, "+
			"dropped because nobody wanted them, or too late after they were deferred.",
		"where", sample{"sent", s.Answered}, sample{"nowhere", s.Nowhere}, sample{"unwanted", s.Unwanted},
		sample{"expired", s.Expired})
	t.count("message_replies_queued_total", "Replies that had to wait for a send buffer.", s.Queued)
	t.gauge("message_replies_unsent", "Replies that wait for a send buffer.", s.Unsent)
	t.gauge("message_replies_owed", "Replies not made yet: deferred ones, and those of handlers that run.", s.Owed)
}

// arrivedMessages are what came, and what became of it.
func arrivedMessages(t teller, s *am.Stats) {
	t.counts("message_requests_arrived_total",
		"Requests arrived: handled, or refused because they name what is not there.",
		"result", sample{"handled", s.Handled}, sample{"refused", s.Refused})
	t.count("message_replies_arrived_total", "Replies and failures arrived.", s.Replies)
	t.count("message_local_total", "Requests and replies of the rank to itself, which use no network.", s.Local)
	t.count("message_handler_panics_total", "Handlers that panicked.", s.Panics)
	t.gauge("message_handlers_running", "Handlers that run.", s.Handling)
	t.gauge("message_slots_lent", "Receive buffers that handlers use.", s.Lent)
	t.count("message_copies_total", "Payloads copied because all spare receive buffers were in use.", s.Copies)
	t.counts("message_dropped_total",
		"What was dropped: messages that break the protocol, control messages that do, "+
			"and messages of ranks that are dead or cut off.",
		"reason", sample{"broken", s.Broken}, sample{"broken_control", s.BadNotes}, sample{"peer_closed", s.Ignored})
	t.count("message_peers_closed_total", "Ranks found dead or cut off, counted at each lane.", s.Closed)
}

// largePayloads are those that wait for memory at their receivers.
func largePayloads(t teller, s *am.LargeStats) {
	t.counts("message_large_ended_total",
		"Large payloads of this rank by how they ended: sent, refused by the receiver, withdrawn by this rank, "+
			"or because the rank died or was cut off, or the lane was closed.",
		"how", sample{"sent", s.Sent}, sample{"refused", s.Refused}, sample{"withdrawn", s.Withdrawn},
		sample{"peer_down_or_closed", s.Ended})
	t.gauge("message_large_in_flight", "Large payloads of this rank that are announced.", s.InFlight)
	t.counts("message_large_arrived_total",
		"Large payloads announced to this rank by how they ended: delivered, declined by the receiver, or cancelled.",
		"how", sample{"delivered", s.Delivered}, sample{"declined", s.Declined}, sample{"cancelled", s.Cancelled})
	t.gauge("message_large_held", "Large payloads announced to this rank that have not ended.", s.Held)
	t.count("message_large_granted_total", "Large payloads that were granted memory.", s.Granted)
	t.counts("message_large_steps_total", "Messages about large payloads, those with the data included.",
		"direction", sample{"sent", s.StepsSent}, sample{"arrived", s.StepsArrived})
}

// messageProgress is what waiting and polling did.
func messageProgress(t teller, s *am.Stats) {
	t.counts("message_obstacles_total",
		"Attempts to send that met an obstacle: no credit of the receiver, no buffer for the reply, no send buffer, "+
			"or a full queue of the network.",
		"missing", sample{"credit", s.NoCredit}, sample{"reply_buffer", s.NoReply}, sample{"send_buffer", s.NoBuffer},
		sample{"queue", s.QueueFull})
	t.count("message_waits_total", "Waits for replies, credits and buffers.", s.Waits)
	t.counts("message_sleeps_total",
		"Times that a waiting goroutine slept: parked while another polled, or itself in the network.",
		"where", sample{"parked", s.Parks}, sample{"network", s.Sleeps})
	t.count("message_hand_overs_total", "Times that polling was handed to a goroutine that was parked.", s.HandOvers)
	t.count("message_stalls_total", "Waits that ended because they took too long.", s.Stalls)
	t.count("message_polls_total", "Calls that polled for messages.", s.Polls)
	const control = "Messages of the protocol itself: those about credits, and those to find out whether a rank lives."
	t.counts("message_control_sent_total", control,
		"kind", sample{"credit", s.Controls}, sample{"ping", s.Pings})
	t.counts("message_control_arrived_total", control,
		"kind", sample{"credit", s.Notes}, sample{"ping", s.Pinged})
}

// messageCredits are the books of the receive buffers.
func messageCredits(t teller, s *flow.PoolStats) {
	t.count("message_credits_granted_total", "Credits granted to other ranks.", s.Granted)
	t.counts("message_credits_returned_total", "Credits that came back unused: given back, or of a connection that ended.",
		"how", sample{"returned", s.Returned}, sample{"reclaimed", s.Reclaimed})
	t.count("message_credit_recalls_total", "Times that a rank was asked to give credits back.", s.Recalls)
	t.count("message_credit_recall_repeats_total", "Repetitions of such questions.", s.Retries)
	t.count("message_credit_controls_total", "Control messages that granting and recalling asked for.", s.Controls)
	t.count("message_credit_stale_total", "Headers of connections that are over.", s.Stale)
	t.count("message_credit_violations_total", "Headers and messages that broke the protocol of credits.", s.Violations)
}

// messagePorts are the network's counters for the messages.
func messagePorts(t teller, s *fabric.EndpointStats) {
	t.counts("message_port_messages_total", "Messages that the network carried, replies and pings included.",
		"direction", sample{"sent", s.Sends}, sample{"arrived", s.Arrivals})
	t.counts("message_port_bytes_total", "Their bytes, headers included.",
		"direction", sample{"sent", s.SendBytes}, sample{"arrived", s.ArrivalBytes})
	t.counts("message_port_notes_total", "Unreliable datagrams: sent, arrived, or dropped on arrival.",
		"direction", sample{"sent", s.Notes}, sample{"arrived", s.NotesArrived}, sample{"dropped", s.NotesDropped})
	t.count("message_port_writes_total", "Writes that went in front of messages.", s.Writes)
	t.count("message_port_write_bytes_total", "Their bytes.", s.WriteBytes)
	t.count("message_port_doorbells_total", "Calls that posted messages, or woke their receivers.", s.Doorbells)
	t.count("message_port_polls_total", "Times that the network looked for events.", s.Polls)
	t.counts("message_port_connections_total", "Connections opened, by who asked.",
		"by", sample{"this_rank", s.Connects}, sample{"peer", s.Accepts})
	t.count("message_port_handshakes_total", "Datagrams of connection making, repetitions included.", s.Handshakes)
	t.count("message_port_disconnects_total", "Connections closed because they were idle.", s.Disconnects)
	t.count("message_port_rnr_total",
		"Messages that met no receive buffer. It stays 0; over verbs it counts those of the whole device port.", s.RNR)
	t.gauge("message_port_slots_posted", "Receive buffers that are posted.", s.Posted)
	t.gauge("message_port_sends_free", "Send buffers that are free.", s.FreeSends)
	t.gauge("message_port_unconfirmed",
		"Messages, replies apart, that need no send buffer any more and may not have arrived.", s.Unconfirmed)
}
