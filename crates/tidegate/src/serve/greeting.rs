//! What a node says when it is ready: where it listens, where its data are, what to try next.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::data_dir::OpenListener;

/// The lines, ending with a line break.
pub(super) fn greeting(
    listeners: &[OpenListener],
    websocket_path: impl Fn(&str) -> Option<String>,
    data_dir: &Path,
    file: Option<&Path>,
) -> String {
    let mut text = format!("Tidegate {} is ready.\n", env!("CARGO_PKG_VERSION"));
    for listener in listeners {
        let OpenListener {
            name,
            protocol,
            address,
        } = listener;
        let path = websocket_path(name).unwrap_or_default();
        let slash = if protocol == "http" { "/" } else { "" };
        let url = format!("{protocol}://{address}{path}{slash}");
        let note = if name == protocol {
            String::new()
        } else {
            format!("  ({name})")
        };
        let _ = writeln!(text, "  listening on  {url}{note}");
    }
    let _ = writeln!(text, "  data in       {}", data_dir.display());
    if let Some(file) = file {
        let _ = writeln!(text, "  configured by {}", file.display());
    }
    if let Some(flags) = listeners.iter().find_map(client_flags) {
        let _ = write!(
            text,
            "Try it:\n  tidegate sub{flags} -t 'demo/#' -v\n  tidegate pub{flags} -t demo/hello -m 'Hello, tide'\n"
        );
    }
    text
}

/// How the program's own clients reach a plain MQTT listener on this machine.
fn client_flags(listener: &OpenListener) -> Option<String> {
    if listener.protocol != "mqtt" {
        return None;
    }
    let address: SocketAddr = listener.address.parse().ok()?;
    let host = match address.ip() {
        ip if ip.is_loopback() && ip.is_ipv4() || ip.is_unspecified() => String::new(),
        ip => format!(" -h {ip}"),
    };
    let port = match address.port() {
        1883 => String::new(),
        port => format!(" -p {port}"),
    };
    Some(host + &port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str, protocol: &str, address: &str) -> OpenListener {
        OpenListener {
            name: name.into(),
            protocol: protocol.into(),
            address: address.into(),
        }
    }

    #[test]
    fn the_greeting_says_where_and_what_to_try() {
        let listeners = [
            open("mqtt", "mqtt", "127.0.0.1:1883"),
            open("browsers", "ws", "127.0.0.1:8083"),
            open("http", "http", "127.0.0.1:8080"),
        ];
        let path = |name: &str| (name == "browsers").then(|| "/mqtt".to_owned());
        let text = greeting(&listeners, path, Path::new("/var/lib/tidegate"), None);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                "Tidegate {version} is ready.
  listening on  mqtt://127.0.0.1:1883
  listening on  ws://127.0.0.1:8083/mqtt  (browsers)
  listening on  http://127.0.0.1:8080/
  data in       /var/lib/tidegate
Try it:
  tidegate sub -t 'demo/#' -v
  tidegate pub -t demo/hello -m 'Hello, tide'
"
            )
        );
    }

    #[test]
    fn what_to_try_reaches_the_listener_it_names() {
        let flags = |address| client_flags(&open("mqtt", "mqtt", address));
        assert_eq!(flags("0.0.0.0:1884").as_deref(), Some(" -p 1884"));
        assert_eq!(flags("10.0.0.1:1883").as_deref(), Some(" -h 10.0.0.1"));
        assert_eq!(flags("[::1]:1").as_deref(), Some(" -h ::1 -p 1"));
        assert_eq!(client_flags(&open("ws", "ws", "127.0.0.1:1")), None);
    }
}
