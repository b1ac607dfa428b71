//! Sessions that outlive a connection, wills, and a subscriber that finds its way back.

use rustix::process::Signal;

use super::program::{Node, subscriber};

#[test]
fn a_session_keeps_what_came_while_its_client_was_away() {
    let node = Node::start(&[]);
    let me = ["-i", "me", "-x", "300", "-t", "kept", "-q", "1"];
    node.subscribe(&[&me[..], &["-E"]].concat()).succeeded();
    for payload in ["one", "two"] {
        node.publish(&["-t", "kept", "-q", "1", "-m", payload])
            .succeeded();
    }
    let came = node
        .subscribe(&[&me[..], &["-c", "-C", "2"]].concat())
        .succeeded();
    assert_eq!(came, "one\ntwo\n");
    // MQTT 3.1.1 has no expiry; not starting clean keeps the session.
    let old = ["-V", "3.1.1", "-i", "old", "-c", "-t", "kept", "-q", "1"];
    node.subscribe(&[&old[..], &["-E"]].concat()).succeeded();
    node.publish(&["-t", "kept", "-q", "1", "-m", "three"])
        .succeeded();
    let came = node
        .subscribe(&[&old[..], &["-C", "1"]].concat())
        .succeeded();
    assert_eq!(came, "three\n");
}

#[test]
fn a_will_is_published_if_asked_for() {
    let node = Node::start(&[]);
    let successors = node.subscriber(&[
        "-t",
        "will/#",
        "-C",
        "1",
        "-F",
        "{topic} {payload} {content_type}",
    ]);
    let with_will = [
        "--will-topic",
        "will/x",
        "--will-payload",
        "gone",
        "--will-qos",
        "1",
        "--will-content-type",
        "text/plain",
    ];
    let quiet = [&["-t", "a", "-n"][..], &with_will].concat();
    node.publish(&quiet).succeeded();
    let arguments = [&["-t", "a", "-n", "--disconnect-with-will"][..], &with_will].concat();
    node.publish(&arguments).succeeded();
    assert_eq!(successors.end().succeeded(), "will/x gone text/plain\n");
}

#[test]
fn a_subscriber_comes_back_when_its_broker_does() {
    // A Unix socket, because nobody else can take it in between.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let bind = format!("listener.local.bind={socket}");
    let local = ["--set", "listener.local.protocol=unix", "--set", &bind];
    let node = Node::start(&local);
    let options = ["--unix", socket, "-t", "back", "-q", "1"];
    let mut staying = subscriber(&[&options[..], &["-C", "2"]].concat());
    let leaving = subscriber(&[&options[..], &["--no-reconnect"]].concat());
    node.publish(&["-t", "back", "-q", "1", "-m", "before"])
        .succeeded();
    let (ended, folder) = node.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let left = leaving.end();
    assert_eq!(left.code, Some(4), "{left:?}");
    assert_eq!(left.stdout, "before\n");
    staying.expect_output("server shutting down (0x8b); trying again in 0.25 s");

    let node = Node::start_in(folder, &local);
    staying.expect_output("subscribed to");
    node.publish(&["-t", "back", "-q", "1", "-m", "after"])
        .succeeded();
    assert_eq!(staying.end().succeeded(), "before\nafter\n");
}

#[test]
fn an_interrupted_subscriber_sends_disconnect() {
    let node = Node::start(&[]);
    for signal in [Signal::INT, Signal::TERM] {
        let will = ["-t", "x", "--will-topic", "will", "--will-payload", "w"];
        let subscriber = node.subscriber(&will);
        subscriber.signal(signal);
        assert_eq!(subscriber.end().succeeded(), "");
    }
    let wills = node.subscribe(&["-t", "will", "-W", "1"]).succeeded();
    assert_eq!(wills, "");
}
