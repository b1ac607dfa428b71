//! Serves one link over all its connections: publishes its messages, delivers those for the peer, and starts the
//! transfers of its files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use link::message::{MessageId, ReceivedMessage};
use link::net::{IncomingStream, Link, LinkError};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use mqtt::ReasonCode;
use mqtt_client::{ReceivedMessage as BrokerMessage, SessionEvent};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attached_client::{AttachedClient, ClientMailbox};
use crate::broker_client::{BrokerClient, ClientEnd};
use crate::deliveries::DeliveryQueue;
use crate::downloads::serve_request;
use crate::exchange::{
    FileAnswer, FileRequest, PeerRequest, Publication, PublicationRejection, SubscriptionAnswer,
    SubscriptionRequest, SubscriptionRequestKind,
};
use crate::metrics::LinkMetrics;
use crate::publications::PublicationQueue;
use crate::shared::GatewayShared;
use crate::subscriptions::{PeerSubscriptions, SubscriptionChange};
use crate::uploads::receive_file;

/// Messages and answers for the peer that wait for room in the link.
const MAX_OUTGOING: usize = 64;
/// How long the broker may take to acknowledge messages of a carrier that has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct LinkServer {
    shared: Arc<GatewayShared>,
    link: Link,
    clients: mpsc::Receiver<AttachedClient>,
    client: Option<AttachedClient>,
    /// The carrier of the client has ended. It sends nothing more, and leaves when the broker has acknowledged what it
    /// has sent, at this time at the latest.
    drain_until: Option<Instant>,
    publications: PublicationQueue,
    in_flight: watch::Sender<usize>,
    subscriptions: PeerSubscriptions,
    /// Messages and answers for the peer.
    outgoing: DeliveryQueue,
    tasks: JoinSet<()>,
}

/// What a link waits for.
enum LinkServerEvent {
    Attached(AttachedClient),
    CarrierEnded,
    /// The broker has not acknowledged the messages of a carrier that has ended.
    DrainTimeout,
    Broker(io::Result<SessionEvent>),
    Message(ReceivedMessage),
    Stream(IncomingStream),
    /// The link has taken the first outgoing message.
    Queued(MessageId),
    /// The link is shutting down and takes nothing more for the peer.
    SendingEnded,
    /// The peer has acknowledged the first message that the broker waits for.
    Settled,
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
            Some(mailbox) => mailbox.clients.send(client).await.is_ok(),
            None => false,
        }
    }

    /// Waits until the broker has acknowledged what the former connection of a link has published, or for
    /// [`DRAIN_TIMEOUT`]. Another login of the same client would end that connection, and the messages would be published
    /// again.
    pub(crate) async fn wait_for_acknowledgements(shared: &GatewayShared, id: LinkId) {
        let mailbox = shared.mailboxes().get(&id).cloned();
        if let Some(ClientMailbox { mut in_flight, .. }) = mailbox {
            // A server that has ended waits for nothing.
            let _ = timeout(DRAIN_TIMEOUT, in_flight.wait_for(|count| *count == 0)).await;
        }
    }

    fn start(shared: &Arc<GatewayShared>, id: LinkId, link: Link) -> ClientMailbox {
        let (sender, clients) = mpsc::channel(1);
        let (in_flight, in_flight_count) = watch::channel(0);
        let mailbox = ClientMailbox {
            clients: sender,
            in_flight: in_flight_count,
        };
        let server = Self {
            publications: PublicationQueue::new(shared.settings.message_window_bytes),
            shared: shared.clone(),
            link,
            clients,
            client: None,
            drain_until: None,
            in_flight,
            subscriptions: PeerSubscriptions::default(),
            outgoing: DeliveryQueue::new(MAX_OUTGOING),
            tasks: JoinSet::new(),
        };
        let (shared, own) = (shared.clone(), mailbox.clients.downgrade());
        tokio::spawn(async move {
            shared.metrics.links.fetch_add(1, Relaxed);
            server.run().await;
            shared.metrics.links.fetch_sub(1, Relaxed);
            // A newer link may have the same id.
            let mut mailboxes = shared.mailboxes();
            if let (Some(own), Some(current)) = (own.upgrade(), mailboxes.get(&id))
                && own.same_channel(&current.clients)
            {
                mailboxes.remove(&id);
            }
        });
        mailbox
    }

    async fn run(mut self) {
        loop {
            match self.next_event().await {
                LinkServerEvent::Attached(client) => self.attach_client(client),
                LinkServerEvent::CarrierEnded => {
                    self.drain_until = Some(Instant::now() + DRAIN_TIMEOUT);
                }
                LinkServerEvent::DrainTimeout => self.detach(),
                LinkServerEvent::Broker(Ok(event)) => self.handle_event(event),
                LinkServerEvent::Broker(Err(_)) => self.end_client(ClientEnd::Lost),
                LinkServerEvent::Message(message) => self.receive(message),
                LinkServerEvent::Stream(stream) => self.receive_stream(stream),
                LinkServerEvent::Queued(id) => {
                    let sent = self.outgoing.next_unsent().map_or(0, Bytes::len);
                    let class = self.shared.settings.size_classes().classify(sent);
                    self.shared.metrics.count_sent(class);
                    self.outgoing.set_sent(id);
                }
                LinkServerEvent::SendingEnded => self.outgoing.close(),
                LinkServerEvent::Settled => self.settle(),
                LinkServerEvent::TaskDone => {}
                LinkServerEvent::LinkEnded => break,
            }
            if self.drain_until.is_none() {
                self.change_subscriptions();
                self.publish();
            } else if self.publications.in_flight() == 0 {
                self.detach();
            }
            self.report_in_flight();
        }
        self.detach();
    }

    async fn next_event(&mut self) -> LinkServerEvent {
        let may_answer = self.outgoing.has_room();
        let drain_until = self.drain_until;
        let is_attached = self.client.is_some() && drain_until.is_none();
        let may_receive = is_attached
            && may_answer
            && self.publications.has_room()
            && self.subscriptions.has_room();
        let may_start = is_attached && self.has_task_room();
        let next = self.outgoing.next_unsent().cloned();
        let has_next = next.is_some();
        let next = next.unwrap_or_default();
        let awaited = self.outgoing.first_sent();
        let (client, carrier) = match &mut self.client {
            Some(client) if is_attached => (Some(&mut client.client), Some(&mut client.carrier)),
            Some(client) => (Some(&mut client.client), None),
            None => (None, None),
        };
        let link_ended = |_| LinkServerEvent::LinkEnded;
        tokio::select! {
            Some(client) = self.clients.recv() => LinkServerEvent::Attached(client),
            () = carrier_ended(carrier) => LinkServerEvent::CarrierEnded,
            () = elapsed(drain_until) => LinkServerEvent::DrainTimeout,
            // Without a carrier, only acknowledgements are of interest.
            event = broker_event(client), if may_answer || drain_until.is_some() => {
                LinkServerEvent::Broker(event)
            }
            message = self.link.receive(), if may_receive => {
                message.map_or_else(link_ended, LinkServerEvent::Message)
            }
            stream = self.link.receive_stream(), if may_start => {
                stream.map_or_else(link_ended, LinkServerEvent::Stream)
            }
            queued = self.link.send(Priority::High, next), if has_next => {
                // Its messages must still be acknowledged. If it has ended, that is another event.
                queued.map_or(LinkServerEvent::SendingEnded, LinkServerEvent::Queued)
            }
            settled = settled(&self.link, awaited) => {
                match settled {
                    // Another attempt would have the same result.
                    Err(LinkError::Stream { code, text }) => {
                        tracing::warn!(%code, text, "the peer of a link has rejected a message, which is lost");
                        LinkServerEvent::Settled
                    }
                    settled => settled.map_or_else(link_ended, |()| LinkServerEvent::Settled),
                }
            }
            Some(_) = self.tasks.join_next() => LinkServerEvent::TaskDone,
            error = self.link.ended() => link_ended(error),
        }
    }

    fn has_task_room(&self) -> bool {
        self.tasks.len() < self.shared.settings.max_transfers as usize
    }

    fn attach_client(&mut self, client: AttachedClient) {
        self.detach();
        if !client.client.is_resumed() {
            self.outgoing.forget_session();
            self.subscriptions.restore();
        }
        self.client = Some(client);
    }

    fn report_in_flight(&self) {
        let count = self.publications.in_flight();
        self.in_flight.send_if_modified(|known| {
            let is_changed = *known != count;
            *known = count;
            is_changed
        });
    }

    fn reset(&mut self) {
        self.drain_until = None;
        self.publications.reset();
        self.subscriptions.reset();
        self.outgoing.reset();
    }

    /// The peer has no connection any more; for the broker the client leaves.
    fn detach(&mut self) {
        self.reset();
        if let Some(attached) = self.client.take() {
            let has_left = matches!(self.link.end(), Some(LinkError::ShutDown));
            let is_kept = attached.client.keeps_session() && !has_left;
            attached.client.leave(is_kept);
        }
    }

    /// The broker has ended the connection.
    fn end_client(&mut self, end: ClientEnd) {
        self.reset();
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
            // The session keeps it for the next connection.
            SessionEvent::Message(_) if self.drain_until.is_some() => {}
            SessionEvent::Message(message) => self.deliver(&message),
            SessionEvent::Subscribed {
                codes,
                reason_string,
            }
            | SessionEvent::Unsubscribed {
                codes,
                reason_string,
            } => {
                let answer = self.subscriptions.complete(&codes, reason_string);
                self.answer_subscription(answer);
            }
            SessionEvent::Disconnected { answer, .. } => {
                let client = self.client.as_ref();
                let end = client.map(|client| client.end_of(answer.reason));
                self.end_client(end.unwrap_or(ClientEnd::Lost));
            }
            _ => {}
        }
    }

    /// Sends a message of the broker to the peer, unless it is on its way already.
    fn deliver(&mut self, message: &BrokerMessage) {
        let encode = || {
            let mut encoded = Vec::new();
            Publication {
                topic: &message.topic,
                payload: &message.payload,
                retain: message.retain,
            }
            .encode(&mut encoded);
            encoded.into()
        };
        let is_settled = self
            .outgoing
            .push_message(encode, message.pending_ack, message.dup);
        if is_settled
            && let (Some(attached), Some(packet)) = (&mut self.client, message.pending_ack)
        {
            attached.client.acknowledge(packet);
        }
    }

    /// The peer has acknowledged a message that the broker waits for.
    fn settle(&mut self) {
        let packet = self.outgoing.settle_first();
        if let (Some(attached), Some(packet)) = (&mut self.client, packet) {
            attached.client.acknowledge(packet);
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
        match PeerRequest::decode(&payload.into_bytes()) {
            Ok(PeerRequest::Files(request)) => self.answer(request),
            Ok(PeerRequest::Subscriptions(request)) => self.request_subscriptions(request),
            Err(error) => {
                let reason = format!("it is neither a publication nor a request: {error}");
                self.reject(id, "", ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, reason);
            }
        }
    }

    fn request_subscriptions(&mut self, request: SubscriptionRequest) {
        let SubscriptionRequest { request, kind } = request;
        let change = match kind {
            SubscriptionRequestKind::Subscribe(all) => SubscriptionChange::subscribe(all),
            SubscriptionRequestKind::Unsubscribe(all) => SubscriptionChange::unsubscribe(all),
        };
        match change {
            Ok(change) => self.subscriptions.push(request, change),
            Err(error) => {
                let answer = SubscriptionAnswer::rejection(request, error);
                self.answer_subscription(Some(answer));
            }
        }
    }

    fn answer_subscription(&mut self, answer: Option<SubscriptionAnswer>) {
        if let Some(answer) = answer {
            self.outgoing.push(answer.message());
        }
    }

    /// Sends the next change of the subscriptions to the broker.
    fn change_subscriptions(&mut self) {
        while let Some(attached) = &mut self.client
            && let Some(change) = self.subscriptions.next_unsent()
        {
            let answer = match attached.client.change_subscriptions(change) {
                Ok(()) => {
                    self.subscriptions.set_sent();
                    return;
                }
                Err(error) => self.subscriptions.reject_next(error),
            };
            self.answer_subscription(answer);
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
            self.outgoing.push(answer.into());
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
        self.shared.metrics.count_received_file();
        let (shared, identity) = (self.shared.clone(), attached.identity.clone());
        self.tasks
            .spawn(async move { receive_file(&shared, &identity, stream).await });
    }

    /// Sends waiting messages to the broker, as many as it accepts.
    fn publish(&mut self) {
        while let Some(attached) = &mut self.client
            && attached.client.has_quota()
            && self.outgoing.has_room()
            && let Some((at, pending)) = self.publications.next_unsent()
        {
            let sent = match Publication::decode(&pending.content) {
                Ok(publication) => {
                    let published = attached.client.publish(pending.id, &publication);
                    let too_large = ReasonCode::PACKET_TOO_LARGE;
                    published.map_err(|reason| (publication.topic.to_owned(), too_large, reason))
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
        self.outgoing.push(rejection);
    }
}

async fn carrier_ended(carrier: Option<&mut oneshot::Receiver<()>>) {
    match carrier {
        // Its sender is only dropped.
        Some(carrier) => drop(carrier.await),
        None => std::future::pending().await,
    }
}

async fn elapsed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits until the peer has acknowledged a message.
async fn settled(link: &Link, id: Option<MessageId>) -> Result<(), LinkError> {
    match id {
        Some(id) => link.settled(id).await,
        None => std::future::pending().await,
    }
}

async fn broker_event(client: Option<&mut BrokerClient>) -> io::Result<SessionEvent> {
    match client {
        Some(client) => client.next_event().await,
        None => std::future::pending().await,
    }
}
