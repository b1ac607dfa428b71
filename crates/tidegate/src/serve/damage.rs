//! What a start does with damaged files. It refuses them, or repairs what it can continue with and keeps the damaged
//! files in quarantine, as `store.on_damage` demands.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use api::QuarantinedPart;
use series::{Series, SeriesConfig, SeriesError, SeriesOpenError, SeriesOpenReport};
use store::{Store, StoreOpenError, StoreOpenReport, tools};

use crate::config::DamagePolicy;
use crate::quarantine::Quarantine;

/// The policy, with the place for damaged files.
#[derive(Clone)]
pub(super) struct DamageHandling {
    policy: DamagePolicy,
    pub(super) quarantine: Quarantine,
}

impl DamageHandling {
    pub(super) fn new(policy: DamagePolicy, data_dir: &Path) -> Self {
        Self {
            policy,
            quarantine: Quarantine::new(data_dir),
        }
    }

    /// Opens the store. Damage of the message log and of journals can be quarantined; tables contain users, permissions
    /// and devices, without which the node does not start.
    pub(super) fn open_store(
        &self,
        path: &Path,
        open: impl Fn() -> anyhow::Result<(Store, StoreOpenReport)>,
    ) -> anyhow::Result<(Store, StoreOpenReport)> {
        let refusal = match open() {
            Err(error) if self.policy == DamagePolicy::Quarantine && is_store_damage(&error) => {
                error
            }
            opened => return opened,
        };
        let unrepairable = tools::find_unrepairable(path)?;
        if let Some(first) = unrepairable.first() {
            return Err(refusal.context(format!(
                "store.on_damage = \"quarantine\" does not cover this damage, because the node would run without users, \
                 permissions or devices, or with an empty message log: {first}"
            )));
        }
        let repaired = tools::repair(path, &mut |_| {})?;
        if let Some(first) = repaired.unrepaired.first() {
            bail!("{refusal}; quarantine is not possible: {first}");
        }
        self.preserve(
            "store",
            &refusal.to_string(),
            repaired.lost,
            &repaired.damaged_copies,
        )?;
        open()
    }

    /// Opens the time series. Lost deletions are refused, because deleted rows would reappear.
    pub(super) fn open_series(
        &self,
        directory: &Path,
        config: impl Fn() -> SeriesConfig,
    ) -> anyhow::Result<(Series, SeriesOpenReport)> {
        let refusal = match Series::open(directory, config()) {
            Err(
                error @ (SeriesOpenError::Damaged { .. }
                | SeriesOpenError::Other(SeriesError::Damaged { .. })),
            ) if self.policy == DamagePolicy::Quarantine => error,
            opened => return Ok(opened?),
        };
        let checked = series::check(directory, &config())?;
        if checked.are_deletions_damaged {
            return Err(anyhow::Error::new(refusal).context(
                "store.on_damage = \"quarantine\" does not cover the file `deletions`: deleted telemetry would reappear",
            ));
        }
        let repaired = series::repair(directory, &config())?;
        self.preserve(
            "telemetry",
            &refusal.to_string(),
            repaired.lost,
            &repaired.damaged_copies,
        )?;
        Ok(Series::open(directory, config())?)
    }

    /// Moves the copies of damaged files that mailboxes and sinks have made while they were opened, and those that an
    /// interrupted start has left.
    pub(super) fn collect_copies(&self, parts: &[(&str, PathBuf)]) -> anyhow::Result<()> {
        if self.policy == DamagePolicy::Refuse {
            return Ok(());
        }
        for (part, directory) in parts {
            if let Some(preserved) = self.quarantine.collect(part, directory)? {
                log_quarantine(&preserved);
            }
        }
        Ok(())
    }

    fn preserve(
        &self,
        part: &str,
        reason: &str,
        lost: Vec<String>,
        copies: &[PathBuf],
    ) -> anyhow::Result<()> {
        // The refusal names remedies for a node that does not start.
        let reason = reason.split(". Nothing was changed").next();
        let preserved = self
            .quarantine
            .preserve(part, reason.unwrap_or_default(), lost, copies)
            .context("damaged data was repaired, but the damaged files could not be moved")?;
        log_quarantine(&preserved);
        Ok(())
    }
}

fn is_store_damage(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(StoreOpenError::Damaged { .. } | StoreOpenError::StateDamaged { .. })
    )
}

fn log_quarantine(preserved: &QuarantinedPart) {
    tracing::error!(
        part = preserved.part,
        reason = preserved.reason,
        lost = ?preserved.lost,
        files = preserved.files.len(),
        id = preserved.id,
        "stored data is damaged; the node continues without it, and the damaged files are in quarantine (`tidegate ctl quarantine list`)"
    );
}
