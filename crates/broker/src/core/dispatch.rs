//! A message that is being delivered to its subscribers.

use std::rc::Rc;

use hooks::MessageView;

use super::cross_shard_batch::MessageId;
use super::message::Message;
use super::relay_peer::RelayFrames;
use super::tables::SessionIx;

/// One message that is being delivered to any number of sessions, with the data they share.
pub(crate) struct Dispatch<'a> {
    pub(crate) view: &'a MessageView<'a>,
    /// The publisher's session, if it is on this shard.
    pub(crate) origin: Option<SessionIx>,
    /// Created for the first session that has to keep the message, shared by all.
    pub(super) message: Option<Rc<Message>>,
    /// A large payload, shared by all.
    pub(super) payload: Option<bytes::Bytes>,
    /// The message must not reach any subscriber twice, even after a crash: its publisher repeats it then.
    pub(super) is_exactly_once: bool,
    /// Its identity, if it goes to other nodes exactly once.
    pub(super) id: Option<MessageId>,
    /// The message is in the journal; each further session only adds a reference.
    pub(super) is_journaled: bool,
    /// Whether more than one session receives it, so that encoding it once saves work.
    pub(super) has_many_sessions: bool,
    /// The QoS 0 packet as encoded for the last subscriber, and its form (version 5 or not, retain flag).
    pub(super) template: Vec<u8>,
    pub(super) template_form: Option<(bool, bool)>,
    /// A connection of a relay endpoint has received the message.
    pub(super) has_relay_receiver: bool,
    /// The frames for the connections of a relay endpoint, once one of them needs them.
    pub(super) relay_frames: Option<RelayFrames>,
}

impl<'a> Dispatch<'a> {
    pub(crate) fn new(view: &'a MessageView<'a>, origin: Option<SessionIx>) -> Self {
        Self {
            view,
            origin,
            message: None,
            payload: view.shared_payload.cloned(),
            is_exactly_once: false,
            id: None,
            is_journaled: false,
            has_many_sessions: false,
            template: Vec::new(),
            template_form: None,
            has_relay_receiver: false,
            relay_frames: None,
        }
    }

    /// Reuses `scratch` for the packet that many sessions get, to avoid an allocation; see [`Dispatch::into_scratch`].
    pub(crate) fn for_many_sessions(mut self, scratch: &mut Vec<u8>) -> Self {
        self.has_many_sessions = true;
        self.template = std::mem::take(scratch);
        self
    }

    pub(crate) fn into_scratch(self) -> Vec<u8> {
        match self.relay_frames.map(RelayFrames::into_scratch) {
            Some(scratch) if scratch.capacity() > self.template.capacity() => scratch,
            _ => self.template,
        }
    }

    /// Takes the scratch for another use than the template.
    pub(super) fn take_scratch(&mut self) -> Vec<u8> {
        self.template_form = None;
        std::mem::take(&mut self.template)
    }
}
