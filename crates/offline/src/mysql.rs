//! Session queues in MySQL or MariaDB.
//!
//! Tables: `P_meta` (layout version, owner, number of the last group), `P_entry` (queue entries by session and sequence
//! number), `P_message` (separately stored bodies with their number of entries), `P_received` (QoS 2 packet ids of
//! clients).
//!
//! A group is one transaction. It begins by incrementing the stored group number, conditional on the previous number.
//! The transaction of an abandoned connection thus cannot be applied after that of another.

mod multi_row_statement;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use store::{
    BackendError, QueueBackend, QueueEntry, QueueFetch, QueueGroup, QueuePage, QueueSummary,
};
use tokio::runtime::Runtime;

use crate::options::{MAX_INLINE_BYTES, QueueBackendOptions};
use multi_row_statement::{MAX_ROWS_PER_STATEMENT, MultiRowStatement};

const VERSION: u32 = 1;
/// Entries of a session removed per transaction.
const REMOVED_PER_TRANSACTION: usize = 1000;
/// The recovery counts all entries at start.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) struct MySqlQueueBackend {
    runtime: Runtime,
    options: Opts,
    address: String,
    prefix: String,
    connect_timeout: Duration,
    command_timeout: Duration,
    max_body_bytes: u64,
    connection: Option<Conn>,
    /// Connection id of the previous connection, which may still hold locks.
    last_id: u32,
    owner: String,
    /// Number of the last group applied by the server.
    applied: u64,
    /// Whether separately stored bodies may exist.
    has_messages: bool,
}

type Result<T> = std::result::Result<T, BackendError>;

impl MySqlQueueBackend {
    pub(crate) fn new(options: &QueueBackendOptions) -> std::result::Result<Self, String> {
        let wrong = |_| "expected mysql://USER:PASSWORD@HOST:PORT/DATABASE".to_owned();
        let parsed = Opts::from_url(&options.url).map_err(wrong)?;
        let address = format!("{}:{}", parsed.ip_or_hostname(), parsed.tcp_port());
        if parsed.db_name().is_none() {
            return Err(
                "the URL names no database; expected mysql://USER:PASSWORD@HOST:PORT/DATABASE"
                    .into(),
            );
        }
        let tls = match (&options.tls_ca, parsed.ssl_opts()) {
            (None, None) => None,
            (Some(file), tls) => Some((vec![file.clone().into()], tls.cloned())),
            (None, Some(tls)) => {
                let system = rustls_native_certs::load_native_certs().certs;
                let system = system.iter().map(|authority| authority.to_vec().into());
                Some((system.collect(), Some(tls.clone())))
            }
        };
        // Do not trust the authorities built into the library.
        let tls = tls.map(|(trusted, tls)| {
            tls.unwrap_or_default()
                .with_root_certs(trusted)
                .with_disable_built_in_roots(true)
        });
        let built = OptsBuilder::from_opts(parsed)
            .prefer_socket(false)
            .ssl_opts(tls);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            runtime,
            options: built.into(),
            address,
            prefix: options.prefix.clone(),
            connect_timeout: options.connect_timeout,
            command_timeout: options.command_timeout,
            max_body_bytes: options.max_body_bytes,
            connection: None,
            last_id: 0,
            owner: String::new(),
            applied: 0,
            has_messages: true,
        })
    }

    fn connect(&mut self) -> Result<()> {
        if self.connection.is_some() {
            return Ok(());
        }
        let made = Conn::new(self.options.clone());
        let made = run_with_timeout(&self.runtime, self.connect_timeout, made)?;
        let id = made.id();
        self.connection = Some(made);
        if self.last_id != 0 && self.last_id < id {
            // The previous connection may still hold locks.
            let kill = format!("KILL {}", self.last_id);
            // An error means that the connection is already gone.
            let _ = self.with_connection(|conn| Box::pin(conn.query_drop(kill)));
            if self.connection.is_none() {
                let made = Conn::new(self.options.clone());
                self.connection =
                    Some(run_with_timeout(&self.runtime, self.connect_timeout, made)?);
            }
        }
        self.last_id = self.connection.as_ref().map_or(id, Conn::id);
        let wait_s = self.command_timeout.as_secs().max(1);
        self.execute(format!(
            "SET SESSION innodb_lock_wait_timeout = {wait_s}, autocommit = 1, sql_mode = ''"
        ))?;
        if self.owner.is_empty() {
            return Ok(());
        }
        match self.read_meta()? {
            Some((_, owner, _)) if owner != self.owner => {
                self.connection = None;
                Err(BackendError::new("the queues now belong to another node"))
            }
            Some((_, _, applied)) if applied >= self.applied => {
                self.applied = applied;
                Ok(())
            }
            found => {
                tracing::error!(
                    server = self.name(),
                    had = self.applied,
                    has = found.map_or(0, |(_, _, applied)| applied),
                    "server has lost queued messages that it had acknowledged; continuing with the remaining ones"
                );
                self.create_tables()?;
                self.claim_ownership(self.applied)
            }
        }
    }

    /// Runs a query on the connection; any error closes the connection.
    fn with_connection<T>(
        &mut self,
        ask: impl for<'c> FnOnce(
            &'c mut Conn,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = std::result::Result<T, mysql_async::Error>> + 'c>,
        >,
    ) -> Result<T> {
        let connection =
            (self.connection.as_mut()).ok_or_else(|| BackendError::new("not connected"))?;
        let limit = match self.owner.is_empty() {
            true => RECOVERY_TIMEOUT,
            false => self.command_timeout,
        };
        let answer = run_with_timeout(&self.runtime, limit, ask(connection));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    fn execute(&mut self, statement: String) -> Result<()> {
        self.with_connection(|conn| Box::pin(conn.query_drop(statement)))
    }

    fn query_rows<T>(&mut self, statement: String) -> Result<Vec<T>>
    where
        T: mysql_async::prelude::FromRow + Send + 'static,
    {
        self.with_connection(|conn| Box::pin(conn.query(statement)))
    }

    fn read_meta(&mut self) -> Result<Option<(u32, String, u64)>> {
        let p = &self.prefix;
        let rows = self.query_rows(format!(
            "SELECT version, owner, last_group FROM {p}_meta WHERE id = 1"
        ))?;
        Ok(rows.into_iter().next())
    }

    fn create_tables(&mut self) -> Result<()> {
        let p = self.prefix.clone();
        for table in [
            "meta (id TINYINT UNSIGNED NOT NULL PRIMARY KEY, version INT UNSIGNED NOT NULL, \
             owner VARCHAR(64) CHARACTER SET ascii NOT NULL, last_group BIGINT UNSIGNED NOT NULL)",
            "entry (session BIGINT UNSIGNED NOT NULL, seq BIGINT UNSIGNED NOT NULL, \
             packet_id SMALLINT UNSIGNED NOT NULL, released TINYINT UNSIGNED NOT NULL, \
             message BIGINT UNSIGNED NOT NULL, size INT UNSIGNED NOT NULL, attributes BLOB NOT NULL, \
             body BLOB NOT NULL, PRIMARY KEY (session, seq))",
            "message (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, entries INT NOT NULL, body LONGBLOB NOT NULL)",
            "received (session BIGINT UNSIGNED NOT NULL, packet_id SMALLINT UNSIGNED NOT NULL, \
             PRIMARY KEY (session, packet_id))",
        ] {
            self.execute(format!(
                "CREATE TABLE IF NOT EXISTS {p}_{table} ENGINE=InnoDB"
            ))?;
        }
        Ok(())
    }

    /// Writes the owner and the group number.
    fn claim_ownership(&mut self, applied: u64) -> Result<()> {
        let (p, owner) = (&self.prefix, &self.owner);
        let claim = format!(
            "REPLACE INTO {p}_meta (id, version, owner, last_group) VALUES (1, {VERSION}, '{owner}', {applied})"
        );
        self.execute(claim)?;
        self.applied = applied;
        Ok(())
    }

    fn check_server(&mut self) -> Result<()> {
        let max: Vec<u64> = self.query_rows("SELECT @@max_allowed_packet".into())?;
        let needed = 2 * self.max_body_bytes + (64 << 10);
        match max.first() {
            Some(&max) if max < needed => Err(BackendError(format!(
                "the server accepts statements of {max} bytes; set its max_allowed_packet to at least {needed}, or \
                 limits.max_packet_size lower"
            ))),
            _ => Ok(()),
        }
    }

    fn write(&mut self, group: &QueueGroup<'_>) -> Result<()> {
        let p = self.prefix.clone();
        self.execute("START TRANSACTION".into())?;
        self.execute(format!(
            "UPDATE {p}_meta SET last_group = {} WHERE id = 1 AND owner = '{}' AND last_group = {}",
            group.number,
            self.owner,
            group.number - 1
        ))?;
        if self.connection.as_ref().map(Conn::affected_rows) != Some(1) {
            self.connection = None;
            return Err(BackendError::new(
                "the group was already written over another connection",
            ));
        }
        self.write_entries(group)?;
        self.write_changes(group)?;
        let done = group.changes.iter().filter(|change| change.done);
        let done: Vec<(u64, u64)> = done.map(|change| (change.session, change.seq)).collect();
        for done in done.chunks(MAX_ROWS_PER_STATEMENT) {
            self.remove_entries(done)?;
        }
        for (is_taken, statement) in [(true, "REPLACE INTO"), (false, "DELETE FROM")] {
            let ids = group.received.iter().filter(|(.., is)| *is == is_taken);
            let ids: Vec<String> = ids.map(|(s, id, _)| format!("({s},{id})")).collect();
            for ids in ids.chunks(MAX_ROWS_PER_STATEMENT) {
                let ids = ids.join(",");
                self.execute(match is_taken {
                    true => format!("{statement} {p}_received VALUES {ids}"),
                    false => {
                        format!("{statement} {p}_received WHERE (session, packet_id) IN ({ids})")
                    }
                })?;
            }
        }
        self.execute("COMMIT".into())
    }

    fn write_entries(&mut self, group: &QueueGroup<'_>) -> Result<()> {
        let p = self.prefix.clone();
        let into = format!("INSERT INTO {p}_message (id, entries, body) VALUES ");
        let mut rows =
            MultiRowStatement::new(into, " ON DUPLICATE KEY UPDATE entries = VALUES(entries)");
        for (at, message) in group.messages.iter().enumerate() {
            if message.entries > 0 && has_separate_body(group, at) {
                self.has_messages = true;
                let text = rows.begin_row();
                let id = message_id(group.number, at as u32);
                let _ = write!(text, "({id},{},", message.entries);
                put_hex(text, message.body);
                text.push(')');
                if let Some(statement) = rows.take_full() {
                    self.execute(statement)?;
                }
            }
        }
        if let Some(statement) = rows.take_rest() {
            self.execute(statement)?;
        }
        let into = format!(
            "INSERT INTO {p}_entry (session, seq, packet_id, released, message, size, attributes, body) VALUES "
        );
        let mut rows = MultiRowStatement::new(
            into,
            " ON DUPLICATE KEY UPDATE packet_id = VALUES(packet_id), released = VALUES(released), \
             message = VALUES(message), size = VALUES(size), attributes = VALUES(attributes), body = VALUES(body)",
        );
        for entry in &group.entries {
            let body = group.messages[entry.message as usize].body;
            let is_beside = has_separate_body(group, entry.message as usize);
            let message = match is_beside {
                true => message_id(group.number, entry.message),
                false => 0,
            };
            let text = rows.begin_row();
            let _ = write!(
                text,
                "({},{},{},{},{message},{},",
                entry.session,
                entry.seq,
                entry.packet_id,
                u8::from(entry.released),
                body.len()
            );
            put_hex(text, entry.attributes);
            text.push(',');
            put_hex(text, if is_beside { &[] } else { body });
            text.push(')');
            if let Some(statement) = rows.take_full() {
                self.execute(statement)?;
            }
        }
        match rows.take_rest() {
            Some(statement) => self.execute(statement),
            None => Ok(()),
        }
    }

    fn write_changes(&mut self, group: &QueueGroup<'_>) -> Result<()> {
        let p = self.prefix.clone();
        let left = || group.changes.iter().filter(|change| !change.done);
        let sent = left().filter_map(|change| {
            let id = change.packet_id?;
            Some(format!(
                "SELECT {} s, {} q, {id} i",
                change.session, change.seq
            ))
        });
        let sent: Vec<String> = sent.collect();
        for sent in sent.chunks(MAX_ROWS_PER_STATEMENT) {
            let sent = sent.join(" UNION ALL ");
            self.execute(format!(
                "UPDATE ({sent}) c STRAIGHT_JOIN {p}_entry e ON e.session = c.s AND e.seq = c.q SET e.packet_id = c.i"
            ))?;
        }
        let released = left().filter(|change| change.released);
        let released: Vec<(u64, u64)> = released.map(|c| (c.session, c.seq)).collect();
        for released in released.chunks(MAX_ROWS_PER_STATEMENT) {
            let keys = key_table(released);
            // The body is removed with the entry only, since it may be shared.
            self.execute(format!(
                "UPDATE ({keys}) c STRAIGHT_JOIN {p}_entry e ON e.session = c.s AND e.seq = c.q SET e.released = 1"
            ))?;
        }
        Ok(())
    }

    /// Removes entries, and bodies that no entry refers to any more.
    fn remove_entries(&mut self, entries: &[(u64, u64)]) -> Result<()> {
        let p = self.prefix.clone();
        let keys = key_table(entries);
        let on = "ON e.session = c.s AND e.seq = c.q";
        if self.has_messages {
            let used: Vec<(u64, i64)> = self.query_rows(format!(
                "SELECT e.message, COUNT(*) FROM ({keys}) c STRAIGHT_JOIN {p}_entry e {on} WHERE e.message <> 0 \
                 GROUP BY e.message"
            ))?;
            self.release_bodies(&used)?;
        }
        self.execute(format!(
            "DELETE e FROM ({keys}) c STRAIGHT_JOIN {p}_entry e {on}"
        ))
    }

    fn release_bodies(&mut self, used: &[(u64, i64)]) -> Result<()> {
        let p = self.prefix.clone();
        let mut by_count: HashMap<i64, Vec<String>> = HashMap::new();
        for (id, count) in used {
            by_count.entry(*count).or_default().push(id.to_string());
        }
        for (count, ids) in by_count {
            for ids in ids.chunks(MAX_ROWS_PER_STATEMENT) {
                let ids = ids.join(",");
                self.execute(format!(
                    "UPDATE {p}_message SET entries = entries - {count} WHERE id IN ({ids})"
                ))?;
                self.execute(format!(
                    "DELETE FROM {p}_message WHERE id IN ({ids}) AND entries <= 0"
                ))?;
            }
        }
        Ok(())
    }

    /// Removes some entries of a session; `false` if none are left.
    fn remove_some_entries(&mut self, session: u64) -> Result<bool> {
        let p = self.prefix.clone();
        let seqs: Vec<u64> = self.query_rows(format!(
            "SELECT seq FROM {p}_entry WHERE session = {session} ORDER BY seq LIMIT {REMOVED_PER_TRANSACTION}"
        ))?;
        if seqs.is_empty() {
            return Ok(false);
        }
        let entries: Vec<(u64, u64)> = seqs.into_iter().map(|seq| (session, seq)).collect();
        self.execute("START TRANSACTION".into())?;
        for entries in entries.chunks(MAX_ROWS_PER_STATEMENT) {
            self.remove_entries(entries)?;
        }
        self.execute("COMMIT".into())?;
        Ok(entries.len() == REMOVED_PER_TRANSACTION)
    }

    fn summaries(&mut self) -> Result<HashMap<u64, QueueSummary>> {
        let p = self.prefix.clone();
        let mut summaries: HashMap<u64, QueueSummary> = HashMap::new();
        let rows: Vec<(u64, u64, u64, u64, u64)> = self.query_rows(format!(
            "SELECT session, COUNT(*), CAST(SUM(size) AS UNSIGNED), MIN(seq), MAX(seq) FROM {p}_entry GROUP BY session"
        ))?;
        for (session, messages, bytes, first_seq, last_seq) in rows {
            let summary = summaries.entry(session).or_default();
            *summary = QueueSummary {
                messages,
                bytes,
                first_seq,
                last_seq,
                received: Vec::new(),
            };
        }
        let rows: Vec<(u64, u16)> = self.query_rows(format!(
            "SELECT session, packet_id FROM {p}_received ORDER BY session, packet_id"
        ))?;
        for (session, id) in rows {
            summaries.entry(session).or_default().received.push(id);
        }
        let messages: Vec<u64> = self.query_rows(format!("SELECT id FROM {p}_message LIMIT 1"))?;
        self.has_messages = !messages.is_empty();
        Ok(summaries)
    }
}

impl QueueBackend for MySqlQueueBackend {
    fn name(&self) -> String {
        format!("MySQL at {}", self.address)
    }

    fn recover(&mut self, owner: &str, each: &mut dyn FnMut(u64, QueueSummary)) -> Result<u64> {
        self.connect()?;
        self.check_server()?;
        self.create_tables()?;
        let meta = self.read_meta()?;
        if let Some((version, found, _)) = &meta
            && (*version != VERSION || found != owner)
        {
            return Err(BackendError(format!(
                "tables with the prefix {}_ belong to another node or layout (owner {found}, version {version}); \
                 choose another store.queue_prefix",
                self.prefix
            )));
        }
        for (session, summary) in self.summaries()? {
            each(session, summary);
        }
        self.owner = owner.to_owned();
        self.claim_ownership(meta.map_or(0, |(_, _, applied)| applied))?;
        Ok(self.applied)
    }

    fn apply(&mut self, group: &QueueGroup<'_>) -> Result<()> {
        self.connect()?;
        if self.applied >= group.number {
            return Ok(());
        }
        let written = self.write(group);
        match written {
            Ok(()) => self.applied = group.number,
            // The transaction may still be open: drop the connection.
            Err(_) => self.connection = None,
        }
        written
    }

    fn end_sessions(&mut self, sessions: &[u64]) -> Result<()> {
        self.connect()?;
        let p = self.prefix.clone();
        for sessions in sessions.chunks(MAX_ROWS_PER_STATEMENT) {
            let ids: Vec<String> = sessions.iter().map(u64::to_string).collect();
            let ids = ids.join(",");
            let filled: Vec<u64> = self.query_rows(format!(
                "SELECT DISTINCT session FROM {p}_entry WHERE session IN ({ids})"
            ))?;
            for session in filled {
                while self.remove_some_entries(session)? {}
            }
            self.execute(format!("DELETE FROM {p}_received WHERE session IN ({ids})"))?;
        }
        Ok(())
    }

    fn fetch(&mut self, wanted: &[QueueFetch]) -> Result<Vec<QueuePage>> {
        self.connect()?;
        let p = self.prefix.clone();
        let parts = wanted.iter().enumerate().map(|(nth, fetch)| {
            format!(
                "(SELECT {nth} n, seq, packet_id, released, message, size, attributes, body FROM {p}_entry \
                 WHERE session = {} AND seq >= {} ORDER BY seq LIMIT {})",
                fetch.session,
                fetch.from_seq,
                u64::from(fetch.max_messages) + 1
            )
        });
        let statement = parts.collect::<Vec<_>>().join(" UNION ALL ");
        let mut rows: Vec<FetchedRow> = self.query_rows(statement)?;
        rows.sort_unstable_by_key(|row| (row.0, row.1));
        let mut pages: Vec<QueuePage> = (wanted.iter())
            .map(|fetch| QueuePage {
                session: fetch.session,
                entries: Vec::new(),
                is_last: true,
            })
            .collect();
        let mut sizes = vec![0; wanted.len()];
        let mut separate_bodies: Vec<(usize, usize, u64)> = Vec::new();
        for (nth, seq, packet_id, released, message, size, attributes, body) in rows {
            let (page, fetch) = (&mut pages[nth], &wanted[nth]);
            sizes[nth] += u64::from(size) + attributes.len() as u64;
            let is_over = page.entries.len() >= fetch.max_messages as usize
                || sizes[nth] > u64::from(fetch.max_bytes);
            if !page.is_last || is_over && !page.entries.is_empty() {
                page.is_last = false;
                continue;
            }
            if message != 0 && !released {
                separate_bodies.push((nth, page.entries.len(), message));
            }
            page.entries.push(QueueEntry {
                seq,
                packet_id,
                released,
                attributes: attributes.into(),
                body: if released { Bytes::new() } else { body.into() },
            });
        }
        let mut ids: Vec<u64> = separate_bodies.iter().map(|(.., id)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut bodies: HashMap<u64, Bytes> = HashMap::new();
        for ids in ids.chunks(MAX_ROWS_PER_STATEMENT) {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            let ids = ids.join(",");
            let rows: Vec<(u64, Vec<u8>)> = self.query_rows(format!(
                "SELECT id, body FROM {p}_message WHERE id IN ({ids})"
            ))?;
            bodies.extend(rows.into_iter().map(|(id, body)| (id, body.into())));
        }
        for (page, entry, id) in separate_bodies {
            pages[page].entries[entry].body = bodies.get(&id).cloned().unwrap_or_default();
        }
        Ok(pages)
    }
}

/// Index of the fetch, sequence number, packet id, released, message, size, attributes, body.
type FetchedRow = (usize, u64, u16, bool, u64, u32, Vec<u8>, Vec<u8>);

fn run_with_timeout<T>(
    runtime: &Runtime,
    limit: Duration,
    answer: impl Future<Output = std::result::Result<T, mysql_async::Error>>,
) -> Result<T> {
    let answer = runtime.block_on(async { tokio::time::timeout(limit, answer).await });
    match answer {
        Ok(answer) => answer.map_err(BackendError::new),
        Err(_) => Err(BackendError(format!("no answer within {limit:?}"))),
    }
}

fn has_separate_body(group: &QueueGroup<'_>, message: usize) -> bool {
    let message = &group.messages[message];
    message.entries > 1 || message.body.len() > MAX_INLINE_BYTES
}

fn message_id(group: u64, message: u32) -> u64 {
    group << 20 | u64::from(message)
}

/// A derived table of these keys.
fn key_table(entries: &[(u64, u64)]) -> String {
    let keys = entries.iter().map(|(s, q)| format!("SELECT {s} s, {q} q"));
    keys.collect::<Vec<_>>().join(" UNION ALL ")
}

fn put_hex(text: &mut String, bytes: &[u8]) {
    text.push_str("x'");
    HEXLOWER.encode_append(bytes, text);
    text.push('\'');
}
