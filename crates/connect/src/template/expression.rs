//! Placeholders that are expressions of the rule language, such as `${upper(clientid)}`, over the fields of the row. Plain paths
//! are in `value_path.rs`.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use rules::{
    Arena, CompileOptions, EvaluationResources, EvaluationScratch, EventKind, KvLimits, RuleEvent,
    RuleOutput, RuleState, ValueTemplate,
};
use wall_clock::now_ms;

use crate::row::{ItemWriter, SinkRow, SinkRowWriter, SinkValue};

/// Memory that a thread keeps between rows.
const KEEP_BYTES: usize = 256 << 10;

/// A compiled expression.
#[derive(Clone)]
pub(crate) struct TemplateExpression {
    text: String,
    compiled: Arc<ValueTemplate>,
    /// The fields that the expression reads; `None` if it reads the whole row.
    names: Option<Arc<[Box<str>]>>,
}

impl PartialEq for TemplateExpression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TemplateExpression {}

impl fmt::Debug for TemplateExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

thread_local! {
    static SCRATCH: RefCell<EvaluationScratch> = RefCell::new(scratch());
}

fn scratch() -> EvaluationScratch {
    let mut seed = [0; 32];
    // Without randomness all threads would generate the same ids; functions that generate some report the failure themselves.
    let _ = SystemRandom::new().fill(&mut seed);
    let node = u16::from_le_bytes([seed[0], seed[1]]);
    EvaluationScratch::new(EvaluationResources::new(seed, node), KEEP_BYTES)
}

impl TemplateExpression {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let placeholder = format!("${{{text}}}");
        let compiled = ValueTemplate::compile(&placeholder, &CompileOptions::default())
            .map_err(|error| format!("{placeholder}: {error}"))?;
        let names = compiled
            .names()
            .map(|names| names.into_iter().map(Box::from).collect());
        Ok(Self {
            text: placeholder,
            compiled: Arc::new(compiled),
            names,
        })
    }

    /// The value for a row; null if the expression fails. `scratch` provides memory to borrow from.
    pub(crate) fn find<'a>(&self, row: SinkRow<'_>, into: &'a mut Vec<u8>) -> SinkValue<'a> {
        into.clear();
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.reset();
            let scratch = &*scratch;
            let columns = match &self.names {
                Some(names) => columns_named(names, row, scratch.arena()),
                None => columns_of(row, scratch.arena()),
            };
            let now_ms = now_ms();
            let event = RuleEvent::new(EventKind::Publish, now_ms);
            let view = scratch.view(&event, now_ms);
            let mut state = RuleState::new(KvLimits::default());
            let value = self
                .compiled
                .evaluate(&RuleOutput { columns }, &view, &mut state);
            if let Ok(value) = value {
                put(&mut SinkRowWriter::new(into), "", value);
            }
        });
        SinkRow::from_bytes(into).get("").unwrap_or(SinkValue::Null)
    }
}

/// The columns with these names. A row that has only another spelling of an event field's name has the field.
fn columns_named<'a>(
    names: &'a [Box<str>],
    row: SinkRow<'a>,
    arena: &'a Arena,
) -> &'a [(&'a str, rules::Value<'a>)] {
    let columns = names.iter().filter_map(|name| {
        let spelled = || rules::spellings(name).find_map(|other| row.get(other));
        let value = row.get(name).or_else(spelled)?;
        Some((&**name, value_of(value, arena)))
    });
    arena.alloc_slice_copy(&columns.collect::<Vec<_>>())
}

impl fmt::Display for TemplateExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn columns_of<'a>(row: SinkRow<'a>, arena: &'a Arena) -> &'a [(&'a str, rules::Value<'a>)] {
    arena.alloc_slice_fill_iter(
        row.fields()
            .map(|(name, value)| (name, value_of(value, arena)))
            .collect::<Vec<_>>(),
    )
}

fn value_of<'a>(value: SinkValue<'a>, arena: &'a Arena) -> rules::Value<'a> {
    match value {
        SinkValue::Null => rules::Value::Null,
        SinkValue::Bool(value) => rules::Value::Bool(value),
        SinkValue::Int(value) => rules::Value::Int(value),
        SinkValue::Float(value) => rules::Value::Float(value),
        SinkValue::Text(value) => rules::Value::Str(value),
        SinkValue::Bytes(value) => rules::Value::Bytes(value),
        SinkValue::Json(value) => rules::Value::Json(value),
        SinkValue::Array(items) => {
            let items: Vec<_> = items.map(|item| value_of(item, arena)).collect();
            rules::Value::Array(arena.alloc_slice_copy(&items))
        }
        SinkValue::Map(map) => rules::Value::Map(columns_of(map, arena)),
    }
}

fn put(out: &mut SinkRowWriter<'_>, key: &str, value: rules::Value<'_>) {
    match value {
        rules::Value::Undefined | rules::Value::Null => out.null(key),
        rules::Value::Bool(value) => out.bool(key, value),
        rules::Value::Int(value) => out.int(key, value),
        rules::Value::Float(value) => out.float(key, value),
        rules::Value::Str(value) => out.text(key, value),
        rules::Value::Bytes(value) => out.bytes(key, value),
        // As text, from which databases accept the number.
        rules::Value::Big(value) => out.text(key, value),
        rules::Value::Json(value) => out.json(key, value),
        rules::Value::Array(items) => out.array(key, |out| put_items(out, items)),
        rules::Value::Map(fields) => out.map(key, |out| {
            for (key, value) in fields {
                put(out, key, *value);
            }
        }),
    }
}

fn put_items(out: &mut ItemWriter<'_>, items: &[rules::Value<'_>]) {
    for item in items {
        match *item {
            rules::Value::Undefined | rules::Value::Null => out.null(),
            rules::Value::Bool(value) => out.bool(value),
            rules::Value::Int(value) => out.int(value),
            rules::Value::Float(value) => out.float(value),
            rules::Value::Str(value) => out.text(value),
            rules::Value::Bytes(value) => out.bytes(value),
            rules::Value::Big(value) => out.text(value),
            rules::Value::Json(value) => out.json(value),
            rules::Value::Array(items) => out.array(|out| put_items(out, items)),
            rules::Value::Map(fields) => out.map(|out| {
                for (key, value) in fields {
                    put(out, key, *value);
                }
            }),
        }
    }
}
