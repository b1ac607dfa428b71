//! A compiled rule and its evaluation for one event.

use crate::eval::{Evaluator, OutputColumns};
use crate::evaluation_error::EvaluationError;
use crate::event::RuleEvent;
use crate::event_view::EventView;
use crate::function_context::Dialect;
use crate::index_keys::IndexKeys;
use crate::kv_store::{KvLimits, KvStore};
use crate::plan::{OpId, OutputColumn};
use crate::program::Program;
use crate::rule_source::RuleSource;
use crate::statement_error::StatementError;
use crate::value::Value;
use crate::window::{ClosedWindow, WindowDefinition, WindowSample};

/// A compiled statement. It is immutable and small: see [`Rule::size_bytes`].
pub struct Rule {
    pub(crate) sources: Box<[RuleSource]>,
    pub(crate) keys: IndexKeys,
    pub(crate) filter: Option<OpId>,
    /// The part of WHERE that remains for events selected by the index, see [`Rule::run_indexed`].
    pub(crate) indexed_filter: Option<OpId>,
    pub(crate) body: RuleBody,
    pub(crate) program: Program,
    pub(crate) max_outputs: usize,
    /// Probable mistakes that are not errors.
    pub(crate) warnings: Box<[StatementError]>,
    /// LIMIT: outputs of one event beyond this number are dropped.
    pub(crate) limit: usize,
}

pub(crate) enum RuleBody {
    Select(Box<[OutputColumn]>),
    Foreach {
        list: OpId,
        incase: Option<OpId>,
        columns: Box<[OutputColumn]>,
    },
    Windowed(Box<WindowedBody>),
}

pub(crate) struct WindowedBody {
    pub(crate) window: WindowDefinition,
    pub(crate) keys: Box<[OpId]>,
    pub(crate) arguments: Box<[OpId]>,
    pub(crate) columns: Box<[OutputColumn]>,
    pub(crate) having: Option<OpId>,
}

/// The state that a rule keeps between events.
#[derive(Debug, Default)]
pub struct RuleState {
    pub kv: KvStore,
}

impl RuleState {
    #[must_use]
    pub fn new(limits: KvLimits) -> Self {
        Self {
            kv: KvStore::new(limits),
        }
    }
}

/// An output of a rule. Valid until the arena is reset.
#[derive(Debug, Clone, Copy)]
pub struct RuleOutput<'a> {
    pub columns: &'a [(&'a str, Value<'a>)],
}

impl<'a> RuleOutput<'a> {
    /// A column by name; null if it does not exist.
    #[must_use]
    pub fn column(&self, name: &str) -> Value<'a> {
        self.columns
            .iter()
            .find(|(column, _)| *column == name)
            .map_or(Value::Undefined, |(_, value)| *value)
    }

    #[must_use]
    pub fn value(&self) -> Value<'a> {
        Value::Map(self.columns)
    }

    pub fn write_json(&self, out: &mut Vec<u8>) {
        self.value().write_json(out);
    }
}

/// The outcome of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// WHERE, INCASE or HAVING was not true, or FOREACH had no items.
    NoResult,
    /// The number of outputs.
    Passed(u32),
}

impl Rule {
    #[must_use]
    pub fn sources(&self) -> &[RuleSource] {
        &self.sources
    }

    /// Necessary conditions for an event to pass [`Rule::run`].
    #[must_use]
    pub fn index_keys(&self) -> &IndexKeys {
        &self.keys
    }

    /// Probable mistakes in the statement, each with its position.
    #[must_use]
    pub fn warnings(&self) -> &[StatementError] {
        &self.warnings
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.program.dialect
    }

    /// The window of a rule with GROUP BY. Such a rule is evaluated with [`Rule::sample_event`] and
    /// [`Rule::close_window`].
    #[must_use]
    pub fn window(&self) -> Option<&WindowDefinition> {
        match &self.body {
            RuleBody::Windowed(grouping) => Some(&grouping.window),
            _ => None,
        }
    }

    /// Whether FROM contains this event. For `$rule/` and `$bridges/`, the caller selects rules by name.
    #[must_use]
    pub fn accepts_event(&self, event: &RuleEvent<'_>) -> bool {
        self.sources.iter().any(|source| match source {
            RuleSource::Event(kind) => *kind == event.kind,
            RuleSource::Topic(filter) => {
                source.accepts_kind(event.kind)
                    && event
                        .topic
                        .is_some_and(|topic| mqtt::filter_matches(filter, topic))
            }
            RuleSource::Rule(_) | RuleSource::Bridge(_) => false,
        })
    }

    /// Evaluates an event that matches FROM. Passes each output to `out` after the evaluation, so that `out`
    /// may evaluate other rules on it.
    ///
    /// # Errors
    /// An error caused by the event: an overflow, an argument of the wrong type, too many steps. In that case
    /// `out` was not called.
    #[inline]
    pub fn run<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(RuleOutput<'a>),
    ) -> Result<RunOutcome, EvaluationError> {
        self.run_with_filter(self.filter, view, state, out)
    }

    /// Like [`Rule::run`] for an event that a [`RuleIndex`](crate::index::RuleIndex) has matched by the
    /// rule's sources and keys. Conditions that the index has checked are skipped.
    ///
    /// # Errors
    /// As [`Rule::run`].
    #[inline]
    pub fn run_indexed<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(RuleOutput<'a>),
    ) -> Result<RunOutcome, EvaluationError> {
        self.run_with_filter(self.indexed_filter, view, state, out)
    }

    fn run_with_filter<'a>(
        &'a self,
        filter: Option<OpId>,
        view: &EventView<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(RuleOutput<'a>),
    ) -> Result<RunOutcome, EvaluationError> {
        match &self.body {
            RuleBody::Select(columns) => {
                let columns = self.evaluate(view, state, |evaluator| {
                    if !filter_passes(filter, evaluator)? {
                        return Ok(None);
                    }
                    let columns = evaluator.columns(columns)?;
                    self.check_payload(view)?;
                    Ok(Some(columns))
                })?;
                Ok(emit_output(columns, out))
            }
            RuleBody::Foreach {
                list,
                incase,
                columns,
            } => {
                let rows = self.evaluate(view, state, |evaluator| {
                    if !filter_passes(filter, evaluator)? {
                        return Ok(None);
                    }
                    let rows = self.run_foreach(evaluator, view, *list, *incase, columns)?;
                    self.check_payload(view)?;
                    Ok(Some(rows))
                })?;
                let rows = rows.unwrap_or_default();
                for columns in rows {
                    out(RuleOutput { columns });
                }
                Ok(if rows.is_empty() {
                    RunOutcome::NoResult
                } else {
                    RunOutcome::Passed(rows.len() as u32)
                })
            }
            RuleBody::Windowed(_) => Ok(RunOutcome::NoResult),
        }
    }

    /// The sample that a window counts for an event; `None` if WHERE is not true or the rule has no window.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn sample_event<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Result<Option<WindowSample<'a>>, EvaluationError> {
        let RuleBody::Windowed(grouping) = &self.body else {
            return Ok(None);
        };
        self.evaluate(view, state, |evaluator| {
            if !filter_passes(self.filter, evaluator)? {
                return Ok(None);
            }
            let sample = WindowSample {
                timestamp_ms: view.event().timestamp_ms,
                key: evaluate_all(evaluator, view, &grouping.keys)?,
                arguments: evaluate_all(evaluator, view, &grouping.arguments)?,
            };
            self.check_payload(view)?;
            Ok(Some(sample))
        })
    }

    /// Evaluates SELECT and HAVING for a closed window. The view may be that of any event.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn close_window<'a>(
        &'a self,
        closed: &ClosedWindow<'a>,
        view: &EventView<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(RuleOutput<'a>),
    ) -> Result<RunOutcome, EvaluationError> {
        let RuleBody::Windowed(grouping) = &self.body else {
            return Ok(RunOutcome::NoResult);
        };
        let columns = self.evaluate(view, state, |evaluator| {
            evaluator.closed = Some(*closed);
            if let Some(having) = grouping.having
                && !evaluator.is_condition_true(having)?
            {
                return Ok(None);
            }
            evaluator.columns(&grouping.columns).map(Some)
        })?;
        Ok(emit_output(columns, out))
    }

    /// Total memory of the rule in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let source = |source: &RuleSource| match source {
            RuleSource::Topic(text) | RuleSource::Rule(text) | RuleSource::Bridge(text) => {
                text.len()
            }
            RuleSource::Event(_) => 0,
        };
        let body = match &self.body {
            RuleBody::Select(columns) | RuleBody::Foreach { columns, .. } => {
                size_of_val(&**columns)
            }
            RuleBody::Windowed(grouping) => {
                size_of::<WindowedBody>()
                    + size_of_val(&*grouping.columns)
                    + size_of_val(&*grouping.keys)
                    + size_of_val(&*grouping.arguments)
                    + size_of_val(&*grouping.window.aggregates)
            }
        };
        let topics = self
            .keys
            .topics
            .iter()
            .flatten()
            .map(|key| size_of_val(key) + key.text().len());
        let clients = self
            .keys
            .client_ids
            .iter()
            .flatten()
            .map(|id| size_of_val(id) + id.len());
        size_of::<Self>()
            + size_of_val(&*self.sources)
            + self.sources.iter().map(source).sum::<usize>()
            + self.program.plan.size_bytes()
            + size_of_val(&*self.warnings)
            + body
            + topics.sum::<usize>()
            + clients.sum::<usize>()
    }

    pub(crate) fn evaluate<'a, T>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
        work: impl FnOnce(&mut Evaluator<'a, '_>) -> Result<T, EvaluationError>,
    ) -> Result<T, EvaluationError> {
        // EMQX has no windows, so its strict null handling does not apply to them: their aggregates skip
        // nulls.
        let needs_values =
            self.dialect() == Dialect::Emqx && !matches!(self.body, RuleBody::Windowed(_));
        self.program.evaluate(view, &mut state.kv, |evaluator| {
            evaluator.needs_values = needs_values;
            work(evaluator)
        })
    }

    /// In EMQX's dialect a rule that reads a part of the payload fails if the payload is not JSON, wherever
    /// the error is.
    #[inline]
    fn check_payload(&self, view: &EventView<'_>) -> Result<(), EvaluationError> {
        let is_wrong =
            self.dialect() == Dialect::Emqx && self.program.plan.reads_payload && !view.is_json();
        if is_wrong {
            Err(view.not_json_error())
        } else {
            Ok(())
        }
    }

    fn run_foreach<'a>(
        &'a self,
        evaluator: &mut Evaluator<'a, '_>,
        view: &EventView<'a>,
        list: OpId,
        incase: Option<OpId>,
        columns: &[OutputColumn],
    ) -> Result<&'a [OutputColumns<'a>], EvaluationError> {
        let list = evaluator.evaluate(list)?;
        let mut rows = bumpalo::collections::Vec::new_in(view.arena());
        let memos = evaluator.memos();
        for &item in evaluator.foreach_items(list) {
            evaluator.set_memos(memos);
            evaluator.item = item;
            if let Some(incase) = incase
                && !evaluator.is_condition_true(incase)?
            {
                continue;
            }
            if rows.len() == self.limit {
                break;
            }
            if rows.len() == self.max_outputs {
                return Err(EvaluationError::TooLarge {
                    function: "FOREACH",
                    limit: self.max_outputs,
                    unit: "outputs",
                });
            }
            rows.push(evaluator.columns(columns)?);
        }
        Ok(rows.into_bump_slice())
    }
}

#[inline]
fn filter_passes(
    filter: Option<OpId>,
    evaluator: &mut Evaluator<'_, '_>,
) -> Result<bool, EvaluationError> {
    filter.map_or(Ok(true), |filter| evaluator.is_condition_true(filter))
}

fn evaluate_all<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    view: &EventView<'a>,
    ids: &[OpId],
) -> Result<&'a [Value<'a>], EvaluationError> {
    let values = view
        .arena()
        .alloc_slice_fill_copy(ids.len(), Value::Undefined);
    for (value, &id) in values.iter_mut().zip(ids) {
        *value = evaluator.evaluate(id)?;
    }
    Ok(values)
}

fn emit_output<'a>(
    columns: Option<OutputColumns<'a>>,
    out: &mut dyn FnMut(RuleOutput<'a>),
) -> RunOutcome {
    match columns {
        Some(columns) => {
            out(RuleOutput { columns });
            RunOutcome::Passed(1)
        }
        None => RunOutcome::NoResult,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile_options::CompileOptions;
    use crate::evaluation_resources::EvaluationResources;
    use crate::event_view::EvaluationScratch;
    use crate::index::{IndexQuery, RuleIndex};
    use crate::rule_source::EventKind;

    #[test]
    fn conditions_decided_by_the_index_are_skipped() {
        let statements = [
            ("SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 'a/b'", true),
            ("SELECT * FROM \"$EVENT.PUBLISH\" WHERE 'a/b' = topic", true),
            (
                "SELECT * FROM \"a/#\" WHERE topic = 'a/b' and qos = 1",
                false,
            ),
            (
                "SELECT * FROM \"a/#\", \"+/b\" WHERE qos = 1 and topic = 'a/b'",
                false,
            ),
            (
                "SELECT * FROM \"a/#\" WHERE topic = 'a/b' and topic = 'a/c'",
                false,
            ),
            ("SELECT * FROM \"#\" WHERE topic = 'a/b' or qos = 1", false),
            ("SELECT * FROM \"#\" WHERE not topic = 'a/b'", false),
            (
                "SELECT * FROM \"#\" WHERE topic =~ 'a/+' and topic = 'a/b'",
                false,
            ),
            (
                "SELECT * FROM \"$EVENT.SUBSCRIBE\" WHERE topic = 'a/+'",
                false,
            ),
            (
                "SELECT * FROM \"$EVENT.PUBLISH\", \"$rule/r\" WHERE topic = 'a/b'",
                false,
            ),
            ("FOREACH [1, 2] FROM \"#\" WHERE topic = 'a/b'", true),
        ];
        let mut scratch = EvaluationScratch::new(EvaluationResources::new([1; 32], 0), 1 << 20);
        for (sql, asks_nothing) in statements {
            let rule = crate::compile(sql, &CompileOptions::default()).expect(sql);
            assert_eq!(rule.indexed_filter.is_none(), asks_nothing, "{sql}");
            let mut index = RuleIndex::default();
            index.add(rule.sources(), rule.index_keys(), &());
            for (kind, topic, qos) in [
                (EventKind::Publish, "a/b", 0),
                (EventKind::Publish, "a/b", 1),
                (EventKind::Publish, "a/c", 1),
                (EventKind::Subscribed, "a/+", 1),
            ] {
                let query = IndexQuery {
                    kind,
                    topic: Some(topic),
                    client_id: Some("c"),
                    qos: Some(qos),
                };
                let mut found = 0;
                index.matches(&query, |()| found += 1);
                let mut event = RuleEvent::new(kind, 1);
                event.topic = Some(topic);
                event.qos = Some(qos);
                let mut state = RuleState::default();
                let view = scratch.view(&event, 1);
                let accepts = rule.accepts_event(&event);
                let outcome = rule.run(&view, &mut state, &mut |_| {}).expect("no fault");
                if found == 0 {
                    assert!(
                        !accepts || outcome == RunOutcome::NoResult,
                        "{sql}: {topic}"
                    );
                } else {
                    let known = rule.run_indexed(&view, &mut state, &mut |_| {});
                    assert_eq!(known.expect("no fault"), outcome, "{sql}: {topic}");
                }
                scratch.reset();
            }
        }
    }
}
