//! Runs a row through a chain.

use bumpalo::Bump;
use mqtt::TopicLimits;
use rules::{
    EvaluationScratch, EventKind, EventView, RuleEvent, RuleOutput, RuleState, RunOutcome,
};
use series::{KeyId, Point, PointValue};

use super::compiled_chain::{Chain, ChainNode, NodeOperation};
use super::effects::{ChainEffects, ChainRow};

/// Maximum number of nodes that a row passes, counting repetitions.
const MAX_STEPS: u32 = 256;

/// A node failed and has no relation for a failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {node:?}: {reason}")]
pub struct ChainRunError {
    pub node: Box<str>,
    pub reason: Box<str>,
}

/// The outcome of a node.
enum NodeOutcome<'a> {
    Success,
    False,
    /// Success; the following nodes receive other points.
    Changed(RowColumns<'a>),
}

/// Points and their names.
#[derive(Default)]
struct RowColumns<'a> {
    points: Vec<Point<'a>>,
    names: Vec<&'a str>,
}

impl Chain {
    /// Passes a row through the nodes. `keys`: the numbers of [`Chain::keys`].
    ///
    /// # Errors
    /// Fails if a node fails and has no relation for a failure, or if there are too many steps. Effects of earlier
    /// nodes remain.
    pub fn run<'a>(
        &self,
        row: &ChainRow<'_, 'a>,
        keys: &[KeyId],
        scratch: &EvaluationScratch,
        effects: &mut dyn ChainEffects<'a>,
    ) -> Result<(), ChainRunError> {
        if self.only_saves {
            effects.save_row(row.points);
            return Ok(());
        }
        let mut walk = ChainExecution {
            chain: self,
            keys,
            scratch,
            effects,
            steps: 0,
        };
        self.first
            .iter()
            .try_for_each(|first| walk.visit(*first, row))
    }
}

struct ChainExecution<'w, 'a> {
    chain: &'w Chain,
    keys: &'w [KeyId],
    scratch: &'w EvaluationScratch,
    effects: &'w mut dyn ChainEffects<'a>,
    steps: u32,
}

impl<'a> ChainExecution<'_, 'a> {
    /// The recursion is at most as deep as the chain is long: there are no cycles.
    fn visit(&mut self, at: u16, row: &ChainRow<'_, 'a>) -> Result<(), ChainRunError> {
        let chain = self.chain;
        let node = &chain.nodes[usize::from(at)];
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(node_error(
                node,
                format!("a row passes at most {MAX_STEPS} nodes"),
            ));
        }
        match self.execute_node(node, row) {
            Ok(NodeOutcome::Success) => self.visit_all(&node.on_success, row),
            Ok(NodeOutcome::False) => self.visit_all(&node.on_false, row),
            Ok(NodeOutcome::Changed(columns)) => {
                let changed = ChainRow {
                    points: &columns.points,
                    names: &columns.names,
                    ..*row
                };
                self.visit_all(&node.on_success, &changed)
            }
            Err(reason) if node.on_failure.is_empty() => Err(node_error(node, reason)),
            Err(_) => self.visit_all(&node.on_failure, row),
        }
    }

    fn visit_all(&mut self, next: &[u16], row: &ChainRow<'_, 'a>) -> Result<(), ChainRunError> {
        next.iter().try_for_each(|next| self.visit(*next, row))
    }

    fn execute_node(
        &mut self,
        node: &ChainNode,
        row: &ChainRow<'_, 'a>,
    ) -> Result<NodeOutcome<'a>, String> {
        match &node.work {
            NodeOperation::Validate => {}
            NodeOperation::Filter(condition) => {
                let passes = match condition.evaluate_simple(row.points, self.keys) {
                    Some(passes) => passes,
                    None => {
                        let (view, _) = row_view(self.scratch, &*self.effects, row);
                        let mut state = RuleState::default();
                        let ran = condition.rule.run(&view, &mut state, &mut |_| {});
                        matches!(
                            ran.map_err(|fault| fault.to_string())?,
                            RunOutcome::Passed(_)
                        )
                    }
                };
                if !passes {
                    return Ok(NodeOutcome::False);
                }
            }
            NodeOperation::Transform(rule) => {
                let effects = &*self.effects;
                let (view, _) = row_view(self.scratch, effects, row);
                let (mut columns, mut wrong) = (RowColumns::default(), None);
                let mut state = RuleState::default();
                let ran = rule.run(&view, &mut state, &mut |output| {
                    wrong = collect_columns(&output, effects, &mut columns).err();
                });
                ran.map_err(|fault| fault.to_string())?;
                return wrong.map_or(Ok(NodeOutcome::Changed(columns)), Err);
            }
            NodeOperation::SaveTelemetry if row.points.is_empty() => {}
            NodeOperation::SaveTelemetry => self.effects.save_row(row.points),
            NodeOperation::Alarm => self.effects.evaluate_alarms(row.ts_ms, row.points),
            NodeOperation::Log(message) => {
                let (view, output) = row_view(self.scratch, &*self.effects, row);
                let (mut line, mut state) = (Vec::new(), RuleState::default());
                let rendered = message.render(&output, &view, &mut state, &mut line);
                rendered.map_err(|fault| fault.to_string())?;
                let line = String::from_utf8_lossy(&line);
                tracing::info!(device = row.device, product = row.product, "{line}");
            }
            NodeOperation::Republish(republish) => {
                let (view, output) = row_view(self.scratch, &*self.effects, row);
                let (mut topic, mut payload) = (Vec::new(), Vec::new());
                let mut state = RuleState::default();
                let rendered = (republish.topic).render(&output, &view, &mut state, &mut topic);
                if let Some(name) = rendered.map_err(|fault| fault.to_string())?.first_null {
                    return Err(format!("topic: ${{{name}}} is null"));
                }
                let template = &republish.payload;
                let rendered = template.render(&output, &view, &mut state, &mut payload);
                rendered.map_err(|fault| fault.to_string())?;
                let topic = String::from_utf8_lossy(&topic);
                if let Err(error) = mqtt::validate_topic_name(&topic, &TopicLimits::NONE) {
                    return Err(format!("{topic:?} is not a topic: {error}"));
                }
                let (qos, retain) = (republish.qos, republish.retain);
                self.effects.republish(&topic, &payload, qos, retain);
            }
            NodeOperation::Sink(name) => {
                let (_, output) = row_view(self.scratch, &*self.effects, row);
                self.effects.outputs().write_to_sink(name, output.value());
            }
        }
        Ok(NodeOutcome::Success)
    }
}

fn node_error(node: &ChainNode, reason: String) -> ChainRunError {
    ChainRunError {
        node: node.id.clone(),
        reason: reason.into(),
    }
}

/// The row as expressions see it: its keys, and `deviceId`, `productId` and `ts`.
fn row_view<'v, 'a: 'v>(
    scratch: &'v EvaluationScratch,
    effects: &'v dyn ChainEffects<'a>,
    row: &ChainRow<'v, 'a>,
) -> (EventView<'v>, RuleOutput<'v>) {
    let arena = scratch.arena();
    let mut fields = bumpalo::collections::Vec::with_capacity_in(row.points.len() + 3, arena);
    fields.extend([
        ("deviceId", rules::Value::Str(row.device)),
        ("productId", rules::Value::Str(row.product)),
        ("ts", rules::Value::Int(row.ts_ms)),
    ]);
    for (at, point) in row.points.iter().enumerate() {
        let name = match row.names.get(at) {
            Some(name) => name,
            None => effects.key_name(point.key),
        };
        fields.push((name, rule_value(point.value)));
    }
    let columns: &'v [(&'v str, rules::Value<'v>)] = fields.into_bump_slice();
    let event: &'v RuleEvent<'v> = arena.alloc(RuleEvent {
        extra: rules::Value::Map(columns),
        client_id: row.device,
        ..RuleEvent::new(EventKind::Device, row.ts_ms.max(0) as u64)
    });
    (
        scratch.view(event, event.timestamp_ms),
        RuleOutput { columns },
    )
}

fn rule_value<'v>(value: PointValue<'v>) -> rules::Value<'v> {
    match value {
        PointValue::Bool(value) => rules::Value::Bool(value),
        PointValue::Int(value) => rules::Value::Int(value),
        PointValue::Float(value) => rules::Value::Float(value),
        PointValue::Text(text) => rules::Value::Str(text),
        PointValue::Json(json) => rules::Value::Json(json),
    }
}

/// Converts the columns of an output to points, without nulls and without the field names of the event.
fn collect_columns<'a>(
    output: &RuleOutput<'_>,
    effects: &dyn ChainEffects<'a>,
    columns: &mut RowColumns<'a>,
) -> Result<(), String> {
    let arena = effects.arena();
    for (name, value) in output.columns {
        if matches!(*name, "deviceId" | "productId" | "ts" | "timestamp") {
            continue;
        }
        let value = match value {
            rules::Value::Undefined | rules::Value::Null => continue,
            rules::Value::Bool(value) => PointValue::Bool(*value),
            rules::Value::Int(value) => PointValue::Int(*value),
            rules::Value::Float(value) => PointValue::Float(*value),
            rules::Value::Str(text) => PointValue::Text(arena.alloc_str(text)),
            other => PointValue::Json(json_of(other, arena)),
        };
        let key = effects.register_key(name);
        let key = key.map_err(|reason| format!("the key {name:?} cannot be created: {reason}"))?;
        columns.points.push(Point { key, value });
        columns.names.push(arena.alloc_str(name));
    }
    Ok(())
}

fn json_of<'a>(value: &rules::Value<'_>, arena: &'a Bump) -> &'a str {
    let mut json = Vec::new();
    value.write_json(&mut json);
    arena.alloc_str(&String::from_utf8_lossy(&json))
}
