//! The HTTP API of the node of a simulation.

use std::path::Path;

use anyhow::Context as _;
use load_client::node_api::NodeApi;

use crate::definition::TargetDefinition;

/// The API of the file in this folder.
pub(crate) fn node_api(target: &TargetDefinition, folder: &Path) -> anyhow::Result<NodeApi> {
    let token_file = target.token_file.as_ref().map(|file| folder.join(file));
    NodeApi::new(&target.api, token_file.as_deref()).context("target.api and target.token_file")
}
