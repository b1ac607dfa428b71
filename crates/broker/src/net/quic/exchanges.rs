//! What the client has sent and the session has not answered: packet identifiers of streams, and those of the session
//! instead of them.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::stream_number::{CONTROL_STREAM, StreamNumber};

/// Packet identifiers of the session for packets of data streams. Clients count from 1, so those of the control stream
/// rarely have to be replaced.
const DATA_STREAM_IDS: std::ops::RangeInclusive<u16> = 0x8000..=0xffff;
/// Bytes of filters whose SUBSCRIBE or UNSUBSCRIBE is not answered.
const MAX_FILTER_BYTES: usize = 1 << 20;

/// What the client has sent and the session has not answered completely.
pub(super) struct Exchange {
    /// `None`: the multiplexer has sent it for a stream that is closed.
    pub(super) stream: Option<StreamNumber>,
    /// The packet identifier of the stream.
    pub(super) client_id: u16,
    pub(super) kind: ExchangeKind,
    /// The answer to a PUBREL that came before the first use of the identifier is still to come.
    pub(super) expects_release: bool,
}

pub(super) enum ExchangeKind {
    /// PUBLISH of QoS 1.
    Publish,
    /// PUBLISH of QoS 2, and whether PUBREL was sent.
    PublishOnce {
        is_released: bool,
    },
    /// The filters of a data stream.
    Subscribe(Vec<Box<str>>),
    Unsubscribe(Vec<Box<str>>),
}

impl ExchangeKind {
    fn filter_bytes(&self) -> usize {
        match self {
            Self::Subscribe(filters) | Self::Unsubscribe(filters) => {
                let sizes = filters.iter().map(|filter| filter.len());
                sizes.sum::<usize>() + filters.len() * size_of::<Box<str>>()
            }
            Self::Publish | Self::PublishOnce { .. } => 0,
        }
    }
}

pub(super) struct Exchanges {
    /// By packet identifier of the session.
    by_id: HashMap<u16, Exchange, RandomState>,
    session_ids: HashMap<(StreamNumber, u16), u16, RandomState>,
    /// Bytes of all filters.
    filter_bytes: usize,
    next_id: u16,
    /// No identifier of data streams has been used twice.
    is_first_pass: bool,
}

impl Exchanges {
    pub(super) fn new() -> Self {
        Self {
            by_id: HashMap::default(),
            session_ids: HashMap::default(),
            filter_bytes: 0,
            next_id: *DATA_STREAM_IDS.end(),
            is_first_pass: true,
        }
    }

    /// Whether each identifier of data streams is used for the first time.
    pub(super) fn is_first_pass(&self) -> bool {
        self.is_first_pass
    }

    /// The session's identifier for one of a stream, and whether it is new. `None`: too much waits for an answer.
    pub(super) fn begin(
        &mut self,
        stream: StreamNumber,
        client_id: u16,
        kind: ExchangeKind,
    ) -> Option<(u16, bool)> {
        if let Some(id) = self.session_ids.get(&(stream, client_id)) {
            return Some((*id, false));
        }
        if self.filter_bytes + kind.filter_bytes() > MAX_FILTER_BYTES {
            return None;
        }
        let is_control = stream == CONTROL_STREAM;
        let id = match is_control && !self.by_id.contains_key(&client_id) {
            true => client_id,
            false => self.free_id()?,
        };
        self.session_ids.insert((stream, client_id), id);
        self.filter_bytes += kind.filter_bytes();
        let exchange = Exchange {
            stream: Some(stream),
            client_id,
            kind,
            expects_release: false,
        };
        self.by_id.insert(id, exchange);
        Some((id, true))
    }

    /// An identifier for an UNSUBSCRIBE of the multiplexer itself.
    pub(super) fn begin_unsubscribe(&mut self) -> Option<u16> {
        let id = self.free_id()?;
        let exchange = Exchange {
            stream: None,
            client_id: 0,
            kind: ExchangeKind::Unsubscribe(Vec::new()),
            expects_release: false,
        };
        self.by_id.insert(id, exchange);
        Some(id)
    }

    pub(super) fn get_mut(&mut self, id: u16) -> Option<&mut Exchange> {
        self.by_id.get_mut(&id)
    }

    /// Ends the exchange of this identifier of the session.
    pub(super) fn end(&mut self, id: u16) -> Option<Exchange> {
        let exchange = self.by_id.remove(&id)?;
        self.filter_bytes -= exchange.kind.filter_bytes();
        if let Some(stream) = exchange.stream {
            self.session_ids.remove(&(stream, exchange.client_id));
        }
        Some(exchange)
    }

    /// The session's identifier of a PUBLISH that the client now releases.
    pub(super) fn release(&mut self, stream: StreamNumber, client_id: u16) -> Option<u16> {
        let id = *self.session_ids.get(&(stream, client_id))?;
        let exchange = self.by_id.get_mut(&id)?;
        if let ExchangeKind::PublishOnce { is_released } = &mut exchange.kind {
            *is_released = true;
        }
        Some(id)
    }

    /// Releases each PUBLISH of a stream that the client has not released; returns their identifiers.
    pub(super) fn release_all(&mut self, stream: StreamNumber) -> Vec<u16> {
        let exchanges = self.by_id.iter_mut();
        let released = exchanges.filter_map(|(id, exchange)| match &mut exchange.kind {
            ExchangeKind::PublishOnce { is_released } if exchange.stream == Some(stream) => {
                (!std::mem::replace(is_released, true)).then_some(*id)
            }
            _ => None,
        });
        released.collect()
    }

    fn free_id(&mut self) -> Option<u16> {
        for _ in DATA_STREAM_IDS {
            let id = self.next_id;
            self.next_id -= 1;
            if self.next_id < *DATA_STREAM_IDS.start() {
                self.next_id = *DATA_STREAM_IDS.end();
                self.is_first_pass = false;
            }
            if !self.by_id.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }
}
