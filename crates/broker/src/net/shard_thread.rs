//! The thread of a shard: one tokio runtime, the tasks on it, and the sockets of its connections.
//!
//! A turn: connection tasks read and feed the shard's core. The flusher, woken once, then writes every socket with
//! pending output, sends messages to the other shards and wakes the tasks of closed connections. No task is woken only
//! to deliver a message.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hooks::{Authentication, HooksFactory};
use store::{QueueFetch, Store};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};

use super::accept;
use super::clock::NodeClock;
use super::flusher;
use super::inbox::{InboxItem, ShardInbox};
use super::listener::ListenerSocket;
use super::node_router_thread::{ClusterAttachment, PeerNodeInbox};
use super::shard_io::ShardIo;
use crate::core::node::NodeState;
use crate::core::recovery::RecoveredShard;
use crate::core::shard::{PasswordChecker, Shard};
use crate::core::shard_link::ShardLink;
use crate::core::timers::TICK_MS;
use crate::events::StoreAlarms;
use crate::metrics::Metric;
use crate::sys_topics;

/// Bytes of one read; then other tasks run.
const SCRATCH_BYTES: usize = 128 * 1024;
/// Sessions restored before the other shards are informed of them.
const SESSIONS_RESTORED_PER_STEP: usize = 1000;
/// Connections that are checked in one step. A tick has hundreds of them if the node pings thousands of connections, and
/// a ping takes as long as a delivery: messages would wait for all of them.
const CHECKS_PER_STEP: usize = 16;
/// Steps of one tick, whose connections are spread over less than the tick.
const MAX_CHECK_STEPS: usize = 64;
const CHECK_STEP_INTERVAL: Duration = Duration::from_millis(2);
/// Time that messages for other nodes wait after a start for nodes that do not say what they want.
const MAX_FORWARD_DELAY: Duration = Duration::from_secs(300);
const SWEEP_EVERY_TICKS: u64 = 30_000 / TICK_MS;
const HOUSEKEEPING_EVERY_TICKS: u64 = 10_000 / TICK_MS;

pub(crate) struct ShardSetup {
    pub(crate) id: u16,
    pub(crate) node: Arc<NodeState>,
    pub(crate) inboxes: Arc<[ShardInbox]>,
    /// `None` outside a cluster.
    pub(crate) cluster: Option<ClusterAttachment>,
    pub(crate) listeners: Vec<ListenerSocket>,
    pub(crate) hooks: Arc<dyn HooksFactory>,
    pub(crate) clock: NodeClock,
    pub(crate) stop_timeout: Duration,
    pub(crate) sys_interval_s: u32,
    pub(crate) durable: Option<ShardRecovery>,
    /// Notified when the shard accepts clients.
    pub(crate) ready: std::sync::mpsc::Sender<()>,
}

/// The store and the state recovered from it for one shard.
pub(crate) struct ShardRecovery {
    pub(crate) store: Store,
    pub(crate) first_number: u64,
    pub(crate) recovered: RecoveredShard,
    /// Number of shards that have restored their sessions and are known to all others.
    pub(crate) restored_shards: Arc<AtomicU32>,
}

/// Runs a shard until it is stopped.
pub(crate) fn run_shard(setup: ShardSetup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(2)
        .build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, run_tasks(setup));
    // Results of password checks in progress are no longer needed.
    runtime.shutdown_background();
    Ok(())
}

async fn run_tasks(setup: ShardSetup) {
    let ShardSetup {
        id,
        node,
        inboxes,
        cluster,
        listeners,
        hooks,
        clock,
        stop_timeout,
        sys_interval_s,
        durable,
        ready,
    } = setup;
    let shards = inboxes.len() as u16;
    let core = Shard::new(
        id,
        shards,
        node,
        hooks.hooks_for(id),
        background_password_checker(),
        clock.now_ms(),
    );
    let shard = Rc::new(ShardIo {
        core: RefCell::new(core),
        connection_ios: RefCell::new(Vec::new()),
        scratch: RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()),
        clock,
        inboxes,
        router: cluster.as_ref().map(|cluster| cluster.inbox.clone()),
        flusher: RefCell::new(None),
        flush_due: Cell::new(false),
        store: durable.as_ref().map(|durable| durable.store.clone()),
        accepting: RefCell::default(),
        stop_timeout,
        stopped: tokio::sync::Notify::new(),
    });
    tokio::task::spawn_local(flusher::run_flusher(shard.clone()));
    let shard_io = shard.clone();
    let opening_task = tokio::task::spawn_local(async move {
        match durable {
            Some(durable) => restore_shard(&shard_io, durable).await,
            None => {
                shard_io.core_at_now().announce_restored();
                shard_io.schedule_flush();
            }
        }
        if let Some(cluster) = cluster {
            // A message that is accepted must reach the subscribers of all nodes.
            cluster.inbox.wait_until_ready(cluster.start_timeout).await;
            let forwarding = forward_restored(shard_io.clone(), cluster.inbox);
            tokio::task::spawn_local(forwarding);
        } else {
            shard_io.core_at_now().forward_restored();
            shard_io.schedule_flush();
        }
        // Timers start after every shard knows the subscriptions of the others. Otherwise wills and delayed messages
        // that became due while the node was down would reach no subscriber.
        tokio::task::spawn_local(run_timers(shard_io.clone(), sys_interval_s));
        for listener in listeners {
            shard_io.start_listening(listener);
        }
        // The caller that started the broker may have stopped waiting.
        let _ = ready.send(());
    });
    run_inbox(&shard).await;
    // Stopped: listening sockets are closed first, so that no client waits for an answer that never comes.
    opening_task.abort();
    for (_, task) in shard.accepting.take() {
        task.abort();
    }
    // The last answers may wait for the store.
    let inbox_task = tokio::task::spawn_local({
        let shard = shard.clone();
        async move { run_inbox(&shard).await }
    });
    let _ = tokio::time::timeout(shard.stop_timeout, shard.wait_until_empty()).await;
    inbox_task.abort();
    shard.end_turn();
}

/// Restores the stored state of this shard, and waits until all shards have done so and know each other's
/// subscriptions. A message published after the start must reach all earlier subscribers.
async fn restore_shard(shard: &Rc<ShardIo>, durable: ShardRecovery) {
    let ShardRecovery {
        store,
        first_number,
        recovered,
        restored_shards: restored,
    } = durable;
    {
        let mut core = shard.core_at_now();
        core.start_journal(first_number, &recovered.links);
        core.restore_received(&recovered.received);
    }
    for (done, session) in recovered.sessions.into_iter().enumerate() {
        shard.core_at_now().restore_session(&session);
        if done % SESSIONS_RESTORED_PER_STEP == SESSIONS_RESTORED_PER_STEP - 1 {
            shard.schedule_flush();
            tokio::task::yield_now().await;
        }
    }
    {
        let mut core = shard.core_at_now();
        core.announce_restored();
        for delayed in recovered.delayed {
            core.restore_delayed(delayed);
        }
        core.discard_orphaned_records(&recovered.orphans, &recovered.obsolete_keys);
    }
    shard.schedule_flush();
    while !shard.core.borrow().shard_queues.is_all_applied() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let shards = shard.inboxes.len() as u32;
    wait_for_all_shards(&restored, shards).await;
    for &(link, _) in &recovered.links {
        if shard.core.borrow().is_responsible_for(link) {
            deliver_linked(shard, &store, link).await;
        }
    }
    // After everything that resulted from them.
    wait_for_all_shards(&restored, 2 * shards).await;
    let mut core = shard.core_at_now();
    if core.id == 0 {
        for &(link, _) in &recovered.links {
            if link.shards != core.shards && !link.leads_to_nodes() {
                core.delete_link(link);
            }
        }
    }
    drop(core);
    shard.schedule_flush();
}

/// Passes on the messages that were on their way to other nodes when the node died. The filters of the other nodes have to be
/// known, also those of sessions that are being adopted, and it has to be certain that no node has adopted those of this one.
async fn forward_restored(shard: Rc<ShardIo>, cluster: PeerNodeInbox) {
    let deadline = Instant::now() + MAX_FORWARD_DELAY;
    let node = shard.core.borrow().node.clone();
    while node.are_sessions_held.load(Relaxed)
        || (Instant::now() < deadline
            && (!cluster.is_ready() || node.has_successions.load(Relaxed)))
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shard.core_at_now().forward_restored();
    shard.schedule_flush();
}

/// Waits until all shards have reached this point.
async fn wait_for_all_shards(arrived: &AtomicU32, shards: u32) {
    arrived.fetch_add(1, Relaxed);
    while arrived.load(Relaxed) < shards {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads the messages in a link page by page, and delivers them.
async fn deliver_linked(shard: &Rc<ShardIo>, store: &Store, link: ShardLink) {
    let mut from_seq = 0;
    loop {
        let fetch = QueueFetch {
            session: link.store_number(),
            from_seq,
            max_messages: 256,
            max_bytes: 1 << 20,
        };
        let id = shard.core.borrow().id;
        store.fetch(id, fetch);
        let page = loop {
            if let Some(page) = shard.core.borrow_mut().link_pages.pop() {
                break page;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        shard.core_at_now().deliver_linked(link, &page);
        shard.schedule_flush();
        match page.entries.last() {
            Some(last) if !page.is_last => from_seq = last.seq + 1,
            _ => return,
        }
    }
}

/// Maximum number of passwords that wait for a check; further clients are rejected and may retry later.
const MAX_PASSWORD_CHECKS: usize = 256;

/// Checks passwords on a blocking thread: each check takes milliseconds by design.
fn background_password_checker() -> PasswordChecker {
    let under_way = Rc::new(Cell::new(0_usize));
    Box::new(move |credential, password| {
        if under_way.get() >= MAX_PASSWORD_CHECKS {
            return Authentication::Deny(mqtt::ReasonCode::SERVER_BUSY);
        }
        let under_way = under_way.clone();
        under_way.set(under_way.get() + 1);
        Authentication::Pending(Box::pin(async move {
            let check = move || credential.verify_password(&password);
            let result = tokio::task::spawn_blocking(check).await;
            under_way.set(under_way.get() - 1);
            match result {
                Ok(true) => Authentication::allow(),
                _ => Authentication::Deny(mqtt::ReasonCode::BAD_USER_NAME_OR_PASSWORD),
            }
        }))
    })
}

/// Processes the items that other threads have put into this shard's inbox, until it is stopped.
async fn run_inbox(shard: &Rc<ShardIo>) {
    let id = usize::from(shard.core.borrow().id);
    loop {
        shard.inboxes[id].wait().await;
        let items = shard.inboxes[id].take_all();
        if shard.handle_inbox_items(items) {
            return;
        }
    }
}

async fn run_timers(shard: Rc<ShardIo>, sys_interval_s: u32) {
    let mut interval = tokio::time::interval(Duration::from_millis(TICK_MS));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let is_first = shard.core.borrow().id == 0;
    let sys_ticks = u64::from(sys_interval_s) * 1000 / TICK_MS;
    let mut ticks = 0_u64;
    let mut tells_events = false;
    let mut alarms = StoreAlarms::default();
    let mut due_checks = 0;
    loop {
        interval.tick().await;
        let busy = tokio::runtime::Handle::current()
            .metrics()
            .worker_total_busy_duration(0);
        shard.catch_panic("running timers", || {
            let mut core = shard.core_at_now();
            core.metrics()
                .set(Metric::BusyNanoseconds, busy.as_nanos() as u64);
            let own = &shard.inboxes[usize::from(core.id)];
            own.record_turn(core.now_ms());
            let inbox = own.queued_bytes();
            core.metrics().set(Metric::InboxBytes, inbox as u64);
            let buffered = core.delivery.buffered_bytes as u64;
            let queued = core.metrics().get(Metric::QueuedBytes);
            core.metrics()
                .set(Metric::OutboxBytes, buffered.saturating_sub(queued));
            let relay_backlogs = core.delivery.relay_memory.bytes() as u64;
            core.metrics()
                .set(Metric::RelayBacklogBytes, relay_backlogs);
            due_checks = core.tick();
            core.poll_hooks(None);
            if ticks % HOUSEKEEPING_EVERY_TICKS == HOUSEKEEPING_EVERY_TICKS - 1 {
                core.delivery.hooks.housekeeping();
            }
            let has_listeners = core.node.events.has_subscribers();
            if std::mem::replace(&mut tells_events, has_listeners) != has_listeners {
                core.refresh_hook_interest();
            }
            // A shard without input has no turns, but must still notice that the disk has room again.
            shard.update_store_health(&mut core);
            if is_first && let Some(store) = &shard.store {
                alarms.update(store.health(), &core.node.events);
            }
            if is_first && sys_ticks > 0 && ticks.is_multiple_of(sys_ticks) {
                sys_topics::publish_sys_topics(&mut core);
            }
            if is_first && ticks % SWEEP_EVERY_TICKS == SWEEP_EVERY_TICKS - 1 {
                let node = core.node.clone();
                let now_ms = core.now_ms();
                let store = shard.store.clone();
                drop(tokio::task::spawn_blocking(move || {
                    node.retained.remove_expired(store.as_ref(), now_ms)
                }));
            }
        });
        ticks += 1;
        shard.update_congestion();
        shard.schedule_flush();
        let per_step = CHECKS_PER_STEP.max(due_checks.div_ceil(MAX_CHECK_STEPS));
        while due_checks > 0 {
            let now = per_step.min(due_checks);
            due_checks -= now;
            shard.catch_panic("checking connections", || {
                let mut core = shard.core_at_now();
                core.check_connections(now);
                core.poll_hooks(None);
            });
            shard.schedule_flush();
            if due_checks > 0 {
                tokio::time::sleep(CHECK_STEP_INTERVAL).await;
            }
        }
    }
}

impl ShardIo {
    /// Returns true when the shard is to stop.
    fn handle_inbox_items(self: &Rc<Self>, items: VecDeque<InboxItem>) -> bool {
        let mut stop = false;
        for item in items {
            match item {
                InboxItem::ShardMessages { from, messages, .. } => {
                    // One by one, so that a panic in one message does not lose the others.
                    for message in messages {
                        self.catch_panic("handling messages from another shard", || {
                            self.core_at_now()
                                .handle_shard_messages(from, vec![message]);
                        });
                    }
                }
                InboxItem::Handover(moving) => {
                    self.catch_panic("accepting a connection from another shard", || {
                        self.accept_handover(*moving)
                    });
                }
                InboxItem::Accepted(accepted) => {
                    self.catch_panic("accepting a connection", || self.accept(*accepted));
                }
                InboxItem::Query(query) => {
                    self.catch_panic("answering the control plane", || {
                        query(&mut self.core_at_now())
                    });
                }
                InboxItem::TurnLogged(turn) => {
                    self.catch_panic("handling a logged turn", || {
                        self.core_at_now().handle_turn_logged(turn)
                    });
                }
                InboxItem::TurnWritten(turn) => {
                    self.catch_panic("handling a written turn", || {
                        self.core_at_now().handle_turn_written(turn)
                    });
                }
                InboxItem::TurnSettled(turn) => {
                    self.catch_panic("handling a settled turn", || {
                        self.core_at_now().handle_turn_settled(turn)
                    });
                }
                InboxItem::Page(page) => {
                    self.catch_panic("loading stored messages", || {
                        self.core_at_now().handle_fetched_page(page)
                    });
                }
                InboxItem::StartListening(listener) => self.start_listening(*listener),
                InboxItem::StopListening { listener, answer } => {
                    self.stop_listening(listener, answer)
                }
                InboxItem::Stop => {
                    self.core_at_now().close_all();
                    stop = true;
                }
            }
        }
        self.catch_panic("publishing messages of hooks", || {
            self.core_at_now().poll_hooks(None);
        });
        self.finish_core_call();
        stop
    }

    fn start_listening(self: &Rc<Self>, listener: ListenerSocket) {
        if !self.core.borrow().is_stopping {
            let index = listener.context.index;
            let task = tokio::task::spawn_local(accept::run_accept_loop(self.clone(), listener));
            self.accepting.borrow_mut().push((index, task));
        }
    }

    fn stop_listening(&self, listener: u16, answer: oneshot::Sender<()>) {
        let belongs_to_listener = |(index, _): &mut (u16, JoinHandle<()>)| *index == listener;
        let tasks: Vec<_> = (self.accepting.borrow_mut())
            .extract_if(.., belongs_to_listener)
            .collect();
        tokio::task::spawn_local(async move {
            for (_, task) in tasks {
                task.abort();
                // The socket is closed when the task has ended; an abort ends it with an error.
                let _ = task.await;
            }
            // The caller may have stopped waiting.
            let _ = answer.send(());
        });
    }
}
