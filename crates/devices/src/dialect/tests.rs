//! Messages as the published documents of the protocols have them.

use bumpalo::Bump;
use proptest::prelude::*;

use super::*;

/// Writes down what it hears; remembers keys by their place like the pipeline does.
#[derive(Default)]
struct Notes {
    names: Vec<String>,
    places: Vec<(Vec<u8>, Slot)>,
    unknown: &'static str,
    row: Vec<String>,
    heard: Vec<String>,
}

impl<'a> Ears<'a> for Notes {
    fn about(&mut self, child: Option<&'a str>) -> bool {
        self.heard.push(format!("about {}", child.unwrap_or("it")));
        child != Some(self.unknown)
    }

    fn guess(&mut self, place: usize, rest: &[u8]) -> Option<(usize, Slot)> {
        let (written, slot) = self.places.get(place)?;
        rest.starts_with(written).then_some((written.len(), *slot))
    }

    fn key(&mut self, place: usize, written: &[u8], name: &str) -> Slot {
        let at = self.names.iter().position(|known| known == name);
        let slot = at.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        }) as Slot;
        if place == self.places.len() {
            self.places.push((written.to_vec(), slot));
        }
        slot
    }

    fn value(&mut self, slot: Slot, value: Raw<'a>) {
        self.row
            .push(format!("{}={value:?}", self.names[slot as usize]));
    }

    fn row(&mut self, info: RowInfo) {
        let ts = info.ts_ms.map_or("now".to_owned(), |ts| ts.to_string());
        let kept = if info.is_stored { "" } else { " not stored" };
        let row = std::mem::take(&mut self.row).join(" ");
        self.heard.push(format!("{ts}{kept}: {row}"));
    }

    fn discard(&mut self) {
        self.row.clear();
    }

    fn said(&mut self, said: Said<'a>) {
        self.heard.push(format!("{said:?}"));
    }
}

fn hear_with(notes: &mut Notes, topic: &str, payload: &[u8]) -> Result<Vec<String>, Malformed> {
    let arena = Bump::new();
    let route = route(topic).unwrap_or_else(|| panic!("{topic} has a route"));
    // What it hears lives no longer than this.
    let mut heard = Notes {
        names: std::mem::take(&mut notes.names),
        places: std::mem::take(&mut notes.places),
        unknown: notes.unknown,
        ..Notes::default()
    };
    let read = read(&route, payload, &arena, &mut heard);
    (notes.names, notes.places) = (heard.names, heard.places);
    read.map(|()| heard.heard)
}

fn hear(topic: &str, payload: &str) -> Vec<String> {
    let heard = hear_with(&mut Notes::default(), topic, payload.as_bytes());
    heard.unwrap_or_else(|error| panic!("{topic} {payload}: {error}"))
}

fn refused(topic: &str, payload: &str) -> String {
    let heard = hear_with(&mut Notes::default(), topic, payload.as_bytes());
    heard.expect_err(payload).to_string()
}

const TELEMETRY: &str = "v1/devices/me/telemetry";

#[test]
fn telemetry_of_thingsboard_has_four_forms() {
    assert_eq!(
        hear(
            TELEMETRY,
            r#"{"stringKey":"value1", "booleanKey":true, "doubleKey":42.0, "longKey":73, "jsonKey": {"someNumber": 42,"someArray": [1,2,3]}}"#
        ),
        [
            r#"now: stringKey=Text("value1") booleanKey=Bool(true) doubleKey=Float(42.0) longKey=Int(73) jsonKey=Json("{\"someNumber\": 42,\"someArray\": [1,2,3]}")"#
        ]
    );
    assert_eq!(
        hear(TELEMETRY, r#"[{"key1":"value1"}, {"key2":true}]"#),
        [r#"now: key1=Text("value1")"#, "now: key2=Bool(true)"]
    );
    let timed = r#"{"ts":1451649600512, "values":{"key1":"value1", "key2":"value2"}}"#;
    let row = r#"1451649600512: key1=Text("value1") key2=Text("value2")"#;
    assert_eq!(hear(TELEMETRY, timed), [row]);
    assert_eq!(hear(TELEMETRY, &format!("[{timed},{timed}]")), [row, row]);
    let reversed = r#"{"values":{"a":1},"other":[{"ts":1}],"ts":"5"}"#;
    assert_eq!(hear(TELEMETRY, reversed), ["5: a=Int(1)"]);
}

#[test]
fn keys_called_ts_and_values_may_be_telemetry() {
    assert_eq!(
        hear(TELEMETRY, r#"{"ts":1,"a":2}"#),
        ["now: ts=Int(1) a=Int(2)"]
    );
    assert_eq!(
        hear(TELEMETRY, r#"{"a":2,"values":[1],"ts":7}"#),
        [r#"now: a=Int(2) values=Json("[1]") ts=Int(7)"#]
    );
    let mut notes = Notes::default();
    for (payload, expected) in [
        (r#"{"ts":1,"values":3}"#, "now: ts=Int(1) values=Int(3)"),
        (r#"{"ts":1,"values":{"a":3}}"#, "1: a=Int(3)"),
        (r#"{"ts":1,"a":4}"#, "now: ts=Int(1) a=Int(4)"),
    ] {
        let heard = hear_with(&mut notes, TELEMETRY, payload.as_bytes());
        assert_eq!(heard.expect("it is right"), [expected]);
    }
    assert_eq!(hear(TELEMETRY, "{}"), [""; 0]);
    assert_eq!(hear(TELEMETRY, "[]"), [""; 0]);
}

#[test]
fn what_is_no_telemetry_is_refused_with_its_place() {
    assert_eq!(
        refused(TELEMETRY, "12"),
        "invalid payload at byte 0: expected an object of keys and values, or an array of them"
    );
    assert_eq!(
        refused(TELEMETRY, r#"{"a":1} x"#),
        "invalid payload at byte 8: expected the end"
    );
    assert_eq!(
        refused(TELEMETRY, r#"{"ts":"then","values":{}}"#),
        "invalid payload at byte 6: expected a time in milliseconds since 1970"
    );
    assert!(hear_with(&mut Notes::default(), TELEMETRY, b"{\"a\":\"\xff\"}").is_err());
}

#[test]
fn attributes_and_calls_of_thingsboard() {
    let attributes = r#"{"attribute1":"value1", "attribute2":true}"#;
    assert_eq!(
        hear("v1/devices/me/attributes", attributes),
        [format!("{:?}", Said::Attributes { json: attributes })]
    );
    let request = hear(
        "v1/devices/me/attributes/request/1",
        r#"{"clientKeys":"attribute1,attribute2", "sharedKeys":"shared1,shared2"}"#,
    );
    let said = Said::AttributesRequest {
        id: "1",
        client: Wanted::Keys("attribute1,attribute2"),
        shared: Wanted::Keys("shared1,shared2"),
    };
    assert_eq!(request, [format!("{said:?}")]);
    let all = Said::AttributesRequest {
        id: "1",
        client: Wanted::All,
        shared: Wanted::All,
    };
    assert_eq!(
        hear("v1/devices/me/attributes/request/1", "{}"),
        [format!("{all:?}")]
    );
    let call = Said::RpcRequest {
        id: "3",
        method: "getTime",
        params_json: "{}",
    };
    let payload = r#"{"method": "getTime", "params":{}}"#;
    assert_eq!(
        hear("v1/devices/me/rpc/request/3", payload),
        [format!("{call:?}")]
    );
    for (payload, body_json) in [
        (r#"{"pin": 4}"#, Some(r#"{"pin": 4}"#)),
        ("done \"so\"", Some(r#""done \"so\"""#)),
        ("", None),
    ] {
        let reply = Said::Reply(Replied {
            to: Reply::Rpc,
            id: Some("4"),
            is_success: true,
            body_json,
            code: None,
            message: None,
        });
        assert_eq!(
            hear("v1/devices/me/rpc/response/4", payload),
            [format!("{reply:?}")]
        );
    }
    let claim = Said::Claim {
        secret: Some("value"),
        duration_ms: Some(60_000),
    };
    let payload = r#"{"secretKey":"value", "durationMs":60000}"#;
    assert_eq!(hear("v1/devices/me/claim", payload), [format!("{claim:?}")]);
}

#[test]
fn a_gateway_of_thingsboard_speaks_for_devices() {
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
    assert_eq!(hear("v1/gateway/telemetry", telemetry), expected);
    let mut notes = Notes {
        unknown: "Device A",
        ..Notes::default()
    };
    let heard = hear_with(&mut notes, "v1/gateway/telemetry", telemetry.as_bytes());
    let expected = [expected[0], expected[3], expected[4]];
    assert_eq!(heard.expect("it is right"), expected);
    let connected = Said::Connected {
        product: Some("thermometer"),
    };
    assert_eq!(
        hear(
            "v1/gateway/connect",
            r#"{"device":"Device A","type":"thermometer"}"#
        ),
        ["about Device A".to_owned(), format!("{connected:?}")]
    );
    assert_eq!(
        hear("v1/gateway/disconnect", r#"{"device":"Device A"}"#),
        ["about Device A", "Disconnected"]
    );
    let attributes = hear("v1/gateway/attributes", r#"{"Device A":{"a":1}, "B":{}}"#);
    assert_eq!(attributes.len(), 4);
    let reply = Said::Reply(Replied {
        to: Reply::Rpc,
        id: Some("7"),
        is_success: true,
        body_json: Some(r#"{"success": true}"#),
        code: None,
        message: None,
    });
    let payload = r#"{"device": "Device A", "id": 7, "data": {"success": true}}"#;
    assert_eq!(
        hear("v1/gateway/rpc", payload),
        ["about Device A".to_owned(), format!("{reply:?}")]
    );
    let request = Said::AttributesRequest {
        id: "2",
        client: Wanted::Nothing,
        shared: Wanted::Keys("a,b"),
    };
    let payload = r#"{"id": 2, "device": "Device A", "client": false, "keys": ["a", "b"]}"#;
    assert_eq!(
        hear("v1/gateway/attributes/request", payload),
        ["about Device A".to_owned(), format!("{request:?}")]
    );
    assert!(refused("v1/gateway/connect", "{}").contains("an object with a device"));
}

#[test]
fn reports_of_jetlinks() {
    let report = r#"{"deviceId":"d","properties":{"temp":36.8}}"#;
    assert_eq!(
        hear("/p/d/properties/report", report),
        ["now: temp=Float(36.8)"]
    );
    let report = r#"{"messageId":"1","timestamp":1601196762389,"properties":{"a":1,"b":"x"},"headers":{"ignoreStorage":true,"x":[]}}"#;
    assert_eq!(
        hear("/p/d/child/c/properties/report", report),
        [r#"1601196762389 not stored: a=Int(1) b=Text("x")"#]
    );
    assert!(refused("/p/d/properties/report", r#"{"timestamp":1}"#).contains("properties"));
    let event = r#"{"messageId":"m","data":{"color":"red"},"headers":{"report-properties":true}}"#;
    assert_eq!(hear("/p/d/event/e", event), [r#"now: color=Text("red")"#]);
    let said = Said::Event {
        id: "fire_alarm",
        ts_ms: Some(1_601_196_762_389),
        data_json: "100",
    };
    let event = r#"{"timestamp":1601196762389,"messageId":"m","data":100}"#;
    assert_eq!(hear("/p/d/event/fire_alarm", event), [format!("{said:?}")]);
}

#[test]
fn replies_and_states_of_jetlinks() {
    let read = r#"{"timestamp":1601196762389,"messageId":"m","properties":{"sn":"test"},"deviceId":"d","success":true}"#;
    let mut reply = Replied {
        to: Reply::Read,
        id: Some("m"),
        is_success: true,
        body_json: Some(r#"{"sn":"test"}"#),
        code: None,
        message: None,
    };
    // Its properties count as reported.
    let row = r#"1601196762389: sn=Text("test")"#.to_owned();
    assert_eq!(
        hear("/p/d/properties/read/reply", read),
        [row.clone(), format!("{:?}", Said::Reply(reply))]
    );
    reply.to = Reply::Write;
    assert_eq!(
        hear("/p/d/properties/wirte/reply", read),
        [row, format!("{:?}", Said::Reply(reply))]
    );
    let failed = r#"{"messageId":"m","success":false,"code":"error_code","message":"why"}"#;
    reply = Replied {
        to: Reply::Invoke,
        is_success: false,
        body_json: None,
        code: Some("error_code"),
        message: Some("why"),
        ..reply
    };
    assert_eq!(
        hear("/p/d/function/invoke/reply", failed),
        [format!("{:?}", Said::Reply(reply))]
    );
    assert_eq!(
        hear("/p/d/child/c/online", r#"{"deviceId":"c","timestamp":1}"#),
        ["Online"]
    );
    assert_eq!(hear("/p/d/offline", ""), ["Offline"]);
    let register = r#"{"messageId":"m","deviceId":"c","headers":{"productId":"q","deviceName":"n","configuration":{"selfManageState":true}}}"#;
    let said = Said::Registered {
        product: Some("q"),
        name: Some("n"),
        configuration_json: Some(r#"{"selfManageState":true}"#),
    };
    assert_eq!(
        hear("/p/d/child/c/register", register),
        [format!("{said:?}")]
    );
    assert_eq!(
        hear("/p/d/tags", r#"{"timestamp":1,"tags":{"key":"value"}}"#),
        [format!(
            "{:?}",
            Said::Tags {
                json: r#"{"key":"value"}"#
            }
        )]
    );
}

#[test]
fn own_messages_are_json_or_cbor() {
    assert_eq!(hear("tg/d/up/telemetry", r#"{"a":1}"#), ["now: a=Int(1)"]);
    let cbor = b"\xa2\x61a\x01\x61b\x82\x01\x61x";
    let mut notes = Notes::default();
    for _ in 0..2 {
        let heard = hear_with(&mut notes, "tg/d/up/telemetry", cbor);
        assert_eq!(
            heard.expect("it is CBOR"),
            [r#"now: a=Int(1) b=Json("[1,\"x\"]")"#]
        );
    }
    let timed = b"\x81\xa2\x62ts\x05\x66values\xa1\x61a\xf5";
    let heard = hear_with(&mut notes, "tg/d/up/telemetry", timed);
    assert_eq!(heard.expect("it is CBOR"), ["5: a=Bool(true)"]);
    let reply = Said::Reply(Replied {
        to: Reply::Command,
        id: Some("c1"),
        is_success: false,
        body_json: None,
        code: Some("busy"),
        message: None,
    });
    let payload = r#"{"success":false,"code":"busy"}"#;
    assert_eq!(hear("tg/d/up/command/c1", payload), [format!("{reply:?}")]);
    let event = Said::Event {
        id: "e",
        ts_ms: None,
        data_json: r#"{"a":1}"#,
    };
    let heard = hear_with(&mut notes, "tg/d/up/event/e", b"\xa1\x61a\x01");
    assert_eq!(heard.expect("it is CBOR"), [format!("{event:?}")]);
}

fn tell(dialect: Dialect, is_child: bool, tell: Tell<'_>) -> String {
    let to = Addressee {
        product: "p",
        device: "d",
        gateway: is_child.then_some(("gp", "g")),
    };
    let (mut topic, mut payload) = (String::new(), String::new());
    match write(dialect, &to, &tell, 1000, &mut topic, &mut payload) {
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
fn what_devices_are_told() {
    use Dialect::{JetLinks, Own, ThingsBoard};
    let call = Tell::Command {
        id: "7",
        method: "setGpio",
        params_json: r#"{"pin":4}"#,
    };
    for (dialect, is_child, what, expected) in [
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
            Tell::ReadProperties {
                id: "m",
                keys: &["sn"],
            },
            r#"/gp/g/child/d/properties/read {"timestamp":1000,"messageId":"m","deviceId":"d","properties":["sn"]}"#,
        ),
        (
            JetLinks,
            false,
            Tell::WriteProperties {
                id: "m",
                json: r#"{"a":1}"#,
            },
            r#"/p/d/properties/write {"timestamp":1000,"messageId":"m","deviceId":"d","properties":{"a":1}}"#,
        ),
        (
            Own,
            false,
            call,
            r#"tg/d/down/command/7 {"method":"setGpio","params":{"pin":4}}"#,
        ),
        (
            ThingsBoard,
            false,
            Tell::Attributes { json: r#"{"a":1}"# },
            r#"v1/devices/me/attributes {"a":1}"#,
        ),
        (
            ThingsBoard,
            false,
            Tell::AttributesDeleted { keys: &["a"] },
            r#"v1/devices/me/attributes {"deleted":["a"]}"#,
        ),
        (
            ThingsBoard,
            false,
            Tell::AttributesResponse {
                id: "1",
                client_json: Some("{}"),
                shared_json: None,
            },
            r#"v1/devices/me/attributes/response/1 {"client":{}}"#,
        ),
        (
            ThingsBoard,
            true,
            Tell::AttributesResponse {
                id: "1",
                client_json: Some(r#"{"a":5}"#),
                shared_json: None,
            },
            r#"v1/gateway/attributes/response {"id":1,"device":"d","value":5}"#,
        ),
        (
            JetLinks,
            false,
            Tell::Attributes { json: "{}" },
            "jetlinks has no message for this",
        ),
    ] {
        assert_eq!(tell(dialect, is_child, what), expected);
    }
}

proptest! {
    #[test]
    fn no_message_upsets_it(
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
        let _ = hear_with(&mut Notes::default(), topic, &payload);
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
        let mut notes = Notes::default();
        let _ = hear_with(&mut notes, TELEMETRY, text(&other).as_bytes());
        let again = hear_with(&mut notes, TELEMETRY, text(&keys).as_bytes());
        prop_assert_eq!(again, Ok(hear(TELEMETRY, &text(&keys))));
    }
}
