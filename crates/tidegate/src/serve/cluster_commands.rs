//! Commands of a device that moves to another node of the cluster, while they wait at the node where it was.
//!
//! The node to which a device connects asks the others for its waiting commands, stores them, and tells the others to remove
//! them. What this misses, for example because a node could not be reached, is found by a search: each node tells the others now and
//! then for which devices commands wait there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::{NodeName, NodeRequests};
use devices::command::{CommandError, CommandId, CommandOffer, Commands};
use devices::{DeviceNo, DeviceStates};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Devices that have connected and are not asked for yet. Of those above it, waiting commands are found by the search.
const MAX_ARRIVALS: usize = 65_536;
/// Devices of one request.
const MAX_CHUNK_DEVICES: usize = 1000;
/// Time for which devices are collected for one request.
const GATHERING: Duration = Duration::from_millis(50);
/// Time between two steps of the search, each with up to [`MAX_CHUNK_DEVICES`] devices.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);

/// How often, and after which pauses, a node is asked to remove commands that it has handed over.
const REMOVAL_ATTEMPTS: u32 = 4;
const REMOVAL_PAUSE: Duration = Duration::from_millis(500);

/// A request to another node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CommandRequest {
    /// These devices are here: which commands wait for them at your node? Is answered with a [`CommandOffer`].
    Offer { devices: Vec<String> },
    /// These commands are stored here: remove them.
    Remove { commands: Vec<CommandId> },
    /// Commands for these devices wait here: ask for them, if the devices are at your node.
    Waiting { devices: Vec<String> },
}

/// Moves waiting commands between nodes.
pub(super) struct ClusterCommands {
    commands: Commands,
    states: DeviceStates,
    requests: Arc<NodeRequests>,
    /// Subject of the requests.
    subject: u8,
    arrivals: Sender<String>,
}

impl ClusterCommands {
    /// Asks for the commands of devices that connect from now on, on this runtime.
    pub(super) fn start(
        commands: Commands,
        states: DeviceStates,
        requests: Arc<NodeRequests>,
        subject: u8,
        runtime: &Handle,
    ) -> Arc<Self> {
        let (arrivals, received) = channel(MAX_ARRIVALS);
        let this = Arc::new(Self {
            commands,
            states: states.clone(),
            requests,
            subject,
            arrivals,
        });
        let arriving = Arc::downgrade(&this);
        states.add_observer(Box::new(move |change| {
            if change.is_online
                && let Some(this) = arriving.upgrade()
            {
                this.add_arrived_device(change.device.id.as_str());
            }
        }));
        runtime.spawn(this.clone().ask_for_arrivals(received));
        runtime.spawn(this.clone().search());
        this
    }

    fn add_arrived_device(&self, device: &str) {
        if self.requests.has_reachable_nodes() {
            // A full queue is no loss: the search finds the commands.
            let _ = self.arrivals.try_send(device.to_owned());
        }
    }

    async fn ask_for_arrivals(self: Arc<Self>, mut arrivals: Receiver<String>) {
        let mut devices = Vec::new();
        while arrivals.recv_many(&mut devices, MAX_CHUNK_DEVICES).await > 0 {
            if devices.len() < MAX_CHUNK_DEVICES {
                tokio::time::sleep(GATHERING).await;
                while devices.len() < MAX_CHUNK_DEVICES
                    && let Ok(device) = arrivals.try_recv()
                {
                    devices.push(device);
                }
            }
            let request = CommandRequest::Offer {
                devices: std::mem::take(&mut devices),
            };
            let nodes = self.requests.reachable();
            let moves = nodes.iter().map(|node| self.fetch(node, &request));
            for (node, moved) in nodes.iter().zip(join_all(moves).await) {
                if let Err(reason) = moved {
                    tracing::debug!(node = %node, reason, "waiting commands were not moved; tried again later");
                }
            }
        }
    }

    /// Takes the commands over that wait at a node.
    async fn fetch(&self, node: &NodeName, request: &CommandRequest) -> Result<(), String> {
        loop {
            let answer = self.ask(node, request).await?;
            let offer: CommandOffer =
                serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
            if offer.commands.is_empty() {
                return Ok(());
            }
            let commands = self.commands.clone();
            let taken = run_blocking(move || commands.take_over(offer.commands)).await?;
            if taken.is_empty() {
                return Ok(());
            }
            self.remove_at(node, taken).await?;
            if !offer.is_partial {
                return Ok(());
            }
        }
    }

    /// Until the other node has removed them, it may send them.
    async fn remove_at(&self, node: &NodeName, commands: Vec<CommandId>) -> Result<(), String> {
        let request = CommandRequest::Remove { commands };
        let mut attempt = 1;
        loop {
            match self.ask(node, &request).await {
                Ok(_) => return Ok(()),
                Err(reason) if attempt == REMOVAL_ATTEMPTS => return Err(reason),
                Err(_) => tokio::time::sleep(REMOVAL_PAUSE).await,
            }
            attempt += 1;
        }
    }

    async fn ask(&self, node: &NodeName, request: &CommandRequest) -> Result<Bytes, String> {
        let body = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let answer = self.requests.request(node, self.subject, &body).await;
        answer.map_err(|error| error.to_string())
    }

    /// Tells the other nodes for which devices commands wait here, in steps.
    async fn search(self: Arc<Self>) {
        let mut after: Option<DeviceNo> = None;
        loop {
            tokio::time::sleep(SEARCH_INTERVAL).await;
            if !self.requests.has_reachable_nodes() {
                continue;
            }
            let commands = self.commands.clone();
            let waiting =
                run_blocking(move || commands.waiting_devices(after, MAX_CHUNK_DEVICES)).await;
            let (waiting, next) = waiting.unwrap_or_else(|reason| {
                tracing::warn!(
                    reason,
                    "waiting commands could not be read; tried again later"
                );
                (Vec::new(), None)
            });
            after = next;
            let elsewhere = waiting
                .iter()
                .filter(|device| !self.states.is_online(device.no));
            let devices: Vec<String> = elsewhere.map(|device| device.id.to_string()).collect();
            if devices.is_empty() {
                continue;
            }
            let request = CommandRequest::Waiting { devices };
            let nodes = self.requests.reachable();
            join_all(nodes.iter().map(|node| self.ask(node, &request))).await;
        }
    }

    /// Answers a request of another node.
    pub(super) async fn answer(&self, body: Bytes) -> Result<Bytes, String> {
        let request = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let commands = self.commands.clone();
        match request {
            CommandRequest::Offer { devices } => {
                let offer = run_blocking(move || commands.offer_waiting(&devices)).await?;
                let answer = serde_json::to_vec(&offer).map_err(|error| error.to_string())?;
                Ok(answer.into())
            }
            CommandRequest::Remove { commands: moved } => {
                run_blocking(move || commands.remove_moved(&moved)).await?;
                Ok(Bytes::new())
            }
            CommandRequest::Waiting { devices } => {
                let states = self.states.clone();
                let online = move || {
                    let mut online = Vec::new();
                    for device in devices {
                        if states.is_online_by_id(&device)? {
                            online.push(device);
                        }
                    }
                    Ok(online)
                };
                for device in run_blocking(online).await? {
                    self.add_arrived_device(&device);
                }
                Ok(Bytes::new())
            }
        }
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CommandError> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}
