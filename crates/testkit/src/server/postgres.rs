//! PostgreSQL: how it is made and started, and as much of its protocol (3.0, simple queries) as a test needs to look
//! into it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::instance::{DATABASE, PASSWORD, Rows, ServerInstance, USER, error_text};
use crate::certificates::TlsIdentity;

/// The administrator comes in without a password, everybody else with one; if there is TLS, only by that.
fn host_based_access(server: &ServerInstance) -> String {
    let others = server.tls_port.map_or("host", |_| "hostssl");
    format!("host all postgres 127.0.0.1/32 trust\n{others} all all 127.0.0.1/32 scram-sha-256\n")
}

/// Returns the port that speaks TLS: it may speak either.
pub(super) fn add_tls(arguments: &mut Vec<String>, identity: &TlsIdentity, port: u16) -> u16 {
    let (certificate, key) = (identity.certificate.display(), identity.key.display());
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={certificate}"),
        format!("ssl_key_file={key}"),
    ];
    arguments.extend(
        settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting]),
    );
    port
}

pub(super) fn prepare(server: &ServerInstance) {
    fs::create_dir_all(server.data_dir()).expect("a folder can be made");
    if is_root() {
        std::os::unix::fs::chown(server.data_dir(), Some(NOBODY_UID), Some(NOBODY_UID))
            .expect("root may give files away");
    }
    let mut command = unprivileged(server, &server.program.with_file_name("initdb"));
    command.arg("-D").arg(server.data_dir());
    command.args([
        "-U",
        "postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]);
    command.stdin(Stdio::null());
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("initdb: {error}"));
    assert!(output.status.success(), "initdb: {output:?}");
    let file = server.data_dir().join("pg_hba.conf");
    fs::write(file, host_based_access(server)).expect("its file can be written");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = unprivileged(server, &server.program);
    command.arg("-D").arg(server.data_dir());
    command.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-k", ""]);
    // Nobody pulls the plug of this machine during a test; a killed server loses nothing without fsync.
    command.args(["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"]);
    command
}

pub(super) fn create_user(server: &ServerInstance) {
    let run = |statement: &str| {
        let done = server
            .connect()
            .and_then(|stream| run(stream, "postgres", statement));
        done.unwrap_or_else(|why| panic!("{statement}: {why}"));
    };
    run(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
    run(&format!("CREATE DATABASE {DATABASE} OWNER {USER}"));
    // What the administrator makes for a test is the user's to read and write.
    run(&format!(
        "GRANT pg_read_all_data, pg_write_all_data TO {USER}"
    ));
}

const NOBODY_UID: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: geteuid cannot fail and has no memory effects.
    unsafe { libc::geteuid() == 0 }
}

/// PostgreSQL refuses to run as root. As nobody it could not reach a program below a home directory, so it may keep
/// that one power of root.
fn unprivileged(server: &ServerInstance, program: &Path) -> Command {
    if !is_root() {
        return server.command_for(program);
    }
    let mut command = server.command_for(Path::new("setpriv"));
    command.args([
        &format!("--reuid={NOBODY_UID}"),
        &format!("--regid={NOBODY_UID}"),
        "--clear-groups",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
        // access(2), with which it looks for its own program, heeds that power only so.
        "--securebits=+no_setuid_fixup",
        // Changing the user forgets the signal that `life::spawn` has set.
        "--pdeathsig=QUIT",
    ]);
    command.arg(program);
    command
}

pub(super) fn run(mut stream: TcpStream, database: &str, statements: &str) -> Result<Rows, String> {
    let mut startup = 196_608_u32.to_be_bytes().to_vec();
    startup.extend(format!("user\0postgres\0database\0{database}\0\0").bytes());
    send(&mut stream, None, &startup)?;
    read_until_ready(&mut stream)?;
    send(
        &mut stream,
        Some(b'Q'),
        format!("{statements}\0").as_bytes(),
    )?;
    read_until_ready(&mut stream)
}

fn send(stream: &mut TcpStream, kind: Option<u8>, body: &[u8]) -> Result<(), String> {
    let mut message = Vec::from_iter(kind);
    message.extend((body.len() as u32 + 4).to_be_bytes());
    message.extend_from_slice(body);
    stream.write_all(&message).map_err(error_text)
}

/// Reads messages up to ReadyForQuery; the rows of the last result among them.
fn read_until_ready(stream: &mut TcpStream) -> Result<Rows, String> {
    let mut rows = Rows::new();
    let mut failure = None;
    loop {
        let mut head = [0; 5];
        if let Err(error) = stream.read_exact(&mut head) {
            return Err(failure.unwrap_or_else(|| error_text(error)));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; (length as usize).saturating_sub(4)];
        stream.read_exact(&mut body).map_err(error_text)?;
        match head[0] {
            b'T' => rows.clear(),
            b'D' => rows.push(parse_row(&body)?),
            b'E' => failure = Some(statement_error(&body)),
            b'R' if body != [0; 4] => return Err("it asks the administrator for a password".into()),
            b'Z' => return failure.map_or(Ok(rows), Err),
            _ => {}
        }
    }
}

/// DataRow: a count, then for each column a length (-1: NULL) and the text.
fn parse_row(body: &[u8]) -> Result<Vec<Option<String>>, String> {
    let mut rest = body.get(2..).ok_or("a row without columns")?;
    let mut columns = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        rest = after;
        columns.push(match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => None,
            Ok(length) => {
                let (text, after) = rest.split_at_checked(length).ok_or("a short row")?;
                rest = after;
                Some(String::from_utf8_lossy(text).into_owned())
            }
        });
    }
    Ok(columns)
}

/// ErrorResponse: fields of a letter and text; M is the message.
fn statement_error(body: &[u8]) -> String {
    body.split(|byte| *byte == 0)
        .find(|field| field.first() == Some(&b'M'))
        .map_or_else(
            || "an error without a message".into(),
            |field| String::from_utf8_lossy(&field[1..]).into_owned(),
        )
}
