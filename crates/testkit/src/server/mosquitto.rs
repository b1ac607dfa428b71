//! The broker mosquitto, started with persistence.

use std::fs;
use std::process::Command;

use super::instance::{PASSWORD, ServerInstance, USER};

pub(super) fn prepare(server: &ServerInstance) {
    fs::create_dir_all(server.data_dir()).expect("a folder can be made");
    let passwords = server.dir.join("passwords");
    // `-U` turns plain text into mosquitto's own form. The tool is in `bin`, beside the directory of the broker.
    fs::write(&passwords, format!("{USER}:{PASSWORD}\n")).expect("a file can be written");
    let beside = server.program.ancestors().nth(2);
    let tool = beside.map(|usr| usr.join("bin/mosquitto_passwd"));
    let tool = tool
        .filter(|tool| tool.is_file())
        .unwrap_or("mosquitto_passwd".into());
    let hashed = server.command_for(&tool).arg("-U").arg(&passwords).output();
    let is_hashed = hashed.is_ok_and(|output| output.status.success());
    // Without the tool all clients are accepted: a test that needs the password reports this.
    let login = match is_hashed {
        true => format!(
            "allow_anonymous false\npassword_file {}\n",
            passwords.display()
        ),
        false => "allow_anonymous true\n".into(),
    };
    // Sessions are saved when it is stopped, not when it is killed.
    let settings = format!(
        "listener {} 127.0.0.1\n{login}persistence true\npersistence_location {}/\n\
         max_queued_messages 0\nuser root\n",
        server.port,
        server.data_dir().display()
    );
    fs::write(server.dir.join("settings"), settings).expect("a file can be written");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = server.command_for(&server.program);
    command.arg("-c").arg(server.dir.join("settings"));
    command
}
