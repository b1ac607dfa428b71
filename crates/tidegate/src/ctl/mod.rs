//! `tidegate ctl`: steers a node over its HTTP API, with tables for people and JSON for scripts.

mod alarms;
mod authenticators;
mod backup_files;
mod broker_commands;
mod connectors;
mod device_commands;
mod devices;
mod error;
mod events;
mod groups;
mod http;
mod import_files;
mod objects;
mod output;
mod pull_sources;
mod rules;
mod target;
mod telemetry;

use clap::{Args, Subcommand};

pub(crate) use error::CtlError;
use http::ApiClient;
use output::{CtlOutput, OutputFormat};
pub(crate) use rules::RuleArgs;
use target::TargetArgs;

#[derive(Args)]
pub(crate) struct CtlArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand)]
enum CtlCommand {
    /// The node: version, uptime, whether it takes traffic
    Status,
    /// As whom the node knows us
    Whoami,
    /// Connected clients
    #[command(subcommand)]
    Clients(broker_commands::ClientsCommand),
    /// Sessions, also of clients that are away, and what waits in them
    #[command(subcommand)]
    Sessions(broker_commands::SessionsCommand),
    /// Who subscribes to what
    #[command(subcommand)]
    Subscriptions(broker_commands::SubscriptionsCommand),
    /// Topic filters in use
    Topics(broker_commands::TopicsArgs),
    /// Retained messages
    #[command(subcommand)]
    Retained(broker_commands::RetainedCommand),
    /// Publish a message in the node's name
    Publish(broker_commands::PublishArgs),
    /// Those who may connect over MQTT with a name and a password
    #[command(subcommand)]
    Users(objects::ObjectsCommand),
    /// Ways in which those who connect prove who they are
    #[command(subcommand)]
    Authenticators(authenticators::Authenticators),
    /// Rules about who may publish and subscribe what
    #[command(subcommand)]
    Acl(objects::ObjectsCommand),
    /// Clients, users and addresses that are shut out
    #[command(subcommand)]
    Bans(objects::ObjectsCommand),
    /// Statements over what happens, and what is done with what comes out
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Outside systems, with their addresses and credentials
    #[command(subcommand)]
    Connectors(connectors::ConnectorsCommand),
    /// Where rules send rows, and what could not be written there
    #[command(subcommand)]
    Sinks(connectors::SinksCommand),
    /// What outside systems send to rules
    #[command(subcommand)]
    Sources(connectors::SourcesCommand),
    /// What devices of a kind have in common: thing model, topics, credentials
    #[command(subcommand)]
    Products(objects::ObjectsCommand),
    /// What happens to what devices report, node by node
    #[command(subcommand)]
    Chains(objects::ObjectsCommand),
    /// Devices that belong together
    #[command(subcommand)]
    Groups(groups::GroupsCommand),
    /// Systems that are asked on a schedule for values of devices
    #[command(subcommand)]
    PullSources(pull_sources::PullSourcesCommand),
    /// Registered devices
    #[command(subcommand)]
    Devices(devices::DevicesCommand),
    /// What is wrong with devices, and was
    #[command(subcommand)]
    Alarms(alarms::AlarmsCommand),
    /// Who is told of alarms
    #[command(subcommand)]
    Notifications(alarms::NotificationsCommand),
    /// Rules of the alarms about the node itself
    #[command(subcommand)]
    PlatformAlarms(alarms::PlatformAlarmsCommand),
    /// What devices have reported
    #[command(subcommand)]
    Telemetry(telemetry::TelemetryCommand),
    /// What devices are told to do, and what came of it
    #[command(subcommand)]
    Commands(device_commands::DeviceCommandsCommand),
    /// People who use the HTTP API
    #[command(subcommand)]
    Operators(objects::ObjectsCommand),
    /// Programs that use the HTTP API
    #[command(subcommand)]
    Keys(objects::ObjectsCommand),
    /// Where the node listens
    #[command(subcommand)]
    Listeners(broker_commands::ListenersCommand),
    /// What the node was told, and changing what can change while it runs
    #[command(subcommand)]
    Settings(broker_commands::SettingsCommand),
    /// What is logged, or, with LEVEL, changing that
    LogLevel {
        /// Such as debug or info,broker=debug
        level: Option<String>,
    },
    /// Who changed what
    Audit(broker_commands::AuditArgs),
    /// Print what happens, as it happens
    Events(events::EventsArgs),
    /// Write all configuration objects into a file
    Backup(backup_files::BackupArgs),
    /// Bring back the objects of a backup
    Restore(backup_files::RestoreArgs),
}

impl CtlArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let target = self.target.resolve()?;
        let output = CtlOutput {
            format: match self.json {
                true => OutputFormat::Json,
                false => OutputFormat::Table,
            },
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut client = ApiClient::new(target);
            client.log_in().await?;
            run(self.command, &client, &output).await
        })
    }
}

async fn run(command: CtlCommand, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
    use objects::ObjectKindArg;
    match command {
        CtlCommand::Status => broker_commands::status(client, output).await,
        CtlCommand::Whoami => broker_commands::whoami(client, output).await,
        CtlCommand::Clients(command) => command.run(client, output).await,
        CtlCommand::Sessions(command) => command.run(client, output).await,
        CtlCommand::Subscriptions(command) => command.run(client, output).await,
        CtlCommand::Topics(arguments) => arguments.run(client, output).await,
        CtlCommand::Retained(command) => command.run(client, output).await,
        CtlCommand::Publish(arguments) => arguments.run(client, output).await,
        CtlCommand::Users(command) => command.run(ObjectKindArg::Users, client, output).await,
        CtlCommand::Authenticators(command) => command.run(client, output).await,
        CtlCommand::Acl(command) => command.run(ObjectKindArg::AclRules, client, output).await,
        CtlCommand::Bans(command) => command.run(ObjectKindArg::Bans, client, output).await,
        CtlCommand::Rules(command) => command.run(client, output).await,
        CtlCommand::Connectors(command) => command.run(client, output).await,
        CtlCommand::Sinks(command) => command.run(client, output).await,
        CtlCommand::Sources(command) => command.run(client, output).await,
        CtlCommand::Products(command) => command.run(ObjectKindArg::Products, client, output).await,
        CtlCommand::Chains(command) => command.run(ObjectKindArg::Chains, client, output).await,
        CtlCommand::Groups(command) => command.run(client, output).await,
        CtlCommand::PullSources(command) => command.run(client, output).await,
        CtlCommand::Devices(command) => command.run(client, output).await,
        CtlCommand::Alarms(command) => command.run(client, output).await,
        CtlCommand::Notifications(command) => command.run(client, output).await,
        CtlCommand::PlatformAlarms(command) => command.run(client, output).await,
        CtlCommand::Telemetry(command) => command.run(client, output).await,
        CtlCommand::Commands(command) => command.run(client, output).await,
        CtlCommand::Operators(command) => {
            command.run(ObjectKindArg::Operators, client, output).await
        }
        CtlCommand::Keys(command) => command.run(ObjectKindArg::ApiKeys, client, output).await,
        CtlCommand::Listeners(command) => command.run(client, output).await,
        CtlCommand::Settings(command) => command.run(client, output).await,
        CtlCommand::LogLevel { level } => broker_commands::log_level(level, client, output).await,
        CtlCommand::Audit(arguments) => arguments.run(client, output).await,
        CtlCommand::Events(arguments) => arguments.run(client).await,
        CtlCommand::Backup(arguments) => arguments.run(client).await,
        CtlCommand::Restore(arguments) => arguments.run(client, output).await,
    }
}
