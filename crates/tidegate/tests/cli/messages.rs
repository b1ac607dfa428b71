//! What `pub` can say about a message and how `sub` shows it.

use serde_json::{Value, json};

use super::program::{Node, run_with_input};

/// Everything but the time, which is another each time.
fn parse(line: &str) -> Value {
    let mut message: Value = serde_json::from_str(line).unwrap();
    let time = message.as_object_mut().unwrap().remove("time").unwrap();
    let time = time.as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    message
}

#[test]
fn json_has_all_properties() {
    let node = Node::start(&[]);
    let publish = "-t a/b -q 1 -r -m hé --content-type text/plain --response-topic re --correlation-data abc \
                   --message-expiry 3600 --utf8 --user-property k=1 --user-property k=2=3 --topic-alias 1";
    node.publish(&publish.split_whitespace().collect::<Vec<_>>())
        .succeeded();
    let subscribe = "-t a/# -q 2 -C 1 --json --subscription-id 77";
    let line = node
        .subscribe(&subscribe.split_whitespace().collect::<Vec<_>>())
        .succeeded();
    let mut message = parse(&line);
    let expiry = message["message_expiry_interval"].take().as_u64().unwrap();
    assert!((3500..=3600).contains(&expiry), "{expiry}");
    assert_eq!(
        message,
        json!({
            "topic": "a/b", "qos": 1, "retain": true, "dup": false, "payload": "hé",
            "payload_format": 1, "message_expiry_interval": null, "content_type": "text/plain",
            "response_topic": "re", "correlation_data": "abc", "subscription_identifiers": [77],
            "user_properties": [["k", "1"], ["k", "2=3"]],
        })
    );
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    let node = Node::start(&[]);
    let bytes: Vec<u8> = (0..100_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let file = node.folder.path().join("bytes");
    std::fs::write(&file, &bytes).unwrap();
    let bare = node.subscriber(&["-t", "bytes", "-C", "1", "-F", "{payload_base64}", "-N"]);
    let json = node.subscriber(&["-t", "bytes", "-C", "1", "--json"]);
    node.publish(&["-t", "bytes", "-q", "1", "-f", file.to_str().unwrap()])
        .succeeded();
    let text = bare.end().succeeded();
    assert_eq!(parse(&json.end().succeeded())["payload_base64"], text);
    assert_eq!(text.len(), bytes.len().div_ceil(3) * 4);
    assert!(text.starts_with("AJ482"), "{}", &text[..20]);
}

#[test]
fn messages_come_from_arguments_files_and_standard_input() {
    let node = Node::start(&[]);
    let port = node.port("mqtt");
    let subscriber = node.subscriber(&["-t", "s/#", "-C", "6", "-F", "{topic}={payload}"]);
    node.publish(&["-t", "s/m", "-m", "one"]).succeeded();
    node.publish(&["-t", "s/n", "-n"]).succeeded();
    node.publish(&[
        "-t",
        "s/r",
        "-m",
        "twice",
        "--repeat",
        "2",
        "--repeat-delay",
        "0.01",
    ])
    .succeeded();
    let on_standard_input = |arguments: &[&str], input| {
        let to = ["pub", "-h", "127.0.0.1", "-p", &port];
        run_with_input(&[&to, arguments].concat(), input).succeeded();
    };
    on_standard_input(&["-t", "s/s", "-s"], "all\nof it\n");
    on_standard_input(&["-t", "s/l", "-l"], "without a line break");
    assert_eq!(
        subscriber.end().succeeded(),
        "s/m=one\ns/n=\ns/r=twice\ns/r=twice\ns/s=all\nof it\n\ns/l=without a line break\n"
    );
}

#[test]
fn sub_leaves_out_what_is_not_wanted() {
    let node = Node::start(&[]);
    for topic in ["r/one", "r/two"] {
        node.publish(&["-t", topic, "-m", "old", "-r", "-q", "1"])
            .succeeded();
    }
    let fresh = node.subscriber(&["-t", "r/#", "-R", "-v", "-C", "1"]);
    let filtered = node.subscriber(&["-t", "r/#", "-T", "r/one", "-v", "-C", "2"]);
    let retained = node.subscriber(&["-t", "r/#", "--retained-only", "-F", "{payload}"]);
    let never = node.subscriber(&["-t", "r/#", "--retain-handling", "2", "-v", "-C", "1"]);
    node.publish(&["-t", "r/one", "-m", "new"]).succeeded();
    node.publish(&["-t", "r/two", "-m", "new"]).succeeded();
    assert_eq!(fresh.end().succeeded(), "r/one new\n");
    assert_eq!(filtered.end().succeeded(), "r/two old\nr/two new\n");
    assert_eq!(retained.end().succeeded(), "old\nold\n");
    assert_eq!(never.end().succeeded(), "r/one new\n");

    node.publish(&["-t", "r/one", "-n", "-r", "-q", "1"])
        .succeeded();
    let left = node.subscribe(&["-t", "r/#", "-W", "1", "-v"]).succeeded();
    assert_eq!(left, "r/two old\n");
}

#[test]
fn subscription_options_reach_the_broker() {
    let node = Node::start(&[]);
    let kept = node.subscriber(&[
        "-t",
        "k",
        "--retain-as-published",
        "-F",
        "{retain}",
        "-C",
        "1",
    ]);
    let plain = node.subscriber(&["-t", "k", "-F", "{retain}", "-C", "1"]);
    node.publish(&["-t", "k", "-m", "x", "-r", "-q", "1"])
        .succeeded();
    assert_eq!(kept.end().succeeded(), "true\n");
    assert_eq!(plain.end().succeeded(), "false\n");
}

#[test]
fn a_time_limit_is_a_failure_only_if_messages_are_missing() {
    let node = Node::start(&[]);
    assert_eq!(node.subscribe(&["-t", "t", "-W", "1"]).succeeded(), "");
    let missing = node.subscribe(&["-t", "t", "-W", "1", "-C", "2"]).failed(5);
    assert!(
        missing.contains("2 messages (-C) are missing after 1 s (-W)"),
        "{missing}"
    );
}

#[test]
fn rejections_of_the_broker_are_reported_with_the_reason() {
    let node = Node::start(&[
        "--set",
        "limits.max_qos=1",
        "--set",
        "limits.max_packet_size=1KiB",
    ]);
    let qos = node.publish(&["-t", "t", "-q", "2", "-m", "x"]).failed(2);
    assert!(qos.contains("the broker accepts at most QoS 1"), "{qos}");
    let size = node
        .publish(&["-t", "t", "-q", "1", "-m", &"x".repeat(2000)])
        .failed(2);
    assert!(size.contains("the broker takes 1024 at most"), "{size}");

    let shy = Node::start(&[
        "--set",
        "limits.retain_available=false",
        "--set",
        "limits.shared_subscription_available=false",
    ]);
    let retain = shy
        .publish(&["-t", "t", "-q", "1", "-r", "-m", "x"])
        .failed(4);
    assert!(retain.contains("retain not supported (0x9a)"), "{retain}");
    let shared = shy.subscribe(&["-t", "$share/g/t"]).failed(4);
    assert!(
        shared.contains("the broker rejected") && shared.contains("(0x9e)"),
        "{shared}"
    );
}

#[test]
fn codes_of_published_messages_are_counted() {
    let node = Node::start(&[]);
    let alone = node.publish(&["-t", "t", "-q", "1", "-m", "x"]);
    assert_eq!(
        alone.stderr,
        "message 1 accepted: no matching subscribers (0x10)\n"
    );
    let many = node.publish(&["-t", "t", "-q", "2", "-m", "x", "--repeat", "5"]);
    assert_eq!(
        many.stderr,
        "5 of 5 messages accepted: no matching subscribers (0x10)\n"
    );
    many.succeeded();
}
