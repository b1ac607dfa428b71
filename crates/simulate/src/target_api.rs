//! The HTTP API of the node of a simulation.

use std::path::Path;

use anyhow::{Context as _, ensure};
use load_client::node_api::NodeApi;

use crate::definition::TargetDefinition;

/// The API of the file in this folder.
pub(crate) fn node_api(target: &TargetDefinition, folder: &Path) -> anyhow::Result<NodeApi> {
    ensure!(
        !target.is_in_memory() || target.token_file.is_some(),
        "target.broker: the node in this process is started after the file is read; what needs a node before that, such as a replay of stored telemetry, needs a node that is running"
    );
    let token_file = target.token_file.as_ref().map(|file| folder.join(file));
    NodeApi::new(&target.api, token_file.as_deref()).context("target.api and target.token_file")
}
