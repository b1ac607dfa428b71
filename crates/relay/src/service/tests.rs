//! Admission to endpoints: ids, access keys, origins, rejections and closed connections.

use hooks::PeerAddress;
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct CloseRecorder(Mutex<Vec<RelayClose>>);

impl RelayConnection for CloseRecorder {
    fn send_text(&self, _message: String) {}

    fn close(&self, close: RelayClose) {
        self.0.lock().unwrap().push(close);
    }
}

fn define(service: &RelayService, definition: Value) {
    let definition = EndpointDefinition::read(definition, None).unwrap();
    let statistics = || Ok::<_, ()>(StatisticsRecord::default());
    service.set("room", definition, statistics).unwrap();
}

fn admit(
    service: &RelayService,
    target: &str,
    origin: Option<&str>,
    subprotocols: &[&str],
) -> Result<(RelayAdmission, Arc<CloseRecorder>), RelayClose> {
    let offered: Vec<String> = subprotocols.iter().map(|&text| text.into()).collect();
    let handle = Arc::new(CloseRecorder::default());
    let request = RelayRequest {
        target,
        origin,
        subprotocols: &offered,
        peer: PeerAddress::Unix,
        listener: "ws",
        shard: 0,
        now_ms: 1,
    };
    let admission = service.admit(&request, handle.clone())?;
    Ok((admission, handle))
}

fn rejection(service: &RelayService, target: &str) -> (String, u16, String) {
    let close = admit(service, target, None, &[]).err().unwrap();
    let message: Value = serde_json::from_str(&close.message.unwrap()).unwrap();
    assert_eq!(message["type"], "system");
    assert_eq!(message["level"], "error");
    let code = message["code"].as_str().unwrap().to_owned();
    (code, close.code, close.reason.into_owned())
}

#[test]
fn ids_can_be_arguments_of_commands() {
    let ids: Vec<String> = (0..2000).filter_map(|_| random_id(10)).collect();
    assert_eq!(ids.len(), 2000);
    assert!(ids.iter().all(|id| !id.starts_with(['-', '_'])), "{ids:?}");
    assert!(ids.iter().any(|id| id.contains('-')), "{ids:?}");
}

#[test]
fn rejections_have_the_documented_codes() {
    let service = RelayService::new();
    define(&service, json!({"max_connections": 1}));
    assert_eq!(
        rejection(&service, "a%20b"),
        ("INVALID_URL".into(), 1008, "Invalid URL format".into())
    );
    assert_eq!(
        rejection(&service, "other"),
        ("INVALID_ENDPOINT".into(), 1008, "Invalid endpoint".into())
    );
    let (mut admission, _) = admit(&service, "room?x=1", None, &[]).unwrap();
    assert_eq!(rejection(&service, "room").0, "TOO_MANY_CONNECTIONS");
    admission
        .client
        .closed("normal", hooks::relay::RelayTraffic::default());
    assert!(admit(&service, "room", None, &[]).is_ok());
    let status = service.status("room").unwrap().statistics;
    assert_eq!(
        (status.total_connections, status.rejected_connections),
        (2, 1)
    );
}

#[test]
fn an_access_key_is_accepted_in_the_query_or_as_sub_protocol() {
    let service = RelayService::new();
    let key = "k123456789abcdef";
    define(&service, json!({"access_key": key}));
    assert_eq!(rejection(&service, "room").0, "INVALID_ACCESS_KEY");
    assert_eq!(
        rejection(&service, "room?key=wrong").0,
        "INVALID_ACCESS_KEY"
    );
    assert!(admit(&service, &format!("room?key={key}"), None, &[]).is_ok());
    let offer = format!("key.{key}");
    assert!(admit(&service, "room", None, &["tidegate-relay", &offer]).is_ok());
}

#[test]
fn only_listed_origins_may_connect() {
    let service = RelayService::new();
    define(&service, json!({"allowed_origins": ["https://a.example"]}));
    let origin = |origin| admit(&service, "room", origin, &[]).is_ok();
    assert!(origin(Some("https://A.example")));
    assert!(!origin(Some("https://b.example")));
    // No browser.
    assert!(origin(None));
}

#[test]
fn disabling_and_deleting_close_open_connections_with_the_reason() {
    let service = RelayService::new();
    define(&service, json!({}));
    let (_, first) = admit(&service, "room", None, &[]).unwrap();
    define(&service, json!({"disabled_reason": "spam"}));
    let close = first.0.lock().unwrap().remove(0);
    assert_eq!((close.code, &*close.reason), (1008, "Endpoint is disabled"));
    assert!(close.message.unwrap().contains("spam"));
    assert_eq!(rejection(&service, "room").0, "ENDPOINT_DISABLED");
    define(&service, json!({}));
    let (_, second) = admit(&service, "room", None, &[]).unwrap();
    service.remove("room");
    assert_eq!(&*second.0.lock().unwrap()[0].reason, "Endpoint was deleted");
    assert_eq!(rejection(&service, "room").0, "INVALID_ENDPOINT");
}
