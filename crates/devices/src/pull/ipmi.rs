//! Reads sensors of servers with the program `ipmitool`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::sync::Arc;

use secret::Secret;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::definition::{self, IpmiHost, IpmiInterface, PullSourceError};
use super::readings::{PullError, Readings};

/// Maximum number of hosts of one source that are polled at the same time.
const MAX_AT_ONCE: usize = 8;
const IPMI_PORT: u16 = 623;
const MAX_OUTPUT_BYTES: usize = 1 << 20;
const SHOWN_BYTES: usize = 400;

#[derive(Clone)]
pub(super) struct IpmiReader {
    hosts: Vec<IpmiHost>,
    command_line: IpmitoolCommand,
    sensors: BTreeMap<String, String>,
}

/// The `ipmitool` command line for all hosts.
#[derive(Clone)]
struct IpmitoolCommand {
    program: OsString,
    interface: &'static str,
    username: Option<String>,
    password: Option<Secret>,
}

impl IpmiReader {
    pub(super) fn new(settings: &definition::IpmiSettings) -> Result<Self, PullSourceError> {
        Self::with_program(settings, "ipmitool".into())
    }

    pub(super) fn with_program(
        settings: &definition::IpmiSettings,
        program: OsString,
    ) -> Result<Self, PullSourceError> {
        for (at, host) in settings.hosts.iter().enumerate() {
            let is_address =
                |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
            // A leading dash would be parsed as an option.
            if host.address.starts_with('-') || !host.address.chars().all(is_address) {
                let field = format!("ipmi.hosts[{at}].address");
                return Err(PullSourceError::new(
                    field,
                    "expected a host name or an address",
                ));
            }
        }
        if settings
            .username
            .as_deref()
            .is_some_and(|name| name.starts_with('-'))
        {
            let detail = "expected a user name without a leading dash";
            return Err(PullSourceError::new("ipmi.username", detail));
        }
        let (given, file) = (settings.password.as_ref(), settings.password_file.as_ref());
        let password = Secret::from_setting("password", given, file);
        Ok(Self {
            hosts: settings.hosts.clone(),
            command_line: IpmitoolCommand {
                program,
                interface: match settings.interface {
                    IpmiInterface::Lanplus => "lanplus",
                    IpmiInterface::Lan => "lan",
                },
                username: settings.username.clone(),
                password: password.map_err(|error| PullSourceError::of_secret("ipmi", error))?,
            },
            sensors: settings.sensors.clone(),
        })
    }

    /// Polls all hosts, a few at a time. A failed host does not affect the others.
    pub(super) async fn read_hosts(&self) -> Result<Readings, PullError> {
        let slots = Arc::new(Semaphore::new(MAX_AT_ONCE));
        let mut tasks = JoinSet::new();
        for (at, host) in self.hosts.iter().enumerate() {
            let (command_line, slots, address) = (
                self.command_line.clone(),
                slots.clone(),
                host.address.clone(),
            );
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire().await;
                (at, command_line.run(&address).await)
            });
        }
        let (mut readings, mut failed) = (Readings::default(), 0);
        while let Some(done) = tasks.join_next().await {
            let Ok((at, output_result)) = done else {
                continue;
            };
            let host = &self.hosts[at];
            match output_result {
                Ok(output) => self.parse_output(&host.device, &output, &mut readings),
                Err(failure) => {
                    failed += 1;
                    let problem = format!("{}: {failure}", host.address);
                    readings.partial_error.get_or_insert(problem);
                }
            }
        }
        match readings.partial_error {
            Some(problem) if failed == self.hosts.len() => Err(PullError(problem)),
            _ => Ok(readings),
        }
    }

    /// Parses lines such as `CPU Temp | 45.000 | degrees C | ok | 0.000 | ...`.
    fn parse_output(&self, device: &str, output: &str, readings: &mut Readings) {
        for line in output.lines() {
            let mut columns = line.split('|').map(str::trim);
            let (Some(name), Some(reading)) = (columns.next(), columns.next()) else {
                continue;
            };
            let key = match self.sensors.is_empty() {
                true => key_of(name),
                false => match self.sensors.get(name) {
                    Some(key) => key.clone(),
                    None => continue,
                },
            };
            match value_of(reading) {
                Some(value) if !key.is_empty() => readings.add(device, None, key, value),
                _ => readings.skipped += 1,
            }
        }
    }
}

impl IpmitoolCommand {
    async fn run(&self, address: &str) -> Result<String, PullError> {
        // The program receives the checked address instead of the name, which it might resolve to another address.
        let resolved = outbound::target_policy::resolve(address, IPMI_PORT).await;
        let resolved = resolved.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => PullError::new(error.to_string()),
            _ => PullError::new(format!(
                "the name {address} cannot be resolved: {error}; correct hosts[].address or the name servers of the node's machine"
            )),
        })?;
        let checked = resolved.first().map(|address| address.ip().to_string());
        let checked = checked.ok_or_else(|| PullError::new(format!("{address} has no address")))?;
        let mut command = Command::new(&self.program);
        command.args(["-I", self.interface, "-H", &checked]);
        if let Some(username) = &self.username {
            command.args(["-U", username]);
        }
        if let Some(password) = &self.password {
            // Passed in the environment, which other users of the machine cannot read.
            command.arg("-E").env("IPMI_PASSWORD", password.reveal());
        }
        command.arg("sensor");
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PullError::new(
                "ipmitool is not installed on the node's machine; install the package ipmitool",
            ),
            _ => PullError::new(format!("starting ipmitool failed: {error}")),
        })?;
        if !output.status.success() {
            let printed = &output.stderr[..output.stderr.len().min(SHOWN_BYTES)];
            let printed = String::from_utf8_lossy(printed);
            return Err(PullError::new(format!(
                "ipmitool: {}: {}",
                output.status,
                printed.trim()
            )));
        }
        let text = &output.stdout[..output.stdout.len().min(MAX_OUTPUT_BYTES)];
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// Converts `CPU1 Temp` to `cpu1_temp`.
fn key_of(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("_")
}

/// Parses a number; discrete sensors report values such as `0x1`. `None`: `na` or not readable.
fn value_of(reading: &str) -> Option<Value> {
    if let Some(digits) = reading.strip_prefix("0x") {
        return i64::from_str_radix(digits, 16).ok().map(Value::from);
    }
    let number: f64 = reading.parse().ok()?;
    serde_json::Number::from_f64(number).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn fake(script: &str) -> (tempfile::TempDir, OsString) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipmitool");
        std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (directory, path.into())
    }

    fn ipmi(settings: Value, program: OsString) -> IpmiReader {
        let settings = serde_json::from_value(settings).unwrap();
        IpmiReader::with_program(&settings, program).unwrap()
    }

    const SENSORS: &str = "cat <<END\n\
        CPU1 Temp        | 45.000     | degrees C  | ok    | 0.000     | 0.000\n\
        Fan (rear) 2     | 1200.000   | RPM        | ok    | na        | na\n\
        PSU Status       | 0x1        | discrete   | 0x0100| na        | na\n\
        Dead             | na         | Volts      | na    | na        | na\n\
        END\n";

    #[tokio::test]
    async fn sensors_are_read_of_all_hosts() {
        let script = format!(
            "[ \"$IPMI_PASSWORD $*\" = \"s3cret -I lanplus -H $4 -U root -E sensor\" ] || exit 3\n\
             [ \"$4\" = 10.0.0.2 ] && {{ echo 'no route to it' >&2; exit 1; }}\n{SENSORS}"
        );
        let (_directory, program) = fake(&script);
        let host = |address: &str, device: &str| json!({"address": address, "device": device});
        let settings = json!({
            "hosts": [host("10.0.0.1", "a"), host("10.0.0.2", "b"), host("10.0.0.3", "c")],
            "username": "root", "password": "s3cret",
        });
        let mut readings = ipmi(settings.clone(), program.clone())
            .read_hosts()
            .await
            .unwrap();
        readings
            .rows
            .sort_by(|left, right| left.device.cmp(&right.device));
        assert_eq!(readings.rows.len(), 2);
        assert_eq!(readings.rows[1].device, "c");
        let values = Value::Object(readings.rows[0].values.clone());
        assert_eq!(
            values,
            json!({"cpu1_temp": 45.0, "fan_rear_2": 1200.0, "psu_status": 1})
        );
        assert_eq!(readings.skipped, 2);
        let problem = readings.partial_error.unwrap();
        assert!(
            problem.starts_with("10.0.0.2: ") && problem.contains("no route"),
            "{problem}"
        );

        let mut chosen = settings;
        chosen["sensors"] = json!({"CPU1 Temp": "cpu"});
        chosen["hosts"] = json!([host("10.0.0.1", "a")]);
        let readings = ipmi(chosen, program).read_hosts().await.unwrap();
        assert_eq!(
            Value::Object(readings.rows[0].values.clone()),
            json!({"cpu": 45.0})
        );

        // Without the program the error explains the remedy. This is not a separate test: a script that was just
        // written cannot be run while another thread starts a program.
        let settings = json!({"hosts": [{"address": "10.0.0.1", "device": "d"}]});
        let failure = ipmi(settings, "no-such-ipmitool".into())
            .read_hosts()
            .await
            .unwrap_err();
        assert!(
            failure.0.contains("install the package ipmitool"),
            "{failure}"
        );
    }

    /// The program might resolve the name to another address than the checked one.
    #[tokio::test]
    async fn the_program_receives_the_checked_address_instead_of_the_name() {
        let (_directory, program) = fake(&format!(
            "case \"$4\" in 127.0.0.1|::1) ;; *) echo \"got $4\" >&2; exit 1;; esac\n{SENSORS}"
        ));
        let of = |address: &str| json!({"hosts": [{"address": address, "device": "d"}]});
        let readings = ipmi(of("localhost"), program.clone())
            .read_hosts()
            .await
            .unwrap();
        assert_eq!(readings.rows.len(), 1);
        let failure = ipmi(of("no-such-host.invalid"), program)
            .read_hosts()
            .await
            .unwrap_err();
        assert!(failure.0.contains("cannot be resolved"), "{failure}");
    }

    #[test]
    fn addresses_cannot_be_options() {
        for address in ["-oProxy", "a b", "h;rm", "$(x)"] {
            let settings = json!({"hosts": [{"address": address, "device": "d"}]});
            let settings = serde_json::from_value(settings).unwrap();
            let error = IpmiReader::new(&settings).err().unwrap();
            assert_eq!(error.field, "ipmi.hosts[0].address");
        }
    }
}
