//! The command line: commands and their arguments.

use std::io::{self, Write as _};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::argument_help::describe_arguments;
use crate::client::{ClientError, PubArgs, SubArgs};
use crate::cluster_command::{ClusterCommand, ClusterUsageError};
use crate::config::{self, ConfigErrors, ConfigSources, FlagValue, UnknownSettingError};
use crate::ctl::{CtlArgs, CtlError, DemoArgs, RuleArgs};
use crate::exit_status::ExitStatus;
use crate::link_command::LinkCommand;
use crate::logging::LogFormat;
use crate::password_command::PasswordArgs;
use crate::store_command::StoreCommand;

const EXIT_CODES: &str = "\
Exit status:
  0  done
  1  any other failure, or a tested rule failed
  2  wrong usage or invalid configuration
  3  the broker (or node) cannot be reached, or the connection to it was lost
  4  the broker (or node) rejected the request
  5  a time limit passed (-W, or that of a command to a device)";

/// The exit status for an error, so that scripts can distinguish the kinds of failure.
pub(crate) fn exit_code_of(error: &anyhow::Error) -> ExitStatus {
    if let Some(error) = error.downcast_ref::<CtlError>() {
        return error.exit();
    }
    match error.downcast_ref::<ClientError>() {
        Some(error) => error.exit_status(),
        None if error.is::<ConfigErrors>()
            || error.is::<UnknownSettingError>()
            || error.is::<ClusterUsageError>()
            || error.is::<simulate::DefinitionErrors>() =>
        {
            ExitStatus::Usage
        }
        None => ExitStatus::Failure,
    }
}

/// An MQTT broker and IoT messaging platform. Without a command, it runs a node.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = EXIT_CODES,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run a node
    #[command(args_override_self = true)]
    Serve(ServeArgs),
    /// Publish messages to a broker
    Pub(PubArgs),
    /// Subscribe to topics of a broker and print messages
    Sub(SubArgs),
    /// Inspect and control a running node over its HTTP API
    Ctl(CtlArgs),
    /// Try out a cluster on this machine, run a witness of a cluster, or recover a node
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Test or trace a rule
    Rule(RuleArgs),
    /// Fill a running node with a small live fleet, to try it out
    Demo(DemoArgs),
    /// Send and receive files over links, which survive interruptions
    #[command(subcommand)]
    Link(LinkCommand),
    /// Measure the performance of a broker under load
    Bench(bench::BenchArgs),
    /// Connect a simulated fleet of devices, described by a file, to a broker
    Simulate(simulate::SimulateArgs),
    /// Check the configuration, or explain its settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check, repair, compact or move the store of a stopped node
    #[command(subcommand)]
    Store(StoreCommand),
    /// Convert a password to a user credential for the configuration
    Password(PasswordArgs),
    /// Print the version and build information
    Version,
    /// Print shell completions
    Completions { shell: clap_complete::Shell },
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file [default: tidegate.toml in the working directory or in /etc/tidegate, if
    /// there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the node
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address of the MQTT listener, or "off" [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR")]
    mqtt: Option<String>,
    /// Address of the listener for MQTT under TLS (needs listener.mqtts.tls.certificate and .private_key)
    #[arg(long, value_name = "ADDR")]
    mqtts: Option<String>,
    /// Address of the WebSocket listener, or "off" [default: 127.0.0.1:8083]
    #[arg(long, value_name = "ADDR")]
    ws: Option<String>,
    /// Address of the HTTP listener (API, metrics, health), or "off" [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Threads that route messages [default: one per core]
    #[arg(long, value_name = "N")]
    shards: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Log filter, such as debug or info,broker=debug [default: info]
    #[arg(long, value_name = "LEVELS")]
    log_level: Option<String>,
    /// Set any key of `tidegate config reference`, such as limits.max_packet_size=2MiB
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl ServeArgs {
    /// These arguments combined with the environment of this process.
    fn into_sources(self) -> ConfigSources {
        let format = self.log_format.map(|format| format.name().to_owned());
        let flags = [
            ("--data-dir", "node.data_dir", self.data_dir),
            ("--mqtt", "listener.mqtt.bind", self.mqtt),
            ("--mqtts", "listener.mqtts.bind", self.mqtts),
            ("--ws", "listener.ws.bind", self.ws),
            ("--http", "http.bind", self.http),
            ("--shards", "node.shards", self.shards),
            ("--log-format", "log.format", format),
            ("--log-level", "log.level", self.log_level),
        ];
        let mut sources = ConfigSources::from_process(self.config);
        sources.sets = self.sets;
        sources.flags = flags
            .into_iter()
            .filter_map(|(flag, key, value)| {
                let value = value?;
                Some(FlagValue { flag, key, value })
            })
            .collect();
        sources
    }
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Report all errors of a configuration without starting a node
    Check {
        /// Configuration file [default: the one `tidegate serve` would read]
        file: Option<PathBuf>,
        /// Set a key as `tidegate serve --set` does
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
    },
    /// Print value, origin, accepted values and meaning of a setting
    Explain {
        /// A key, such as limits.max_packet_size, or a prefix of several, such as limits
        key: String,
        /// Configuration file [default: the one `tidegate serve` would read]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Set a key as `tidegate serve --set` does
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
    },
    /// Print every setting with its values, default and meaning
    Reference {
        /// Format of the output
        #[arg(long, value_enum, default_value_t = ReferenceFormat::Markdown)]
        format: ReferenceFormat,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ReferenceFormat {
    /// A page of documentation
    Markdown,
    /// A tidegate.toml to start from
    Toml,
}

impl Cli {
    /// The arguments of this process.
    ///
    /// # Errors
    /// On wrong usage, and where only help or the version is asked for.
    pub(crate) fn parse_arguments() -> Result<Self, clap::Error> {
        let mut command = describe_arguments(Self::command());
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command.unwrap_or(CliCommand::Serve(self.serve)) {
            CliCommand::Serve(arguments) => {
                disk::restrict_umask();
                let sources = arguments.into_sources();
                crate::serve::run(config::load(&sources)?, &sources)?;
            }
            CliCommand::Pub(arguments) => arguments.run()?,
            CliCommand::Sub(arguments) => arguments.run()?,
            CliCommand::Ctl(arguments) => arguments.run()?,
            CliCommand::Cluster(command) => {
                let (text, status) = command.run()?;
                print_text(&text)?;
                return Ok(status);
            }
            CliCommand::Demo(arguments) => arguments.run()?,
            CliCommand::Rule(arguments) => {
                if let Err(status) = arguments.run()? {
                    return Ok(status.into());
                }
            }
            CliCommand::Link(command) => command.run()?,
            CliCommand::Bench(arguments) => return bench::run(arguments),
            CliCommand::Simulate(arguments) => {
                return simulate::run(&arguments, &crate::serve::InProcessNodes);
            }
            CliCommand::Config(ConfigCommand::Check { file, sets }) => check_config(file, sets)?,
            CliCommand::Config(ConfigCommand::Explain { key, config, sets }) => {
                let mut sources = ConfigSources::from_process(config);
                sources.sets = sets;
                print_text(&config::explain(&config::load(&sources)?, &key)?)?;
            }
            CliCommand::Config(ConfigCommand::Reference { format }) => print_text(&match format {
                ReferenceFormat::Markdown => config::markdown(),
                ReferenceFormat::Toml => config::toml_template(),
            })?,
            CliCommand::Store(command) => {
                disk::restrict_umask();
                let (text, is_well) = command.run()?;
                print_text(&text)?;
                if !is_well {
                    return Ok(ExitStatus::Failure.into());
                }
            }
            CliCommand::Password(arguments) => print_text(&arguments.run()?)?,
            CliCommand::Version => print_text(&version_text())?,
            CliCommand::Completions { shell } => {
                let mut script = Vec::new();
                let mut command = describe_arguments(Self::command());
                clap_complete::generate(shell, &mut command, "tidegate", &mut script);
                print_text(&String::from_utf8_lossy(&script))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn check_config(file: Option<PathBuf>, sets: Vec<String>) -> anyhow::Result<()> {
    let mut sources = ConfigSources::from_process(file);
    sources.sets = sets;
    let config = config::load(&sources)?;
    let mut text = match &config.file {
        Some(file) => format!("{} is fine\n", file.display()),
        None => {
            "there is no configuration file; the defaults and the environment are fine\n".into()
        }
    };
    for warning in &config.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    print_text(&text)
}

fn version_text() -> String {
    format!(
        "tidegate {}\ncommit {}\nbuilt with {} for {} ({})\n",
        env!("CARGO_PKG_VERSION"),
        env!("BUILT_COMMIT"),
        env!("BUILT_COMPILER"),
        env!("BUILT_TARGET"),
        env!("BUILT_PROFILE"),
    )
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
fn print_text(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to standard output"),
    }
}

/// The error of a wrong command line. The parsers of numbers say "invalid digit found in string"; this names what is
/// expected instead. `ctl products add x --name=X` gets an error that shows how fields are written.
pub(crate) fn clarify_usage_error(error: clap::Error) -> clap::Error {
    if let Some(hint) = field_hint(&error) {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).to_owned();
        return clap::Error::raw(error.kind(), format!("{text}{hint}"));
    }
    let source = std::error::Error::source(&error);
    let expected = match source.and_then(|source| source.downcast_ref::<ParseIntError>()) {
        Some(source) => match source.kind() {
            IntErrorKind::PosOverflow => "expected a smaller whole number",
            IntErrorKind::NegOverflow => "expected a larger whole number",
            _ => "expected a whole number",
        },
        None if source.is_some_and(|source| source.is::<ParseFloatError>()) => {
            "expected a number, such as 0.5"
        }
        None => return error,
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (value, argument) = (
        text(ContextKind::InvalidValue),
        text(ContextKind::InvalidArg),
    );
    let detail = format!(
        "invalid value '{value}' for '{argument}': {expected}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(error.kind(), detail)
}

/// How to write a field that was given as an option, if the command takes fields.
fn field_hint(error: &clap::Error) -> Option<String> {
    let takes_fields = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string().contains("NAME=VALUE"),
        _ => false,
    };
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument,
        _ => return None,
    };
    if error.kind() != ErrorKind::UnknownArgument || !takes_fields {
        return None;
    }
    let name = argument.strip_prefix("--")?.split('=').next()?;
    let name = name.replace('-', "_");
    Some(format!(
        "Fields are written as NAME=VALUE, such as {name}=VALUE; the subcommand `fields` lists them.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_published_reports_are_valid() {
        let commands = bench::commands_of_published_reports().expect("valid reports");
        assert!(commands.len() > 50, "{}", commands.len());
        for command in commands {
            let words = std::iter::once("tidegate").chain(command.iter().map(String::as_str));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{}: {error}", command.join(" "));
            }
        }
    }

    #[test]
    fn a_field_that_is_given_as_an_option_is_explained() {
        let shown = |words: &[&str]| {
            let words = ["tidegate", "ctl"].iter().chain(words);
            let error = Cli::try_parse_from(words).err().expect("no error");
            clarify_usage_error(error).to_string()
        };
        let text = shown(&["products", "add", "x", "--name", "X"]);
        assert!(text.contains("name=VALUE"), "{text}");
        assert!(text.contains("unexpected argument '--name'"), "{text}");
        let text = shown(&["status", "--name"]);
        assert!(!text.contains("VALUE;"), "{text}");
    }
}
