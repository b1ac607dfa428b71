//! Turns the steps of a page into a shell script.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use super::page::{PageStep, RunMode};

/// Precedes the number of a line.
const LINE_MARK: char = '\u{1e}';
/// Follows the output of a command that failed.
const FAILURE_MARK: char = '\u{1d}';

/// Ports of the documentation.
const SHOWN_PORTS: [u16; 5] = [1883, 8883, 8083, 8084, 8080];

/// The functions that start and stop the node and report results.
const PREAMBLE: &str = r#"
mark() { printf '\n\036%s\n' "$1"; }
fail() { printf '\n\035%s\n' "$1"; exit 1; }
await_node() {
  until [ -e "$TIDEGATE_DATA_DIR/node.json" ]; do
    kill -0 "$NODE" 2>/dev/null || return 1
    sleep 0.02
  done
}
start_node() {
  if [ -z "$NODE" ]; then
    ( exec tidegate serve >"$PAGE_FOLDER/node" 2>&1 ) &
    NODE=$!
    await_node || { cat "$PAGE_FOLDER/node"; return 1; }
  fi
}
stop_node() {
  check_background
  if [ -n "$NODE" ]; then
    kill -TERM "$NODE" && wait "$NODE"
    NODE=
  fi
}
# A command in the background may have ended, but not with an error while its node runs.
check_background() {
  local job line
  for job in "${BACKGROUND[@]}"; do
    line=${job%:*}
    if ! kill -0 "${job#*:}" 2>/dev/null && ! wait "${job#*:}"; then
      mark "$line"; cat "$PAGE_FOLDER/background.$line"; fail "$line"
    fi
  done
  BACKGROUND=()
}
BACKGROUND=()
NODE=
"#;

/// Clients that connect to the usual port unless told: the page's node has another one.
const CLIENT: &str = r#"#!/bin/bash
for argument in "$@"; do
  case "$argument" in -p|--port|-L|--url|--unix) exec "$PROGRAM" "$@" ;; esac
done
exec "$PROGRAM" "$@" -p "$MQTT_PORT"
"#;

/// `duckdb -c QUERY`, by DuckDB for Python.
const DUCKDB: &str = r#"#!/bin/bash
PYTHONPATH=$PROGRAM exec python3 -c 'import duckdb, sys; duckdb.sql(sys.argv[2]).show()' "$@"
"#;

const TIDEGATE: &str = r#"#!/bin/bash
export PROGRAM
if [ -n "$USAGE_ONLY" ]; then
  timeout -s KILL 0.5 "$PROGRAM" "$@"
  exit
fi
case "$1 $2" in
  pub\ *|sub\ *) exec "$(dirname "$0")/client" "$@" ;;
  bench\ mqtt) case " $* " in *" --broker "*) ;; *) exec "$PROGRAM" "$@" --broker "127.0.0.1:$MQTT_PORT" ;; esac ;;
esac
exec "$PROGRAM" "$@"
"#;

/// The ports of the page's node.
pub(super) struct PagePorts([u16; SHOWN_PORTS.len()]);

impl PagePorts {
    /// Free ports below those that the system assigns to connections, which could take one before the node does.
    pub(super) fn reserve() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = 20_000 + (std::process::id() % 100) as u16 * 100;
        Self(SHOWN_PORTS.map(|_| {
            loop {
                let port = start + NEXT.fetch_add(1, Ordering::Relaxed);
                assert!(port < 32_000, "no free port");
                if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                    return port;
                }
            }
        }))
    }

    fn port(&self, shown: u16) -> u16 {
        let at = SHOWN_PORTS.iter().position(|port| *port == shown);
        self.0[at.expect("one of the documented ports")]
    }

    pub(super) fn set_environment(&self, command: &mut Command, folder: &Path) {
        command.env("HOME", folder.join("home"));
        command.env("LC_ALL", "C.UTF-8").env("PAGE_FOLDER", folder);
        command.env("TIDEGATE_DATA_DIR", folder.join("data"));
        command.env("MQTT_PORT", self.port(1883).to_string());
        // The default is allocated at each start, for all pages at once.
        command.env("TIDEGATE_STORE__SEGMENT_BYTES", "4MiB");
        for (listener, port) in [
            ("LISTENER__MQTT", 1883),
            ("LISTENER__WS", 8083),
            ("HTTP", 8080),
        ] {
            let address = format!("127.0.0.1:{}", self.port(port));
            command.env(format!("TIDEGATE_{listener}__BIND"), address);
        }
    }

    /// The text with the page's ports, and with folders of the system below `folder`.
    fn substitute(&self, text: &str, folder: &Path) -> String {
        let mut text = text.to_owned();
        for shown in SHOWN_PORTS {
            text = text.replace(&shown.to_string(), &self.port(shown).to_string());
        }
        for system in ["/tmp/", "/run/tidegate/", "/etc/tidegate/"] {
            text = text.replace(system, &format!("{}{system}", folder.display()));
        }
        // "The address of the node" on pages about several machines.
        text.replace("192.168.1.10", "127.0.0.1")
    }
}

/// Writes the script and the folders it uses; the result is its path.
pub(super) fn write(steps: &[PageStep], folder: &Path, ports: &PagePorts) -> PathBuf {
    for part in [
        "home",
        "work/target/release",
        "bin",
        "tmp",
        "run/tidegate",
        "etc/tidegate",
    ] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    write_programs(folder);
    let mut script = PREAMBLE.to_owned();
    let path = folder.join("bin").display().to_string();
    writeln!(script, "PATH='{path}':$PATH").unwrap();
    for step in steps {
        let command = match step {
            PageStep::Run(command) => command,
            PageStep::WriteFile { name, text } => {
                let name = ports.substitute(name, folder);
                let text = ports.substitute(text, folder);
                writeln!(script, "cat >'{name}' <<'END_OF_FILE'\n{text}END_OF_FILE").unwrap();
                continue;
            }
        };
        let line = command.line;
        let text = ports.substitute(&command.text, folder);
        writeln!(script, "mark {line}").unwrap();
        let preparation = match command.mode {
            RunMode::NodeStopped | RunMode::AsNode | RunMode::UsageOnly => "stop_node",
            _ => "start_node",
        };
        writeln!(script, "{preparation} || fail {line}").unwrap();
        match command.mode {
            RunMode::WithNode | RunMode::First | RunMode::NodeStopped => {
                writeln!(script, "{{\n{text}\n}} </dev/null || fail {line}")
            }
            RunMode::Fails => {
                writeln!(script, "if {{\n{text}\n}} </dev/null; then fail {line}; fi")
            }
            RunMode::UsageOnly => writeln!(
                script,
                "export USAGE_ONLY=1 JOB=$!\n{{\n{text}\n}} </dev/null; [ $? -ne 2 ] || fail {line}\n\
                 [ \"$JOB\" = \"$!\" ] || wait $!\nunset USAGE_ONLY"
            ),
            RunMode::Background => writeln!(
                script,
                "( exec {text}\n) >\"$PAGE_FOLDER/background.{line}\" 2>&1 &\nBACKGROUND+=({line}:$!)"
            ),
            RunMode::AsNode => writeln!(
                script,
                "( exec {text}\n) >\"$PAGE_FOLDER/node\" 2>&1 &\nNODE=$!\n\
                 await_node || {{ cat \"$PAGE_FOLDER/node\"; fail {line}; }}\ncat \"$PAGE_FOLDER/node\""
            ),
        }
        .unwrap();
    }
    script.push_str("check_background\n");
    let path = folder.join("page.sh");
    fs::write(&path, script).unwrap();
    path
}

/// The programs that need the page's port, before all others on the PATH.
fn write_programs(folder: &Path) {
    let bin = folder.join("bin");
    let write = |path: PathBuf, text: &str| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let with_program =
        |text: &str, program: &str| text.replacen('\n', &format!("\nPROGRAM='{program}'\n"), 1);
    let tidegate = with_program(TIDEGATE, env!("CARGO_BIN_EXE_tidegate"));
    write(bin.join("tidegate"), &tidegate);
    write(bin.join("client"), CLIENT);
    let release = folder.join("work/target/release/tidegate");
    write(
        release,
        "#!/bin/bash\nexec \"$PAGE_FOLDER/bin/tidegate\" \"$@\"\n",
    );
    // `cargo run --release`; the program is built already.
    write(bin.join("cargo"), "#!/bin/bash\nexec tidegate \"${@:3}\"\n");
    if let Some(package) = duckdb_package() {
        write(
            bin.join("duckdb"),
            &with_program(DUCKDB, &package.display().to_string()),
        );
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    for client in ["mosquitto_pub", "mosquitto_sub"] {
        let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(client));
        if let Some(path) = paths.find(|path| path.is_file()) {
            write(
                bin.join(client),
                &with_program(CLIENT, &path.display().to_string()),
            );
        }
    }
}

/// The folder of DuckDB for Python, which `cargo xtask tools` installs.
pub(super) fn duckdb_package() -> Option<PathBuf> {
    let path = match std::env::var_os("TIDEGATE_TEST_DUCKDB") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()?
            .join("tools/duckdb"),
    };
    path.is_dir().then_some(path)
}

/// What a command printed.
pub(super) struct CommandOutput {
    pub(super) line: usize,
    pub(super) text: String,
    pub(super) failed: bool,
}

/// The output of each command that was reached. A later one for the same line replaces the earlier one.
pub(super) fn outputs(log: &str) -> Vec<CommandOutput> {
    let parts = log.split(LINE_MARK).skip(1);
    let mut outputs: Vec<CommandOutput> = parts
        .map(|part| {
            let (line, text) = part.split_once('\n').unwrap_or((part, ""));
            let (text, failure) = match text.split_once(FAILURE_MARK) {
                Some((text, _)) => (text, true),
                None => (text, false),
            };
            CommandOutput {
                line: line.trim().parse().unwrap_or(0),
                text: text.trim_end_matches('\n').to_owned(),
                failed: failure,
            }
        })
        .collect();
    outputs.reverse();
    outputs
}
