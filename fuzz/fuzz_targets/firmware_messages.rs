//! What devices say about firmware: topics of requests for chunks, and messages of JetLinks' protocol. Input: a topic or the step of a
//! message, a line break, the payload.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (topic, payload) = text.split_once('\n').unwrap_or((text, ""));
    if let Some((index, response)) = firmware::fuzzing::chunk_response(topic) {
        // The answer comes at the index that was requested.
        let requested = topic.rsplit('/').next();
        assert_eq!(response.rsplit('/').next(), requested);
        assert_eq!(requested.and_then(|text| text.parse().ok()), Some(index));
        let again = response.replacen("/response/", "/request/", 1);
        assert_eq!(again, topic);
    }
    firmware::fuzzing::read_jetlinks_message(topic, payload);
});
