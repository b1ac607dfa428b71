//! A compiled rule, and its evaluation for one event.

use crate::context::Dialect;
use crate::error::Error;
use crate::eval::{Columns, Evaluator};
use crate::event::Event;
use crate::fault::{Fault, contained};
use crate::keys::Keys;
use crate::kv::{Kv, KvLimits};
use crate::options::EvaluationLimits;
use crate::plan::{Column, NodeId, Plan};
use crate::source::Source;
use crate::value::Value;
use crate::view::View;
use crate::window::{Closed, Sample, Window};
use crate::zone::Zone;

/// One statement, ready. Immutable, and small: see [`Rule::size_bytes`].
pub struct Rule {
    pub(crate) sources: Box<[Source]>,
    pub(crate) keys: Keys,
    pub(crate) filter: Option<NodeId>,
    /// What is left of it for events that the index found, see [`Rule::run_found`].
    pub(crate) found_filter: Option<NodeId>,
    pub(crate) body: Body,
    pub(crate) plan: Plan,
    pub(crate) dialect: Dialect,
    pub(crate) zone: Zone,
    pub(crate) limits: EvaluationLimits,
    pub(crate) max_outputs: usize,
    /// What is no error, but hardly meant so.
    pub(crate) warnings: Box<[Error]>,
    /// LIMIT: what comes after so many outputs of one event is left out.
    pub(crate) limit: usize,
}

pub(crate) enum Body {
    Select(Box<[Column]>),
    Foreach {
        list: NodeId,
        incase: Option<NodeId>,
        columns: Box<[Column]>,
    },
    Windowed(Box<Grouping>),
}

pub(crate) struct Grouping {
    pub(crate) window: Window,
    pub(crate) keys: Box<[NodeId]>,
    pub(crate) arguments: Box<[NodeId]>,
    pub(crate) columns: Box<[Column]>,
    pub(crate) having: Option<NodeId>,
}

/// What a rule remembers from one event to the next, on one shard.
#[derive(Debug, Default)]
pub struct RuleState {
    pub kv: Kv,
}

impl RuleState {
    #[must_use]
    pub fn new(limits: KvLimits) -> Self {
        Self {
            kv: Kv::new(limits),
        }
    }
}

/// What a rule brings forth. Lives as long as the arena is not reset.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    pub columns: &'a [(&'a str, Value<'a>)],
}

impl<'a> Output<'a> {
    /// A column by its name; null if there is none.
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

/// What came of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// WHERE, INCASE or HAVING did not hold, or there was nothing to go through.
    NoResult,
    /// So many outputs.
    Passed(u32),
}

impl Rule {
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// What an event must have to be worth showing to [`Rule::run`].
    #[must_use]
    pub fn conjuncts(&self) -> &Keys {
        &self.keys
    }

    /// What the statement hardly means as it is written, each with its place.
    #[must_use]
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The window of a rule with GROUP BY; such a rule is asked with [`Rule::sample`] and [`Rule::close`].
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        match &self.body {
            Body::Windowed(grouping) => Some(&grouping.window),
            _ => None,
        }
    }

    /// Whether FROM has this event. `$rule/` and `$bridges/` are known by their names to whoever sends from them.
    #[must_use]
    pub fn listens_to(&self, event: &Event<'_>) -> bool {
        self.sources.iter().any(|source| match source {
            Source::Event(kind) => *kind == event.kind,
            Source::Topic(filter) => {
                source.has_kind(event.kind)
                    && event
                        .topic
                        .is_some_and(|topic| mqtt::filter_matches(filter, topic))
            }
            Source::Rule(_) | Source::Bridge(_) => false,
        })
    }

    /// Shows an event of FROM to the rule. Each output is given to `out` after the evaluation, so that `out` may run other
    /// rules on what it got.
    ///
    /// # Errors
    /// What the event made go wrong: an overflow, an argument of the wrong type, too many steps. Nothing was given out then.
    pub fn run<'a>(
        &'a self,
        view: &View<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(Output<'a>),
    ) -> Result<Ran, Fault> {
        self.run_if(self.filter, view, state, out)
    }

    /// The same for an event that an [`Index`](crate::index::Index) has found by the rule's sources and keys: what the index has
    /// seen to already is not asked again.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn run_found<'a>(
        &'a self,
        view: &View<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(Output<'a>),
    ) -> Result<Ran, Fault> {
        self.run_if(self.found_filter, view, state, out)
    }

    fn run_if<'a>(
        &'a self,
        filter: Option<NodeId>,
        view: &View<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(Output<'a>),
    ) -> Result<Ran, Fault> {
        match &self.body {
            Body::Select(columns) => {
                let columns = self.evaluate(view, state, |evaluator| {
                    if !passes(filter, evaluator)? {
                        return Ok(None);
                    }
                    let columns = evaluator.columns(columns)?;
                    self.check_payload(view)?;
                    Ok(Some(columns))
                })?;
                Ok(give(columns, out))
            }
            Body::Foreach {
                list,
                incase,
                columns,
            } => {
                let rows = self.evaluate(view, state, |evaluator| {
                    if !passes(filter, evaluator)? {
                        return Ok(None);
                    }
                    let rows = self.each(evaluator, view, *list, *incase, columns)?;
                    self.check_payload(view)?;
                    Ok(Some(rows))
                })?;
                let rows = rows.unwrap_or_default();
                for columns in rows {
                    out(Output { columns });
                }
                Ok(if rows.is_empty() {
                    Ran::NoResult
                } else {
                    Ran::Passed(rows.len() as u32)
                })
            }
            Body::Windowed(_) => Ok(Ran::NoResult),
        }
    }

    /// What a window is to count of an event; nothing if WHERE does not hold, or if the rule has no window.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn sample<'a>(
        &'a self,
        view: &View<'a>,
        state: &mut RuleState,
    ) -> Result<Option<Sample<'a>>, Fault> {
        let Body::Windowed(grouping) = &self.body else {
            return Ok(None);
        };
        self.evaluate(view, state, |evaluator| {
            if !passes(self.filter, evaluator)? {
                return Ok(None);
            }
            let sample = Sample {
                timestamp_ms: view.event().timestamp_ms,
                key: values(evaluator, view, &grouping.keys)?,
                arguments: values(evaluator, view, &grouping.arguments)?,
            };
            self.check_payload(view)?;
            Ok(Some(sample))
        })
    }

    /// SELECT and HAVING of a window whose time has come. The view may be of any event.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn close<'a>(
        &'a self,
        closed: &Closed<'a>,
        view: &View<'a>,
        state: &mut RuleState,
        out: &mut dyn FnMut(Output<'a>),
    ) -> Result<Ran, Fault> {
        let Body::Windowed(grouping) = &self.body else {
            return Ok(Ran::NoResult);
        };
        let columns = self.evaluate(view, state, |evaluator| {
            evaluator.closed = Some(*closed);
            if let Some(having) = grouping.having
                && !evaluator.holds(having)?
            {
                return Ok(None);
            }
            evaluator.columns(&grouping.columns).map(Some)
        })?;
        Ok(give(columns, out))
    }

    /// Memory of the rule, in all.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let source = |source: &Source| match source {
            Source::Topic(text) | Source::Rule(text) | Source::Bridge(text) => text.len(),
            Source::Event(_) => 0,
        };
        let body = match &self.body {
            Body::Select(columns) | Body::Foreach { columns, .. } => size_of_val(&**columns),
            Body::Windowed(grouping) => {
                size_of::<Grouping>()
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
            + self.plan.size_bytes()
            + size_of_val(&*self.warnings)
            + body
            + topics.sum::<usize>()
            + clients.sum::<usize>()
    }

    pub(crate) fn evaluate<'a, T>(
        &'a self,
        view: &View<'a>,
        state: &mut RuleState,
        work: impl FnOnce(&mut Evaluator<'a, '_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut tools = view.tools.borrow_mut();
        let mut evaluator = Evaluator::new(
            &self.plan,
            view,
            &mut tools,
            &mut state.kv,
            &self.zone,
            self.dialect,
        );
        evaluator.limit(self.limits);
        // EMQX has no windows, whose aggregates leave out what is null.
        evaluator.needs_values =
            self.dialect == Dialect::Emqx && !matches!(self.body, Body::Windowed(_));
        contained(|| work(&mut evaluator))
    }

    /// In EMQX's dialect a rule that reads a part of the payload fails if it is no JSON, wherever that shows.
    #[inline]
    fn check_payload(&self, view: &View<'_>) -> Result<(), Fault> {
        let is_wrong = self.dialect == Dialect::Emqx && self.plan.reads_payload && !view.is_json();
        if is_wrong {
            Err(view.no_json())
        } else {
            Ok(())
        }
    }

    fn each<'a>(
        &'a self,
        evaluator: &mut Evaluator<'a, '_>,
        view: &View<'a>,
        list: NodeId,
        incase: Option<NodeId>,
        columns: &[Column],
    ) -> Result<&'a [Columns<'a>], Fault> {
        let list = evaluator.evaluate(list)?;
        let mut rows = bumpalo::collections::Vec::new_in(view.arena());
        let memos = evaluator.memos();
        for &item in evaluator.items(list) {
            evaluator.set_memos(memos);
            evaluator.item = item;
            if let Some(incase) = incase
                && !evaluator.holds(incase)?
            {
                continue;
            }
            if rows.len() == self.limit {
                break;
            }
            if rows.len() == self.max_outputs {
                return Err(Fault::TooLarge {
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

fn passes(filter: Option<NodeId>, evaluator: &mut Evaluator<'_, '_>) -> Result<bool, Fault> {
    filter.map_or(Ok(true), |filter| evaluator.holds(filter))
}

fn values<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    view: &View<'a>,
    ids: &[NodeId],
) -> Result<&'a [Value<'a>], Fault> {
    let values = view
        .arena()
        .alloc_slice_fill_copy(ids.len(), Value::Undefined);
    for (value, &id) in values.iter_mut().zip(ids) {
        *value = evaluator.evaluate(id)?;
    }
    Ok(values)
}

fn give<'a>(columns: Option<Columns<'a>>, out: &mut dyn FnMut(Output<'a>)) -> Ran {
    match columns {
        Some(columns) => {
            out(Output { columns });
            Ran::Passed(1)
        }
        None => Ran::NoResult,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Index, Looked};
    use crate::options::Options;
    use crate::source::EventKind;
    use crate::tools::Tools;
    use crate::view::Scratch;

    #[test]
    fn what_the_index_has_seen_to_is_not_asked_again() {
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
        let mut scratch = Scratch::new(Tools::new([1; 32], 0), 1 << 20);
        for (sql, asks_nothing) in statements {
            let rule = crate::compile(sql, &Options::default()).expect(sql);
            assert_eq!(rule.found_filter.is_none(), asks_nothing, "{sql}");
            let mut index = Index::default();
            index.add(rule.sources(), rule.conjuncts(), &());
            for (kind, topic, qos) in [
                (EventKind::Publish, "a/b", 0),
                (EventKind::Publish, "a/b", 1),
                (EventKind::Publish, "a/c", 1),
                (EventKind::Subscribed, "a/+", 1),
            ] {
                let looked = Looked {
                    kind,
                    topic: Some(topic),
                    client_id: Some("c"),
                    qos: Some(qos),
                };
                let mut found = 0;
                index.matches(&looked, |()| found += 1);
                let mut event = Event::new(kind, 1);
                event.topic = Some(topic);
                event.qos = Some(qos);
                let mut state = RuleState::default();
                let view = scratch.view(&event, 1);
                let listens = rule.listens_to(&event);
                let asked = rule.run(&view, &mut state, &mut |_| {}).expect("no fault");
                if found == 0 {
                    assert!(!listens || asked == Ran::NoResult, "{sql}: {topic}");
                } else {
                    let known = rule.run_found(&view, &mut state, &mut |_| {});
                    assert_eq!(known.expect("no fault"), asked, "{sql}: {topic}");
                }
                scratch.reset();
            }
        }
    }
}
