//! `tidegate link`: files over every carrier, and with both ends killed at random moments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::program::{RunningProgram, certificate, run, tidegate};

/// Sizes around every limit of the protocol, and primes.
const SIZES: [usize; 12] = [
    0, 1, 1023, 1024, 65_521, 65_535, 65_536, 65_537, 131_072, 262_147, 1_048_573, 3_000_017,
];

/// A small generator for contents and choices.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn content(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Starts `tidegate link serve`, and returns the address that it has said.
fn serve(arguments: &[&str]) -> (RunningProgram, String) {
    let mut server = RunningProgram::start(tidegate(&[&["link", "serve"], arguments].concat()));
    let line = server.expect_output("links are accepted at ");
    let rest = line.split("links are accepted at ").nth(1).unwrap();
    let address = rest.split(';').next().unwrap().to_owned();
    (server, address)
}

/// All files in a directory with their contents.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_and_directories_go_both_ways_over_every_carrier() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, key) = certificate(folder.path(), "server", "server");
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    let mut random = Random(7);
    for size in SIZES {
        fs::write(
            source.join(format!("deep/{size}.bin")),
            random.content(size),
        )
        .unwrap();
    }
    fs::write(source.join("deep/er/ümlaut name"), "text").unwrap();
    let expected = tree(&source);
    let socket = format!("unix://{}", text(&folder.path().join("link.sock")));
    let carriers = [
        "tcp://127.0.0.1:0",
        "tls://127.0.0.1:0",
        "ws://127.0.0.1:0/files",
        "wss://127.0.0.1:0",
        "quic://127.0.0.1:0",
        &socket,
    ];
    for (index, carrier) in carriers.into_iter().enumerate() {
        let stored = folder.path().join(format!("stored-{index}"));
        let mut options = vec!["--dir", text(&stored), "--token", "secret"];
        if !carrier.starts_with("unix") {
            options.extend(["--cert", &pem, "--key", &key]);
        }
        let (_server, address) = serve(&[&[carrier], &options[..]].concat());
        let trust = ["--token", "secret", "--cafile", &pem];
        let send = [&["link", "send", &address, text(&source)], &trust[..]].concat();
        let output = run(&send).succeeded();
        assert_eq!(output.lines().count(), expected.len(), "{output}");
        assert!(
            output.contains("3000017 bytes  source/deep/3000017.bin"),
            "{output}"
        );
        assert!(tree(&stored.join("source")) == expected, "{carrier}");
        let back = folder.path().join(format!("back-{index}"));
        let receive = [
            "link",
            "receive",
            &address,
            "source/deep",
            "--to",
            text(&back),
        ];
        let output = run(&[&receive[..], &trust].concat()).succeeded();
        assert_eq!(output.lines().count(), expected.len(), "{output}");
        assert!(tree(&back.join("source")) == expected, "{carrier}");
    }
}

#[test]
fn checksums_are_those_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("abc");
    fs::write(&file, "abc").unwrap();
    let (_server, address) = serve(&["127.0.0.1:0", "--dir", text(&folder.path().join("to"))]);
    let send = ["link", "send", &address, text(&file), "--checksum"];
    let sha256 = run(&[&send[..], &["sha256"]].concat()).succeeded();
    assert_eq!(
        sha256,
        "SHA-256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  3 bytes  abc\n"
    );
    let blake3 = run(&[&send[..], &["blake3"]].concat()).succeeded();
    assert_eq!(
        blake3,
        "BLAKE3=6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85  3 bytes  abc\n"
    );
}

#[test]
fn failures_have_a_reason_and_a_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "content").unwrap();
    let dir = folder.path().join("to");
    let rejected = run(&["link", "serve", "0.0.0.0:0", "--dir", text(&dir)]).failed(2);
    assert!(rejected.contains("--token-file FILE"), "{rejected}");
    let (server, address) = serve(&["127.0.0.1:0", "--dir", text(&dir), "--token", "right"]);
    let send = ["link", "send", &address, text(&file), "--token", "wrong"];
    let rejected = run(&send).failed(4);
    assert!(rejected.contains("token is missing or wrong"), "{rejected}");
    let receive = [
        "link",
        "receive",
        &address,
        "--token",
        "right",
        "--to",
        text(&dir),
    ];
    let rejected = run(&[&receive[..], &["none"]].concat()).failed(4);
    assert!(rejected.contains("none: "), "{rejected}");
    let rejected = run(&[&receive[..], &["../file"]].concat()).failed(4);
    assert!(rejected.contains("relative path"), "{rejected}");
    let missing = run(&["link", "send", &address, "/none/such", "--token", "right"]).failed(1);
    assert!(missing.contains("/none/such"), "{missing}");
    drop(server);
    let send = [
        "link",
        "send",
        &address,
        text(&file),
        "--connect-timeout",
        "1",
    ];
    let unreachable = run(&send).failed(3);
    assert!(unreachable.contains("tidegate link serve"), "{unreachable}");
}

#[test]
fn a_rate_limit_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, Random(3).content(2_000_000)).unwrap();
    let dir = folder.path().join("to");
    let (_server, address) = serve(&["127.0.0.1:0", "--dir", text(&dir)]);
    let limit = ["--limit-rate", "2MB"];
    let start = Instant::now();
    run(&[&["link", "send", &address, text(&file)], &limit[..]].concat()).succeeded();
    assert!(start.elapsed() >= Duration::from_millis(800));
    let start = Instant::now();
    let back = folder.path().join("back");
    let receive = ["link", "receive", &address, "file", "--to", text(&back)];
    run(&[&receive[..], &limit].concat()).succeeded();
    assert!(start.elapsed() >= Duration::from_millis(800));
    assert_eq!(
        fs::read(&file).unwrap(),
        fs::read(back.join("file")).unwrap()
    );
}

/// Transfers a file while one of both ends is killed `kills` times.
fn transfer_with_kills(is_sending: bool, kills: usize, random: &mut Random) {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    fs::create_dir_all(&here).unwrap();
    fs::create_dir_all(&there).unwrap();
    let content = random.content(20_000_003);
    let source = if is_sending { &here } else { &there };
    fs::write(source.join("file.bin"), &content).unwrap();
    let socket = format!("unix://{}", text(&folder.path().join("link.sock")));
    let serve = ["link", "serve", &socket, "--dir", text(&there)];
    let start = |arguments: &[&str]| RunningProgram::start(tidegate(arguments));
    let mut server = start(&serve);
    server.expect_output("links are accepted");
    let file = here.join("file.bin");
    let client = match is_sending {
        true => vec!["link", "send", &socket, text(&file)],
        false => vec!["link", "receive", &socket, "file.bin", "--to", text(&here)],
    };
    // Slow enough for a few kills of each transfer.
    let options = ["--resume", "--limit-rate", "40MB", "--give-up-after", "30"];
    let arguments = [&client[..], &options].concat();
    let mut client = start(&arguments);
    for _ in 0..kills {
        let pause = Duration::from_millis(20 + random.next() % 200);
        if client.ends_within(pause) {
            break;
        }
        if random.next().is_multiple_of(2) {
            server.kill();
            server = start(&serve);
        } else {
            client.kill();
            client = start(&arguments);
        }
    }
    client.end().succeeded();
    for dir in [&here, &there] {
        let files = tree(dir);
        assert!(files.get("file.bin") == Some(&content), "{}", dir.display());
        assert_eq!(files.len(), 1, "{:?}", files.keys());
    }
}

fn survive_kills(rounds: usize) {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64
        | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    for round in 0..rounds {
        transfer_with_kills(round % 2 == 0, 5, &mut random);
    }
}

#[test]
fn transfers_survive_kills_of_both_ends() {
    // Five kills each.
    survive_kills(4);
}

#[test]
#[ignore = "takes minutes; run it with --ignored"]
fn transfers_survive_two_hundred_kills() {
    survive_kills(40);
}

/// Unmounts a file system when dropped.
struct MountedDisk<'a>(&'a Path);

impl Drop for MountedDisk<'_> {
    fn drop(&mut self) {
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_receiver_with_a_full_disk_says_so_and_continues_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |options: &str| {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]);
        let output = command.arg(&disk).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !mount("size=8m") {
        testkit::report_skipped("a file system cannot be mounted here");
        return;
    }
    let _mounted = MountedDisk(&disk);
    let stored = disk.join("stored");
    let file = folder.path().join("file");
    fs::write(&file, Random(5).content(20_000_003)).unwrap();
    let (_server, address) = serve(&["127.0.0.1:0", "--dir", text(&stored)]);
    let send = ["link", "send", &address, text(&file), "--resume"];
    let error = run(&send).failed(4);
    assert!(error.contains("cannot be stored"), "{error}");
    assert!(!stored.join("file").exists());
    assert!(mount("remount,size=64m"));
    run(&send).succeeded();
    assert!(fs::read(stored.join("file")).unwrap() == fs::read(&file).unwrap());
}
