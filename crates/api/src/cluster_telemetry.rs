//! The telemetry of all nodes of a cluster.
//!
//! A device that has moved has parts of its telemetry at several nodes. Rows are merged by their times, page by page, so
//! that a long time range needs little memory. The threads that read wait for other nodes; those of other nodes that
//! answer never do, so that nodes cannot wait for each other.
//!
//! Another node may have a copy of the telemetry of a node that does not answer, or is gone. Then it answers in its place, from the row on
//! up to which the node has answered.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use crate::cluster_backend::{ClusterBackend, TelemetryCopyPlace};
use crate::cluster_live::{self, ClusterLiveStream};
use crate::merged_intervals::MergedIntervals;
use crate::node_calls::{ANSWER_TIME, ask_about_telemetry};
use crate::node_intervals::{IntervalPage, IntervalQuestion};
use crate::node_live::SharedWatch;
use crate::node_telemetry::{
    self, CopyAnswer, RowPage, SharedRow, SharedSample, TelemetryQuestion, read_page,
};
use crate::state::ApiState;
use crate::telemetry_backend::{
    IntervalQuery, IntervalRow, LiveTelemetryStream, RowQuery, TelemetryBackend,
    TelemetryBackendError, TelemetryReader, TelemetrySample, TelemetryTable,
};
use crate::telemetry_sources::{SourceStates, gone_source, is_of_gone_node};

/// Rows that are read from a node at a time.
const PAGE_ROWS: usize = 5000;
/// Size of the rows of all nodes that are read at a time; a row may be larger.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// The same of one node.
const MAX_NODE_PAGE_BYTES: usize = 1 << 20;
/// Size of a page of intervals of one node. A message between nodes has up to 8 MiB.
const MAX_INTERVAL_PAGE_BYTES: usize = 4 << 20;
/// Devices whose latest values are asked for at a time.
const LATEST_DEVICES: usize = 500;
/// Time in which a node answers if the query fails otherwise: exports, which nobody waits for.
const PATIENT_ANSWER_TIME: Duration = Duration::from_secs(30);
/// Size of a piece of written rows.
const PIECE_BYTES: usize = 64 << 10;

/// What becomes of a query if a node does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentNodes {
    /// Its telemetry is missing, and it is named.
    Omitted,
    /// The query fails.
    Refused,
}

/// Reads the telemetry of all nodes.
pub(crate) struct ClusterTelemetry {
    app: Arc<ApiState>,
    local: Arc<dyn TelemetryBackend>,
    runtime: Handle,
    absent: AbsentNodes,
    sources: Mutex<SourceStates>,
}

impl ClusterTelemetry {
    /// `None`: this node is in no cluster. Must be called within the runtime of the API.
    pub(crate) fn new(app: &Arc<ApiState>, absent: AbsentNodes) -> Option<Self> {
        app.program.cluster_backend()?;
        Some(Self {
            app: app.clone(),
            local: app.telemetry_backend.clone(),
            runtime: Handle::current(),
            absent,
            sources: Mutex::default(),
        })
    }

    /// Names of the nodes whose telemetry is missing, or may be.
    pub(crate) fn missing_nodes(&self) -> Vec<String> {
        self.sources().missing_nodes.iter().cloned().collect()
    }

    fn sources(&self) -> MutexGuard<'_, SourceStates> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cluster(&self) -> &dyn ClusterBackend {
        let cluster = self.app.program.cluster_backend();
        cluster.expect("a node does not leave its cluster while it runs")
    }

    /// The other nodes, and copies of nodes that are gone, without those that did not answer this query before. An error if the query
    /// fails without them.
    fn others(&self) -> Result<Vec<String>, TelemetryBackendError> {
        let (mut others, own) = (self.cluster().other_nodes(), self.cluster().node());
        let copies = self.cluster().telemetry_copies().into_iter();
        let of_gone_nodes = copies.filter(|copy| is_of_gone_node(copy, own, &others));
        let of_gone_nodes: Vec<_> = of_gone_nodes.collect();
        let mut sources = self.sources();
        if let (AbsentNodes::Refused, Some(node)) = (self.absent, sources.missing_nodes.first()) {
            return Err(refused(node, "it did not answer before"));
        }
        for copy in of_gone_nodes {
            others.push(gone_source(&copy));
            sources.copies.insert(gone_source(&copy), copy);
        }
        others.retain(|source| !sources.failed.contains(source));
        Ok(others)
    }

    /// Asks these sources at the same time. Those that do not answer, and have no copy, are left out, or let the query fail.
    fn ask<T: DeserializeOwned>(
        &self,
        questions: Vec<(String, TelemetryQuestion)>,
    ) -> Result<Vec<(String, T)>, TelemetryBackendError> {
        let limit = match self.absent {
            AbsentNodes::Omitted => ANSWER_TIME,
            AbsentNodes::Refused => PATIENT_ANSWER_TIME,
        };
        let (mut of_nodes, mut of_copies) = (Vec::new(), Vec::new());
        for (source, question) in questions {
            let copy = self.sources().copies.get(&source).cloned();
            match copy {
                Some(copy) => of_copies.push((source, copy, question)),
                None => of_nodes.push((source, question)),
            }
        }
        let asked = of_nodes.into_iter().map(|(node, question)| async move {
            let answer = ask_about_telemetry::<T>(&self.app, &node, question.clone(), limit).await;
            (node, question, answer)
        });
        let mut answers = Vec::new();
        for (node, question, answer) in self.runtime.block_on(join_all(asked)) {
            match answer {
                Ok(answer) => answers.push((node, answer)),
                Err(reason) => match self.copy_of(&node) {
                    Some(copy) => of_copies.push((node, copy, question)),
                    None => self.omit(node, &reason)?,
                },
            }
        }
        let asked = of_copies
            .into_iter()
            .map(|(source, copy, question)| async move {
                let answer = self.ask_copy::<T>(&copy, question, limit).await;
                (source, copy, answer)
            });
        for (source, copy, answer) in self.runtime.block_on(join_all(asked)) {
            match answer {
                Ok(answer) => {
                    self.use_copy(&source, copy, answer.is_complete)?;
                    answers.push((source, answer.answer));
                }
                Err(reason) => self.omit(source, &reason)?,
            }
        }
        Ok(answers)
    }

    /// The copy that can answer for a node.
    fn copy_of(&self, node: &str) -> Option<TelemetryCopyPlace> {
        let copies = self.cluster().telemetry_copies().into_iter();
        let of_node = copies.filter(|copy| copy.node == node && !copy.is_orphan);
        of_node.max_by_key(|copy| copy.sent_ms)
    }

    async fn ask_copy<T: DeserializeOwned>(
        &self,
        copy: &TelemetryCopyPlace,
        question: TelemetryQuestion,
        limit: Duration,
    ) -> Result<CopyAnswer<T>, String> {
        let question = TelemetryQuestion::Copy {
            key: copy.key.clone(),
            question: Box::new(question),
        };
        if copy.holder != self.cluster().node() {
            return ask_about_telemetry(&self.app, &copy.holder, question, limit).await;
        }
        // Queries run on threads that may block.
        let answer = node_telemetry::answer(&*self.local, question)?;
        serde_json::from_slice(&answer).map_err(|error| error.to_string())
    }

    /// A copy has answered for a source. If it may lack something that the node has, the node counts as missing. What a copy of a node that
    /// is gone lacks is nowhere else.
    fn use_copy(
        &self,
        source: &str,
        copy: TelemetryCopyPlace,
        is_complete: bool,
    ) -> Result<(), TelemetryBackendError> {
        let mut sources = self.sources();
        if !is_complete && source != gone_source(&copy) {
            if self.absent == AbsentNodes::Refused {
                return Err(refused(&copy.node, "a copy of its telemetry is incomplete"));
            }
            sources.missing_nodes.insert(copy.node.clone());
        }
        sources.copies.insert(source.to_owned(), copy);
        Ok(())
    }

    /// Leaves out a source, or lets the query fail.
    fn omit(&self, source: String, reason: &str) -> Result<(), TelemetryBackendError> {
        tracing::debug!(source, reason, "another node of the cluster did not answer");
        let mut sources = self.sources();
        let copy = sources.copies.get(&source);
        let node = copy.map_or(&source, |copy| &copy.node).clone();
        sources.failed.insert(source);
        sources.missing_nodes.insert(node.clone());
        match self.absent {
            AbsentNodes::Omitted => Ok(()),
            AbsentNodes::Refused => Err(refused(&node, reason)),
        }
    }
}

fn refused(node: &str, reason: &str) -> TelemetryBackendError {
    TelemetryBackendError::Unavailable(format!(
        "the node {node:?} of the cluster, which may have telemetry, does not answer: {reason}. Repeat the request when the node can be reached, or remove the node from the cluster if it does not come back"
    ))
}

fn without_repetitions(names: &[String]) -> Vec<String> {
    let mut known = HashSet::new();
    let first_ones = names.iter().filter(|name| known.insert(*name));
    first_ones.cloned().collect()
}

/// Keeps the later sample of each key.
fn add_samples(known: &mut BTreeMap<String, TelemetrySample>, samples: Vec<TelemetrySample>) {
    for sample in samples {
        let is_later = known
            .get(&sample.key)
            .is_none_or(|known| known.ts_ms < sample.ts_ms);
        if is_later {
            known.insert(sample.key.clone(), sample);
        }
    }
}

impl TelemetryReader for ClusterTelemetry {
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
        let latest = self.latest_of_devices(&[device.to_owned()], keys)?;
        let samples = latest.into_iter().next().flatten();
        samples.ok_or_else(|| TelemetryBackendError::NoDevice(device.to_owned()))
    }

    fn latest_of_devices(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Vec<Option<Vec<TelemetrySample>>>, TelemetryBackendError> {
        let local = self.local.latest_of_devices(devices, keys)?;
        let mut latest: Vec<Option<BTreeMap<_, _>>> = Vec::with_capacity(local.len());
        for samples in local {
            latest.push(samples.map(|samples| {
                let mut known = BTreeMap::new();
                add_samples(&mut known, samples);
                known
            }));
        }
        // How many devices each node has answered for.
        let others = self.others()?.into_iter();
        let mut answered: BTreeMap<String, usize> = others.map(|node| (node, 0)).collect();
        loop {
            answered.retain(|_, count| *count < devices.len());
            if answered.is_empty() {
                break;
            }
            let questions = answered.iter().map(|(node, count)| {
                let rest = devices[*count..].iter().take(LATEST_DEVICES);
                let question = TelemetryQuestion::Latest {
                    devices: rest.cloned().collect(),
                    keys: keys.map(<[String]>::to_vec),
                };
                (node.clone(), question)
            });
            let answers = self.ask::<Vec<Vec<SharedSample>>>(questions.collect())?;
            let mut next = BTreeMap::new();
            for (node, answer) in answers {
                let begin = answered.get(&node).copied().unwrap_or_default();
                // An empty answer would be asked for forever.
                let end = begin + answer.len().max(1);
                for (known, samples) in latest[begin..].iter_mut().zip(answer) {
                    if let Some(known) = known {
                        let samples = samples.into_iter().map(TelemetrySample::from);
                        add_samples(known, samples.collect());
                    }
                }
                next.insert(node, end);
            }
            answered = next;
        }
        let latest = latest.into_iter();
        Ok(latest
            .map(|samples| samples.map(|samples| samples.into_values().collect()))
            .collect())
    }

    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError> {
        match RowMerge::begin(self, query)? {
            Some(merge) => merge.pass_rows(|ts_ms, values| Ok(each(ts_ms, values))),
            None => self.local.rows(query, each),
        }
    }

    fn write_rows(
        &self,
        query: &RowQuery,
        separator: u8,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError> {
        let Some(merge) = RowMerge::begin(self, query)? else {
            return self.local.write_rows(query, separator, out, full);
        };
        let mut rows = 0;
        merge.pass_rows(|ts_ms, values| {
            let values: Map<String, Value> = values.into_iter().collect();
            let row = json!({"ts_ms": ts_ms, "values": values});
            out.extend_from_slice(row.to_string().as_bytes());
            out.push(separator);
            rows += 1;
            Ok(out.len() < PIECE_BYTES || full(out))
        })?;
        Ok(rows)
    }

    fn parquet_table<'a>(
        &'a self,
        out: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
        Ok(Box::new(ClusterTable {
            telemetry: self,
            table: self.local.parquet_table(out)?,
        }))
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
        let mut merged = MergedIntervals::new(query);
        // Intervals of one name would be taken for those of several nodes.
        let query = IntervalQuery {
            functions: merged.functions().to_vec(),
            devices: without_repetitions(&query.devices),
            keys: without_repetitions(&query.keys),
            ..query.clone()
        };
        merged.add(self.local.intervals(&query)?)?;
        let others = self.others()?;
        let max_bytes = (MAX_PAGE_BYTES / others.len().max(1)).min(MAX_INTERVAL_PAGE_BYTES);
        let first = IntervalQuestion::new(&query, max_bytes);
        let questions = others.into_iter().map(|node| (node, first.clone()));
        let mut questions: BTreeMap<_, _> = questions.collect();
        while !questions.is_empty() {
            let asked = questions.iter().map(|(node, question)| {
                let question = TelemetryQuestion::Intervals(question.clone());
                (node.clone(), question)
            });
            let pages = self.ask::<IntervalPage>(asked.collect())?;
            let mut next = BTreeMap::new();
            for (node, page) in pages {
                let question = questions.remove(&node);
                match question.map_or(Ok(None), |question| question.after(&page)) {
                    Ok(Some(question)) => {
                        next.insert(node, question);
                    }
                    Ok(None) => {}
                    Err(reason) => self.omit(node, &reason)?,
                }
                merged.add(page.into_rows())?;
            }
            questions = next;
        }
        Ok(merged.into_rows())
    }

    fn subscribe(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
        let local = self.local.subscribe(devices, keys)?;
        let shared = SharedWatch::Telemetry {
            devices: devices.to_vec(),
            keys: keys.map(<[String]>::to_vec),
        };
        let watching = cluster_live::watch(&self.app, shared);
        Ok(match self.runtime.block_on(watching) {
            Some(others) => Box::new(ClusterLiveStream { local, others }),
            None => local,
        })
    }
}

/// The rows of one node that are being merged.
struct RowSource {
    /// `None`: this one.
    node: Option<String>,
    rows: VecDeque<SharedRow>,
    /// What is left to read; `None`: nothing.
    rest: Option<RowQuery>,
}

/// A time, and the values by key.
type MergedRow = (i64, Vec<(String, Value)>);

/// Merges the rows of all nodes. Values of one time that several nodes have are one row.
struct RowMerge<'a> {
    telemetry: &'a ClusterTelemetry,
    sources: Vec<RowSource>,
    newest_first: bool,
    /// Rows until the limit of the query.
    remaining: usize,
    max_page_bytes: usize,
}

impl<'a> RowMerge<'a> {
    /// Reads the first pages of the other nodes. `None`: none of them has rows, so that those of this node need not be merged.
    fn begin(
        telemetry: &'a ClusterTelemetry,
        query: &RowQuery,
    ) -> Result<Option<Self>, TelemetryBackendError> {
        let others = telemetry.others()?;
        let max_page_bytes = (MAX_PAGE_BYTES / (others.len() + 1)).min(MAX_NODE_PAGE_BYTES);
        let nodes = others.into_iter().map(Some);
        let sources = nodes.chain([None]).map(|node| RowSource {
            node,
            rows: VecDeque::new(),
            rest: Some(query.clone()),
        });
        let mut merge = Self {
            telemetry,
            sources: sources.collect(),
            newest_first: query.newest_first,
            remaining: query.limit,
            max_page_bytes,
        };
        merge.read_others()?;
        let mut others = merge.sources.iter().filter(|source| source.node.is_some());
        let is_local_only = others.all(|source| source.rows.is_empty() && source.rest.is_none());
        Ok((!is_local_only).then_some(merge))
    }

    /// Passes rows to `each` until it returns `false`.
    fn pass_rows(
        mut self,
        mut each: impl FnMut(i64, Vec<(String, Value)>) -> Result<bool, TelemetryBackendError>,
    ) -> Result<(), TelemetryBackendError> {
        while let Some((ts_ms, values)) = self.next_row()? {
            if !each(ts_ms, values)? {
                break;
            }
        }
        Ok(())
    }

    fn page_query(&self, rest: &RowQuery) -> RowQuery {
        RowQuery {
            limit: self.remaining.min(PAGE_ROWS),
            ..rest.clone()
        }
    }

    /// Reads the next page of each other node whose page has ended.
    fn read_others(&mut self) -> Result<(), TelemetryBackendError> {
        let mut questions = Vec::new();
        for source in &self.sources {
            if let (Some(node), Some(rest)) = (&source.node, &source.rest)
                && source.rows.is_empty()
            {
                let question = TelemetryQuestion::Rows {
                    query: self.page_query(rest),
                    max_bytes: self.max_page_bytes,
                };
                questions.push((node.clone(), question));
            }
        }
        if questions.is_empty() {
            return Ok(());
        }
        let mut pages: BTreeMap<String, RowPage> =
            self.telemetry.ask(questions)?.into_iter().collect();
        for source in &mut self.sources {
            if let Some(node) = &source.node
                && source.rows.is_empty()
                && source.rest.is_some()
            {
                match pages.remove(node) {
                    Some(page) => source.add(page),
                    // It did not answer.
                    None => source.rest = None,
                }
            }
        }
        Ok(())
    }

    /// Reads the next page of this node if its page has ended.
    fn read_own(&mut self) -> Result<(), TelemetryBackendError> {
        let own = self.sources.iter().position(|source| source.node.is_none());
        let Some(own) = own else {
            return Ok(());
        };
        if let Some(rest) = &self.sources[own].rest
            && self.sources[own].rows.is_empty()
        {
            let query = self.page_query(rest);
            let page = read_page(&*self.telemetry.local, &query, self.max_page_bytes)?;
            self.sources[own].add(page);
        }
        Ok(())
    }

    fn next_row(&mut self) -> Result<Option<MergedRow>, TelemetryBackendError> {
        if self.remaining == 0 {
            return Ok(None);
        }
        self.read_others()?;
        self.read_own()?;
        let heads = self.sources.iter().filter_map(|source| {
            let row = source.rows.front()?;
            Some(row.0)
        });
        let next = match self.newest_first {
            true => heads.max(),
            false => heads.min(),
        };
        let Some(ts_ms) = next else {
            return Ok(None);
        };
        let mut values: Vec<(String, Value)> = Vec::new();
        for source in &mut self.sources {
            let Some(SharedRow(_, more)) = source.rows.pop_front_if(|row| row.0 == ts_ms) else {
                continue;
            };
            for (key, value) in more {
                if !values.iter().any(|(known, _)| *known == key) {
                    values.push((key, value.into()));
                }
            }
        }
        self.remaining -= 1;
        Ok(Some((ts_ms, values)))
    }
}

impl RowSource {
    fn add(&mut self, page: RowPage) {
        let last = page.rows.last().map(|row| row.0);
        match (&mut self.rest, last) {
            (Some(rest), Some(last)) if !page.is_last => match rest.newest_first {
                // The end is exclusive.
                true => rest.to_ms = last,
                false => rest.from_ms = last + 1,
            },
            _ => self.rest = None,
        }
        self.rows.extend(page.rows);
    }
}

/// A Parquet file with the rows of all nodes.
struct ClusterTable<'a> {
    telemetry: &'a ClusterTelemetry,
    table: Box<dyn TelemetryTable + 'a>,
}

impl TelemetryTable for ClusterTable<'_> {
    fn add(&mut self, query: &RowQuery) -> Result<(), TelemetryBackendError> {
        let Some(merge) = RowMerge::begin(self.telemetry, query)? else {
            return self.table.add(query);
        };
        merge.pass_rows(|ts_ms, values| {
            self.table.add_row(&query.device, ts_ms, &values)?;
            Ok(true)
        })
    }

    fn add_row(
        &mut self,
        device: &str,
        ts_ms: i64,
        values: &[(String, Value)],
    ) -> Result<(), TelemetryBackendError> {
        self.table.add_row(device, ts_ms, values)
    }

    fn finish(self: Box<Self>) -> Result<(), TelemetryBackendError> {
        self.table.finish()
    }
}
