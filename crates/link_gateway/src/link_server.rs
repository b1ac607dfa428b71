//! Serves one link over all its connections: publishes its messages, and starts the transfers of its files.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use link::message::{MessageId, ReceivedMessage};
use link::net::{IncomingStream, Link};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use mqtt::ReasonCode;
use mqtt_client::SessionEvent;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::attached_client::{AttachedClient, ClientMailbox};
use crate::broker_client::{BrokerClient, ClientEnd, end_of};
use crate::downloads::serve_request;
use crate::exchange::{FileAnswer, FileRequest, Publication, PublicationRejection};
use crate::metrics::LinkMetrics;
use crate::publications::PublicationQueue;
use crate::shared::GatewayShared;
use crate::uploads::receive_file;

/// Messages for the peer that wait for room in the link.
const MAX_OUTGOING: usize = 64;

pub(crate) struct LinkServer {
    shared: Arc<GatewayShared>,
    link: Link,
    clients: mpsc::Receiver<AttachedClient>,
    client: Option<AttachedClient>,
    publications: PublicationQueue,
    outgoing: VecDeque<Bytes>,
    tasks: JoinSet<()>,
}

/// What a link waits for.
enum LinkServerEvent {
    Attached(AttachedClient),
    CarrierEnded,
    Broker(io::Result<SessionEvent>),
    Message(ReceivedMessage),
    Stream(IncomingStream),
    /// The first outgoing message is queued.
    Queued,
    TaskDone,
    LinkEnded,
}

impl LinkServer {
    /// Passes a client to the server of its link. `false`: the link has just ended.
    pub(crate) async fn attach(
        shared: &Arc<GatewayShared>,
        id: LinkId,
        link: &Link,
        is_known: bool,
        client: AttachedClient,
    ) -> bool {
        let mailbox = {
            let mut mailboxes = shared.mailboxes();
            if !is_known {
                mailboxes.insert(id, Self::start(shared, id, link.clone()));
            }
            mailboxes.get(&id).cloned()
        };
        match mailbox {
            Some(mailbox) => mailbox.send(client).await.is_ok(),
            None => false,
        }
    }

    fn start(shared: &Arc<GatewayShared>, id: LinkId, link: Link) -> ClientMailbox {
        let (mailbox, clients) = mpsc::channel(1);
        let server = Self {
            publications: PublicationQueue::new(shared.settings.message_window_bytes),
            shared: shared.clone(),
            link,
            clients,
            client: None,
            outgoing: VecDeque::new(),
            tasks: JoinSet::new(),
        };
        let (shared, own) = (shared.clone(), mailbox.downgrade());
        tokio::spawn(async move {
            shared.metrics.links.fetch_add(1, Relaxed);
            server.run().await;
            shared.metrics.links.fetch_sub(1, Relaxed);
            // A newer link may have the same id.
            let mut mailboxes = shared.mailboxes();
            if let (Some(own), Some(current)) = (own.upgrade(), mailboxes.get(&id))
                && own.same_channel(current)
            {
                mailboxes.remove(&id);
            }
        });
        mailbox
    }

    async fn run(mut self) {
        loop {
            match self.next_event().await {
                LinkServerEvent::Attached(client) => {
                    self.detach();
                    self.client = Some(client);
                }
                LinkServerEvent::CarrierEnded => self.detach(),
                LinkServerEvent::Broker(Ok(event)) => self.handle_event(event),
                LinkServerEvent::Broker(Err(_)) => self.end_client(ClientEnd::Lost),
                LinkServerEvent::Message(message) => self.receive(message),
                LinkServerEvent::Stream(stream) => self.receive_stream(stream),
                LinkServerEvent::Queued => drop(self.outgoing.pop_front()),
                LinkServerEvent::TaskDone => {}
                LinkServerEvent::LinkEnded => break,
            }
            self.publish();
        }
        self.detach();
    }

    async fn next_event(&mut self) -> LinkServerEvent {
        let may_answer = self.outgoing.len() < MAX_OUTGOING;
        let is_attached = self.client.is_some();
        let may_receive = is_attached && may_answer && self.publications.has_room();
        let may_start = is_attached && self.has_task_room();
        let first = self.outgoing.front().cloned().unwrap_or_default();
        let (client, carrier) = match &mut self.client {
            Some(client) => (Some(&mut client.client), Some(&mut client.carrier)),
            None => (None, None),
        };
        let link_ended = |_| LinkServerEvent::LinkEnded;
        tokio::select! {
            Some(client) = self.clients.recv() => LinkServerEvent::Attached(client),
            () = carrier_ended(carrier) => LinkServerEvent::CarrierEnded,
            event = broker_event(client), if may_answer => LinkServerEvent::Broker(event),
            message = self.link.receive(), if may_receive => {
                message.map_or_else(link_ended, LinkServerEvent::Message)
            }
            stream = self.link.receive_stream(), if may_start => {
                stream.map_or_else(link_ended, LinkServerEvent::Stream)
            }
            queued = self.link.send(Priority::High, first), if !self.outgoing.is_empty() => {
                queued.map_or_else(link_ended, |_| LinkServerEvent::Queued)
            }
            Some(_) = self.tasks.join_next() => LinkServerEvent::TaskDone,
            error = self.link.ended() => link_ended(error),
        }
    }

    fn has_task_room(&self) -> bool {
        self.tasks.len() < self.shared.settings.max_transfers as usize
    }

    /// The peer has no connection any more; for the broker the client leaves.
    fn detach(&mut self) {
        self.publications.reset();
        if let Some(attached) = self.client.take() {
            attached.client.leave();
        }
    }

    /// The broker has ended the connection.
    fn end_client(&mut self, end: ClientEnd) {
        self.publications.reset();
        if let Some(attached) = self.client.take() {
            // The carrier may have ended meanwhile.
            let _ = attached.ended.send(end);
        }
    }

    fn handle_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Published { packet_id, answer } => {
                let Some(publication) = self.publications.complete(packet_id) else {
                    return;
                };
                self.link.acknowledge(publication.id);
                if answer.reason.is_error() {
                    let topic = Publication::decode(&publication.content);
                    let topic = topic.map_or("", |publication| publication.topic);
                    self.reject(publication.id, topic, answer.reason, answer.to_string());
                }
            }
            SessionEvent::Message(message) => {
                let mut encoded = Vec::new();
                Publication {
                    topic: &message.topic,
                    payload: &message.payload,
                    retain: message.retain,
                }
                .encode(&mut encoded);
                self.outgoing.push_back(encoded.into());
            }
            SessionEvent::Disconnected { answer, .. } => self.end_client(end_of(answer.reason)),
            _ => {}
        }
    }

    fn receive(&mut self, message: ReceivedMessage) {
        let ReceivedMessage {
            id, payload, class, ..
        } = message;
        self.shared.metrics.count_message(class, payload.len());
        if Publication::is_publication(payload.pieces().next().map_or(&[], |piece| &piece[..])) {
            self.publications.push(id, payload);
            return;
        }
        // It needs no durability: a peer that learns of the loss of a link asks again.
        self.link.acknowledge(id);
        match serde_json::from_slice::<FileRequest>(&payload.into_bytes()) {
            Ok(request) => self.answer(request),
            Err(error) => {
                let reason = format!("it is neither a publication nor a request: {error}");
                self.reject(id, "", ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, reason);
            }
        }
    }

    fn answer(&mut self, request: FileRequest) {
        let Some(attached) = &self.client else {
            return;
        };
        let limit = self.shared.settings.max_transfers;
        let error = match self.has_task_room() {
            // Its answer follows the rejections of the messages that were acknowledged before.
            _ if request.names.is_empty() => Some(None),
            true => None,
            false => Some(Some(format!(
                "{limit} transfers are active, which is the limit (link.max_transfers); ask again later"
            ))),
        };
        if let Some(error) = error {
            let answer = FileAnswer {
                request: request.request,
                files: Vec::new(),
                error,
            };
            let answer = serde_json::to_vec(&answer).expect("texts and numbers are valid JSON");
            self.outgoing.push_back(answer.into());
            return;
        }
        let (shared, link) = (self.shared.clone(), self.link.clone());
        let identity = attached.identity.clone();
        self.tasks
            .spawn(async move { serve_request(&shared, &identity, &link, request).await });
    }

    fn receive_stream(&mut self, stream: IncomingStream) {
        let Some(attached) = &self.client else {
            return;
        };
        let (shared, identity) = (self.shared.clone(), attached.identity.clone());
        self.tasks
            .spawn(async move { receive_file(&shared, &identity, stream).await });
    }

    /// Sends waiting messages to the broker, as many as it accepts.
    fn publish(&mut self) {
        while let Some(attached) = &mut self.client
            && attached.client.has_quota()
            && self.outgoing.len() < MAX_OUTGOING
            && let Some((at, pending)) = self.publications.next_unsent()
        {
            let sent = match Publication::decode(&pending.content) {
                Ok(publication) => {
                    let Publication {
                        topic,
                        payload,
                        retain,
                    } = publication;
                    let published = attached.client.publish(topic, payload, retain);
                    let too_large = ReasonCode::PACKET_TOO_LARGE;
                    published.map_err(|reason| (topic.to_owned(), too_large, reason))
                }
                Err(reason) => {
                    let invalid = ReasonCode::TOPIC_NAME_INVALID;
                    Err((String::new(), invalid, reason.to_owned()))
                }
            };
            match sent {
                Ok(packet_id) => self.publications.set_sent(at, packet_id),
                Err((topic, code, reason)) => {
                    if let Some(publication) = self.publications.remove(at) {
                        self.link.acknowledge(publication.id);
                        self.reject(publication.id, &topic, code, reason);
                    }
                }
            }
        }
    }

    /// Tells the peer that a message was not published.
    fn reject(&mut self, id: MessageId, topic: &str, code: ReasonCode, reason: String) {
        LinkMetrics::count(&self.shared.metrics.messages_rejected);
        let rejection = PublicationRejection::message(id, topic, code, reason);
        self.outgoing.push_back(rejection);
    }
}

async fn carrier_ended(carrier: Option<&mut oneshot::Receiver<()>>) {
    match carrier {
        // Its sender is only dropped.
        Some(carrier) => drop(carrier.await),
        None => std::future::pending().await,
    }
}

async fn broker_event(client: Option<&mut BrokerClient>) -> io::Result<SessionEvent> {
    match client {
        Some(client) => client.next_event().await,
        None => std::future::pending().await,
    }
}
