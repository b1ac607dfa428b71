//! Brokers to measure: started on a free port of the loopback, pinned to their core, ended when dropped.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::BROKER_CORE;
use crate::TaskError;
use crate::process::succeeds;

const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(15);

pub(super) struct BrokerProcess {
    child: Child,
    /// `host:port` of its MQTT listener.
    pub(super) address: String,
}

impl BrokerProcess {
    /// A node with one shard and no data from before.
    pub(super) fn tidegate(program: &Path, dir: &Path) -> Result<Self, TaskError> {
        let data_dir = create_empty_dir(dir, "data")?;
        let mut command = pinned_command();
        command
            .arg(program)
            .args(["serve", "--shards", "1", "--data-dir"])
            .arg(&data_dir);
        command.args(["--mqtt", "127.0.0.1:0", "--ws", "off", "--http", "off"]);
        let log = dir.join("tidegate.log");
        let mut running = Self::start(command, &log, String::new())?;
        let node_file = data_dir.join("node.json");
        running.wait_until(&log, |running| {
            let Some(address) = fs::read_to_string(&node_file)
                .ok()
                .and_then(|t| mqtt_address(&t))
            else {
                return false;
            };
            running.address = address;
            true
        })?;
        Ok(running)
    }

    /// mosquitto as Debian ships it, without its files and logs.
    pub(super) fn mosquitto(dir: &Path) -> Result<Self, TaskError> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let config = dir.join("mosquitto.conf");
        let address = free_address()?;
        let text = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n",
            address.port()
        );
        fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        let mut command = pinned_command();
        command.args(["mosquitto", "-c"]).arg(&config);
        let log = dir.join("mosquitto.log");
        let mut running = Self::start(command, &log, address.to_string())?;
        running.wait_until(&log, |running| TcpStream::connect(&running.address).is_ok())?;
        Ok(running)
    }

    /// A relay with the package `ws` of this folder.
    pub(super) fn ws_relay(dir: &Path, modules: &Path) -> Result<Self, TaskError> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let script = dir.join("ws_relay.mjs");
        fs::write(&script, include_str!("ws_relay.mjs"))
            .map_err(|error| format!("{}: {error}", script.display()))?;
        let address = free_address()?;
        let mut command = pinned_command();
        command.arg("node").arg(&script);
        command.arg(address.port().to_string()).arg(modules);
        let log = dir.join("ws_relay.log");
        let mut running = Self::start(command, &log, address.to_string())?;
        running.wait_until(&log, |running| TcpStream::connect(&running.address).is_ok())?;
        Ok(running)
    }

    fn start(mut command: Command, log: &Path, address: String) -> Result<Self, TaskError> {
        let describe = |error: std::io::Error| format!("{}: {error}", log.display());
        let output = fs::File::create(log).map_err(describe)?;
        let also = output.try_clone().map_err(describe)?;
        command.stdin(Stdio::null()).stdout(output).stderr(also);
        let child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Self { child, address })
    }

    fn wait_until(
        &mut self,
        log: &Path,
        mut is_ready: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), TaskError> {
        let deadline = Instant::now() + START_LIMIT;
        while !is_ready(self) {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > deadline {
                let printed = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("the broker did not start:\n{printed}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// taskset replaces itself by the broker, so this is the broker's.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        succeeds(Command::new("kill").arg(self.child.id().to_string()));
        let deadline = Instant::now() + STOP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> Result<SocketAddr, TaskError> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map_err(|error| format!("no free port: {error}"))
}

fn pinned_command() -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", BROKER_CORE]);
    command
}

fn create_empty_dir(dir: &Path, name: &str) -> Result<std::path::PathBuf, TaskError> {
    let path = dir.join(name);
    let describe = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.exists() {
        fs::remove_dir_all(&path).map_err(describe)?;
    }
    fs::create_dir_all(&path).map_err(describe)?;
    Ok(path)
}

/// The address of the listener `mqtt` in a node.json.
fn mqtt_address(node_file: &str) -> Option<String> {
    let text: String = node_file.split_whitespace().collect();
    let listener = text
        .split('{')
        .find(|object| object.contains(r#""name":"mqtt""#))?;
    let address = listener.split(r#""address":""#).nth(1)?.split('"').next()?;
    Some(address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_however_the_file_is_laid_out() {
        let text = r#"{ "pid": 1, "listeners": [
            {"name": "ws", "address": "127.0.0.1:2"},
            {"address": "127.0.0.1:3", "name": "mqtt", "protocol": "mqtt"}]}"#;
        assert_eq!(mqtt_address(text).as_deref(), Some("127.0.0.1:3"));
        assert_eq!(mqtt_address("{}"), None);
    }
}
