//! What has to hold for any message and any request of a client; shared by the tests and the fuzz targets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hooks::relay::{
    RelayClient, RelayClose, RelayConnection, RelayEndpoint, RelayPayloadKind, RelayRequest,
    RelayService as _, RelayTraffic, RelayVerdict,
};
use hooks::{MessageView, PeerAddress};
use relay::{DeviceConnection, DeviceMessage, EndpointDefinition, RelayDevices, RelayService};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

const ACCESS_KEY: &str = "a-key-of-this-test";
const HEADER: &str = "header: ";
const MODES: [&str; 3] = ["direct", "json", "custom_header"];

struct NoConnection;

impl RelayConnection for NoConnection {
    fn send_text(&self, message: String) {
        check_server_text(&message);
    }

    fn close(&self, _close: RelayClose) {}
}

/// Accepts all devices, and counts their messages.
#[derive(Default)]
struct Devices(Mutex<SubmissionCounts>);

#[derive(Default)]
struct SubmissionCounts {
    identities: usize,
    others: usize,
}

impl RelayDevices for Devices {
    fn submit(&self, connection: &Arc<DeviceConnection>, message: DeviceMessage) -> bool {
        let mut submitted = self.0.lock().unwrap();
        match message {
            DeviceMessage::Identify(identity) => {
                assert!((1..=64).contains(&identity.device_id.chars().count()));
                connection.confirm_identity(&identity.device_id, "name", "endpoint:device");
                submitted.identities += 1;
            }
            DeviceMessage::Request(request) => {
                connection.respond(&request.request_id, Ok(Value::Null));
                submitted.others += 1;
            }
            DeviceMessage::Data { .. } | DeviceMessage::ControlAck { .. } => submitted.others += 1,
        }
        true
    }

    fn closed(&self, _connection: &Arc<DeviceConnection>, _reason: &'static str) {}
}

struct Setup {
    service: RelayService,
    devices: Arc<Devices>,
}

fn setup(definition: Value) -> Setup {
    let service = RelayService::new();
    let devices = Arc::<Devices>::default();
    service.set_devices(devices.clone());
    let definition = EndpointDefinition::read(definition, None).expect("a valid definition");
    let no_statistics = || Ok::<_, ()>(Default::default());
    let is_set = service.set("room", definition, no_statistics);
    is_set.expect("there are no stored statistics");
    Setup { service, devices }
}

fn request<'a>(
    target: &'a str,
    origin: Option<&'a str>,
    subprotocols: &'a [String],
) -> RelayRequest<'a> {
    RelayRequest {
        target,
        origin,
        subprotocols,
        peer: PeerAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))),
        listener: "ws",
        shard: 0,
        now_ms: 7,
    }
}

/// A message of the server is a JSON object with a type.
fn check_server_text(text: &str) {
    let message: Value = serde_json::from_str(text).expect("messages of the server are JSON");
    assert!(message["type"].is_string(), "{text}");
}

/// A message of a client: the first byte chooses the mode, whether the client is a device, and whether the message is
/// text if it can be.
pub(crate) fn check_message(data: &[u8]) {
    let Some((&options, payload)) = data.split_first() else {
        return;
    };
    let mode = MODES[usize::from(options % 3)];
    let definition = match mode {
        "custom_header" => json!({"mode": mode, "header": HEADER}),
        mode => json!({"mode": mode}),
    };
    let setup = setup(definition);
    let admitted = setup
        .service
        .admit(&request("room", None, &[]), Arc::new(NoConnection));
    let mut admission = admitted.unwrap_or_else(|close| panic!("{close:?}"));
    admission.client.opened();
    let is_device = options & 0x40 != 0;
    if is_device {
        let identify = br#"{"type":"identify","deviceId":"d"}"#;
        let verdict = receive(&mut *admission.client, RelayPayloadKind::Text, identify);
        assert_eq!(verdict, RelayVerdict::Consume);
    }
    let is_text = options & 0x80 != 0 && std::str::from_utf8(payload).is_ok();
    let kind = match is_text {
        true => RelayPayloadKind::Text,
        false => RelayPayloadKind::Binary,
    };
    let verdict = receive(&mut *admission.client, kind, payload);
    admission.client.finish_input();
    let is_relayed = verdict == RelayVerdict::Publish;
    match verdict {
        RelayVerdict::Publish => check_envelope(&*admission.endpoint, mode, payload),
        // Only text objects that name one of the types of the node are not relayed.
        RelayVerdict::Consume => {
            assert!(is_text && payload.trim_ascii_start().starts_with(b"{"));
        }
        RelayVerdict::Close(close) => panic!("no message closes a connection: {close:?}"),
    }
    let submitted = setup.devices.0.lock().unwrap();
    assert!(submitted.identities + submitted.others <= 1 + usize::from(is_device));
    assert!(submitted.others == 0 || is_device, "it is not a device yet");
    drop(submitted);
    let history = setup.service.history("room", 10).expect("the endpoint");
    assert_eq!(history.len(), usize::from(is_relayed));
    admission.client.closed("normal", RelayTraffic::default());
}

fn receive(client: &mut dyn RelayClient, kind: RelayPayloadKind, payload: &[u8]) -> RelayVerdict {
    let mut replies = Vec::new();
    let verdict = client.received(kind, payload, 7, &mut replies);
    replies.iter().for_each(|reply| check_server_text(reply));
    verdict
}

/// What receivers get.
fn check_envelope(endpoint: &dyn RelayEndpoint, mode: &str, payload: &[u8]) {
    let view = MessageView {
        payload,
        received_ms: 7,
        ..MessageView::unknown()
    };
    let mut sent = b"before".to_vec();
    let kind = endpoint.encode(&view, &mut sent);
    let sent = sent.strip_prefix(b"before").expect("it is appended");
    let is_utf8 = std::str::from_utf8(payload).is_ok();
    assert_eq!(kind == RelayPayloadKind::Text, is_utf8);
    match mode {
        "json" if is_utf8 => {
            let text = std::str::from_utf8(sent).expect("text");
            let start = r#"{"type":"message","data":"#;
            assert!(text.starts_with(start), "{text}");
            serde_json::from_str::<IgnoredAny>(text).expect("the envelope is JSON");
        }
        "custom_header" => assert_eq!(sent.strip_prefix(HEADER.as_bytes()), Some(payload)),
        _ => assert_eq!(sent, payload),
    }
}

/// A request: the lines are the target, the origin and the sub-protocols. The endpoint has an access key.
pub(crate) fn check_request(text: &str) {
    let mut lines = text.lines();
    let target = lines.next().unwrap_or_default();
    let origin = lines.next().filter(|origin| !origin.is_empty());
    let subprotocols: Vec<String> = lines.map(str::to_owned).collect();
    let allowed = "https://a.example";
    let setup = setup(json!({"access_key": ACCESS_KEY, "allowed_origins": [allowed]}));
    let request = request(target, origin, &subprotocols);
    match setup.service.admit(&request, Arc::new(NoConnection)) {
        Ok(mut admission) => {
            let (path, _) = target.split_once('?').unwrap_or((target, ""));
            assert_eq!(path, "room", "{target}");
            assert!(origin.is_none_or(|origin| origin.eq_ignore_ascii_case(allowed)));
            let has_key = |text: &String| *text == format!("key.{ACCESS_KEY}");
            assert!(target.contains(ACCESS_KEY) || subprotocols.iter().any(has_key));
            admission.client.closed("normal", RelayTraffic::default());
        }
        Err(close) => {
            assert_eq!(close.code, 1008, "{close:?}");
            assert!(close.reason.len() <= 123, "{close:?}");
            check_server_text(&close.message.expect("clients are told why"));
        }
    }
    let status = setup.service.status("room").expect("the endpoint");
    assert_eq!(status.statistics.current_connections, 0);
}
