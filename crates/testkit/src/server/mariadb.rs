//! MariaDB: how it is made and started, and as much of its protocol (COM_QUERY, text results) as a test needs to look
//! into it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::instance::{DATABASE, PASSWORD, Rows, ServerInstance, USER, error_text};
use crate::certificates::TlsIdentity;

/// The tables a server cannot start without. `mariadb-install-db` would create them as well, but needs programs from
/// other packages and ten times as long, for help texts.
const SYSTEM_TABLES: [&str; 3] = [
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
];

pub(super) fn prepare(server: &ServerInstance) {
    fs::create_dir_all(server.data_dir()).expect("a folder can be made");
    let mut script =
        String::from("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n");
    for name in SYSTEM_TABLES {
        let path = install_prefix(server).join("share/mysql").join(name);
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        script.push_str(&text);
    }
    let mut command = client_command(server);
    command.args(["--bootstrap", "--skip-networking"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("mariadbd: {error}"));
    let mut input = child.stdin.take().expect("it was made above");
    // If it ends early, what it wrote says more than this error.
    let _ = input.write_all(script.as_bytes());
    drop(input);
    let output = child.wait_with_output().expect("a child can be waited for");
    assert!(output.status.success(), "mariadbd --bootstrap: {output:?}");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = client_command(server);
    command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
    command.arg(format!("--port={}", server.port));
    command.arg(format!("--socket={}", server.dir.join("socket").display()));
    command
}

/// Returns the port that speaks TLS: it may speak either.
pub(super) fn add_tls(arguments: &mut Vec<String>, identity: &TlsIdentity, port: u16) -> u16 {
    arguments.push(format!("--ssl-cert={}", identity.certificate.display()));
    arguments.push(format!("--ssl-key={}", identity.key.display()));
    port
}

pub(super) fn create_user(server: &ServerInstance) {
    let require = server.tls_port.map_or("", |_| "REQUIRE SSL");
    let statements = format!(
        "CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4; \
         CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}' {require}; \
         GRANT ALL ON {DATABASE}.* TO {USER}@'127.0.0.1'"
    );
    let done = server
        .connect()
        .and_then(|stream| run(stream, None, &statements));
    done.unwrap_or_else(|why| panic!("{statements}: {why}"));
}

fn client_command(server: &ServerInstance) -> Command {
    let mut command = server.command_for(&server.program);
    // First, as it asks: nothing of the machine's own configuration.
    command.arg("--no-defaults");
    command.arg(format!("--basedir={}", install_prefix(server).display()));
    command.arg(format!("--datadir={}", server.data_dir().display()));
    // Another server that starts removes what it finds in a folder for temporary tables.
    command.arg(format!("--tmpdir={}", server.dir.display()));
    command.args(["--user=root", "--loose-innodb-log-file-size=8M"]);
    // Written at each commit, which a killed server survives, but not synced: nobody pulls this machine's plug.
    command.arg("--loose-innodb-flush-log-at-trx-commit=2");
    command
}

/// The `usr` above `usr/sbin/mariadbd`.
fn install_prefix(server: &ServerInstance) -> PathBuf {
    let base = server.program.ancestors().nth(2);
    base.expect("the program lies two folders below its base")
        .to_path_buf()
}

/// Capabilities of the client: 4.1 protocol, passwords as we send them, several statements at once, named plugins.
const CAPABILITIES: u32 = 0x0200 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
const CONNECT_WITH_DATABASE: u32 = 0x8;
const MORE_RESULTS: u16 = 0x8;

pub(super) fn run(
    mut stream: TcpStream,
    database: Option<&str>,
    statements: &str,
) -> Result<Rows, String> {
    let (sequence, greeting) = receive(&mut stream)?;
    check_error_packet(&greeting)?;
    let capabilities = CAPABILITIES | database.map_or(0, |_| CONNECT_WITH_DATABASE);
    let mut body = capabilities.to_le_bytes().to_vec();
    body.extend(0x100_0000_u32.to_le_bytes());
    // utf8mb4, then reserved bytes, then who we are, with an empty password.
    body.push(45);
    body.extend([0; 23]);
    body.extend(b"root\0\0");
    body.extend(database.iter().flat_map(|name| name.bytes().chain([0])));
    body.extend(b"mysql_native_password\0");
    send(&mut stream, sequence + 1, &body)?;
    let (sequence, mut answer) = receive(&mut stream)?;
    if answer.first() == Some(&0xfe) {
        // It wants the (empty) password of another plugin.
        send(&mut stream, sequence + 1, &[])?;
        answer = receive(&mut stream)?.1;
    }
    check_error_packet(&answer)?;

    let mut query = vec![3];
    query.extend_from_slice(statements.as_bytes());
    send(&mut stream, 0, &query)?;
    let mut rows = Rows::new();
    loop {
        let (result, status) = read_result(&mut stream)?;
        if let Some(result) = result {
            rows = result;
        }
        if status & MORE_RESULTS == 0 {
            return Ok(rows);
        }
    }
}

/// The result of one statement, and the server's status after it.
fn read_result(stream: &mut TcpStream) -> Result<(Option<Rows>, u16), String> {
    let head = receive(stream)?.1;
    check_error_packet(&head)?;
    let mut fields = FieldReader(&head);
    let columns = fields.integer()?.unwrap_or(0);
    if columns == 0 {
        // OK: affected rows, the last inserted id, the status.
        fields.integer()?;
        fields.integer()?;
        return Ok((None, fields.status()?));
    }
    // The columns' definitions and the end of them.
    while !is_end_of_rows(&receive(stream)?.1) {}
    let mut rows = Rows::new();
    loop {
        let body = receive(stream)?.1;
        check_error_packet(&body)?;
        if is_end_of_rows(&body) {
            return Ok((Some(rows), FieldReader(&body[3..]).status()?));
        }
        let mut fields = FieldReader(&body);
        let row: Result<_, String> = (0..columns).map(|_| fields.text()).collect();
        rows.push(row?);
    }
}

fn is_end_of_rows(body: &[u8]) -> bool {
    body.first() == Some(&0xfe) && body.len() < 9
}

/// An ERR packet: 0xff, a number, `#` and five letters, the text.
fn check_error_packet(body: &[u8]) -> Result<(), String> {
    match body.split_first() {
        Some((0xff, rest)) => {
            Err(String::from_utf8_lossy(rest.get(2..).unwrap_or(rest)).into_owned())
        }
        Some(_) => Ok(()),
        None => Err("an empty packet".into()),
    }
}

struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    /// A length-encoded integer; `None` is NULL.
    fn integer(&mut self) -> Result<Option<u64>, String> {
        let (&first, rest) = self.0.split_first().ok_or("a short packet")?;
        let width = match first {
            0xfb => {
                self.0 = rest;
                return Ok(None);
            }
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => {
                self.0 = rest;
                return Ok(Some(u64::from(first)));
            }
        };
        let (bytes, rest) = rest.split_at_checked(width).ok_or("a short packet")?;
        self.0 = rest;
        let value = bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(Some(value))
    }

    fn text(&mut self) -> Result<Option<String>, String> {
        let Some(length) = self.integer()? else {
            return Ok(None);
        };
        let (bytes, rest) = self
            .0
            .split_at_checked(length as usize)
            .ok_or("a short packet")?;
        self.0 = rest;
        Ok(Some(String::from_utf8_lossy(bytes).into_owned()))
    }

    fn status(&self) -> Result<u16, String> {
        let bytes = self.0.first_chunk::<2>().ok_or("a short packet")?;
        Ok(u16::from_le_bytes(*bytes))
    }
}

fn send(stream: &mut TcpStream, sequence: u8, body: &[u8]) -> Result<(), String> {
    let length = (body.len() as u32).to_le_bytes();
    let mut packet = vec![length[0], length[1], length[2], sequence];
    packet.extend_from_slice(body);
    stream.write_all(&packet).map_err(error_text)
}

/// One packet: its sequence number and body.
fn receive(stream: &mut TcpStream) -> Result<(u8, Vec<u8>), String> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(error_text)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).map_err(error_text)?;
    Ok((head[3], body))
}
