//! `tidegate ctl`: controls a node over its HTTP API, with tables for humans and JSON for scripts.

mod acl;
mod alarms;
mod authenticators;
mod backup_files;
mod backups;
mod broker_commands;
mod campaigns;
mod cluster;
mod cluster_rebalance;
mod connectors;
mod dashboards;
mod demo;
mod device_commands;
mod device_groups;
mod devices;
mod download;
mod error;
mod events;
mod files;
mod http;
mod import_files;
mod jobs;
mod limit_args;
mod listeners;
mod namespaces;
mod node_transport;
mod object_fields;
mod objects;
mod observation;
mod output;
mod people;
mod pull_sources;
mod quarantine;
mod relay_endpoints;
mod rules;
mod simulations;
mod target;
mod telemetry;
mod why;

use clap::{Args, Subcommand};

pub(crate) use demo::DemoArgs;
pub(crate) use error::CtlError;
use http::ApiClient;
use output::{CtlOutput, OutputFormat};
pub(crate) use rules::RuleArgs;
use target::TargetArgs;

#[derive(Args)]
pub(crate) struct CtlArgs {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand)]
enum CtlCommand {
    /// Show the node: version, uptime, readiness
    Status,
    /// Show the identity of the caller
    Whoami,
    /// Change your own password; with --login
    ChangePassword(people::ChangePasswordArgs),
    /// Connected clients
    #[command(subcommand)]
    Clients(broker_commands::ClientsCommand),
    /// Sessions, including those of disconnected clients, and their queues
    #[command(subcommand)]
    Sessions(broker_commands::SessionsCommand),
    /// Subscriptions of clients
    #[command(subcommand)]
    Subscriptions(broker_commands::SubscriptionsCommand),
    /// Topic filters in use
    Topics(broker_commands::TopicsArgs),
    /// Topics on which messages are published, with the last message of each
    PublishedTopics(observation::PublishedTopicsArgs),
    /// Live messages of a topic or of a client
    #[command(subcommand)]
    Messages(observation::MessagesCommand),
    /// Record what happens to messages, and print it: received, denied, queued, sent, dropped and why
    Why(why::WhyArgs),
    /// Clients that could not connect, and why
    RejectedConnections(observation::RejectedConnectionsArgs),
    /// Retained messages
    #[command(subcommand)]
    Retained(broker_commands::RetainedCommand),
    /// Publish a message on behalf of the node
    Publish(broker_commands::PublishArgs),
    /// Users who may connect over MQTT with a password
    #[command(subcommand)]
    Users(objects::ObjectsCommand),
    /// Methods of authenticating MQTT clients
    #[command(subcommand)]
    Authenticators(authenticators::Authenticators),
    /// Rules about who may publish and subscribe to what
    #[command(subcommand)]
    Acl(acl::AclCommand),
    /// Clients, users and addresses that may not connect
    #[command(subcommand)]
    Bans(objects::ObjectsCommand),
    /// SQL rules over events, and their actions
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// External systems, with their addresses and credentials
    #[command(subcommand)]
    Connectors(connectors::ConnectorsCommand),
    /// Targets of rows in external systems, and their dead letters
    #[command(subcommand)]
    Sinks(connectors::SinksCommand),
    /// Origins of messages in external systems
    #[command(subcommand)]
    Sources(connectors::SourcesCommand),
    /// Common properties of devices of one kind: thing model, topics, credentials
    #[command(subcommand)]
    Products(objects::ObjectsCommand),
    /// Rule chains that process device data
    #[command(subcommand)]
    RuleChains(objects::ObjectsCommand),
    /// Device groups
    #[command(subcommand)]
    DeviceGroups(device_groups::DeviceGroupsCommand),
    /// Relay endpoints: rooms of WebSocket connections
    #[command(subcommand)]
    Endpoints(relay_endpoints::RelayEndpointsCommand),
    /// Files that devices and people have sent
    #[command(subcommand)]
    Files(files::FilesCommand),
    /// File transfers that are not complete
    #[command(subcommand)]
    Transfers(files::TransfersCommand),
    /// Firmware packages for devices
    #[command(subcommand)]
    Firmware(objects::ObjectsCommand),
    /// Products, device groups and devices that install firmware packages
    #[command(subcommand)]
    FirmwareAssignments(objects::ObjectsCommand),
    /// Installations of firmware packages on devices, wave by wave
    #[command(subcommand)]
    Campaigns(campaigns::CampaignsCommand),
    /// Systems that are queried on a schedule for values of devices
    #[command(subcommand)]
    PullSources(pull_sources::PullSourcesCommand),
    /// Registered devices
    #[command(subcommand)]
    Devices(devices::DevicesCommand),
    /// Alarms of devices and of the node
    #[command(subcommand)]
    Alarms(alarms::AlarmsCommand),
    /// Notifications about alarms
    #[command(subcommand)]
    Notifications(alarms::NotificationsCommand),
    /// Rules of the node's own alarms
    #[command(subcommand)]
    NodeAlarmRules(alarms::NodeAlarmRulesCommand),
    /// Dashboards and their share links
    #[command(subcommand)]
    Dashboards(dashboards::DashboardsCommand),
    /// Telemetry of devices
    #[command(subcommand)]
    Telemetry(telemetry::TelemetryCommand),
    /// Commands to devices and their results
    #[command(subcommand)]
    Commands(device_commands::DeviceCommandsCommand),
    /// Accounts of people who use the HTTP API: roles and passwords
    #[command(subcommand)]
    Operators(objects::ObjectsCommand),
    /// Find people who use the HTTP API, ban them and lift bans
    #[command(subcommand)]
    People(people::PeopleCommand),
    /// Codes with which people register themselves
    #[command(subcommand)]
    Invites(people::InvitesCommand),
    /// Parts of the node that belong to different people
    #[command(subcommand)]
    Namespaces(namespaces::NamespacesCommand),
    /// Programs that use the HTTP API
    #[command(subcommand)]
    ApiKeys(objects::ObjectsCommand),
    /// Listeners of the node
    #[command(subcommand)]
    Listeners(listeners::ListenersCommand),
    /// Certificates of listeners that are uploaded over the API
    #[command(subcommand)]
    Certificates(listeners::CertificatesCommand),
    /// Settings of the node; some can change at run time
    #[command(subcommand)]
    Settings(broker_commands::SettingsCommand),
    /// Show the log level, or change it to LEVEL
    LogLevel {
        /// Such as debug or info,broker=debug
        level: Option<String>,
    },
    /// Long work in the background, such as commands to a device group
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Fleets of simulated devices that the node starts and that connect to its own listeners
    #[command(subcommand)]
    Simulations(simulations::SimulationsCommand),
    /// The cluster that the node is a member of
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Damaged files that the node was started without
    #[command(subcommand)]
    Quarantine(quarantine::QuarantineCommand),
    /// Metrics of the node over the last days
    History(observation::HistoryArgs),
    /// Limits of the node with their utilisation
    Limits,
    /// Audit log
    Audit(broker_commands::AuditArgs),
    /// Print events as they happen
    Events(events::EventsArgs),
    /// Backups of configuration, devices and telemetry
    #[command(subcommand)]
    Backups(backups::BackupsCommand),
    /// Write all configuration objects to a file
    Backup(backup_files::BackupArgs),
    /// Restore the objects of a backup
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
        CtlCommand::ChangePassword(arguments) => arguments.run(client, output).await,
        CtlCommand::Clients(command) => command.run(client, output).await,
        CtlCommand::Sessions(command) => command.run(client, output).await,
        CtlCommand::Subscriptions(command) => command.run(client, output).await,
        CtlCommand::Topics(arguments) => arguments.run(client, output).await,
        CtlCommand::PublishedTopics(arguments) => arguments.run(client, output).await,
        CtlCommand::Messages(command) => command.run(client, output).await,
        CtlCommand::Why(arguments) => arguments.run(client, output).await,
        CtlCommand::RejectedConnections(arguments) => arguments.run(client, output).await,
        CtlCommand::Retained(command) => command.run(client, output).await,
        CtlCommand::Publish(arguments) => arguments.run(client, output).await,
        CtlCommand::Users(command) => command.run(ObjectKindArg::Users, client, output).await,
        CtlCommand::Authenticators(command) => command.run(client, output).await,
        CtlCommand::Acl(command) => command.run(client, output).await,
        CtlCommand::Bans(command) => command.run(ObjectKindArg::Bans, client, output).await,
        CtlCommand::Rules(command) => command.run(client, output).await,
        CtlCommand::Connectors(command) => command.run(client, output).await,
        CtlCommand::Sinks(command) => command.run(client, output).await,
        CtlCommand::Sources(command) => command.run(client, output).await,
        CtlCommand::Products(command) => command.run(ObjectKindArg::Products, client, output).await,
        CtlCommand::RuleChains(command) => {
            command.run(ObjectKindArg::RuleChains, client, output).await
        }
        CtlCommand::DeviceGroups(command) => command.run(client, output).await,
        CtlCommand::Endpoints(command) => command.run(client, output).await,
        CtlCommand::Files(command) => command.run(client, output).await,
        CtlCommand::Transfers(command) => command.run(client, output).await,
        CtlCommand::Firmware(command) => command.run(ObjectKindArg::Firmware, client, output).await,
        CtlCommand::FirmwareAssignments(command) => {
            command
                .run(ObjectKindArg::FirmwareAssignments, client, output)
                .await
        }
        CtlCommand::Campaigns(command) => command.run(client, output).await,
        CtlCommand::PullSources(command) => command.run(client, output).await,
        CtlCommand::Devices(command) => command.run(client, output).await,
        CtlCommand::Alarms(command) => command.run(client, output).await,
        CtlCommand::Notifications(command) => command.run(client, output).await,
        CtlCommand::NodeAlarmRules(command) => command.run(client, output).await,
        CtlCommand::Dashboards(command) => command.run(client, output).await,
        CtlCommand::Telemetry(command) => command.run(client, output).await,
        CtlCommand::Commands(command) => command.run(client, output).await,
        CtlCommand::Operators(command) => {
            command.run(ObjectKindArg::Operators, client, output).await
        }
        CtlCommand::People(command) => command.run(client, output).await,
        CtlCommand::Invites(command) => command.run(client, output).await,
        CtlCommand::Namespaces(command) => command.run(client, output).await,
        CtlCommand::ApiKeys(command) => command.run(ObjectKindArg::ApiKeys, client, output).await,
        CtlCommand::Listeners(command) => command.run(client, output).await,
        CtlCommand::Certificates(command) => command.run(client, output).await,
        CtlCommand::Settings(command) => command.run(client, output).await,
        CtlCommand::LogLevel { level } => broker_commands::log_level(level, client, output).await,
        CtlCommand::Jobs(command) => command.run(client, output).await,
        CtlCommand::Simulations(command) => command.run(client, output).await,
        CtlCommand::Cluster(command) => command.run(client, output).await,
        CtlCommand::Quarantine(command) => command.run(client, output).await,
        CtlCommand::History(arguments) => arguments.run(client, output).await,
        CtlCommand::Limits => observation::limits(client, output).await,
        CtlCommand::Audit(arguments) => arguments.run(client, output).await,
        CtlCommand::Events(arguments) => arguments.run(client).await,
        CtlCommand::Backups(command) => command.run(client, output).await,
        CtlCommand::Backup(arguments) => arguments.run(client).await,
        CtlCommand::Restore(arguments) => arguments.run(client, output).await,
    }
}
