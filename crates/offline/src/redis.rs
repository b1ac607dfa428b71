//! Session queues in Redis.
//!
//! `P:owner` (layout version and owner), `P:group` (number of the last group), `P:q:SESSION` (sorted set: entries by
//! sequence number), `P:s:SESSION` (hash: `eSEQ` packet id, `xSEQ` released, `rID` received), `P:m:ID` and `P:n:ID` (a
//! separately stored body, and its number of entries; `ID` has `MESSAGE_ID_BYTES` bytes).
//!
//! A group is one MULTI. Each ends by watching `P:group` for the next, so that the transaction of an abandoned
//! connection cannot be applied after that of another.

mod command_buffer;
mod scripts;
mod stored_entry;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use redis::{Client, Connection, IntoConnectionInfo as _, Value};
use store::{BackendError, QueueBackend, QueueFetch, QueueGroup, QueuePage, QueueSummary};

use crate::options::QueueBackendOptions;
use command_buffer::{CommandBuffer, array, bytes_of, number, text};
use scripts::{COMPLETE_ENTRIES_SCRIPT, END_SESSION_SCRIPT, RELEASE_BODIES_LUA, SUMMARY_SCRIPT};
use stored_entry::{RawPage, encode_member, has_separate_body, message_id};

const VERSION: &str = "1";
/// Entries of a session removed per call.
const REMOVED_PER_CALL: usize = 1000;

pub(crate) struct RedisQueueBackend {
    client: Client,
    address: String,
    prefix: String,
    connect_timeout: Duration,
    command_timeout: Duration,
    connection: Option<Connection>,
    /// `VERSION OWNER`; empty before recovery.
    owner: String,
    /// Number of the last group applied by the server.
    applied: u64,
}

type Result<T> = std::result::Result<T, BackendError>;

impl RedisQueueBackend {
    pub(crate) fn new(options: &QueueBackendOptions) -> std::result::Result<Self, String> {
        let wrong =
            |_| "expected redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss:// for TLS".to_owned();
        let info = options.url.as_str().into_connection_info().map_err(wrong)?;
        let address = info.addr().to_string();
        let client = match &options.tls_ca {
            None => Client::open(info),
            Some(path) => {
                let root_cert = std::fs::read(path)
                    .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
                let trusted = redis::TlsCertificates {
                    client_tls: None,
                    root_cert: Some(root_cert),
                };
                Client::build_with_tls(info, trusted)
            }
        };
        Ok(Self {
            client: client.map_err(|error| error.to_string())?,
            address,
            prefix: options.prefix.clone(),
            connect_timeout: options.connect_timeout,
            command_timeout: options.command_timeout,
            connection: None,
            owner: String::new(),
            applied: 0,
        })
    }

    fn connect(&mut self) -> Result<()> {
        if self.connection.is_some() {
            return Ok(());
        }
        let made = self
            .client
            .get_connection_with_timeout(self.connect_timeout);
        let made = made.map_err(BackendError::new)?;
        let limit = Some(self.command_timeout);
        made.set_read_timeout(limit).map_err(BackendError::new)?;
        made.set_write_timeout(limit).map_err(BackendError::new)?;
        self.connection = Some(made);
        if self.owner.is_empty() {
            return Ok(());
        }
        let (owner, applied) = self.watch_group_number()?;
        if owner.as_deref().is_some_and(|owner| owner != self.owner) {
            self.connection = None;
            return Err(BackendError::new("the queues now belong to another node"));
        }
        if owner.is_none() || applied < self.applied {
            tracing::error!(
                server = self.name(),
                had = self.applied,
                has = applied,
                "server has lost queued messages that it had acknowledged; enable persistence (appendonly yes)"
            );
            self.claim_ownership(self.applied)?;
        } else {
            self.applied = applied;
        }
        Ok(())
    }

    fn watch_group_number(&mut self) -> Result<(Option<String>, u64)> {
        let mut wire = CommandBuffer::default();
        let group = self.key("group");
        wire.command(&[b"WATCH", group.as_bytes()]);
        wire.command(&[b"GET", self.key("owner").as_bytes()]);
        wire.command(&[b"GET", group.as_bytes()]);
        let mut values = self.send(&wire)?;
        let (group, owner) = (values.pop(), values.pop());
        Ok((owner.and_then(text), group.as_ref().map_or(0, number)))
    }

    /// Writes the owner and the group number, and watches the number.
    fn claim_ownership(&mut self, applied: u64) -> Result<()> {
        let mut wire = CommandBuffer::default();
        wire.command(&[b"UNWATCH"]);
        let group = self.key("group");
        wire.command(&[b"SET", group.as_bytes(), applied.to_string().as_bytes()]);
        wire.command(&[b"SET", self.key("owner").as_bytes(), self.owner.as_bytes()]);
        wire.command(&[b"WATCH", group.as_bytes()]);
        self.send(&wire)?;
        self.applied = applied;
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// Sends the commands and returns the replies; any error closes the connection.
    fn send(&mut self, wire: &CommandBuffer) -> Result<Vec<Value>> {
        let answers = self.exchange(wire);
        if answers.is_err() {
            self.connection = None;
        }
        answers
    }

    fn exchange(&mut self, wire: &CommandBuffer) -> Result<Vec<Value>> {
        let connection =
            (self.connection.as_mut()).ok_or_else(|| BackendError::new("not connected"))?;
        connection
            .send_packed_command(&wire.bytes)
            .map_err(BackendError::new)?;
        // One by one, because the library's pipeline goes on to the next reply after one that has not arrived in time: a
        // server that stalls would keep this thread for the time-out of each command.
        let mut replies = Vec::with_capacity(wire.commands);
        for _ in 0..wire.commands {
            let reply = connection.recv_response().map_err(BackendError::new)?;
            replies.push(reply.extract_error().map_err(BackendError::new)?);
        }
        Ok(replies)
    }

    fn put_entries(&self, group: &QueueGroup<'_>, wire: &mut CommandBuffer) {
        for (at, message) in group.messages.iter().enumerate() {
            if message.entries > 0 && has_separate_body(group, at) {
                let id = message_id(group.number, at as u32);
                let body = self.id_key("m", &id);
                wire.command(&[b"SET", &body, message.body]);
                let count = message.entries.to_string();
                wire.command(&[b"SET", &self.id_key("n", &id), count.as_bytes()]);
            }
        }
        for entries in group.entries.chunk_by(|a, b| a.session == b.session) {
            wire.begin_command(2 + 2 * entries.len());
            wire.arg(b"ZADD");
            wire.arg(self.key(&format!("q:{}", entries[0].session)).as_bytes());
            for entry in entries {
                wire.arg(entry.seq.to_string().as_bytes());
                wire.arg(&encode_member(group, entry));
            }
        }
    }

    fn id_key(&self, kind: &str, id: &[u8]) -> Vec<u8> {
        let mut key = self.key(kind).into_bytes();
        key.push(b':');
        key.extend_from_slice(id);
        key
    }

    fn put_states(&self, group: &QueueGroup<'_>, wire: &mut CommandBuffer) {
        // Hash fields to set, with their values, and fields to delete, by session.
        let mut states: HashMap<u64, (Vec<String>, Vec<String>)> = HashMap::new();
        let mut set = |session: u64, field: String, value: Option<String>| {
            let (set, gone) = states.entry(session).or_default();
            match value {
                Some(value) => set.extend([field, value]),
                None => gone.push(field),
            }
        };
        for entry in &group.entries {
            if entry.packet_id != 0 {
                let id = entry.packet_id.to_string();
                set(entry.session, format!("e{}", entry.seq), Some(id));
            }
            if entry.released {
                set(
                    entry.session,
                    format!("x{}", entry.seq),
                    Some(String::new()),
                );
            }
        }
        for change in group.changes.iter().filter(|change| !change.done) {
            if let Some(id) = change.packet_id {
                let id = (id != 0).then(|| id.to_string());
                set(change.session, format!("e{}", change.seq), id);
            }
            if change.released {
                set(
                    change.session,
                    format!("x{}", change.seq),
                    Some(String::new()),
                );
            }
        }
        for &(session, id, is_taken) in &group.received {
            set(session, format!("r{id}"), is_taken.then(String::new));
        }
        for (session, (set, gone)) in states {
            let key = self.key(&format!("s:{session}"));
            for (name, fields) in [(&b"HSET"[..], set), (b"HDEL", gone)] {
                if !fields.is_empty() {
                    wire.begin_command(2 + fields.len());
                    wire.arg(name);
                    wire.arg(key.as_bytes());
                    fields.iter().for_each(|field| wire.arg(field.as_bytes()));
                }
            }
        }
    }

    fn put_completions(&self, group: &QueueGroup<'_>, wire: &mut CommandBuffer) {
        // Ranges of consecutive sequence numbers: (session, first, last).
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for change in group.changes.iter().filter(|change| change.done) {
            match runs.last_mut() {
                Some((session, _, last))
                    if *session == change.session && *last + 1 == change.seq =>
                {
                    *last = change.seq;
                }
                _ => runs.push((change.session, change.seq, change.seq)),
            }
        }
        if runs.is_empty() {
            return;
        }
        wire.begin_command(4 + 3 * runs.len());
        // Send the full script text: with EVALSHA, a server that has lost the script would apply a group in part.
        for part in [
            "EVAL",
            &format!("{RELEASE_BODIES_LUA}{COMPLETE_ENTRIES_SCRIPT}"),
            "0",
            &self.prefix,
        ] {
            wire.arg(part.as_bytes());
        }
        for (session, first, last) in runs {
            for number in [session, first, last] {
                wire.arg(number.to_string().as_bytes());
            }
        }
    }

    /// Calls `each` with the session ids in the names of all keys of this kind.
    fn scan_keys(
        &mut self,
        kind: &str,
        mut each: impl FnMut(&mut Self, &[u64]) -> Result<()>,
    ) -> Result<()> {
        let start = self.key(&format!("{kind}:"));
        let (mut cursor, mut seen) = ("0".to_owned(), HashSet::new());
        loop {
            let mut wire = CommandBuffer::default();
            let pattern = format!("{start}*");
            wire.command(&[
                b"SCAN",
                cursor.as_bytes(),
                b"MATCH",
                pattern.as_bytes(),
                b"COUNT",
                b"1000",
            ]);
            let answer = self.send(&wire)?.pop().map(array).unwrap_or_default();
            let mut answer = answer.into_iter();
            cursor = answer.next().and_then(text).unwrap_or_default();
            let keys = answer.next().map(array).unwrap_or_default().into_iter();
            let sessions = keys.filter_map(|key| text(key)?.strip_prefix(&start)?.parse().ok());
            // SCAN may return a key more than once.
            let fresh: Vec<u64> = sessions.filter(|session| seen.insert(*session)).collect();
            if !fresh.is_empty() {
                each(self, &fresh)?;
            }
            if cursor == "0" || cursor.is_empty() {
                return Ok(());
            }
        }
    }

    fn summaries(&mut self) -> Result<HashMap<u64, QueueSummary>> {
        let mut summaries: HashMap<u64, QueueSummary> = HashMap::new();
        self.scan_keys("q", |redis, sessions| {
            let mut wire = CommandBuffer::default();
            for session in sessions {
                let key = redis.key(&format!("q:{session}"));
                wire.command(&[b"EVAL", SUMMARY_SCRIPT.as_bytes(), b"0", key.as_bytes()]);
            }
            for (session, answer) in sessions.iter().zip(redis.send(&wire)?) {
                let mut parts = array(answer).into_iter();
                let mut next = || parts.next().unwrap_or_default();
                let summary = summaries.entry(*session).or_default();
                (summary.messages, summary.bytes) = (number(&next()), number(&next()));
                let seq = |value| {
                    bytes_of(value)
                        .first_chunk()
                        .map_or(0, |b| u64::from_be_bytes(*b))
                };
                (summary.first_seq, summary.last_seq) = (seq(next()), seq(next()));
            }
            Ok(())
        })?;
        self.scan_keys("s", |redis, sessions| {
            let mut wire = CommandBuffer::default();
            for session in sessions {
                let key = redis.key(&format!("s:{session}"));
                wire.command(&[b"HKEYS", key.as_bytes()]);
            }
            for (session, answer) in sessions.iter().zip(redis.send(&wire)?) {
                let ids = array(answer).into_iter();
                let ids = ids.filter_map(|field| text(field)?.strip_prefix('r')?.parse().ok());
                let mut ids: Vec<u16> = ids.collect();
                ids.sort_unstable();
                if !ids.is_empty() {
                    summaries.entry(*session).or_default().received = ids;
                }
            }
            Ok(())
        })?;
        Ok(summaries)
    }

    /// Reads the raw entries and their delivery state.
    fn read_entries(&mut self, wanted: &[QueueFetch]) -> Result<Vec<RawPage>> {
        let mut wire = CommandBuffer::default();
        for fetch in wanted {
            let queue = self.key(&format!("q:{}", fetch.session));
            let from = fetch.from_seq.to_string();
            let most = (u64::from(fetch.max_messages) + 1).to_string();
            wire.command(&[
                b"ZRANGEBYSCORE",
                queue.as_bytes(),
                from.as_bytes(),
                b"+inf",
                b"LIMIT",
                b"0",
                most.as_bytes(),
            ]);
            let state = self.key(&format!("s:{}", fetch.session));
            wire.command(&[b"HGETALL", state.as_bytes()]);
        }
        let mut answers = self.send(&wire)?.into_iter();
        let mut next = || answers.next().map(array).unwrap_or_default();
        let mut found = Vec::with_capacity(wanted.len());
        for fetch in wanted {
            let (members, mut state) = (next(), next().into_iter());
            let mut fields = HashMap::new();
            while let (Some(field), Some(value)) = (state.next(), state.next()) {
                fields.insert(text(field).unwrap_or_default(), value);
            }
            found.push(RawPage::new(fetch, members, &fields));
        }
        Ok(found)
    }

    fn read_bodies(&mut self, found: &[RawPage]) -> Result<HashMap<Bytes, Bytes>> {
        let ids = found.iter().flat_map(|found| &found.entries);
        let ids: HashSet<Bytes> = ids.filter_map(|(_, body_id)| body_id.clone()).collect();
        let ids: Vec<Bytes> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut wire = CommandBuffer::default();
        for id in &ids {
            wire.command(&[b"GET", &self.id_key("m", id)]);
        }
        let bodies = self.send(&wire)?.into_iter();
        let bodies = bodies.map(|body| Bytes::from(bytes_of(body)));
        Ok(ids.into_iter().zip(bodies).collect())
    }
}

impl QueueBackend for RedisQueueBackend {
    fn name(&self) -> String {
        format!("Redis at {}", self.address)
    }

    fn recover(&mut self, owner: &str, each: &mut dyn FnMut(u64, QueueSummary)) -> Result<u64> {
        self.connect()?;
        let (found, applied) = self.watch_group_number()?;
        let expected = format!("{VERSION} {owner}");
        if let Some(found) = found
            && found != expected
        {
            return Err(BackendError(format!(
                "keys with the prefix {} belong to another node or layout ({found}); choose another store.queue_prefix",
                self.prefix
            )));
        }
        for (session, summary) in self.summaries()? {
            each(session, summary);
        }
        self.owner = expected;
        self.claim_ownership(applied)?;
        Ok(applied)
    }

    fn apply(&mut self, group: &QueueGroup<'_>) -> Result<()> {
        self.connect()?;
        if self.applied >= group.number {
            return Ok(());
        }
        let mut wire = CommandBuffer::default();
        wire.command(&[b"MULTI"]);
        self.put_entries(group, &mut wire);
        self.put_states(group, &mut wire);
        self.put_completions(group, &mut wire);
        let (key, number) = (self.key("group"), group.number.to_string());
        wire.command(&[b"SET", key.as_bytes(), number.as_bytes()]);
        wire.command(&[b"EXEC"]);
        let exec = wire.commands - 1;
        wire.command(&[b"WATCH", key.as_bytes()]);
        match self.send(&wire)?.swap_remove(exec) {
            Value::Array(_) => {
                self.applied = group.number;
                Ok(())
            }
            _ => {
                self.connection = None;
                Err(BackendError::new(
                    "the group was already written over another connection",
                ))
            }
        }
    }

    fn end_sessions(&mut self, sessions: &[u64]) -> Result<()> {
        self.connect()?;
        let script = format!("{RELEASE_BODIES_LUA}{END_SESSION_SCRIPT}");
        let limit = REMOVED_PER_CALL.to_string();
        for some in sessions.chunks(256) {
            let mut left = some.to_vec();
            while !left.is_empty() {
                let mut wire = CommandBuffer::default();
                for session in &left {
                    let parts = [
                        "EVAL",
                        &script,
                        "0",
                        &self.prefix,
                        &session.to_string(),
                        &limit,
                    ];
                    wire.command(&parts.map(str::as_bytes));
                }
                let answers = self.send(&wire)?;
                let mut answers = answers.iter().map(number);
                left.retain(|_| answers.next().is_some_and(|gone| gone > 0));
            }
        }
        Ok(())
    }

    fn fetch(&mut self, wanted: &[QueueFetch]) -> Result<Vec<QueuePage>> {
        self.connect()?;
        let found = self.read_entries(wanted)?;
        let bodies = self.read_bodies(&found)?;
        let pages = wanted.iter().zip(found).map(|(fetch, found)| {
            let entries = found.entries.into_iter().map(|(mut entry, body_id)| {
                if let Some(id) = body_id {
                    entry.body = bodies.get(&id).cloned().unwrap_or_default();
                }
                entry
            });
            QueuePage {
                session: fetch.session,
                entries: entries.collect(),
                is_last: found.is_last,
            }
        });
        Ok(pages.collect())
    }
}
