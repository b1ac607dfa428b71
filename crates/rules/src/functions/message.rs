//! Functions on the message under evaluation and on topics.

use super::args::Args;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::{FunctionContext, MessagePart};
use crate::json;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("topic", (0, 1), "[level: int]", "string", "The topic, or one of its levels counted from 1; null if there is no such level.", "topic(2)", r#""7""#, topic).impure(),
    line("payload", (0, 1), "[path: string]", "any", "The payload, or the JSON value at a path of names separated by dots.", "payload('temperature')", "21.5", payload).impure(),
    line("qos", (0, 0), "", "int", "The QoS.", "qos()", "1", |context, _| Ok(part(context, MessagePart::Qos))).impure(),
    line("flags", (0, 0), "", "map", "The flags of the message.", "flags()", r#"{"retain":false,"dup":false}"#, |context, _| Ok(part(context, MessagePart::Flags))).impure(),
    line("flag", (1, 1), "name: string", "boolean", "The flag of this name.", "flag('retain')", "false", flag).impure(),
    line("clientid", (0, 0), "", "string", "The client id of the sender.", "clientid()", r#""c1""#, |context, _| Ok(part(context, MessagePart::ClientId))).impure(),
    line("username", (0, 0), "", "string", "The user name of the sender.", "username()", r#""u1""#, |context, _| Ok(part(context, MessagePart::Username))).impure(),
    line("peerhost", (0, 0), "", "string", "The IP address of the sender.", "peerhost()", r#""127.0.0.1""#, |context, _| Ok(part(context, MessagePart::PeerHost))).impure().alias(&["clientip"]),
    line("msgid", (0, 0), "", "string", "The id of the message.", "msgid()", r#""0005F0A9B3""#, |context, _| Ok(part(context, MessagePart::MessageId))).impure(),
    line("contains_topic", (2, 3), "filters: array, topic: string[, qos: int]", "boolean", "Whether a list of filters (texts, or maps with `topic` and `qos`) contains this filter.", "contains_topic(['t/1', 't/2'], 't/2')", "true", |context, args| contains(context, args, |item, wanted| item == wanted)),
    line("contains_topic_match", (2, 3), "filters: array, topic: string[, qos: int]", "boolean", "Whether a list contains a topic that matches the filter, or a filter that matches the topic.", "contains_topic_match(['t/1', 't/2'], 't/#')", "true", |context, args| contains(context, args, |item, wanted| mqtt::filter_matches(wanted, item) || mqtt::filter_matches(item, wanted))),
];

fn part<'a>(context: &FunctionContext<'a, '_>, part: MessagePart) -> Value<'a> {
    context.message.map_or(Value::Undefined, |message| {
        message.message_part(part, context.arena)
    })
}

fn topic<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let topic = part(context, MessagePart::Topic);
    let Some(text) = topic.as_str().filter(|_| args.len() == 1) else {
        return Ok(topic);
    };
    match args.size(0)?.checked_sub(1) {
        Some(at) => Ok(mqtt::levels(text)
            .nth(at)
            .map_or(Value::Undefined, Value::Str)),
        None => args.out_of_range(0, "1 or more"),
    }
}

/// A payload that is not JSON has nothing at any path.
fn payload<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let payload = part(context, MessagePart::Payload);
    if args.len() == 0 {
        return Ok(payload);
    }
    let arena = context.arena;
    let document = match payload.as_str() {
        Some(text) => json::parse_lazy(text, arena).unwrap_or(Value::Undefined),
        None => payload,
    };
    let path = args.text(0, arena)?;
    Ok(path
        .split('.')
        .fold(document, |value, name| value.field(name, arena)))
}

fn flag<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let name = args.text(0, context.arena)?;
    Ok(part(context, MessagePart::Flags).field(name, context.arena))
}

fn contains<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    is_it: fn(&str, &str) -> bool,
) -> Result<'a> {
    let arena = context.arena;
    let items = args.array(0, arena)?;
    let wanted = args.text(1, arena)?;
    let qos = if args.len() == 3 {
        Some(args.get(2))
    } else {
        None
    };
    let found = items.iter().find_map(|item| {
        let (topic, item_qos) = match item.as_str() {
            Some(topic) => (topic, Value::Undefined),
            None => (
                item.field("topic", arena).as_str()?,
                item.field("qos", arena),
            ),
        };
        is_it(topic, wanted).then_some(item_qos)
    });
    Ok(Value::Bool(found.is_some_and(|item_qos| {
        qos.is_none_or(|qos| qos.is_not_distinct(&item_qos))
    })))
}
