//! mosquitto_pub and mosquitto_sub: the clients on every Linux distribution.

use std::process::Command;

use super::client::Client;
use super::{SharedNode, Transport, find_program, own_node, report_skipped};
use crate::support::unique;

/// Versions as the programs name them.
const VERSIONS: [&str; 3] = ["mqttv31", "mqttv311", "mqttv5"];

/// Marks the lines of messages among those of `-d`.
const MESSAGE: &str = "message: ";

fn available() -> bool {
    let both = ["mosquitto_pub", "mosquitto_sub"]
        .iter()
        .all(|name| find_program(name).is_some());
    if !both {
        report_skipped("mosquitto_pub and mosquitto_sub are not installed");
    }
    both
}

/// Into a pipe, mosquitto_sub would keep its output to itself until it ends.
fn line_buffered(program: &str) -> Command {
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]);
    command
}

fn command(program: &str, version: &str, transport: Transport) -> Command {
    let node = SharedNode::get();
    let (host, port) = node.host_and_port(transport);
    let mut command = line_buffered(program);
    command.args(["-V", version, "-h", host, "-p", &port.to_string()]);
    if transport == Transport::Tls {
        command
            .arg("--cafile")
            .arg(node.authority.certificate_path());
    }
    command
}

fn publisher(version: &str) -> Command {
    command("mosquitto_pub", version, Transport::Tcp)
}

fn subscriber(version: &str) -> Command {
    command("mosquitto_sub", version, Transport::Tcp)
}

/// Starts mosquitto_sub and waits for its SUBACK. `format` is for `-F`.
fn subscribe(mut command: Command, format: &str, arguments: &[&str]) -> Client {
    command
        .args(["-d", "-F", &format!("{MESSAGE}{format}")])
        .args(arguments);
    let mut client = Client::start(&mut command);
    client.wait_for("Subscribed (mid");
    client
}

fn publish(mut command: Command, arguments: &[&str]) {
    Client::start(command.args(arguments)).finish();
}

/// What mosquitto_sub printed of the messages it got until it ended.
fn messages(client: Client) -> Vec<String> {
    let lines = client.finish();
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(MESSAGE))
        .map(str::to_owned)
        .collect()
}

/// The next message of a subscriber that goes on.
fn next_message(client: &mut Client) -> String {
    client.wait_for(MESSAGE)[MESSAGE.len()..].to_owned()
}

#[test]
fn mosquitto_exchanges_messages_at_every_qos_in_every_version() {
    if !available() {
        return;
    }
    for version in VERSIONS {
        for qos in ["0", "1", "2"] {
            let topic = unique("mosquitto/qos/");
            let receiver = subscribe(
                subscriber(version),
                "%q %p",
                &["-t", &topic, "-q", qos, "-C", "3"],
            );
            let mut sender = publisher(version);
            let mut sender = Client::start(sender.args(["-l", "-t", &topic, "-q", qos]));
            sender.feed("one\ntwo\nthree\n");
            sender.finish();
            let wanted = ["one", "two", "three"].map(|payload| format!("{qos} {payload}"));
            assert_eq!(messages(receiver), wanted, "{version}, QoS {qos}");
        }
    }
}

#[test]
fn mosquitto_versions_understand_each_other() {
    if !available() {
        return;
    }
    let topic = unique("mosquitto/mixed/");
    for from in VERSIONS {
        for to in VERSIONS {
            let receiver = subscribe(
                subscriber(to),
                "%q %p",
                &["-t", &topic, "-q", "2", "-C", "1"],
            );
            publish(publisher(from), &["-t", &topic, "-q", "1", "-m", "hello"]);
            assert_eq!(messages(receiver), ["1 hello"], "{from} to {to}");
        }
    }
}

#[test]
fn mosquitto_gets_a_retained_message_and_clears_it() {
    if !available() {
        return;
    }
    for version in VERSIONS {
        let topic = unique("mosquitto/retained/");
        publish(
            publisher(version),
            &["-t", &topic, "-q", "1", "-r", "-m", "kept"],
        );
        let late = subscribe(subscriber(version), "%r %p", &["-t", &topic, "-C", "1"]);
        assert_eq!(messages(late), ["1 kept"], "{version}");

        publish(publisher(version), &["-t", &topic, "-q", "1", "-r", "-n"]);
        let later = subscribe(subscriber(version), "%r %p", &["-t", &topic, "-C", "1"]);
        publish(publisher(version), &["-t", &topic, "-q", "1", "-m", "live"]);
        assert_eq!(
            messages(later),
            ["0 live"],
            "{version}: the retained message is gone"
        );
    }
}

#[test]
fn mosquitto_leaves_a_will() {
    if !available() {
        return;
    }
    for version in VERSIONS {
        let topic = unique("mosquitto/will/");
        let watcher = subscribe(
            subscriber(version),
            "%q %p",
            &["-t", &topic, "-q", "1", "-C", "1"],
        );
        let will = [
            "--will-topic",
            &topic,
            "--will-payload",
            "gone",
            "--will-qos",
            "1",
        ];
        let mut pids = subscriber(version);
        pids.args(will);
        let mut pids = subscribe(pids, "%p", &["-t", "mosquitto/nothing"]);
        pids.kill();
        assert_eq!(messages(watcher), ["1 gone"], "{version}");
    }
}

#[test]
fn mosquitto_receives_the_properties_of_a_message() {
    if !available() {
        return;
    }
    let topic = unique("mosquitto/properties/");
    // Content type, response topic, correlation data, payload format, user properties, expiry, identifiers.
    let format = "%C|%R|%D|%F|%P|%E|%S|%p";
    let mut receiver = subscriber("mqttv5");
    receiver.args(["-D", "subscribe", "subscription-identifier", "42"]);
    let receiver = subscribe(receiver, format, &["-t", &topic, "-C", "1"]);
    let properties = [
        ["content-type", "text/plain"],
        ["response-topic", "answers/here"],
        ["correlation-data", "question-7"],
        ["payload-format-indicator", "1"],
        ["message-expiry-interval", "600"],
    ];
    let mut sender = publisher("mqttv5");
    for property in properties {
        sender.args(["-D", "publish"]).args(property);
    }
    sender.args(["-D", "publish", "user-property", "room", "kitchen"]);
    publish(sender, &["-t", &topic, "-m", "21.5"]);

    let message = messages(receiver).remove(0);
    let fields: Vec<&str> = message.split('|').collect();
    assert_eq!(
        fields[..4],
        ["text/plain", "answers/here", "question-7", "1"],
        "{message}"
    );
    assert_eq!(fields[4].trim(), "room:kitchen", "{message}");
    let expiry: u32 = fields[5].parse().unwrap();
    assert!(
        (590..=600).contains(&expiry),
        "counted down in whole seconds: {message}"
    );
    assert_eq!(fields[6..], ["42", "21.5"], "{message}");
}

#[test]
fn mosquitto_resumes_a_session() {
    if !available() {
        return;
    }
    for version in VERSIONS {
        let (topic, id) = (unique("mosquitto/session/"), unique("mosqs"));
        let session = ["-i", &id, "-c", "-t", &topic, "-q", "2"];
        // -E: end as soon as the subscription is acknowledged.
        let mut once = subscriber(version);
        Client::start(once.args(session).arg("-E")).finish();
        for (qos, payload) in [("1", "first"), ("2", "second")] {
            publish(
                publisher(version),
                &["-t", &topic, "-q", qos, "-m", payload],
            );
        }
        let mut again = subscriber(version);
        again
            .args(session)
            .args(["-C", "2", "-F", &format!("{MESSAGE}%q %p")]);
        let waited = messages(Client::start(&mut again));
        assert_eq!(waited, ["1 first", "2 second"], "{version}");
    }
}

#[test]
fn mosquitto_shares_a_subscription() {
    if !available() {
        return;
    }
    let topic = unique("mosquitto/shared/");
    let filter = format!("$share/workers/{topic}");
    let mut members: Vec<Client> = ["mqttv311", "mqttv5"]
        .iter()
        .map(|version| subscribe(subscriber(version), "%p", &["-t", &filter, "-q", "1"]))
        .collect();
    let mut sender = publisher("mqttv5");
    let mut sender = Client::start(sender.args(["-l", "-t", &topic, "-q", "1"]));
    sender.feed("1\n2\n3\n4\n5\n6\n");
    sender.finish();
    // Round robin: each of the two gets every other message.
    let mut got: Vec<String> = members
        .iter_mut()
        .flat_map(|member| [(); 3].map(|()| next_message(member)))
        .collect();
    got.sort();
    assert_eq!(got, ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn mosquitto_connects_with_tls() {
    if !available() || !own_node() {
        return;
    }
    for version in VERSIONS {
        let topic = unique("mosquitto/tls/");
        let receiver = command("mosquitto_sub", version, Transport::Tls);
        let receiver = subscribe(receiver, "%q %p", &["-t", &topic, "-q", "2", "-C", "1"]);
        let sender = command("mosquitto_pub", version, Transport::Tls);
        publish(sender, &["-t", &topic, "-q", "2", "-m", "secret"]);
        assert_eq!(messages(receiver), ["2 secret"], "{version}");
    }
}

#[test]
fn mosquitto_connects_with_a_client_certificate() {
    if !available() || !own_node() {
        return;
    }
    let node = SharedNode::get();
    let (host, port) = node.node.address("mutual").rsplit_once(':').unwrap();
    let with = |program: &str, certificate: bool| {
        let mut command = line_buffered(program);
        command.args(["-V", "mqttv5", "-h", host, "-p", port]);
        command
            .arg("--cafile")
            .arg(node.authority.certificate_path());
        if certificate {
            command.arg("--cert").arg(&node.client.certificate);
            command.arg("--key").arg(&node.client.key);
        }
        command
    };
    let topic = unique("mosquitto/mutual/");
    let receiver = subscribe(
        with("mosquitto_sub", true),
        "%p",
        &["-t", &topic, "-C", "1"],
    );
    publish(
        with("mosquitto_pub", true),
        &["-t", &topic, "-q", "1", "-m", "known"],
    );
    assert_eq!(messages(receiver), ["known"]);

    let mut stranger = with("mosquitto_pub", false);
    let stranger = Client::start(stranger.args(["-t", &topic, "-q", "1", "-m", "unknown"]));
    let (status, _, _) = stranger.wait();
    assert!(!status.success(), "let in without a certificate");
}

#[test]
fn mosquitto_connects_to_a_unix_socket() {
    if !available() || !own_node() {
        return;
    }
    let path = SharedNode::get().node.address("unix");
    let with = |program: &str| {
        let mut command = line_buffered(program);
        command.args(["--unix", path, "-V", "mqttv311"]);
        command
    };
    let topic = unique("mosquitto/unix/");
    let receiver = subscribe(
        with("mosquitto_sub"),
        "%q %p",
        &["-t", &topic, "-q", "1", "-C", "1"],
    );
    publish(
        with("mosquitto_pub"),
        &["-t", &topic, "-q", "1", "-m", "local"],
    );
    assert_eq!(messages(receiver), ["1 local"]);
}

#[test]
fn mosquitto_carries_a_large_payload() {
    if !available() {
        return;
    }
    let topic = unique("mosquitto/large/");
    let payload = "0123456789abcdef".repeat(40_000);
    let receiver = subscribe(
        subscriber("mqttv5"),
        "%p",
        &["-t", &topic, "-q", "2", "-C", "1"],
    );
    let mut sender = publisher("mqttv5");
    let mut sender = Client::start(sender.args(["-s", "-t", &topic, "-q", "2"]));
    sender.feed(&payload);
    sender.finish();
    let got = messages(receiver).remove(0);
    assert!(
        got == payload,
        "{} of {} bytes arrived",
        got.len(),
        payload.len()
    );
}
