//! Topics and payloads of file transfers over MQTT. Input: the topic, a line break, the payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use transfer::{FileCommand, FileOwner, FileTopic, TransferRequest, is_file_topic, sanitise};

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (topic, payload) = data.split_at(end.unwrap_or(data.len()));
    let Ok(topic) = std::str::from_utf8(topic) else {
        return;
    };
    let Ok(parsed) = FileTopic::parse(topic) else {
        return;
    };
    assert!(is_file_topic(topic) && !parsed.file_id.is_empty());
    if parsed.command != FileCommand::Init {
        return;
    }
    let owner = FileOwner::client("client");
    if let Ok(request) = TransferRequest::from_json(owner, parsed.file_id, payload)
        && let Ok(name) = sanitise(&request.name)
    {
        assert!(name.len() <= 240 && !name.contains(['/', '\\', '\0']));
        assert!(name != "." && name != "..");
        assert_eq!(
            sanitise(&name).as_deref(),
            Ok(name.as_str()),
            "it is stable"
        );
    }
});
