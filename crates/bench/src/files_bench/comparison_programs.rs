//! Other programs that receive the same files on this machine, each with a server and a directory of its own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use content::{ContentDigest, ContentHasher, DigestAlgorithm};
use serde_json::json;

use super::file_content::FileContent;
use super::uploads::{TIMEOUT, TusServer, send_with_tus};

const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Chunks of objects in NATS, as its clients send them.
const NATS_CHUNK_BYTES: usize = 128 * 1024;
/// Chunks that are not acknowledged.
const NATS_WINDOW: u64 = 256;

/// A program that is not Tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ComparisonProgram {
    /// rsync to its daemon, without compression
    Rsync,
    /// The client of this benchmark to tusd
    Tusd,
    /// An object store in nats-server, in chunks of 128 KiB
    Nats,
}

impl ComparisonProgram {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rsync => "rsync",
            Self::Tusd => "tusd",
            Self::Nats => "NATS",
        }
    }

    /// Starts the server of the program below a directory.
    pub(crate) fn start(self, parent: &Path) -> anyhow::Result<ComparisonServer> {
        let name = format!("tidegate-bench-{}-{}", self.name(), std::process::id());
        let directory = parent.join(name);
        let stored = directory.join("files");
        fs::create_dir_all(&stored)
            .with_context(|| format!("cannot create {}", stored.display()))?;
        // Another program may take the port meanwhile; then the server does not start.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = ComparisonServer {
            program: self,
            directory,
            child: None,
            address: format!("127.0.0.1:{port}"),
        };
        let mut command = server.command(port)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().with_context(|| {
            let program = command.get_program().to_string_lossy().into_owned();
            format!("cannot start {program}; install it, or leave it out of --versus")
        })?;
        server.child = Some(child);
        server.wait_until_ready()?;
        Ok(server)
    }
}

/// A running server. Dropping it ends it and removes its files.
pub(crate) struct ComparisonServer {
    program: ComparisonProgram,
    directory: PathBuf,
    child: Option<Child>,
    address: String,
}

impl ComparisonServer {
    fn stored(&self) -> PathBuf {
        self.directory.join("files")
    }

    fn command(&self, port: u16) -> anyhow::Result<Command> {
        let (stored, port) = (self.stored(), port.to_string());
        let mut command;
        match self.program {
            ComparisonProgram::Rsync => {
                let path = self.directory.join("rsyncd.conf");
                let text = format!(
                    "use chroot = no\nuid = {}\ngid = {}\n[files]\npath = {}\nread only = no\n",
                    rustix::process::getuid().as_raw(),
                    rustix::process::getgid().as_raw(),
                    stored.display()
                );
                fs::write(&path, text)?;
                command = Command::new("rsync");
                command.args(["--daemon", "--no-detach", "--address", "127.0.0.1"]);
                command.args(["--port", &port, "--config"]).arg(path);
            }
            ComparisonProgram::Tusd => {
                command = Command::new("tusd");
                command.args(["-host", "127.0.0.1", "-port", &port]);
                command.args(["-base-path", "/files/", "-upload-dir"]);
                command.arg(stored);
            }
            ComparisonProgram::Nats => {
                command = Command::new("nats-server");
                command.args(["-js", "-a", "127.0.0.1", "-p", &port, "-sd"]);
                command.arg(stored);
            }
        }
        Ok(command)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(&self.address).is_err() {
            let child = self.child.as_mut().context("the server was started")?;
            if let Some(status) = child.try_wait()? {
                bail!("the server of {} ended: {status}", self.program.name());
            }
            ensure!(
                Instant::now() < deadline,
                "the server of {} does not listen at {}",
                self.program.name(),
                self.address
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends a file. Returns how long that took, after the server's copy has been verified and removed.
    pub(crate) fn measure(
        &self,
        name: &str,
        content: &FileContent,
        digest: &ContentDigest,
    ) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let stored = match self.program {
            ComparisonProgram::Rsync => {
                let target = format!("rsync://{}/files/{name}", self.address);
                let mut command = Command::new("rsync");
                command
                    .args(["--whole-file", "--quiet"])
                    .arg(content.source()?);
                let status = command.arg(target).status().context("cannot start rsync")?;
                ensure!(status.success(), "rsync failed: {status}");
                self.stored().join(name)
            }
            ComparisonProgram::Tusd => {
                let server = TusServer {
                    host: &self.address,
                    path: "/files/",
                    token: None,
                };
                let location = send_with_tus(&server, name, content, digest)?;
                let id = location.rsplit('/').next().unwrap_or_default();
                self.stored().join(id)
            }
            ComparisonProgram::Nats => {
                send_to_nats(&self.address, name, content, digest)?;
                return Ok(start.elapsed());
            }
        };
        let elapsed = start.elapsed();
        let mut hasher = ContentHasher::new(DigestAlgorithm::Sha256);
        let file = File::open(&stored)
            .with_context(|| format!("{} has not stored the file", self.program.name()))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        loop {
            let bytes = file.fill_buf()?;
            if bytes.is_empty() {
                break;
            }
            hasher.update(bytes);
            let len = bytes.len();
            file.consume(len);
        }
        ensure!(
            hasher.finish() == *digest,
            "{} has stored other content",
            self.program.name()
        );
        fs::remove_file(stored)?;
        Ok(elapsed)
    }
}

impl Drop for ComparisonServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The connection of a client of NATS.
struct NatsClient {
    input: BufReader<TcpStream>,
    output: BufWriter<TcpStream>,
}

impl NatsClient {
    fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut client = Self {
            input: BufReader::new(stream.try_clone()?),
            output: BufWriter::with_capacity(1 << 20, stream),
        };
        client.output.write_all(
            b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB _INBOX.bench 1\r\n",
        )?;
        Ok(client)
    }

    /// Publishes a message whose answer is sent to this client.
    fn publish(&mut self, subject: &str, payload: &[u8]) -> anyhow::Result<()> {
        write!(
            self.output,
            "PUB {subject} _INBOX.bench {}\r\n",
            payload.len()
        )?;
        self.output.write_all(payload)?;
        self.output.write_all(b"\r\n")?;
        Ok(())
    }

    /// The next answer, which must report no error.
    fn receive(&mut self) -> anyhow::Result<serde_json::Value> {
        self.output.flush()?;
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(
                self.input.read_line(&mut line)? > 0,
                "nats-server closed the connection"
            );
            if line.starts_with("PING") {
                self.output.write_all(b"PONG\r\n")?;
                self.output.flush()?;
            }
            ensure!(!line.starts_with("-ERR"), "nats-server: {}", line.trim());
            if line.starts_with("MSG ") {
                break;
            }
        }
        let size = line.split_ascii_whitespace().next_back();
        let size: usize = size
            .and_then(|size| size.parse().ok())
            .context("a size in MSG")?;
        let mut payload = vec![0; size + 2];
        self.input.read_exact(&mut payload)?;
        let answer: serde_json::Value = serde_json::from_slice(&payload[..size])
            .context("an answer of nats-server is not JSON; is JetStream enabled?")?;
        ensure!(
            answer["error"].is_null(),
            "nats-server: {}",
            answer["error"]
        );
        Ok(answer)
    }
}

/// Puts an object into a bucket of its own, as NATS' clients do (ADR-20), and deletes the bucket.
fn send_to_nats(
    address: &str,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<()> {
    let mut client = NatsClient::connect(address)?;
    let (stream, nuid) = (format!("OBJ_{name}"), "bench");
    let subjects = [format!("$O.{name}.C.>"), format!("$O.{name}.M.>")];
    let create = json!({
        "name": stream, "subjects": subjects, "storage": "file", "retention": "limits", "discard": "new",
        "allow_rollup_hdrs": true, "allow_direct": true, "num_replicas": 1, "max_consumers": -1, "max_msgs": -1,
        "max_bytes": -1, "max_age": 0,
    });
    let api = format!("$JS.API.STREAM.CREATE.{stream}");
    client.publish(&api, create.to_string().as_bytes())?;
    client.receive()?;
    let subject = format!("$O.{name}.C.{nuid}");
    let (mut chunks, mut waiting) = (0_u64, 0);
    for (_, piece) in content.pieces() {
        for chunk in piece.chunks(NATS_CHUNK_BYTES) {
            client.publish(&subject, chunk)?;
            chunks += 1;
            waiting += 1;
            while waiting >= NATS_WINDOW {
                client.receive()?;
                waiting -= 1;
            }
        }
    }
    let info = json!({
        "name": name, "bucket": name, "nuid": nuid, "size": content.size, "chunks": chunks,
        "digest": format!("SHA-256={}", data_encoding::BASE64URL.encode(&digest.bytes)),
    });
    let encoded = data_encoding::BASE64URL.encode(name.as_bytes());
    client.publish(
        &format!("$O.{name}.M.{encoded}"),
        info.to_string().as_bytes(),
    )?;
    waiting += 1;
    let mut last = 0;
    for _ in 0..waiting {
        last = client.receive()?["seq"].as_u64().unwrap_or(last);
    }
    ensure!(
        last == chunks + 1,
        "NATS has stored {last} of {} messages",
        chunks + 1
    );
    client.publish(&format!("$JS.API.STREAM.DELETE.{stream}"), b"")?;
    client.receive().map(drop)
}
