//! A row on its way through a chain.

use bumpalo::Bump;
use mqtt::TopicLimits;
use rules::{Event, EventKind, Output, Ran, RuleState, Scratch, View};
use series::{KeyId, Point, Value};

use super::{Chain, Effects, MAX_STEPS, Node, Passing, Work};

/// A node failed and nothing follows its failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {node:?}: {reason}")]
pub struct Failed {
    pub node: Box<str>,
    pub reason: Box<str>,
}

/// What a node has done.
enum Outcome<'a> {
    Success,
    False,
    /// With other points from here on.
    Changed(Columns<'a>),
}

/// Points and their names.
#[derive(Default)]
struct Columns<'a> {
    points: Vec<Point<'a>>,
    names: Vec<&'a str>,
}

impl Chain {
    /// Shows a row to the nodes. `keys`: the numbers of [`Chain::keys`].
    ///
    /// # Errors
    /// If a node fails and nothing follows its failure, or there are too many steps; what was done until then is done.
    pub fn run<'a>(
        &self,
        row: &Passing<'_, 'a>,
        keys: &[KeyId],
        scratch: &Scratch,
        effects: &mut dyn Effects<'a>,
    ) -> Result<(), Failed> {
        if self.only_saves {
            effects.save(row.points);
            return Ok(());
        }
        let mut walk = Walk {
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

struct Walk<'w, 'a> {
    chain: &'w Chain,
    keys: &'w [KeyId],
    scratch: &'w Scratch,
    effects: &'w mut dyn Effects<'a>,
    steps: u32,
}

impl<'a> Walk<'_, 'a> {
    /// As deep as the chain is long: there are no cycles.
    fn visit(&mut self, at: u16, row: &Passing<'_, 'a>) -> Result<(), Failed> {
        let chain = self.chain;
        let node = &chain.nodes[usize::from(at)];
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(failed(
                node,
                format!("a row passes {MAX_STEPS} nodes at most"),
            ));
        }
        match self.work(node, row) {
            Ok(Outcome::Success) => self.follow(&node.on_success, row),
            Ok(Outcome::False) => self.follow(&node.on_false, row),
            Ok(Outcome::Changed(columns)) => {
                let changed = Passing {
                    points: &columns.points,
                    names: &columns.names,
                    ..*row
                };
                self.follow(&node.on_success, &changed)
            }
            Err(reason) if node.on_failure.is_empty() => Err(failed(node, reason)),
            Err(_) => self.follow(&node.on_failure, row),
        }
    }

    fn follow(&mut self, next: &[u16], row: &Passing<'_, 'a>) -> Result<(), Failed> {
        next.iter().try_for_each(|next| self.visit(*next, row))
    }

    fn work(&mut self, node: &Node, row: &Passing<'_, 'a>) -> Result<Outcome<'a>, String> {
        let mut state = RuleState::default();
        match &node.work {
            Work::Validate => {}
            Work::Filter(condition) => {
                let passes = match condition.passes(row.points, self.keys) {
                    Some(passes) => passes,
                    None => {
                        let (view, _) = seen(self.scratch, &*self.effects, row);
                        let ran = condition.rule.run(&view, &mut state, &mut |_| {});
                        matches!(ran.map_err(|fault| fault.to_string())?, Ran::Passed(_))
                    }
                };
                if !passes {
                    return Ok(Outcome::False);
                }
            }
            Work::Transform(rule) => {
                let effects = &*self.effects;
                let (view, _) = seen(self.scratch, effects, row);
                let (mut columns, mut wrong) = (Columns::default(), None);
                let ran = rule.run(&view, &mut state, &mut |output| {
                    wrong = take_columns(&output, effects, &mut columns).err();
                });
                ran.map_err(|fault| fault.to_string())?;
                return wrong.map_or(Ok(Outcome::Changed(columns)), Err);
            }
            Work::SaveTelemetry if row.points.is_empty() => {}
            Work::SaveTelemetry => self.effects.save(row.points),
            Work::Alarm => self.effects.alarm(row.ts_ms, row.points),
            Work::Log(message) => {
                let (view, output) = seen(self.scratch, &*self.effects, row);
                let mut line = Vec::new();
                let rendered = message.render(&output, &view, &mut state, &mut line);
                rendered.map_err(|fault| fault.to_string())?;
                let line = String::from_utf8_lossy(&line);
                tracing::info!(device = row.device, product = row.product, "{line}");
            }
            Work::Republish(republish) => {
                let (view, output) = seen(self.scratch, &*self.effects, row);
                let (mut topic, mut payload) = (Vec::new(), Vec::new());
                let rendered = (republish.topic).render(&output, &view, &mut state, &mut topic);
                if let Some(name) = rendered.map_err(|fault| fault.to_string())?.first_null {
                    return Err(format!("topic: ${{{name}}} is null"));
                }
                let template = &republish.payload;
                let rendered = template.render(&output, &view, &mut state, &mut payload);
                rendered.map_err(|fault| fault.to_string())?;
                let topic = String::from_utf8_lossy(&topic);
                if let Err(error) = mqtt::validate_topic_name(&topic, &TopicLimits::NONE) {
                    return Err(format!("{topic:?} is no topic: {error}"));
                }
                let outside = self.effects.outside();
                outside.republish(&topic, &payload, republish.qos, republish.retain);
            }
            Work::Sink(name) => {
                let (_, output) = seen(self.scratch, &*self.effects, row);
                self.effects.outside().sink(name, output.value());
            }
        }
        Ok(Outcome::Success)
    }
}

fn failed(node: &Node, reason: String) -> Failed {
    Failed {
        node: node.id.clone(),
        reason: reason.into(),
    }
}

/// The row as expressions see it: its keys, and `deviceId`, `productId`, `ts`.
fn seen<'v, 'a: 'v>(
    scratch: &'v Scratch,
    effects: &'v dyn Effects<'a>,
    row: &Passing<'v, 'a>,
) -> (View<'v>, Output<'v>) {
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
            None => effects.name(point.key),
        };
        fields.push((name, rule_value(point.value)));
    }
    let columns: &'v [(&'v str, rules::Value<'v>)] = fields.into_bump_slice();
    let event: &'v Event<'v> = arena.alloc(Event {
        extra: rules::Value::Map(columns),
        client_id: row.device,
        ..Event::new(EventKind::Device, row.ts_ms.max(0) as u64)
    });
    (scratch.view(event, event.timestamp_ms), Output { columns })
}

fn rule_value<'v>(value: Value<'v>) -> rules::Value<'v> {
    match value {
        Value::Bool(value) => rules::Value::Bool(value),
        Value::Int(value) => rules::Value::Int(value),
        Value::Float(value) => rules::Value::Float(value),
        Value::Text(text) => rules::Value::Str(text),
        Value::Json(json) => rules::Value::Json(json),
    }
}

/// The columns of an output as points. What is null is left out, and so are the names of the row itself.
fn take_columns<'a>(
    output: &Output<'_>,
    effects: &dyn Effects<'a>,
    columns: &mut Columns<'a>,
) -> Result<(), String> {
    let arena = effects.arena();
    for (name, value) in output.columns {
        if matches!(*name, "deviceId" | "productId" | "ts" | "timestamp") {
            continue;
        }
        let value = match value {
            rules::Value::Undefined | rules::Value::Null => continue,
            rules::Value::Bool(value) => Value::Bool(*value),
            rules::Value::Int(value) => Value::Int(*value),
            rules::Value::Float(value) => Value::Float(*value),
            rules::Value::Str(text) => Value::Text(arena.alloc_str(text)),
            other => Value::Json(json_of(other, arena)),
        };
        let Some(key) = effects.key(name) else {
            return Err(format!("there can be no key {name:?}"));
        };
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
