//! The message of a node that is ready: listeners, data directory, and commands to try next.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use broker::config::{BrokerConfig, ListenerConfig};

use super::data_dir::OpenListener;

/// The lines, each ending with a line break.
pub(super) fn startup_message(
    listeners: &[OpenListener],
    config: &BrokerConfig,
    data_dir: &Path,
    file: Option<&Path>,
    program: &str,
) -> String {
    let configured = |name: &str| {
        let mut listeners = config.listeners.iter();
        listeners.find(|listener| listener.name == name)
    };
    let mut text = format!("Tidegate {} is ready.\n", env!("CARGO_PKG_VERSION"));
    for listener in listeners {
        let OpenListener {
            name,
            protocol,
            address,
        } = listener;
        let path = configured(name)
            .and_then(|listener| listener.websocket_path.as_deref())
            .unwrap_or_default();
        let slash = if protocol.starts_with("http") {
            "/"
        } else {
            ""
        };
        let url = match address.starts_with('/') && protocol != "unix" {
            true => format!("{protocol} on unix:{address}"),
            false => format!("{protocol}://{address}{path}{slash}"),
        };
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
    let reachable =
        |listener: &OpenListener| Some((client_flags(listener)?, listener.name.clone()));
    if let Some((flags, name)) = listeners.iter().find_map(reachable) {
        let is_open = configured(&name).is_none_or(ListenerConfig::allows_anonymous);
        let user = match config.users.first() {
            _ if is_open => String::new(),
            Some(user) => format!(" -u {} -P PASSWORD", shell_quoted(&user.username)),
            None => " -u NAME -P PASSWORD".to_owned(),
        };
        let _ = write!(
            text,
            "Try it:\n  {program} sub{flags}{user} -t 'demo/#' -v\n  {program} pub{flags}{user} -t demo/hello -m 'Hello, tide'\n"
        );
    }
    text
}

/// How to run this program from the current directory: by name if it is on the `PATH`, otherwise by
/// path.
pub(crate) fn program_name() -> String {
    let name = "tidegate";
    let Ok(this) = std::env::current_exe() else {
        return name.to_owned();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|dir| dir.join(name).canonicalize().ok());
    if found.as_deref() == Some(&*this) {
        return name.to_owned();
    }
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| this.strip_prefix(here).ok());
    shell_quoted(&below.unwrap_or(&this).to_string_lossy())
}

/// Quotes text as one word of a shell.
fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Flags with which the program's own clients reach a plain MQTT listener on this machine.
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
    use broker::config::BindAddress;
    use hooks::UserConfig;

    fn open(name: &str, protocol: &str, address: &str) -> OpenListener {
        OpenListener {
            name: name.into(),
            protocol: protocol.into(),
            address: address.into(),
        }
    }

    #[test]
    fn the_startup_message_shows_addresses_and_commands() {
        let listeners = [
            open("mqtt", "mqtt", "127.0.0.1:1883"),
            open("browsers", "ws", "127.0.0.1:8083"),
            open("local", "unix", "/run/mqtt.sock"),
            open("proxied", "ws", "/run/ws.sock"),
            open("http", "http", "127.0.0.1:8080"),
        ];
        let address = |port: u16| BindAddress::Tcp(([127, 0, 0, 1], port).into());
        let mut browsers = ListenerConfig::new("browsers", address(8083));
        browsers.websocket_path = Some("/mqtt".into());
        let mut config = BrokerConfig {
            listeners: vec![ListenerConfig::new("mqtt", address(1883)), browsers],
            ..BrokerConfig::default()
        };
        let data_dir = Path::new("/var/lib/tidegate");
        let text = startup_message(&listeners, &config, data_dir, None, "tidegate");
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                "Tidegate {version} is ready.
  listening on  mqtt://127.0.0.1:1883
  listening on  ws://127.0.0.1:8083/mqtt  (browsers)
  listening on  unix:///run/mqtt.sock  (local)
  listening on  ws on unix:/run/ws.sock  (proxied)
  listening on  http://127.0.0.1:8080/
  data in       /var/lib/tidegate
Try it:
  tidegate sub -t 'demo/#' -v
  tidegate pub -t demo/hello -m 'Hello, tide'
"
            )
        );
        // If credentials are required, the message shows this.
        config.listeners[0].allow_anonymous = Some(false);
        config.users.push(UserConfig {
            username: "ann o'neil".into(),
            credential: String::new(),
        });
        let text = startup_message(
            &listeners,
            &config,
            data_dir,
            None,
            "target/release/tidegate",
        );
        let try_it = r"  target/release/tidegate sub -u 'ann o'\''neil' -P PASSWORD -t 'demo/#' -v";
        assert!(text.contains(try_it), "{text}");
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
