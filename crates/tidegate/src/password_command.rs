//! `tidegate password`: converts a password to a credential for the configuration. Also reads
//! passwords for all commands: from a file, a pipe, or the terminal without echo.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use scram::{DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential};

/// Longer input is probably the wrong file.
const MAX_PASSWORD_BYTES: usize = 65_535;

#[derive(Args)]
pub(crate) struct PasswordArgs {
    /// Read the password from a file instead of the terminal or standard input
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Iterations of the hash function, which determine the cost of each login and each guess
    #[arg(
        long,
        value_name = "N",
        default_value_t = DEFAULT_ITERATIONS,
        value_parser = clap::value_parser!(u32).range(MIN_ITERATIONS as i64..=MAX_ITERATIONS as i64)
    )]
    iterations: u32,
}

impl PasswordArgs {
    /// The credential, with a line break.
    pub(crate) fn run(self) -> anyhow::Result<String> {
        let password = match &self.password_file {
            Some(file) => from_file(file)?,
            None if io::stdin().is_terminal() => {
                let password = prompt("Password: ")?;
                if prompt("Once more: ")? != password {
                    bail!("the two passwords differ; no credential was created");
                }
                password
            }
            None => from_pipe()?,
        };
        if password.is_empty() {
            bail!("the password is empty; give one on standard input or with --password-file");
        }
        let credential = ScramCredential::generate(&password, self.iterations)?;
        Ok(format!("{credential}\n"))
    }
}

/// The file's bytes without one line break at the end.
pub(crate) fn from_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut password = std::fs::read(path)
        .with_context(|| format!("cannot read the password file {}", path.display()))?;
    strip_line_break(&mut password);
    if password.len() > MAX_PASSWORD_BYTES {
        bail!(
            "{} is longer than a password may be (65535 bytes)",
            path.display()
        );
    }
    Ok(password)
}

fn from_pipe() -> anyhow::Result<Vec<u8>> {
    let mut password = Vec::new();
    let mut input = io::Read::take(io::stdin().lock(), MAX_PASSWORD_BYTES as u64 + 2);
    input
        .read_until(b'\n', &mut password)
        .context("cannot read the password from standard input")?;
    strip_line_break(&mut password);
    Ok(password)
}

fn strip_line_break(text: &mut Vec<u8>) {
    if text.ends_with(b"\n") {
        text.pop();
        if text.ends_with(b"\r") {
            text.pop();
        }
    }
}

/// Prompts on the terminal without echo.
pub(crate) fn prompt(prompt: &str) -> anyhow::Result<Vec<u8>> {
    let terminal = io::stdin();
    if !terminal.is_terminal() {
        bail!(
            "standard input is not a terminal, so the command cannot prompt for a password; name a file, such as with --password-file FILE"
        );
    }
    eprint!("{prompt}");
    io::stderr().flush()?;
    let shown = tcgetattr(&terminal).context("cannot access the terminal")?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    tcsetattr(&terminal, OptionalActions::Flush, &hidden)
        .context("cannot turn off the terminal echo")?;
    let password = from_pipe();
    tcsetattr(&terminal, OptionalActions::Now, &shown).context("cannot restore the terminal")?;
    password
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential_of(file: &Path) -> anyhow::Result<ScramCredential> {
        let arguments = PasswordArgs {
            password_file: Some(file.to_owned()),
            iterations: MIN_ITERATIONS,
        };
        Ok(arguments.run()?.trim_end().parse()?)
    }

    #[test]
    fn a_password_file_becomes_a_credential_without_its_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for text in ["pencil", "pencil\n", "pencil\r\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(credential_of(&file).unwrap().verify_password(b"pencil"));
        }
    }

    #[test]
    fn an_empty_or_missing_password_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let message = format!("{:#}", credential_of(&file).unwrap_err());
        assert!(
            message.contains("cannot read the password file"),
            "{message}"
        );
        std::fs::write(&file, "\n").unwrap();
        let message = credential_of(&file).unwrap_err().to_string();
        assert!(message.starts_with("the password is empty"), "{message}");
    }
}
