//! `tidegate ctl`: steers a node over its HTTP API, with tables for people and JSON for scripts.

mod alarms;
mod authenticators;
mod commands;
mod connectors;
mod device_commands;
mod devices;
mod error;
mod events;
mod files;
mod groups;
mod http;
mod import_files;
mod objects;
mod pulls;
mod rules;
mod show;
mod target;
mod telemetry;

use clap::{Args, Subcommand};

pub(crate) use error::CtlError;
use http::Client;
pub(crate) use rules::RuleArgs;
use show::{Format, Output};
use target::TargetArgs;

#[derive(Args)]
pub(crate) struct CtlArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The node: version, uptime, whether it takes traffic
    Status,
    /// As whom the node knows us
    Whoami,
    /// Connected clients
    #[command(subcommand)]
    Clients(commands::Clients),
    /// Sessions, also of clients that are away, and what waits in them
    #[command(subcommand)]
    Sessions(commands::Sessions),
    /// Who subscribes to what
    #[command(subcommand)]
    Subscriptions(commands::Subscriptions),
    /// Topic filters in use
    Topics(commands::TopicsArgs),
    /// Retained messages
    #[command(subcommand)]
    Retained(commands::Retained),
    /// Publish a message in the node's name
    Publish(commands::PublishArgs),
    /// Those who may connect over MQTT with a name and a password
    #[command(subcommand)]
    Users(objects::Objects),
    /// Ways in which those who connect prove who they are
    #[command(subcommand)]
    Authenticators(authenticators::Authenticators),
    /// Rules about who may publish and subscribe what
    #[command(subcommand)]
    Acl(objects::Objects),
    /// Clients, users and addresses that are shut out
    #[command(subcommand)]
    Bans(objects::Objects),
    /// Statements over what happens, and what is done with what comes out
    #[command(subcommand)]
    Rules(rules::Rules),
    /// Outside systems, with their addresses and credentials
    #[command(subcommand)]
    Connectors(connectors::Connectors),
    /// Where rules send rows, and what could not be written there
    #[command(subcommand)]
    Sinks(connectors::Sinks),
    /// What outside systems send to rules
    #[command(subcommand)]
    Sources(connectors::Sources),
    /// What devices of a kind have in common: thing model, topics, credentials
    #[command(subcommand)]
    Products(objects::Objects),
    /// What happens to what devices report, node by node
    #[command(subcommand)]
    Chains(objects::Objects),
    /// Devices that belong together
    #[command(subcommand)]
    Groups(groups::Groups),
    /// Systems that are asked on a schedule for values of devices
    #[command(subcommand)]
    PullSources(pulls::PullSources),
    /// Registered devices
    #[command(subcommand)]
    Devices(devices::Devices),
    /// What is wrong with devices, and was
    #[command(subcommand)]
    Alarms(alarms::Alarms),
    /// Who is told of alarms
    #[command(subcommand)]
    Notifications(alarms::Notifications),
    /// Rules of the alarms about the node itself
    #[command(subcommand)]
    PlatformAlarms(alarms::PlatformAlarms),
    /// What devices have reported
    #[command(subcommand)]
    Telemetry(telemetry::Telemetry),
    /// What devices are told to do, and what came of it
    #[command(subcommand)]
    Commands(device_commands::Commands),
    /// People who use the HTTP API
    #[command(subcommand)]
    Operators(objects::Objects),
    /// Programs that use the HTTP API
    #[command(subcommand)]
    Keys(objects::Objects),
    /// Where the node listens
    #[command(subcommand)]
    Listeners(commands::Listeners),
    /// What the node was told, and changing what can change while it runs
    #[command(subcommand)]
    Settings(commands::Settings),
    /// What is logged, or, with LEVEL, changing that
    LogLevel {
        /// Such as debug or info,broker=debug
        level: Option<String>,
    },
    /// Who changed what
    Audit(commands::AuditArgs),
    /// Print what happens, as it happens
    Events(events::EventsArgs),
    /// Write all configuration objects into a file
    Backup(files::BackupArgs),
    /// Bring back the objects of a backup
    Restore(files::RestoreArgs),
}

impl CtlArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let target = self.target.find()?;
        let output = Output {
            format: match self.json {
                true => Format::Json,
                false => Format::Table,
            },
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut client = Client::new(target);
            client.log_in().await?;
            run(self.command, &client, &output).await
        })
    }
}

async fn run(command: Command, client: &Client, output: &Output) -> anyhow::Result<()> {
    use objects::Kind;
    match command {
        Command::Status => commands::status(client, output).await,
        Command::Whoami => commands::whoami(client, output).await,
        Command::Clients(command) => command.run(client, output).await,
        Command::Sessions(command) => command.run(client, output).await,
        Command::Subscriptions(command) => command.run(client, output).await,
        Command::Topics(arguments) => arguments.run(client, output).await,
        Command::Retained(command) => command.run(client, output).await,
        Command::Publish(arguments) => arguments.run(client, output).await,
        Command::Users(command) => command.run(Kind::Users, client, output).await,
        Command::Authenticators(command) => command.run(client, output).await,
        Command::Acl(command) => command.run(Kind::AclRules, client, output).await,
        Command::Bans(command) => command.run(Kind::Bans, client, output).await,
        Command::Rules(command) => command.run(client, output).await,
        Command::Connectors(command) => command.run(client, output).await,
        Command::Sinks(command) => command.run(client, output).await,
        Command::Sources(command) => command.run(client, output).await,
        Command::Products(command) => command.run(Kind::Products, client, output).await,
        Command::Chains(command) => command.run(Kind::Chains, client, output).await,
        Command::Groups(command) => command.run(client, output).await,
        Command::PullSources(command) => command.run(client, output).await,
        Command::Devices(command) => command.run(client, output).await,
        Command::Alarms(command) => command.run(client, output).await,
        Command::Notifications(command) => command.run(client, output).await,
        Command::PlatformAlarms(command) => command.run(client, output).await,
        Command::Telemetry(command) => command.run(client, output).await,
        Command::Commands(command) => command.run(client, output).await,
        Command::Operators(command) => command.run(Kind::Operators, client, output).await,
        Command::Keys(command) => command.run(Kind::ApiKeys, client, output).await,
        Command::Listeners(command) => command.run(client, output).await,
        Command::Settings(command) => command.run(client, output).await,
        Command::LogLevel { level } => commands::log_level(level, client, output).await,
        Command::Audit(arguments) => arguments.run(client, output).await,
        Command::Events(arguments) => arguments.run(client).await,
        Command::Backup(arguments) => arguments.run(client).await,
        Command::Restore(arguments) => arguments.run(client, output).await,
    }
}
