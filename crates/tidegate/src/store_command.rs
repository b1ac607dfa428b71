//! `tidegate store`: checks, repairs and moves the stored data of a stopped node.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use api::QuarantinedPart;
use clap::{Args, Subcommand};
use store::{ImportMode, StateKind, Store, StoreConfig, tools};

use crate::area_record::AreaRecord;
use crate::backup;
use crate::config::{self, Config, ConfigSources, FlagValue};
use crate::quarantine::Quarantine;
use crate::storage_areas::StorageAreas;

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything and report damage; exit status 1 if there is any
    Check(StoreLocationArgs),
    /// Keep the readable part of a damaged store and damaged telemetry, and report the loss
    Repair(StoreLocationArgs),
    /// Rewrite everything without garbage
    Compact(StoreLocationArgs),
    /// Write all configuration objects (users, rules, keys ...) to a file; it contains password
    /// hashes
    Export {
        #[command(flatten)]
        place: StoreLocationArgs,
        /// Output file; "-" for standard output
        file: PathBuf,
    },
    /// Read exported configuration objects; those with the same name are replaced
    Import {
        #[command(flatten)]
        place: StoreLocationArgs,
        /// Input file; "-" for standard input
        file: PathBuf,
        /// Delete all objects that are not in the file
        #[arg(long)]
        replace: bool,
    },
    /// Restore a backup of a node, with telemetry, to a data directory without stored data
    Restore {
        #[command(flatten)]
        place: StoreLocationArgs,
        /// A file that `tidegate ctl backups download` has written
        file: PathBuf,
    },
    /// Check that a backup of a node is complete and undamaged
    VerifyBackup {
        /// A file that `tidegate ctl backups download` has written
        file: PathBuf,
    },
    /// Print what is stored and how much space it takes
    Stats(StoreLocationArgs),
}

/// Locates the store by the configuration of its node.
#[derive(Args)]
pub(crate) struct StoreLocationArgs {
    /// Data directory of the node [default: as `tidegate serve`]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Configuration file [default: the one `tidegate serve` would read]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreLocationArgs {
    /// The directory of the store and its settings.
    fn store_directory(self) -> anyhow::Result<(PathBuf, StoreConfig)> {
        let (dir, config, _) = self.storage_directories()?;
        Ok((dir, config))
    }

    /// The configuration of the node.
    fn load_config(self) -> anyhow::Result<Config> {
        let mut sources = ConfigSources::from_process(self.config);
        sources.flags = self
            .data_dir
            .into_iter()
            .map(|value| FlagValue {
                flag: "--data-dir",
                key: "node.data_dir",
                value,
            })
            .collect();
        Ok(config::load(&sources)?)
    }

    /// The directory of the store, its settings, and the other storage areas.
    fn storage_directories(self) -> anyhow::Result<(PathBuf, StoreConfig, StorageAreas)> {
        let config = self.load_config()?;
        let dir = config.data_dir.join("store");
        if !dir.is_dir() {
            bail!(
                "there is no store in {}: it has no directory `store`. Name the data directory of a node with \
                 --data-dir, or its configuration with --config",
                config.data_dir.display()
            );
        }
        let areas = StorageAreas::new(&config.data_dir, config.telemetry.directory);
        Ok((dir, config.store.unwrap_or_default(), areas))
    }

    /// Opens the store, for commands that need the objects.
    fn open_store(self) -> anyhow::Result<Store> {
        let (dir, config) = self.store_directory()?;
        Ok(Store::open(&dir, config)?.0)
    }
}

impl StoreCommand {
    /// Returns the text for standard output, and whether everything is in order.
    pub(crate) fn run(self) -> anyhow::Result<(String, bool)> {
        match self {
            StoreCommand::Check(place) => {
                let (dir, _, areas) = place.storage_directories()?;
                let mut checked = tools::check(&dir, &mut print_progress)?;
                let others = areas.check(&mut print_progress)?;
                checked.problems.extend(others.problems);
                let found = others.contents.iter().map(|line| format!("{line}\n"));
                let text = check_text(&dir, &checked)
                    + &found.collect::<String>()
                    + &quarantine_text(&dir)?;
                Ok((text, checked.problems.is_empty()))
            }
            StoreCommand::Repair(place) => {
                let (dir, _, areas) = place.storage_directories()?;
                let mut repaired = tools::repair(&dir, &mut print_progress)?;
                let telemetry = areas.repair(&mut print_progress)?;
                repaired.lost.extend(telemetry.lost);
                repaired.damaged_copies.extend(telemetry.damaged_copies);
                let is_well = repaired.unrepaired.is_empty();
                Ok((repair_text(&repaired), is_well))
            }
            StoreCommand::Compact(place) => {
                let (dir, config) = place.store_directory()?;
                let (before, after) = tools::compact(&dir, config, &mut print_progress)?;
                let text = format!(
                    "{} before, {} now\n",
                    format_size(before),
                    format_size(after)
                );
                Ok((text, true))
            }
            StoreCommand::Export { place, file } => {
                Ok((export(&place.open_store()?, &file)?, true))
            }
            StoreCommand::Import {
                place,
                file,
                replace,
            } => Ok((import(&place.open_store()?, &file, replace)?, true)),
            StoreCommand::Restore { place, file } => Ok((restore(place, &file)?, true)),
            StoreCommand::VerifyBackup { file } => Ok((verify_backup(&file)?, true)),
            StoreCommand::Stats(place) => {
                let (dir, _) = place.store_directory()?;
                let checked = tools::check(&dir, &mut print_progress)?;
                Ok((stats_text(&checked), true))
            }
        }
    }
}

/// Prints the current step for the waiting user.
fn print_progress(what: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{what} ...");
    }
}

fn check_text(dir: &Path, checked: &tools::StoreCheckReport) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        text.push_str(&format!("problem: {problem}\n"));
    }
    if let Some(torn) = &checked.torn_end {
        text.push_str(&format!(
            "the end of the store is incomplete, as after a crash or a power failure; the next start truncates it: {torn}\n"
        ));
    }
    if checked.problems.is_empty() {
        text.push_str(&format!("{} is sound\n", dir.display()));
    }
    text
}

/// Describes damaged files that a start has moved away.
fn quarantine_text(store: &Path) -> anyhow::Result<String> {
    let data_dir = store.parent().unwrap_or(store);
    let listed = Quarantine::new(data_dir).list();
    let parts = listed.context("cannot read the quarantine")?;
    let line = |part: &QuarantinedPart| {
        format!(
            "quarantine: {}: {} damaged files of {}: {}\n",
            part.id,
            part.files.len(),
            part.part,
            part.reason
        )
    };
    Ok(parts.iter().map(line).collect())
}

fn repair_text(repaired: &tools::StoreRepairReport) -> String {
    if repaired.lost.is_empty() && repaired.unrepaired.is_empty() {
        return "there is nothing to repair in the store and the telemetry\n".to_owned();
    }
    let mut text = String::new();
    for lost in &repaired.lost {
        text.push_str(&format!("lost: {lost}\n"));
    }
    for kept in &repaired.damaged_copies {
        text.push_str(&format!("the damaged file is kept as {}\n", kept.display()));
    }
    for damaged in &repaired.unrepaired {
        text.push_str(&format!("not repaired: {damaged}\n"));
    }
    if repaired.unrepaired.is_empty() {
        text.push_str("the rest is readable; start the node\n");
    }
    text
}

fn stats_text(checked: &tools::StoreCheckReport) -> String {
    let [sessions, subscriptions, retained, delayed, _] =
        StateKind::ALL.map(|space| checked.keys[space as usize]);
    let rows = [
        ("sessions", sessions.to_string()),
        ("subscriptions", subscriptions.to_string()),
        ("retained messages", retained.to_string()),
        ("delayed messages", delayed.to_string()),
        ("configuration objects", checked.objects.to_string()),
        (
            "rows of tables",
            checked
                .rows
                .iter()
                .map(|(_, rows)| rows)
                .sum::<u64>()
                .to_string(),
        ),
        ("queued messages", checked.queued_messages.to_string()),
        ("sessions with a queue", checked.queued_sessions.to_string()),
        ("segments of the log", checked.segments.to_string()),
        ("message log", format_size(checked.log_bytes)),
        ("of it needed", format_size(checked.live_bytes)),
        ("keyed state", format_size(checked.keyed_bytes)),
        ("problems", checked.problems.len().to_string()),
    ];
    rows.map(|(name, value)| format!("{name:<22} {value}\n"))
        .concat()
}

fn format_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Prints every tenth part of a long file.
fn file_progress(what: &'static str, total: u64) -> impl FnMut(u64) -> bool {
    let mut shown = 0;
    move |done| {
        let tenth = (done * 10).checked_div(total).unwrap_or(0);
        if tenth > shown {
            shown = tenth;
            print_progress(&format!("{what}: {} %", tenth * 10));
        }
        true
    }
}

fn verify_backup(file: &Path) -> anyhow::Result<String> {
    let size = fs::metadata(file).map_or(0, |file| file.len());
    let head = backup::verify(file, &mut file_progress("reading the backup", size))?;
    Ok(format!(
        "{} is complete: {} of telemetry in {} rows, {} files with {}, made by version {}\n",
        file.display(),
        format_size(head.telemetry_bytes),
        head.telemetry_rows,
        head.files,
        format_size(head.file_bytes),
        head.program
    ))
}

/// Restores a backup, which is verified first, so that a damaged one changes nothing.
fn restore(place: StoreLocationArgs, file: &Path) -> anyhow::Result<String> {
    let config = place.load_config()?;
    let store = config.data_dir.join("store");
    let telemetry = config.telemetry.directory.as_deref();
    let telemetry_dir = telemetry.map_or_else(|| config.data_dir.join("telemetry"), Path::to_owned);
    let files = config.data_dir.join("files");
    for directory in [&store, &telemetry_dir, &files] {
        let has_entries = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
        if has_entries {
            bail!(
                "{} contains data, and a restore does not replace any; stop the node and move the data directory away, or name \
                 another one with --data-dir",
                directory.display()
            );
        }
    }
    let size = fs::metadata(file).map_or(0, |file| file.len());
    let head = backup::verify(file, &mut file_progress("reading the backup", size))?;
    disk::create_private_dir(&config.data_dir)
        .with_context(|| format!("cannot create {}", config.data_dir.display()))?;
    let progress = &mut file_progress(
        "restoring telemetry and files",
        head.telemetry_bytes + head.file_bytes,
    );
    backup::restore(file, &store, &telemetry_dir, &files, progress)?;
    AreaRecord::new(&config.data_dir, telemetry).update()?;
    Ok(format!(
        "{} is restored to {}: {} rows of telemetry and {} files; start the node\n",
        file.display(),
        config.data_dir.display(),
        head.telemetry_rows,
        head.files
    ))
}

fn export(store: &Store, path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut out = BufWriter::new(io::stdout().lock());
        store.objects().export_to(&mut out)?;
        return Ok(String::new());
    }
    let file = create_private(path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut out = BufWriter::new(file);
    let count = store.objects().export_to(&mut out)?;
    let written = out.flush().and_then(|()| out.get_ref().sync_all());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{count} objects written to {}\n", path.display()))
}

/// The file contains password hashes: readable by the owner only, and never replaces another file.
fn create_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn import(store: &Store, path: &Path, replace: bool) -> anyhow::Result<String> {
    let mut input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Box::new(BufReader::new(file))
    };
    let mode = if replace {
        ImportMode::Replace
    } else {
        ImportMode::Merge
    };
    let imported = store
        .objects()
        .import_from(&mut input, mode)
        .with_context(|| format!("nothing was imported from {}", path.display()))?;
    Ok(format!(
        "{} objects written, {} removed\n",
        imported.written, imported.removed
    ))
}
