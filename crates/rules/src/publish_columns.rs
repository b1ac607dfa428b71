//! `SELECT *` of a published message, the most frequent query. Written out field by field to avoid lookups.

use crate::eval::OutputColumns;
use crate::event_field::EventField;
use crate::event_view::EventView;
use crate::function_context::Dialect;
use crate::rule_source::EventKind;
use crate::value::Value;

macro_rules! record {
    ($view:ident, $dialect:ident { $($name:literal: $field:ident),* $(,)? }) => {
        $view.arena.alloc_with(|| [$(($name, $view.known(EventField::$field, $dialect))),*])
    };
}

impl<'a> EventView<'a> {
    /// Returns the same columns as `event_field::columns`; `None` for any other kind of event.
    pub(crate) fn publish_columns(&self, dialect: Dialect) -> Option<OutputColumns<'a>> {
        if self.event.kind != EventKind::Publish || !self.event.extra.is_null() {
            return None;
        }
        Some(match dialect {
            Dialect::Fluxmq => record!(self, dialect {
                "protocol": Protocol, "timestamp": Timestamp, "clientId": ClientId, "username": Username,
                "clientIp": ClientIp, "nodeIp": NodeIp, "id": Id, "messageId": MessageId, "topic": Topic, "qos": Qos,
                "retain": Retain, "payload": Payload,
            }),
            Dialect::Emqx => record!(self, dialect {
                "event": EventName, "timestamp": Timestamp, "node": Node, "clientid": ClientId, "username": Username,
                "peername": PeerName, "id": Id, "peerhost": ClientIp, "topic": Topic, "qos": Qos, "flags": Flags,
                "payload": Payload, "pub_props": Properties, "publish_received_at": ReceivedAt,
            }),
        })
    }

    #[inline(always)]
    fn known(&self, field: EventField, dialect: Dialect) -> Value<'a> {
        if field == EventField::Payload {
            return self.payload_column(dialect);
        }
        let mut value = Value::Undefined;
        self.read_known_into(field, &mut value);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation_resources::EvaluationResources;
    use crate::event::RuleEvent;
    use crate::event_field;
    use crate::event_view::EvaluationScratch;

    #[test]
    fn the_columns_equal_those_of_the_tables() {
        let scratch = EvaluationScratch::new(EvaluationResources::new([1; 32], 0), 1 << 20);
        let mut event = RuleEvent::new(EventKind::Publish, 1_690_599_987_495);
        event.id = Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        event.client_id = "device";
        event.topic = Some("a/b");
        event.qos = Some(1);
        event.peer = Some(([10, 0, 0, 1], 1883).into());
        event.received_at_ms = Some(1);
        for payload in [&b"{\"a\": [1, 2]} "[..], b"{a}", b"\xff", b""] {
            event.payload = Some(payload);
            let view = scratch.view(&event, 0);
            for dialect in [Dialect::Fluxmq, Dialect::Emqx] {
                let record = view.publish_columns(dialect).expect("a published message");
                let columns = event_field::columns(EventKind::Publish, dialect);
                assert_eq!(record.len(), columns.len());
                for (&(name, value), &(expected, field)) in record.iter().zip(columns) {
                    assert_eq!(name, expected);
                    let expected = match field {
                        EventField::Payload => view.payload_column(dialect),
                        field => view.field(field),
                    };
                    assert!(value.is_not_distinct(&expected), "{name}");
                }
            }
        }
        event.kind = EventKind::Delivered;
        assert!(
            scratch
                .view(&event, 0)
                .publish_columns(Dialect::Emqx)
                .is_none()
        );
    }
}
