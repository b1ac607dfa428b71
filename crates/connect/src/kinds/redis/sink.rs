//! Writing: commands for each row, a pipeline per batch and server.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Arg, Cmd, Pipeline, Value as Answer};
use schemars::JsonSchema;
use serde::Deserialize;

use super::answers::{Elsewhere, elsewhere, error_in, failure, failure_of, is_of_old_routes};
use super::slots::{key_place, slot};
use super::{Address, Redis};
use crate::batch::Batch;
use crate::connector::{Doing, Failure, Writer, Written};
use crate::row::Row;
use crate::settings::Invalid;
use crate::template::Commands;

/// Commands that change the connection all sinks share, or never answer.
const REFUSED: [&str; 22] = [
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
/// How often a row is sent elsewhere before it has to wait: a cluster that is changed tells one after the other.
const MAX_DETOURS: usize = 5;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// A command for each row, as `HSET device:${clientid} t ${payload.t}`; several are joined by `&&`. A word stays one
    /// word, whatever is filled in; quotes hold words together. In a cluster the keys of a row must be in one slot.
    command: String,
    /// Runs the commands of a row as a transaction.
    #[serde(default)]
    transaction: bool,
}

pub(super) struct Sink {
    redis: Arc<Redis>,
    commands: Commands,
    is_transaction: bool,
}

/// Rows of a batch, by their places, for one server.
#[derive(Default)]
struct Load {
    places: Vec<usize>,
    /// The server has to be told that it is asked although the slot is not its own yet.
    is_asking: bool,
}

impl Sink {
    pub(super) fn new(redis: Arc<Redis>, settings: Settings) -> Result<Self, Invalid> {
        let commands = Commands::parse("command", &settings.command)?;
        for name in commands.names() {
            if REFUSED.iter().any(|other| name.eq_ignore_ascii_case(other)) {
                let detail = format!("{name} is not possible in a sink");
                return Err(Invalid::new("command", detail));
            }
        }
        Ok(Self {
            redis,
            commands,
            is_transaction: settings.transaction,
        })
    }

    fn commands_of<'r>(&'r self, row: Row<'r>) -> impl Iterator<Item = Cmd> + 'r {
        self.commands.fill(row).map(|words| {
            let mut command = Cmd::new();
            for word in words {
                command.arg(word);
            }
            command
        })
    }

    /// The slot of all keys of a row.
    fn slot_of(&self, row: Row<'_>) -> Result<u16, Failure> {
        let mut found = None;
        for (command, name) in self.commands_of(row).zip(self.commands.names()) {
            let key = key_place(name).and_then(|place| command.args_iter().nth(place));
            let Some(Arg::Simple(key)) = key else {
                continue;
            };
            let slot = slot(key);
            if *found.get_or_insert(slot) != slot {
                return Err(Failure::of_rows(
                    "the keys of a row are in different slots of the cluster; put what they share into braces, as \
                     {plant-7}:last",
                ));
            }
        }
        Ok(found.unwrap_or(0))
    }

    /// Answers to one row, beside those to ASKING.
    fn per_row(&self) -> usize {
        match self.is_transaction {
            true => self.commands.len() + 2,
            false => self.commands.len(),
        }
    }

    fn pipeline(&self, batch: &Batch, load: &Load) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(load.places.len() * (self.per_row() + 1));
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

    /// The answers to each row, those to ASKING left out.
    async fn send(
        &self,
        batch: &Batch,
        to: &Address,
        load: &Load,
    ) -> Result<Vec<Vec<Answer>>, Failure> {
        let pipeline = self.pipeline(batch, load);
        let answers = self.redis.lines.run(to, &pipeline).await.map_err(failure)?;
        let (chunk, skipped) = match (load.is_asking, self.is_transaction) {
            (false, _) => (self.per_row(), 0),
            (true, true) => (self.per_row() + 1, 1),
            (true, false) => (self.per_row() * 2, 2),
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

    /// Deals rows out to the servers that have their keys.
    async fn deal(
        &self,
        batch: &Batch,
        failures: &mut Vec<(usize, Failure)>,
    ) -> Result<BTreeMap<Address, Load>, Failure> {
        let map = self.redis.routes.map(&self.redis.lines).await?;
        let mut loads = BTreeMap::<Address, Load>::new();
        if !self.redis.routes.is_cluster() {
            let all = Load {
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
                    self.redis.routes.outdated();
                    let what = format!("no server of the cluster has slot {slot}");
                    failures.push((place, Failure::passing(what)));
                }
            }
        }
        Ok(loads)
    }

    async fn write_all(&self, batch: &Batch) -> Written {
        let mut failures = Vec::new();
        let loads = match self.deal(batch, &mut failures).await {
            Ok(loads) => loads,
            Err(failure) => return Written::Failed(failure),
        };
        let mut loads: Vec<(Address, Load)> = loads.into_iter().collect();
        let mut detours = 0;
        while !loads.is_empty() {
            let sent = loads.iter().map(|(to, load)| self.send(batch, to, load));
            let answered = join_all(sent).await;
            let mut next = BTreeMap::<(Address, bool), Load>::new();
            for ((to, load), answers) in loads.iter().zip(answered) {
                let answers = match answers {
                    Ok(answers) => answers,
                    Err(failure) => {
                        self.redis.routes.outdated();
                        let all = load.places.iter();
                        failures.extend(all.map(|place| (*place, failure.clone())));
                        continue;
                    }
                };
                for (place, answers) in load.places.iter().zip(answers) {
                    let Some((failure, onward)) = self.wrong_with(&answers, to) else {
                        continue;
                    };
                    match onward.filter(|_| detours < MAX_DETOURS) {
                        None => failures.push((*place, failure)),
                        Some(onward) => {
                            let (address, is_asking) = match onward {
                                Elsewhere::Moved(address) => (address, false),
                                Elsewhere::Ask(address) => (address, true),
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
        Written::except(batch.len(), failures)
    }

    /// What the answers to a row say is wrong, and where it is to be sent instead.
    fn wrong_with(
        &self,
        answers: &[Answer],
        asked: &Address,
    ) -> Option<(Failure, Option<Elsewhere>)> {
        let error = answers.iter().find_map(error_in)?;
        if is_of_old_routes(error.code()) {
            self.redis.routes.outdated();
        }
        let is_cluster = self.redis.routes.is_cluster();
        let onward = elsewhere(error, asked).filter(|_| is_cluster);
        Some((failure_of(error), onward))
    }
}

impl Writer for Sink {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(self.write_all(batch))
    }
}
