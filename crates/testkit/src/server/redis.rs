//! Redis: how it is started, and as much of its protocol (RESP 2) as a test needs to look into it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use super::instance::{PASSWORD, ServerInstance, USER, error_text};
use crate::certificates::TlsIdentity;

pub(super) fn command(server: &ServerInstance) -> Command {
    fs::create_dir_all(server.data_dir()).expect("a folder can be made");
    let mut command = server.command_for(&server.program);
    command.arg("--dir").arg(server.data_dir());
    command.args(["--bind", "127.0.0.1", "--port", &server.port.to_string()]);
    // Acknowledged writes survive a kill.
    command.args([
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
    ]);
    let password = format!(">{PASSWORD}");
    command.args(["--user", USER, "on", &password, "~*", "&*", "+@all"]);
    command
}

/// Returns the port that speaks TLS: the other one does not.
pub(super) fn add_tls(arguments: &mut Vec<String>, identity: &TlsIdentity, port: u16) -> u16 {
    let (certificate, key) = (identity.certificate.display(), identity.key.display());
    arguments.extend([
        "--tls-port".to_owned(),
        port.to_string(),
        "--tls-cert-file".to_owned(),
        certificate.to_string(),
        "--tls-key-file".to_owned(),
        key.to_string(),
        "--tls-auth-clients".to_owned(),
        "no".to_owned(),
    ]);
    port
}

/// One command and its answer.
pub(super) fn run(stream: TcpStream, words: &[&str]) -> Result<Vec<Option<String>>, String> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    (&stream)
        .write_all(request.as_bytes())
        .map_err(error_text)?;
    let mut values = Vec::new();
    read_value(&mut BufReader::new(stream), &mut values)?;
    Ok(values)
}

fn read_value(reader: &mut impl BufRead, values: &mut Vec<Option<String>>) -> Result<(), String> {
    let mut line = String::new();
    reader.read_line(&mut line).map_err(error_text)?;
    let line = line.trim_end();
    let Some((kind, text)) = line.split_at_checked(1) else {
        return Err("the server closed the connection".into());
    };
    let length = || {
        text.parse::<i64>()
            .map_err(|_| format!("`{line}` has no length"))
    };
    match kind {
        "+" | ":" => values.push(Some(text.to_owned())),
        "-" => return Err(text.to_owned()),
        "$" => match usize::try_from(length()?) {
            Err(_) => values.push(None),
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes).map_err(error_text)?;
                bytes.truncate(length);
                values.push(Some(String::from_utf8_lossy(&bytes).into_owned()));
            }
        },
        "*" => {
            for _ in 0..length()? {
                read_value(reader, values)?;
            }
        }
        _ => return Err(format!("`{line}` is no answer of Redis")),
    }
    Ok(())
}
