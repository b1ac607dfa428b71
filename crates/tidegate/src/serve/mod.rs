//! `tidegate serve`: a node from start to graceful stop.

mod data_dir;
mod greeting;
mod open_files;
mod signals;

use crate::config::Config;
use crate::logging;

/// Runs a node until it is told to stop.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    let _log_levels =
        logging::start(&config.log_level, config.log_format).map_err(anyhow::Error::msg)?;
    let open_files_warning = open_files::raise_limit();
    for warning in config.warnings.iter().chain(&open_files_warning) {
        tracing::warn!("{warning}");
    }
    let _data_dir = data_dir::DataDir::open(&config.data_dir)?;
    Ok(())
}
