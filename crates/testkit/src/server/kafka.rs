//! Kafka: one broker that is its own controller, and as much of its protocol as a test needs to make a topic.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::instance::{PASSWORD, ServerInstance, USER, error_text, free_port};
use crate::certificates::TlsIdentity;
use crate::processes;

const CLUSTER: &str = "a2l0LWNsdXN0ZXItMDAwMQ";
const API_VERSIONS: (u16, u16) = (18, 0);
const CREATE_TOPICS: (u16, u16) = (19, 4);

fn java(server: &ServerInstance) -> Command {
    let mut command = Command::new("java");
    // Half the time to start and half the memory.
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.arg("-cp");
    command.arg(format!("{}/*", server.program.display()));
    command
}

/// Writes its settings, and makes its folder with the passwords.
pub(super) fn prepare(server: &ServerInstance, identity: Option<&TlsIdentity>) {
    let (data, port, controller) = (server.data_dir(), server.port, free_port());
    let tls = server
        .tls_port
        .map_or(String::new(), |port| format!(",TLS://127.0.0.1:{port}"));
    let mut settings = format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAINTEXT\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{tls}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SASL_SSL\n\
         log.dirs={}\n\
         num.partitions=4\n\
         offsets.topic.num.partitions=1\n\
         offsets.topic.replication.factor=1\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=1000\n\
         sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n",
        data.display()
    );
    if let Some(identity) = identity {
        let pem = server.dir.join("broker.pem");
        let read = |path| fs::read_to_string(path).expect("the test wrote it");
        let both = read(&identity.key) + &read(&identity.certificate);
        fs::write(&pem, both).expect("a file can be written");
        let modules = "org.apache.kafka.common.security";
        settings.push_str(&format!(
            "listener.name.tls.ssl.keystore.type=PEM\n\
             listener.name.tls.ssl.keystore.location={}\n\
             listener.name.tls.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";\n\
             listener.name.tls.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n\
             listener.name.tls.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n",
            pem.display()
        ));
    }
    let file = server.dir.join("server.properties");
    fs::write(&file, settings).expect("a file can be written");
    let mut command = java(server);
    command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]);
    command.arg(&file);
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
        command.arg("--add-scram");
        command.arg(format!("{mechanism}=[name={USER},password={PASSWORD}]"));
    }
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = processes::spawn(command).wait_with_output();
    let ended = ended.expect("a child can be waited for");
    let wrote = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "StorageTool: {wrote}");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = java(server);
    command.arg("kafka.Kafka");
    command.arg(server.dir.join("server.properties"));
    command
}

pub(super) fn check_ready(stream: TcpStream) -> Result<(), String> {
    match &request(stream, API_VERSIONS, &[])?[..] {
        [0, 0, ..] => Ok(()),
        _ => Err("it does not say what it can do".into()),
    }
}

/// Makes a topic with settings of its own.
pub(super) fn create_topic(
    stream: TcpStream,
    name: &str,
    partitions: u32,
    settings: &[(&str, &str)],
) -> Result<(), String> {
    let mut body = Vec::new();
    body.extend(1_u32.to_be_bytes());
    encode_text(&mut body, name);
    body.extend(partitions.to_be_bytes());
    body.extend(1_u16.to_be_bytes());
    body.extend(0_u32.to_be_bytes());
    body.extend((settings.len() as u32).to_be_bytes());
    for (name, value) in settings {
        encode_text(&mut body, name);
        encode_text(&mut body, value);
    }
    body.extend(30_000_u32.to_be_bytes());
    body.push(0);
    let answer = request(stream, CREATE_TOPICS, &body)?;
    // How long we are throttled, how many topics, the topic's name, what is wrong.
    match answer.get(10 + name.len()..12 + name.len()) {
        Some([0, 0]) => Ok(()),
        code => Err(format!("topic {name}: error {code:?}")),
    }
}

fn encode_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// One request and its answer.
fn request(mut stream: TcpStream, api: (u16, u16), body: &[u8]) -> Result<Vec<u8>, String> {
    let mut request = Vec::new();
    request.extend(api.0.to_be_bytes());
    request.extend(api.1.to_be_bytes());
    request.extend(7_u32.to_be_bytes());
    encode_text(&mut request, "kit");
    request.extend(body);
    let length = request.len() as u32;
    stream
        .write_all(&length.to_be_bytes())
        .map_err(error_text)?;
    stream.write_all(&request).map_err(error_text)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(error_text)?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).map_err(error_text)?;
    Ok(answer.split_off(4))
}
