//! `tidegate cluster recover`: the way back of a node when more than half of the NATS servers of its cluster are lost for good.
//!
//! The servers' files are put aside, so that the servers that are left begin new ones. What the nodes have is not touched: they
//! store their configuration objects in the new files again, and keep their sessions, because nothing there says that another
//! node has adopted them. The copies of the sessions of other nodes would be removed at the next start for the same reason. They are put aside
//! as well, or adopted if the operator says that their node is lost.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use cluster::NodeName;
use cluster_nats::FormerNatsServer;
use standby::StoredCopy;

use super::local_cluster::ClusterUsageError;
use crate::config::{
    self, ClusterServers, ClusterSettings, Config, ConfigSources, FlagValue, ManagedServer,
};
use crate::managed_server::{copies_directory, server_directory};
use crate::serve::data_dir::{DataDir, DataDirInUseError, describe_process};

#[derive(Args)]
#[command(
    after_help = "Only for a cluster whose NATS servers can have no majority any more. Stop all nodes that are left, remove the lost servers from \
                  cluster.peers, write a new secret to cluster.secret_file, and run this command at each of these nodes before it is started. \
                  Without --yes, it shows what it would do."
)]
pub(crate) struct RecoverArgs {
    /// Data directory of the stopped node [default: as `tidegate serve`]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Configuration file of the node [default: the one `tidegate serve` would read]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key as `tidegate serve --set` does
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Declare a node lost for good, and adopt its durable sessions from the copy here; may be repeated
    #[arg(long, value_name = "NODE")]
    adopt: Vec<String>,
    /// Do it
    #[arg(long)]
    yes: bool,
}

impl RecoverArgs {
    /// Returns the text for standard output.
    pub(super) fn run(self) -> anyhow::Result<String> {
        let mut sources = ConfigSources::from_process(self.config);
        sources.sets = self.sets;
        let data_dir = self.data_dir.into_iter().map(|value| FlagValue {
            flag: "--data-dir",
            key: "node.data_dir",
            value,
        });
        sources.flags = data_dir.collect();
        let config = config::load(&sources)?;
        let (settings, server) = managed(&config)?;
        if !server_directory(&config.data_dir).exists() {
            return usage(format!(
                "there is nothing to recover in {}: it has no files of a NATS server. Name the data directory of a node with --data-dir, or \
                 its configuration with --config",
                config.data_dir.display()
            ));
        }
        // Nothing else uses the files from here on.
        let data_dir = lock(&config.data_dir)?;
        let plan = RecoveryPlan::new(data_dir.path(), settings, server, &self.adopt)?;
        if !self.yes {
            let text = plan.describe();
            return Ok(format!(
                "{text}\nNothing was changed. To do this, run the command again with --yes.\n"
            ));
        }
        plan.execute()?;
        Ok(plan.describe_result())
    }
}

fn usage<T>(text: String) -> anyhow::Result<T> {
    Err(ClusterUsageError(text).into())
}

fn managed(config: &Config) -> anyhow::Result<(&ClusterSettings, &ManagedServer)> {
    let Some(settings) = &config.cluster else {
        return usage(
            "the configuration has no cluster; name that of the node with --config".to_owned(),
        );
    };
    match &settings.servers {
        ClusterServers::Managed(server) => Ok((settings, server)),
        ClusterServers::External(_) => usage(
            "the NATS servers of this node are external (cluster.urls); recover JetStream there. The nodes store their configuration \
             in empty servers again, without a command"
                .to_owned(),
        ),
    }
}

fn lock(path: &Path) -> anyhow::Result<DataDir> {
    DataDir::open(path).map_err(|error| match error.downcast::<DataDirInUseError>() {
        Ok(in_use) => anyhow::anyhow!(
            "the node of {} is running{}; stop it before, because its NATS server uses the files",
            in_use.path.display(),
            describe_process(&in_use.process)
        ),
        Err(error) => error,
    })
}

/// What the recovery of a node consists of.
struct RecoveryPlan<'a> {
    settings: &'a ClusterSettings,
    /// The servers of the new cluster besides the own one.
    others: Vec<&'a str>,
    data_dir: &'a Path,
    former: FormerNatsServer,
    /// Where files are put aside.
    aside: PathBuf,
    adopted: Vec<StoredCopy>,
    put_aside: Vec<StoredCopy>,
}

impl<'a> RecoveryPlan<'a> {
    fn new(
        data_dir: &'a Path,
        settings: &'a ClusterSettings,
        server: &'a ManagedServer,
        adopt: &[String],
    ) -> anyhow::Result<Self> {
        let directory = server_directory(data_dir);
        let former = FormerNatsServer::find(&directory)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        let Some(former) = former else {
            bail!("{} is gone", directory.display());
        };
        if former.had_secret(&server.secret) {
            return usage(
                "cluster.secret_file still contains the secret that the lost servers know. If one of them were started again, it would connect \
                 with its former state, and undo what happens from now on. Write a new secret (openssl rand -hex 32), copy it to all nodes \
                 that are left, and run this command again"
                    .to_owned(),
            );
        }
        let copies = copies_directory(data_dir);
        let copies = standby::stored_copies(&copies)
            .with_context(|| format!("cannot read {}", copies.display()))?;
        let (adopted, put_aside) = divide(copies, adopt, &settings.node)?;
        let is_own =
            |peer: &&str| *peer == server.listen || Some(*peer) == server.advertise.as_deref();
        let peers = server.peers.iter().map(String::as_str);
        Ok(Self {
            settings,
            others: peers.filter(|peer| !is_own(peer)).collect(),
            aside: free_directory(data_dir, SystemTime::now()),
            data_dir,
            former,
            adopted,
            put_aside,
        })
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "Recovery of {} in {}, cluster {}\n\n",
            self.settings.node,
            self.data_dir.display(),
            self.settings.name
        );
        let servers = match self.others.as_slice() {
            [] => "that of this node alone (cluster.peers)".to_owned(),
            others => format!(
                "that of this node, and {} (cluster.peers)",
                others.join(", ")
            ),
        };
        let _ = writeln!(text, "  NATS servers   {servers}");
        let _ = writeln!(
            text,
            "  JetStream      begins empty; the files so far are moved to {}",
            self.aside.display()
        );
        text.push_str(
            "  configuration  this node adds its copy to the new cluster; nothing is deleted\n\
             \x20 sessions       this node keeps its own ones, with their queues\n",
        );
        for copy in &self.adopted {
            let _ = writeln!(
                text,
                "  copy of {}  last written {}: this node adopts the sessions about 15 s after its start, because {} is lost for good",
                copy.node,
                date(copy.changed),
                copy.node
            );
        }
        for copy in &self.put_aside {
            let what = match (copy.is_adopted, copy.is_complete) {
                (true, _) => "its sessions are adopted already".to_owned(),
                (false, false) => "incomplete, so that it cannot be adopted".to_owned(),
                (false, true) => format!(
                    "last written {}; if {} is lost for good, --adopt {} adopts its sessions instead",
                    date(copy.changed),
                    copy.node,
                    copy.node
                ),
            };
            let _ = writeln!(text, "  copy of {}  is moved as well: {what}", copy.node);
        }
        text
    }

    fn describe_result(&self) -> String {
        let mut text = format!(
            "{} is recovered. Former files are in {}; remove them when the cluster works again.\n",
            self.settings.node,
            self.aside.display()
        );
        for copy in &self.adopted {
            let _ = writeln!(
                text,
                "The sessions of {} are adopted about 15 s after the start. Do not start {} again.",
                copy.node, copy.node
            );
        }
        match self.others.as_slice() {
            [] => text.push_str("Start the node.\n"),
            _ => text.push_str(
                "Run this command at the other nodes that are left, then start all of them. The node whose configuration is \
                 the latest is to be started first.\n",
            ),
        }
        text
    }

    /// What remains of an interrupted execution is done by the next one: the files of the server come last.
    fn execute(&self) -> anyhow::Result<()> {
        self.end_former_server()?;
        for copy in &self.adopted {
            standby::request_adoption(copy)
                .with_context(|| format!("cannot write to {}", copy.directory.display()))?;
        }
        disk::create_private_dir(&self.aside)
            .with_context(|| format!("cannot create {}", self.aside.display()))?;
        if !self.put_aside.is_empty() {
            let copies = copies_directory(&self.aside);
            disk::create_private_dir(&copies)
                .with_context(|| format!("cannot create {}", copies.display()))?;
            for copy in &self.put_aside {
                rename(&copy.directory, &copies.join(copy.node.as_str()))?;
            }
        }
        rename(
            &server_directory(self.data_dir),
            &server_directory(&self.aside),
        )?;
        for directory in [&self.aside, self.data_dir] {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.with_context(|| format!("cannot sync {}", directory.display()))?;
        }
        Ok(())
    }

    /// A node that was killed leaves its server behind, which would continue to write.
    fn end_former_server(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        if !runtime.block_on(self.former.end()) {
            bail!(
                "the NATS server of the node is still running, and does not end; end it, and run this command again"
            );
        }
        Ok(())
    }
}

/// The copies whose sessions are to be adopted, and the others.
fn divide(
    copies: Vec<StoredCopy>,
    adopt: &[String],
    own: &NodeName,
) -> anyhow::Result<(Vec<StoredCopy>, Vec<StoredCopy>)> {
    let known = |copy: &StoredCopy| copy.node.to_string();
    for name in adopt {
        if name == own.as_str() {
            return usage(format!(
                "--adopt {name}: this is {name}, which keeps its sessions"
            ));
        }
        let problem = match copies.iter().find(|copy| copy.node.as_str() == name) {
            None => {
                let names: Vec<_> = copies.iter().map(known).collect();
                match names.is_empty() {
                    true => "there is no copy of its sessions here, nor of others".to_owned(),
                    false => format!(
                        "there is no copy of its sessions here, but of {}",
                        names.join(", ")
                    ),
                }
            }
            Some(copy) if copy.is_adopted => "its sessions are adopted already".to_owned(),
            Some(copy) if !copy.is_complete => {
                "the copy of its sessions is incomplete: the node was lost before it had sent all of them".to_owned()
            }
            Some(_) => continue,
        };
        return usage(format!("--adopt {name}: {problem}"));
    }
    let is_adopted = |copy: &StoredCopy| adopt.iter().any(|name| name == copy.node.as_str());
    Ok(copies.into_iter().partition(is_adopted))
}

/// A directory that does not exist, named by the time.
fn free_directory(data_dir: &Path, now: SystemTime) -> PathBuf {
    let time = jiff::Timestamp::try_from(now).unwrap_or_default();
    let name = format!("before-recovery-{}", time.strftime("%Y%m%dT%H%M%SZ"));
    let mut directory = data_dir.join(&name);
    let mut number = 1;
    while directory.exists() {
        number += 1;
        directory = data_dir.join(format!("{name}-{number}"));
    }
    directory
}

fn date(at: Option<SystemTime>) -> String {
    match at.map(jiff::Timestamp::try_from) {
        Some(Ok(at)) => format!("{at:.0}"),
        _ => "at an unknown time".to_owned(),
    }
}

fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::rename(from, to)
        .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn copy(node: &str, is_complete: bool, is_adopted: bool) -> StoredCopy {
        StoredCopy {
            node: NodeName::new(node).unwrap(),
            directory: PathBuf::new(),
            is_complete,
            is_adopted,
            changed: None,
        }
    }

    #[test]
    fn only_complete_copies_of_other_nodes_are_adopted_and_only_on_request() {
        let copies = || {
            vec![
                copy("node-1", true, false),
                copy("node-2", false, false),
                copy("node-3", true, true),
            ]
        };
        let own = NodeName::new("node-4").unwrap();
        let divide = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            divide(copies(), &names, &own).map_err(|error| error.to_string())
        };
        let names = |copies: &[StoredCopy]| -> Vec<String> {
            copies.iter().map(|copy| copy.node.to_string()).collect()
        };
        let (adopted, put_aside) = divide(&[]).unwrap();
        assert!(adopted.is_empty());
        assert_eq!(put_aside.len(), 3);
        let (adopted, put_aside) = divide(&["node-1"]).unwrap();
        assert_eq!(names(&adopted), ["node-1"]);
        assert_eq!(names(&put_aside), ["node-2", "node-3"]);
        for (name, expected) in [
            ("node-2", "is incomplete"),
            ("node-3", "adopted already"),
            ("node-4", "which keeps its sessions"),
            ("node-5", "but of node-1, node-2, node-3"),
        ] {
            let error = divide(&[name]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn files_that_were_put_aside_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH;
        let first = free_directory(folder.path(), now);
        assert!(first.ends_with("before-recovery-19700101T000000Z"));
        fs::create_dir(&first).unwrap();
        let second = free_directory(folder.path(), now);
        assert!(second.ends_with("before-recovery-19700101T000000Z-2"));
    }
}
