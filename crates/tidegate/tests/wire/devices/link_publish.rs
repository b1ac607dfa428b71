//! `tidegate link publish`: lines, rejections, and journals that survive kills of the command and a node that is away.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::link::{command, node, succeeded};
use crate::support::{Connect, Node, Random, Raw, kind, temporary_directory};

/// Starts the command with a pipe as its standard input.
fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["link", "publish"]).args(arguments);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn publish_lines(arguments: &[&str], input: &str) -> Output {
    let mut child = start(arguments);
    let mut stdin = child.stdin.take().unwrap();
    // A command that has failed reads nothing.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn error_of(output: &Output, status: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{error}");
    error
}

/// A client with a session that misses nothing.
fn watcher(node: &Node) -> Raw {
    let mut watcher = Raw::connect(node, &Connect::new(5, "watcher").persistent());
    watcher.subscribe("up/#", 1);
    watcher
}

fn has_journal(dir: &Path) -> bool {
    dir.join("journal").exists()
}

#[test]
fn each_line_of_the_input_is_a_message() {
    let node = node(&["p1"], "");
    let mut watcher = watcher(&node);
    let publish = [node.address("link"), "--token", "token-p1", "--lines"];
    let to = |topic: &'static str| [&publish[..], &[topic]].concat();
    succeeded(&publish_lines(&to("up/a"), "one\n\nthree\nwithout an end"));
    for line in ["one", "", "three", "without an end"] {
        let message = watcher.recv_message("up/a", line);
        watcher.acknowledge(&message);
    }
    let error = error_of(&publish_lines(&to("down/a"), "x\ny\n"), 4);
    assert!(error.contains("rejected line 1: "), "{error}");
    assert!(error.contains("rejected line 2: "), "{error}");
    assert!(error.contains("2 messages, the last one: "), "{error}");
    let long = "x".repeat((1 << 20) + 1);
    let error = error_of(&publish_lines(&to("up/a"), &format!("short\n{long}\n")), 2);
    assert!(
        error.contains("line 2: expected at most 1048576"),
        "{error}"
    );
    watcher.recv_message("up/a", "short");
}

#[test]
fn a_journal_keeps_messages_until_the_node_has_them() {
    let node = node(&["p1"], "");
    let mut watcher = watcher(&node);
    let journal = temporary_directory().join("journal of p1");
    let journal_text = journal.to_str().unwrap();
    let options = ["--token", "token-p1", "--journal", journal_text];
    let options = [&options[..], &["--connect-timeout", "1"]].concat();
    for message in ["first", "second"] {
        // Nobody listens there.
        let away = ["publish", "127.0.0.1:1", "up/a", "-m", message];
        let error = error_of(&command(&[&away[..], &options].concat()), 3);
        assert!(error.contains("sends them"), "{error}");
        assert!(error.contains(journal_text), "{error}");
        assert!(has_journal(&journal));
    }
    let publish = ["publish", node.address("link"), "up/a", "-m", "third"];
    succeeded(&command(&[&publish[..], &options].concat()));
    for message in ["first", "second", "third"] {
        let message = watcher.recv_message("up/a", message);
        watcher.acknowledge(&message);
    }
    assert!(!has_journal(&journal));
    // A rejected message does not remain.
    let publish = ["publish", node.address("link"), "down/a", "-m", "x"];
    let error = error_of(&command(&[&publish[..], &options].concat()), 4);
    assert!(error.contains("\"down/a\""), "{error}");
    let publish = ["publish", node.address("link"), "up/a", "-m", "last"];
    succeeded(&command(&[&publish[..], &options].concat()));
    let message = watcher.recv_message("up/a", "last");
    watcher.acknowledge(&message);
    assert!(watcher.ping_for_packets().is_empty());
}

/// A node collects messages of several frames up to an eighth of its window for them.
#[test]
fn messages_that_are_too_large_for_the_node_are_reported() {
    let node = node(&["p1"], "");
    let mut watcher = watcher(&node);
    let options = [node.address("link"), "up/a", "--token", "token-p1"];
    let sizes = [255 * 1024, 257 * 1024, (1 << 20) - 100, 1 << 20];
    for size in sizes {
        let output = publish_lines(&options, &"x".repeat(size));
        match size < 256 * 1024 {
            true => drop(succeeded(&output)),
            false => drop(error_of(&output, 4)),
        }
    }
    // Before the node is known, they are accepted.
    let journal = temporary_directory().join("journal");
    let journal = ["--journal", journal.to_str().unwrap()];
    for size in &sizes[1..] {
        let away = ["127.0.0.1:1", "up/a", "--connect-timeout", "1"];
        let stored = publish_lines(&[&away[..], &journal].concat(), &"x".repeat(*size));
        error_of(&stored, 3);
    }
    let lines = [&options[..], &journal, &["--lines"]].concat();
    let error = error_of(&publish_lines(&lines, "last\n"), 4);
    assert!(error.contains("3 messages, the last one"), "{error}");
    let lines = [&options[..], &["--lines"]].concat();
    let input = format!("one\n{}\nthree\n", "x".repeat(300_000));
    let error = error_of(&publish_lines(&lines, &input), 4);
    assert!(error.contains("line 2: a message of "), "{error}");
    assert!(error.contains("at most 262144 bytes"), "{error}");
    let mut expect = |content: &str| {
        let message = watcher.recv_message("up/a", content);
        watcher.acknowledge(&message);
    };
    expect(&"x".repeat(sizes[0]));
    for line in ["last", "one", "three"] {
        expect(line);
    }
    assert!(watcher.ping_for_packets().is_empty());
}

#[test]
fn a_journal_in_use_or_damaged_is_reported() {
    let node = node(&["p1"], "");
    let journal = temporary_directory().join("journal");
    let options = [
        "--token",
        "token-p1",
        "--journal",
        journal.to_str().unwrap(),
    ];
    let publish = [&[node.address("link"), "up/a"], &options[..]].concat();
    let mut child = start(&publish);
    std::thread::sleep(Duration::from_millis(50));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut waiting = start(&[&publish[..], &["--lines"]].concat());
    crate::support::eventually("the journal is open", || has_journal(&journal));
    let second = publish_lines(&publish, "x");
    let error = error_of(&second, 1);
    assert!(error.contains("cannot open the journal"), "{error}");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    std::fs::write(journal.join("journal"), "something else").unwrap();
    let error = error_of(&publish_lines(&publish, "x"), 1);
    assert!(error.contains("is not a journal of a link"), "{error}");
}

/// What is in the journal is published once, however often the command is killed.
#[test]
fn lines_in_a_journal_survive_kills_of_the_command() {
    let node = node(&["p1"], "");
    let mut watcher = watcher(&node);
    let journal = temporary_directory().join("journal");
    let options = [
        "--token",
        "token-p1",
        "--journal",
        journal.to_str().unwrap(),
    ];
    let publish = [&[node.address("link"), "up/a", "--lines"], &options[..]].concat();
    let mut random = Random::new(Random::seed());
    let mut next = 0_u32;
    for _ in 0..8 {
        let mut child = start(&publish);
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            (next..)
                .take_while(|number| stdin.write_all(format!("{number}\n").as_bytes()).is_ok())
                .count()
        });
        std::thread::sleep(Duration::from_millis(100 + random.below(400) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(writer.join().unwrap() > 0);
        // Without further lines, the command sends what the journal has.
        let output = publish_lines(&publish, "");
        succeeded(&output);
        // How many lines the journal had is not known, but there are no gaps and no repetitions.
        loop {
            let packets = watcher.ping_for_packets();
            if packets.is_empty() {
                break;
            }
            for packet in packets {
                assert_eq!(packet.kind, kind::PUBLISH);
                assert_eq!(packet.text(), next.to_string());
                watcher.acknowledge(&packet);
                next += 1;
            }
        }
    }
    assert!(next > 0);
}
