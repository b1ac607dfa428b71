//! Tests with the messages of the protocols' published documentation.

use bumpalo::Bump;
use proptest::prelude::*;

use super::*;

/// Records what it receives; remembers keys by position like the pipeline does.
#[derive(Default)]
struct RecordingVisitor {
    names: Vec<String>,
    places: Vec<(Vec<u8>, KeySlot)>,
    unknown: &'static str,
    row: Vec<String>,
    received: Vec<String>,
}

impl<'a> MessageVisitor<'a> for RecordingVisitor {
    fn enter_device(&mut self, child: Option<&'a str>) -> bool {
        self.received
            .push(format!("about {}", child.unwrap_or("it")));
        child != Some(self.unknown)
    }

    fn predict_key(&mut self, place: usize, rest: &[u8]) -> Option<(usize, KeySlot)> {
        let (written, slot) = self.places.get(place)?;
        rest.starts_with(written).then_some((written.len(), *slot))
    }

    fn resolve_key(&mut self, place: usize, written: &[u8], name: &str) -> KeySlot {
        let at = self.names.iter().position(|known| known == name);
        let slot = at.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        }) as KeySlot;
        if place == self.places.len() {
            self.places.push((written.to_vec(), slot));
        }
        slot
    }

    fn visit_value(&mut self, slot: KeySlot, value: RawValue<'a>) {
        self.row
            .push(format!("{}={value:?}", self.names[slot as usize]));
    }

    fn finish_row(&mut self, info: RowInfo) {
        let ts = info.ts_ms.map_or("now".to_owned(), |ts| ts.to_string());
        let suffix = if info.is_stored { "" } else { " not stored" };
        let row = std::mem::take(&mut self.row).join(" ");
        self.received.push(format!("{ts}{suffix}: {row}"));
    }

    fn discard_row(&mut self) {
        self.row.clear();
    }

    fn visit_control_message(&mut self, control_message: ControlMessage<'a>) {
        self.received.push(format!("{control_message:?}"));
    }
}

fn decode_with(
    notes: &mut RecordingVisitor,
    topic: &str,
    payload: &[u8],
) -> Result<Vec<String>, PayloadError> {
    let arena = Bump::new();
    let route = parse_device_topic(topic).unwrap_or_else(|| panic!("{topic} has a route"));
    // The received values borrow from this.
    let mut received = RecordingVisitor {
        names: std::mem::take(&mut notes.names),
        places: std::mem::take(&mut notes.places),
        unknown: notes.unknown,
        ..RecordingVisitor::default()
    };
    let read = decode_message(&route, payload, &arena, &mut received);
    (notes.names, notes.places) = (received.names, received.places);
    read.map(|()| received.received)
}

fn decode(topic: &str, payload: &str) -> Vec<String> {
    let received = decode_with(&mut RecordingVisitor::default(), topic, payload.as_bytes());
    received.unwrap_or_else(|error| panic!("{topic} {payload}: {error}"))
}

fn rejected(topic: &str, payload: &str) -> String {
    let received = decode_with(&mut RecordingVisitor::default(), topic, payload.as_bytes());
    received.expect_err(payload).to_string()
}

const TELEMETRY: &str = "v1/devices/me/telemetry";

#[test]
fn telemetry_of_thingsboard_has_four_forms() {
    assert_eq!(
        decode(
            TELEMETRY,
            r#"{"stringKey":"value1", "booleanKey":true, "doubleKey":42.0, "longKey":73, "jsonKey": {"someNumber": 42,"someArray": [1,2,3]}}"#
        ),
        [
            r#"now: stringKey=Text("value1") booleanKey=Bool(true) doubleKey=Float(42.0) longKey=Int(73) jsonKey=Json("{\"someNumber\": 42,\"someArray\": [1,2,3]}")"#
        ]
    );
    assert_eq!(
        decode(TELEMETRY, r#"[{"key1":"value1"}, {"key2":true}]"#),
        [r#"now: key1=Text("value1")"#, "now: key2=Bool(true)"]
    );
    let timed = r#"{"ts":1451649600512, "values":{"key1":"value1", "key2":"value2"}}"#;
    let row = r#"1451649600512: key1=Text("value1") key2=Text("value2")"#;
    assert_eq!(decode(TELEMETRY, timed), [row]);
    assert_eq!(decode(TELEMETRY, &format!("[{timed},{timed}]")), [row, row]);
    let reversed = r#"{"values":{"a":1},"other":[{"ts":1}],"ts":"5"}"#;
    assert_eq!(decode(TELEMETRY, reversed), ["5: a=Int(1)"]);
}

#[test]
fn keys_called_ts_and_values_may_be_telemetry() {
    assert_eq!(
        decode(TELEMETRY, r#"{"ts":1,"a":2}"#),
        ["now: ts=Int(1) a=Int(2)"]
    );
    assert_eq!(
        decode(TELEMETRY, r#"{"a":2,"values":[1],"ts":7}"#),
        [r#"now: a=Int(2) values=Json("[1]") ts=Int(7)"#]
    );
    let mut notes = RecordingVisitor::default();
    for (payload, expected) in [
        (r#"{"ts":1,"values":3}"#, "now: ts=Int(1) values=Int(3)"),
        (r#"{"ts":1,"values":{"a":3}}"#, "1: a=Int(3)"),
        (r#"{"ts":1,"a":4}"#, "now: ts=Int(1) a=Int(4)"),
    ] {
        let received = decode_with(&mut notes, TELEMETRY, payload.as_bytes());
        assert_eq!(received.expect("it is right"), [expected]);
    }
    assert_eq!(decode(TELEMETRY, "{}"), [""; 0]);
    assert_eq!(decode(TELEMETRY, "[]"), [""; 0]);
}

#[test]
fn invalid_telemetry_is_rejected_with_its_position() {
    assert_eq!(
        rejected(TELEMETRY, "12"),
        "invalid payload at byte 0: expected an object of keys and values, or an array of them"
    );
    assert_eq!(
        rejected(TELEMETRY, r#"{"a":1} x"#),
        "invalid payload at byte 8: expected the end"
    );
    assert_eq!(
        rejected(TELEMETRY, r#"{"ts":"then","values":{}}"#),
        "invalid payload at byte 6: expected a time in milliseconds since 1970"
    );
    assert!(
        decode_with(
            &mut RecordingVisitor::default(),
            TELEMETRY,
            b"{\"a\":\"\xff\"}"
        )
        .is_err()
    );
}

#[test]
fn thingsboard_attributes_and_rpc_calls() {
    let attributes = r#"{"attribute1":"value1", "attribute2":true}"#;
    assert_eq!(
        decode("v1/devices/me/attributes", attributes),
        [format!(
            "{:?}",
            ControlMessage::Attributes { json: attributes }
        )]
    );
    let request = decode(
        "v1/devices/me/attributes/request/1",
        r#"{"clientKeys":"attribute1,attribute2", "sharedKeys":"shared1,shared2"}"#,
    );
    let control_message = ControlMessage::AttributesRequest {
        id: "1",
        client: AttributeSelection::Keys("attribute1,attribute2"),
        shared: AttributeSelection::Keys("shared1,shared2"),
    };
    assert_eq!(request, [format!("{control_message:?}")]);
    let all = ControlMessage::AttributesRequest {
        id: "1",
        client: AttributeSelection::All,
        shared: AttributeSelection::All,
    };
    assert_eq!(
        decode("v1/devices/me/attributes/request/1", "{}"),
        [format!("{all:?}")]
    );
    let call = ControlMessage::RpcRequest {
        id: "3",
        method: "getTime",
        params_json: "{}",
    };
    let payload = r#"{"method": "getTime", "params":{}}"#;
    assert_eq!(
        decode("v1/devices/me/rpc/request/3", payload),
        [format!("{call:?}")]
    );
    for (payload, body_json) in [
        (r#"{"pin": 4}"#, Some(r#"{"pin": 4}"#)),
        ("done \"so\"", Some(r#""done \"so\"""#)),
        ("", None),
    ] {
        let reply = ControlMessage::Reply(DeviceReply {
            to: ReplyKind::Rpc,
            id: Some("4"),
            is_success: true,
            body_json,
            code: None,
            message: None,
        });
        assert_eq!(
            decode("v1/devices/me/rpc/response/4", payload),
            [format!("{reply:?}")]
        );
    }
    let claim = ControlMessage::Claim {
        secret: Some("value"),
        duration_ms: Some(60_000),
    };
    let payload = r#"{"secretKey":"value", "durationMs":60000}"#;
    assert_eq!(
        decode("v1/devices/me/claim", payload),
        [format!("{claim:?}")]
    );
}

#[test]
fn thingsboard_gateway_messages() {
    let telemetry = r#"{"Device A": [
        {"ts": 1483228800000, "values": {"temperature": 42, "humidity": 80}},
        {"ts": 1483228801000, "values": {"temperature": 43, "humidity": 82}}
      ], "Device B": [{"ts": 1483228800000, "values": {"temperature": 42}}]}"#;
    let expected = [
        "about Device A",
        "1483228800000: temperature=Int(42) humidity=Int(80)",
        "1483228801000: temperature=Int(43) humidity=Int(82)",
        "about Device B",
        "1483228800000: temperature=Int(42)",
    ];
    assert_eq!(decode("v1/gateway/telemetry", telemetry), expected);
    let mut notes = RecordingVisitor {
        unknown: "Device A",
        ..RecordingVisitor::default()
    };
    let received = decode_with(&mut notes, "v1/gateway/telemetry", telemetry.as_bytes());
    let expected = [expected[0], expected[3], expected[4]];
    assert_eq!(received.expect("it is right"), expected);
    let connected = ControlMessage::Connected {
        product: Some("thermometer"),
    };
    assert_eq!(
        decode(
            "v1/gateway/connect",
            r#"{"device":"Device A","type":"thermometer"}"#
        ),
        ["about Device A".to_owned(), format!("{connected:?}")]
    );
    assert_eq!(
        decode("v1/gateway/disconnect", r#"{"device":"Device A"}"#),
        ["about Device A", "Disconnected"]
    );
    let attributes = decode("v1/gateway/attributes", r#"{"Device A":{"a":1}, "B":{}}"#);
    assert_eq!(attributes.len(), 4);
    let reply = ControlMessage::Reply(DeviceReply {
        to: ReplyKind::Rpc,
        id: Some("7"),
        is_success: true,
        body_json: Some(r#"{"success": true}"#),
        code: None,
        message: None,
    });
    let payload = r#"{"device": "Device A", "id": 7, "data": {"success": true}}"#;
    assert_eq!(
        decode("v1/gateway/rpc", payload),
        ["about Device A".to_owned(), format!("{reply:?}")]
    );
    let request = ControlMessage::AttributesRequest {
        id: "2",
        client: AttributeSelection::None,
        shared: AttributeSelection::Keys("a,b"),
    };
    let payload = r#"{"id": 2, "device": "Device A", "client": false, "keys": ["a", "b"]}"#;
    assert_eq!(
        decode("v1/gateway/attributes/request", payload),
        ["about Device A".to_owned(), format!("{request:?}")]
    );
    assert!(rejected("v1/gateway/connect", "{}").contains("an object with a device"));
}

#[test]
fn jetlinks_reports() {
    let report = r#"{"deviceId":"d","properties":{"temp":36.8}}"#;
    assert_eq!(
        decode("/p/d/properties/report", report),
        ["now: temp=Float(36.8)"]
    );
    let report = r#"{"messageId":"1","timestamp":1601196762389,"properties":{"a":1,"b":"x"},"headers":{"ignoreStorage":true,"x":[]}}"#;
    assert_eq!(
        decode("/p/d/child/c/properties/report", report),
        [r#"1601196762389 not stored: a=Int(1) b=Text("x")"#]
    );
    assert!(rejected("/p/d/properties/report", r#"{"timestamp":1}"#).contains("properties"));
    let event = r#"{"messageId":"m","data":{"color":"red"},"headers":{"report-properties":true}}"#;
    assert_eq!(decode("/p/d/event/e", event), [r#"now: color=Text("red")"#]);
    let control_message = ControlMessage::Event {
        id: "fire_alarm",
        ts_ms: Some(1_601_196_762_389),
        data_json: "100",
    };
    let event = r#"{"timestamp":1601196762389,"messageId":"m","data":100}"#;
    assert_eq!(
        decode("/p/d/event/fire_alarm", event),
        [format!("{control_message:?}")]
    );
}

#[test]
fn jetlinks_replies_and_states() {
    let read = r#"{"timestamp":1601196762389,"messageId":"m","properties":{"sn":"test"},"deviceId":"d","success":true}"#;
    let mut reply = DeviceReply {
        to: ReplyKind::Read,
        id: Some("m"),
        is_success: true,
        body_json: Some(r#"{"sn":"test"}"#),
        code: None,
        message: None,
    };
    // Its properties count as reported.
    let row = r#"1601196762389: sn=Text("test")"#.to_owned();
    assert_eq!(
        decode("/p/d/properties/read/reply", read),
        [row.clone(), format!("{:?}", ControlMessage::Reply(reply))]
    );
    reply.to = ReplyKind::Write;
    assert_eq!(
        decode("/p/d/properties/wirte/reply", read),
        [row, format!("{:?}", ControlMessage::Reply(reply))]
    );
    let failed = r#"{"messageId":"m","success":false,"code":"error_code","message":"why"}"#;
    reply = DeviceReply {
        to: ReplyKind::Invoke,
        is_success: false,
        body_json: None,
        code: Some("error_code"),
        message: Some("why"),
        ..reply
    };
    assert_eq!(
        decode("/p/d/function/invoke/reply", failed),
        [format!("{:?}", ControlMessage::Reply(reply))]
    );
    assert_eq!(
        decode("/p/d/child/c/online", r#"{"deviceId":"c","timestamp":1}"#),
        ["Online"]
    );
    assert_eq!(decode("/p/d/offline", ""), ["Offline"]);
    let register = r#"{"messageId":"m","deviceId":"c","headers":{"productId":"q","deviceName":"n","configuration":{"selfManageState":true}}}"#;
    let control_message = ControlMessage::Registered {
        product: Some("q"),
        name: Some("n"),
        configuration_json: Some(r#"{"selfManageState":true}"#),
    };
    assert_eq!(
        decode("/p/d/child/c/register", register),
        [format!("{control_message:?}")]
    );
    assert_eq!(
        decode("/p/d/tags", r#"{"timestamp":1,"tags":{"key":"value"}}"#),
        [format!(
            "{:?}",
            ControlMessage::Tags {
                json: r#"{"key":"value"}"#
            }
        )]
    );
}

#[test]
fn native_messages_are_json_or_cbor() {
    assert_eq!(decode("tg/d/up/telemetry", r#"{"a":1}"#), ["now: a=Int(1)"]);
    let cbor = b"\xa2\x61a\x01\x61b\x82\x01\x61x";
    let mut notes = RecordingVisitor::default();
    for _ in 0..2 {
        let received = decode_with(&mut notes, "tg/d/up/telemetry", cbor);
        assert_eq!(
            received.expect("it is CBOR"),
            [r#"now: a=Int(1) b=Json("[1,\"x\"]")"#]
        );
    }
    let timed = b"\x81\xa2\x62ts\x05\x66values\xa1\x61a\xf5";
    let received = decode_with(&mut notes, "tg/d/up/telemetry", timed);
    assert_eq!(received.expect("it is CBOR"), ["5: a=Bool(true)"]);
    let reply = ControlMessage::Reply(DeviceReply {
        to: ReplyKind::Command,
        id: Some("c1"),
        is_success: false,
        body_json: None,
        code: Some("busy"),
        message: None,
    });
    let payload = r#"{"success":false,"code":"busy"}"#;
    assert_eq!(
        decode("tg/d/up/command/c1", payload),
        [format!("{reply:?}")]
    );
    let event = ControlMessage::Event {
        id: "e",
        ts_ms: None,
        data_json: r#"{"a":1}"#,
    };
    let received = decode_with(&mut notes, "tg/d/up/event/e", b"\xa1\x61a\x01");
    assert_eq!(received.expect("it is CBOR"), [format!("{event:?}")]);
}

fn encode(protocol: DeviceProtocol, is_child: bool, downlink: DownlinkMessage<'_>) -> String {
    let to = DownlinkTarget {
        product: "p",
        device: "d",
        gateway: is_child.then_some(("gp", "g")),
    };
    let (mut topic, mut payload) = (String::new(), String::new());
    match encode_downlink(protocol, &to, &downlink, 1000, &mut topic, &mut payload) {
        Ok(()) => {
            assert!(
                serde_json::from_str::<serde_json::Value>(&payload).is_ok(),
                "{payload}"
            );
            format!("{topic} {payload}")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn downlinks_of_all_protocols() {
    use DeviceProtocol::{JetLinks, Native, ThingsBoard};
    let call = DownlinkMessage::Command {
        id: "7",
        method: "setGpio",
        params_json: r#"{"pin":4}"#,
    };
    for (protocol, is_child, what, expected) in [
        (
            ThingsBoard,
            false,
            call,
            r#"v1/devices/me/rpc/request/7 {"method":"setGpio","params":{"pin":4}}"#,
        ),
        (
            ThingsBoard,
            true,
            call,
            r#"v1/gateway/rpc {"device":"d","data":{"id":7,"method":"setGpio","params":{"pin":4}}}"#,
        ),
        (
            JetLinks,
            false,
            call,
            r#"/p/d/function/invoke {"timestamp":1000,"messageId":"7","deviceId":"d","functionId":"setGpio","function":"setGpio","inputs":[{"name":"pin","value":4}]}"#,
        ),
        (
            JetLinks,
            true,
            DownlinkMessage::ReadProperties {
                id: "m",
                keys: &["sn"],
            },
            r#"/gp/g/child/d/properties/read {"timestamp":1000,"messageId":"m","deviceId":"d","properties":["sn"]}"#,
        ),
        (
            JetLinks,
            false,
            DownlinkMessage::WriteProperties {
                id: "m",
                json: r#"{"a":1}"#,
            },
            r#"/p/d/properties/write {"timestamp":1000,"messageId":"m","deviceId":"d","properties":{"a":1}}"#,
        ),
        (
            Native,
            false,
            call,
            r#"tg/d/down/command/7 {"method":"setGpio","params":{"pin":4}}"#,
        ),
        (
            ThingsBoard,
            false,
            DownlinkMessage::Attributes { json: r#"{"a":1}"# },
            r#"v1/devices/me/attributes {"a":1}"#,
        ),
        (
            ThingsBoard,
            false,
            DownlinkMessage::AttributesDeleted { keys: &["a"] },
            r#"v1/devices/me/attributes {"deleted":["a"]}"#,
        ),
        (
            ThingsBoard,
            false,
            DownlinkMessage::AttributesResponse {
                id: "1",
                client_json: Some("{}"),
                shared_json: None,
            },
            r#"v1/devices/me/attributes/response/1 {"client":{}}"#,
        ),
        (
            ThingsBoard,
            true,
            DownlinkMessage::AttributesResponse {
                id: "1",
                client_json: Some(r#"{"a":5}"#),
                shared_json: None,
            },
            r#"v1/gateway/attributes/response {"id":1,"device":"d","value":5}"#,
        ),
        (
            JetLinks,
            false,
            DownlinkMessage::Attributes { json: "{}" },
            "jetlinks has no message for this",
        ),
    ] {
        assert_eq!(encode(protocol, is_child, what), expected);
    }
}

proptest! {
    #[test]
    fn arbitrary_messages_do_not_panic(
        topic in prop_oneof![
            Just(TELEMETRY), Just("v1/gateway/telemetry"), Just("v1/gateway/rpc"), Just("/p/d/properties/report"),
            Just("/p/d/event/e"), Just("/p/d/tags"), Just("tg/d/up/telemetry"), Just("tg/d/up/attributes/1"),
            Just("v1/devices/me/attributes/request/1"),
        ],
        payload in prop_oneof![
            "[\\[\\]{}:,\"\\\\tsvalues01.e-]{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
        ],
    ) {
        let _ = decode_with(&mut RecordingVisitor::default(), topic, &payload);
    }

    #[test]
    fn a_message_reads_the_same_with_remembered_keys(
        keys in prop::collection::vec("[a-d]{1,2}", 1..6),
        other in prop::collection::vec("[a-d]{1,2}", 1..6),
    ) {
        let text = |keys: &[String]| {
            let members: Vec<_> = keys.iter().enumerate().map(|(at, key)| format!("\"{key}\": {at}")).collect();
            format!("{{{}}}", members.join(", "))
        };
        let mut notes = RecordingVisitor::default();
        let _ = decode_with(&mut notes, TELEMETRY, text(&other).as_bytes());
        let again = decode_with(&mut notes, TELEMETRY, text(&keys).as_bytes());
        prop_assert_eq!(again, Ok(decode(TELEMETRY, &text(&keys))));
    }
}

#[test]
fn data_at_relay_endpoints_have_three_forms() {
    let topic = relay_data_topic("room");
    for (payload, expected) in [
        (
            r#"{"type":"data","data":{"t":1,"on":true},"timestamp":5}"#,
            "5: t=Int(1) on=Bool(true)",
        ),
        (r#"{"timestamp":5,"data":{"t":1}}"#, "5: t=Int(1)"),
        (r#"{"data":{"t":1}}"#, "now: t=Int(1)"),
        (
            r#"{"t":1,"timestamp":5,"text":"x"}"#,
            r#"5: t=Int(1) text=Text("x")"#,
        ),
        (
            r#"{"t":1,"timestamp":"2025-11-10T08:00:00Z"}"#,
            "now: t=Int(1)",
        ),
        // `data` is a key of its own if it is no object.
        (r#"{"data":7}"#, "now: data=Int(7)"),
    ] {
        assert_eq!(decode(&topic, payload), [expected], "{payload}");
    }
    rejected(&topic, r#"{"type":"data","data":5}"#);
    rejected(&topic, r#"{"t":1}x"#);
}

#[test]
fn acknowledgements_at_relay_endpoints_are_replies() {
    let topic = relay_ack_topic("room");
    let [success] = &decode(
        &topic,
        r#"{"type":"control_ack","status":"success","commandId":"7","data":{"a":1}}"#,
    )[..] else {
        panic!("one reply");
    };
    for part in [
        "to: Command",
        r#"id: Some("7")"#,
        "is_success: true",
        r#"body_json: Some("{\"a\":1}")"#,
    ] {
        assert!(success.contains(part), "{success}");
    }
    let [failure] = &decode(
        &topic,
        r#"{"type":"control_ack","status":"failed","message":"no"}"#,
    )[..] else {
        panic!("one reply");
    };
    for part in ["id: None", "is_success: false", r#"message: Some("no")"#] {
        assert!(failure.contains(part), "{failure}");
    }
    assert!(rejected(&topic, r#"{"type":"control_ack"}"#).contains("success or failed"));
}

#[test]
fn commands_at_relay_endpoints_are_control_messages() {
    let to = DownlinkTarget {
        product: "p",
        device: "pump \"1\"",
        gateway: None,
    };
    let encode = |downlink: &DownlinkMessage<'_>| {
        let (mut topic, mut payload) = (String::new(), String::new());
        let encoded = encode_downlink(
            DeviceProtocol::Relay,
            &to,
            downlink,
            9,
            &mut topic,
            &mut payload,
        );
        encoded.map(|()| serde_json::from_str::<serde_json::Value>(&payload).expect("JSON"))
    };
    let command = DownlinkMessage::Command {
        id: "12",
        method: "switch",
        params_json: "null",
    };
    assert_eq!(
        encode(&command),
        Ok(serde_json::json!({
            "type": "control", "commandId": "12", "deviceId": "pump \"1\"", "command": "switch",
            "params": {}, "timestamp": 9,
        }))
    );
    assert!(encode(&DownlinkMessage::Time { id: "1" }).is_err());
}
