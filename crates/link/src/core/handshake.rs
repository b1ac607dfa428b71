//! The begin and the end of a carrier.

use std::time::Instant;

use bytes::Bytes;
use content::RangeSet;

use crate::core::carrier::Carrier;
use crate::core::credit::{ReceiveCredit, SendCredit};
use crate::core::incoming_stream::{IncomingStream, StreamAnswer};
use crate::core::link_core::{LinkCore, LinkEvent, Shutdown};
use crate::error_code::ProtocolError;
use crate::message::MessageId;
use crate::priority::{LANES, Priority};
use crate::wire::control::StreamKind;
use crate::wire::handshake::{
    Credentials, Hello, InitialCredit, LaneState, Limits, MAX_STREAM_STATE_RANGES,
    MAX_STREAM_STATES, StreamState, VERSION, Welcome,
};
use crate::wire::header::FrameType;

impl LinkCore {
    /// Begins a carrier at the connecting end.
    pub fn connect(&mut self, credentials: Credentials, now: Instant) {
        self.disconnect();
        let hello = Hello {
            min_version: VERSION,
            max_version: VERSION,
            link_id: self.id,
            limits: self.config.limits,
            credit: self.initial_credit(),
            lanes: self.lane_states(),
            credentials,
            streams: self.stream_states(),
            client_id: self.config.client_id.clone(),
        };
        let mut payload = Vec::new();
        hello.encode(&mut payload);
        let mut carrier = self.new_carrier(now);
        carrier
            .control
            .push(FrameType::Hello, 0, 0, &payload, Bytes::new());
        // Its answer is the first measurement of the round trip.
        carrier.ping = Some((0, now));
        self.carrier = Some(carrier);
    }

    /// Begins a carrier at the accepting end. `is_known` says whether this is the state of the link that HELLO names,
    /// and not a new one.
    pub fn accept(&mut self, hello: &Hello, is_known: bool, now: Instant) {
        self.disconnect();
        let mut peer_lanes = hello.lanes.clone();
        if !is_known {
            for (lane, peer) in self.lanes_in.iter_mut().zip(&mut peer_lanes) {
                lane.reset(peer.first);
                // They are numbers of the state that was lost.
                peer.received = RangeSet::new();
            }
        }
        let welcome = Welcome {
            version: VERSION,
            is_resumed: is_known,
            limits: self.config.limits,
            credit: self.initial_credit(),
            lanes: self.lane_states(),
            streams: self.stream_states(),
        };
        let mut payload = Vec::new();
        welcome.encode(&mut payload);
        let mut carrier = self.new_carrier(now);
        carrier
            .control
            .push(FrameType::Welcome, 0, 0, &payload, Bytes::new());
        self.carrier = Some(carrier);
        // Those of a state that was lost are of no use.
        let streams = if is_known { &hello.streams[..] } else { &[] };
        self.begin(hello.limits, hello.credit, &peer_lanes, streams, now);
        self.events.push_back(LinkEvent::Connected {
            is_resumed: is_known,
        });
        self.has_connected = true;
    }

    pub(crate) fn handle_welcome(
        &mut self,
        welcome: &Welcome,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let carrier = self.carrier.as_mut();
        let Some(carrier) = carrier.filter(|carrier| carrier.peer.is_none()) else {
            return Err(ProtocolError::violation("a second WELCOME"));
        };
        if let Some((_, sent)) = carrier.ping.take() {
            self.chunk_size
                .record_round_trip(now.saturating_duration_since(sent));
        }
        if self.has_connected && !welcome.is_resumed {
            for (lane, peer) in self.lanes_in.iter_mut().zip(&welcome.lanes) {
                lane.reset(peer.first);
            }
            // Reading them reports the end.
            for stream in std::mem::take(&mut self.streams_in).into_values() {
                self.release_buffered(stream.open.kind, stream.buffered_bytes());
            }
            self.events.push_back(LinkEvent::PeerStateLost);
        }
        let (limits, credit) = (welcome.limits, welcome.credit);
        self.begin(limits, credit, &welcome.lanes, &welcome.streams, now);
        self.events.push_back(LinkEvent::Connected {
            is_resumed: self.has_connected && welcome.is_resumed,
        });
        self.has_connected = true;
        Ok(())
    }

    fn begin(
        &mut self,
        peer: Limits,
        credit: InitialCredit,
        lanes: &[LaneState; LANES],
        streams: &[StreamState],
        now: Instant,
    ) {
        let Some(carrier) = &mut self.carrier else {
            return;
        };
        carrier.peer = Some(peer);
        carrier.send_messages = SendCredit::new(credit.message_bytes);
        carrier.send_data = SendCredit::new(credit.data_bytes);
        for (priority, lane) in Priority::ALL.into_iter().zip(lanes) {
            self.lanes_out[priority.index()].begin_carrier(lane.received.clone());
            self.lanes_in[priority.index()].begin_carrier(lane.first);
        }
        for stream in self.streams_out.values_mut() {
            stream.begin_carrier();
        }
        for state in streams {
            let id = MessageId {
                priority: state.priority,
                number: state.number,
            };
            if let Some(stream) = self.streams_out.get_mut(&id) {
                stream.continue_at(state.credit, &state.received);
            }
        }
        self.clear_queues();
        for (id, stream) in &self.streams_out {
            if lanes[id.priority.index()].received.contains(id.number) {
                // The peer has all of it and will acknowledge it.
                continue;
            }
            let queue = if stream.failure().is_some() {
                &mut self.cancelled
            } else {
                match stream.kind() {
                    StreamKind::Message => &mut self.large_messages[id.priority.index()],
                    StreamKind::Stream => &mut self.streams[id.priority.index()],
                }
            };
            queue.push_back(*id);
        }
        for queue in self.large_messages.iter_mut().chain(&mut self.streams) {
            queue.make_contiguous().sort();
        }
        self.schedule_ack(now);
    }

    fn clear_queues(&mut self) {
        for queue in self.large_messages.iter_mut().chain(&mut self.streams) {
            queue.clear();
        }
        self.cancelled.clear();
    }

    fn new_carrier(&mut self, now: Instant) -> Carrier {
        self.statistics.carriers += 1;
        let mut carrier = Carrier::new(now);
        let limits = self.config.limits;
        carrier.receive_messages =
            ReceiveCredit::new(limits.message_window_bytes, self.occupied_message_bytes);
        carrier.receive_data =
            ReceiveCredit::new(limits.data_window_bytes, self.occupied_data_bytes);
        carrier
    }

    fn initial_credit(&self) -> InitialCredit {
        let limits = self.config.limits;
        let free = |window: u64, occupied: u64| window.saturating_sub(occupied);
        InitialCredit {
            message_bytes: free(limits.message_window_bytes, self.occupied_message_bytes),
            data_bytes: free(limits.data_window_bytes, self.occupied_data_bytes),
        }
    }

    /// The streams that the peer can continue without an answer to OPEN.
    fn stream_states(&self) -> Vec<StreamState> {
        let window = self.config.limits.stream_window_bytes;
        let streams = self.streams_in.iter();
        let can_continue = streams.filter(|(_, stream)| {
            stream.open.kind == StreamKind::Stream
                && stream.answer == StreamAnswer::Accepted
                && !stream.is_cancelled()
                && stream.received().range_count() <= MAX_STREAM_STATE_RANGES
        });
        let state = |(id, stream): (&MessageId, &IncomingStream)| StreamState {
            priority: id.priority,
            number: id.number,
            credit: window.saturating_sub(stream.buffered_bytes()),
            received: stream.received().clone(),
        };
        can_continue.take(MAX_STREAM_STATES).map(state).collect()
    }

    fn lane_states(&self) -> [LaneState; LANES] {
        Priority::ALL.map(|priority| LaneState {
            first: self.lanes_out[priority.index()].first(),
            received: self.lanes_in[priority.index()].received().clone(),
        })
    }

    /// The carrier is gone, or will be abandoned.
    pub fn disconnect(&mut self) {
        self.carrier = None;
        for stream in self.streams_in.values_mut() {
            stream.end_carrier();
        }
        self.clear_queues();
        self.changed_in.clear();
        // An end that has finished says so again on the next carrier.
        if self.peer_shutdown != Shutdown::No && !self.is_closed() {
            self.peer_shutdown = Shutdown::Requested;
        }
        if self.shutdown == Shutdown::Closed && !self.is_closed() {
            self.shutdown = Shutdown::Requested;
        }
    }
}
