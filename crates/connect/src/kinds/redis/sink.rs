//! The Redis sink: commands for each row, a pipeline per batch and server.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Arg, Cmd, Pipeline, Value as Answer};
use schemars::JsonSchema;
use serde::Deserialize;

use super::connections::ServerAddress;
use super::connector::RedisConnector;
use super::errors::{Redirect, error_in, failure, is_stale_route_error, redirect, server_error};
use super::slot_routes::{first_key_index, key_slot};
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::RedisCommands;

/// Commands that change the shared connection, or block.
const FORBIDDEN_COMMANDS: [&str; 22] = [
    "ASKING",
    "AUTH",
    "BLPOP",
    "BRPOP",
    "BLMOVE",
    "BZPOPMIN",
    "BZPOPMAX",
    "CLIENT",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "QUIT",
    "READONLY",
    "READWRITE",
    "RESET",
    "SELECT",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "WATCH",
];
/// Maximum number of redirections of a row before it has to wait: during a reshard they may follow each other.
const MAX_REDIRECTS: usize = 5;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisSinkSettings {
    /// Command for each row, as `HSET device:${clientid} t ${payload.t}`; several are joined by `&&`. A word stays one
    /// argument whatever its values are; quotes group words. In a cluster all keys of a row must be in one slot.
    command: String,
    /// Runs the commands of a row as a transaction.
    #[serde(default)]
    transaction: bool,
}

pub(super) struct RedisSinkWriter {
    redis: Arc<RedisConnector>,
    commands: RedisCommands,
    is_transaction: bool,
}

/// Rows of a batch for one server, by their positions.
#[derive(Default)]
struct ServerLoad {
    places: Vec<usize>,
    /// Whether to send ASKING first, because the slot is still being migrated to the server.
    is_asking: bool,
}

impl RedisSinkWriter {
    pub(super) fn new(
        redis: Arc<RedisConnector>,
        settings: RedisSinkSettings,
    ) -> Result<Self, SettingsError> {
        let commands = RedisCommands::parse("command", &settings.command)?;
        for name in commands.names() {
            if FORBIDDEN_COMMANDS
                .iter()
                .any(|other| name.eq_ignore_ascii_case(other))
            {
                let detail = format!("{name} is not possible in a sink");
                return Err(SettingsError::new("command", detail));
            }
        }
        Ok(Self {
            redis,
            commands,
            is_transaction: settings.transaction,
        })
    }

    fn commands_of<'r>(&'r self, row: SinkRow<'r>) -> impl Iterator<Item = Cmd> + 'r {
        self.commands.fill(row).map(|words| {
            let mut command = Cmd::new();
            for word in words {
                command.arg(word);
            }
            command
        })
    }

    /// The slot of all keys of a row.
    fn slot_of(&self, row: SinkRow<'_>) -> Result<u16, ConnectorError> {
        let mut found = None;
        for (command, name) in self.commands_of(row).zip(self.commands.names()) {
            let key = first_key_index(name).and_then(|place| command.args_iter().nth(place));
            let Some(Arg::Simple(key)) = key else {
                continue;
            };
            let slot = key_slot(key);
            if *found.get_or_insert(slot) != slot {
                return Err(ConnectorError::bad_rows(
                    "the keys of a row are in different slots of the cluster; put what they share into braces, as \
                     {plant-7}:last",
                ));
            }
        }
        Ok(found.unwrap_or(0))
    }

    /// Number of replies per row, without those to ASKING.
    fn replies_per_row(&self) -> usize {
        match self.is_transaction {
            true => self.commands.len() + 2,
            false => self.commands.len(),
        }
    }

    fn pipeline(&self, batch: &SinkBatch, load: &ServerLoad) -> Pipeline {
        let mut pipeline =
            Pipeline::with_capacity(load.places.len() * (self.replies_per_row() + 1));
        for place in &load.places {
            if self.is_transaction {
                if load.is_asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.cmd("MULTI");
            }
            for command in self.commands_of(batch.row(*place)) {
                if load.is_asking && !self.is_transaction {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(command);
            }
            if self.is_transaction {
                pipeline.cmd("EXEC");
            }
        }
        pipeline
    }

    /// Sends rows and returns the replies to each, without those to ASKING.
    async fn send(
        &self,
        batch: &SinkBatch,
        to: &ServerAddress,
        load: &ServerLoad,
    ) -> Result<Vec<Vec<Answer>>, ConnectorError> {
        let pipeline = self.pipeline(batch, load);
        let answers = self
            .redis
            .connections
            .run(to, &pipeline)
            .await
            .map_err(failure)?;
        let (chunk, skipped) = match (load.is_asking, self.is_transaction) {
            (false, _) => (self.replies_per_row(), 0),
            (true, true) => (self.replies_per_row() + 1, 1),
            (true, false) => (self.replies_per_row() * 2, 2),
        };
        let mut answers = answers.into_iter();
        let rows = load.places.iter().map(|_| {
            let of_row = answers.by_ref().take(chunk).enumerate();
            let wanted = of_row.filter(|(at, _)| match skipped {
                0 => true,
                1 => *at > 0,
                _ => at % 2 == 1,
            });
            wanted.map(|(_, answer)| answer).collect()
        });
        Ok(rows.collect())
    }

    /// Distributes rows among the servers that have their keys.
    async fn split_by_server(
        &self,
        batch: &SinkBatch,
        failures: &mut Vec<(usize, ConnectorError)>,
    ) -> Result<BTreeMap<ServerAddress, ServerLoad>, ConnectorError> {
        let map = self.redis.routes.map(&self.redis.connections).await?;
        let mut loads = BTreeMap::<ServerAddress, ServerLoad>::new();
        if !self.redis.routes.is_cluster() {
            let all = ServerLoad {
                places: (0..batch.len()).collect(),
                is_asking: false,
            };
            loads.extend(map.nodes().first().map(|only| (only.clone(), all)));
            return Ok(loads);
        }
        for (place, row) in batch.rows().enumerate() {
            let slot = match self.slot_of(row) {
                Ok(slot) => slot,
                Err(failure) => {
                    failures.push((place, failure));
                    continue;
                }
            };
            match map.owner(slot) {
                Some(owner) => match loads.get_mut(owner) {
                    Some(load) => load.places.push(place),
                    None => {
                        let load = loads.entry(owner.clone()).or_default();
                        load.places.push(place);
                    }
                },
                None => {
                    self.redis.routes.mark_outdated();
                    let what = format!("no server of the cluster has slot {slot}");
                    failures.push((place, ConnectorError::transient(what)));
                }
            }
        }
        Ok(loads)
    }

    async fn write_all(&self, batch: &SinkBatch) -> WriteOutcome {
        let mut failures = Vec::new();
        let loads = match self.split_by_server(batch, &mut failures).await {
            Ok(loads) => loads,
            Err(failure) => return WriteOutcome::Failed(failure),
        };
        let mut loads: Vec<(ServerAddress, ServerLoad)> = loads.into_iter().collect();
        let mut detours = 0;
        while !loads.is_empty() {
            let sent = loads.iter().map(|(to, load)| self.send(batch, to, load));
            let answered = join_all(sent).await;
            let mut next = BTreeMap::<(ServerAddress, bool), ServerLoad>::new();
            for ((to, load), answers) in loads.iter().zip(answered) {
                let answers = match answers {
                    Ok(answers) => answers,
                    Err(failure) => {
                        self.redis.routes.mark_outdated();
                        let all = load.places.iter();
                        failures.extend(all.map(|place| (*place, failure.clone())));
                        continue;
                    }
                };
                for (place, answers) in load.places.iter().zip(answers) {
                    let Some((failure, onward)) = self.row_outcome(&answers, to) else {
                        continue;
                    };
                    match onward.filter(|_| detours < MAX_REDIRECTS) {
                        None => failures.push((*place, failure)),
                        Some(onward) => {
                            let (address, is_asking) = match onward {
                                Redirect::Moved(address) => (address, false),
                                Redirect::Ask(address) => (address, true),
                            };
                            let load = next.entry((address, is_asking)).or_default();
                            load.is_asking = is_asking;
                            load.places.push(*place);
                        }
                    }
                }
            }
            detours += 1;
            loads = next
                .into_iter()
                .map(|((address, _), load)| (address, load))
                .collect();
        }
        failures.sort_unstable_by_key(|(place, _)| *place);
        WriteOutcome::all_except(batch.len(), failures)
    }

    /// The error in the replies to a row, and the redirection if there is one.
    fn row_outcome(
        &self,
        answers: &[Answer],
        contacted: &ServerAddress,
    ) -> Option<(ConnectorError, Option<Redirect>)> {
        let error = answers.iter().find_map(error_in)?;
        if is_stale_route_error(error.code()) {
            self.redis.routes.mark_outdated();
        }
        let is_cluster = self.redis.routes.is_cluster();
        let onward = redirect(error, contacted).filter(|_| is_cluster);
        Some((server_error(error), onward))
    }
}

impl SinkWriter for RedisSinkWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(self.write_all(batch))
    }
}
