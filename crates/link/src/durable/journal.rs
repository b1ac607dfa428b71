//! The interface of a journal, which makes a link survive the end of the process.

use std::io;

use bytes::Bytes;
use content::RangeSet;

use crate::core::LinkStateRecord;
use crate::message::MessageId;
use crate::priority::Priority;
use crate::wire::handshake::LinkId;

/// What a journal knows when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalContent {
    pub link_id: LinkId,
    /// For [`LinkCore::restore`](crate::core::LinkCore::restore).
    pub state: LinkStateRecord,
    /// Received messages that the application has not processed, in the order of their arrival.
    pub unprocessed: Vec<(MessageId, Bytes)>,
}

/// Stores the messages of one link. Records are durable after [`sync`](Self::sync).
///
/// [`connect_with_journal`](crate::net::connect_with_journal) and
/// [`LinkListener::with_journals`](crate::net::LinkListener::with_journals) use one as follows.
///
/// With [`AckPolicy::OnConfirmation`](crate::config::AckPolicy), messages are delivered exactly once, also if either process
/// is killed, when the caller keeps to this order:
/// 1. Sending: `LinkCore::send`, `record_sent`, `sync`; then the message counts as accepted. Nothing is transmitted
///    before. The same holds for `open_stream` and `record_opened`: a number that is not recorded would be used again.
/// 2. Receiving: `LinkCore::next_message`, `record_received`, `sync`, `LinkCore::acknowledge`.
/// 3. Processing: the application processes the message, then `record_processed` and `sync`. If the process is killed
///    between the two, the message is in `unprocessed` after the restart; an application that must not process it twice
///    stores its id together with the effect.
/// 4. For [`LinkEvent::Acknowledged`](crate::core::LinkEvent): `record_acknowledged`, without haste.
pub trait Journal {
    /// A message was accepted for sending.
    fn record_sent(&mut self, id: MessageId, payload: &Bytes) -> io::Result<()>;
    /// A stream was opened. Its content is not recorded: after a restart its number is cancelled, and the application
    /// opens the transfer again.
    fn record_opened(&mut self, id: MessageId) -> io::Result<()>;
    /// The peer has acknowledged messages.
    fn record_acknowledged(&mut self, priority: Priority, numbers: &RangeSet) -> io::Result<()>;
    /// A message has arrived.
    fn record_received(&mut self, id: MessageId, payload: &Bytes) -> io::Result<()>;
    /// The application has processed a received message.
    fn record_processed(&mut self, id: MessageId) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}
