//! Chromium, driven by playwright-core from a script for Node. Scripts use `browser.mjs`.

use std::process::Command;

use super::client::Client;
use super::{find_program, installed, report_skipped};

/// Starts a script, given by its path below `tests/wire`, where there is a browser for it.
pub(crate) fn start_script(script: &str) -> Option<Client> {
    let packages = installed("TIDEGATE_TEST_PLAYWRIGHT", "playwright/node_modules");
    let programs = (find_program("node"), testkit::find_chromium());
    let (Some(packages), (Some(node), Some(chromium))) = (packages, programs) else {
        report_skipped("Chromium, Node or playwright-core is not installed");
        return None;
    };
    let mut command = Command::new(node);
    command.env("TIDEGATE_TEST_PLAYWRIGHT", packages);
    command.env("TIDEGATE_TEST_CHROMIUM", chromium);
    command.arg(format!(
        "{}/tests/wire/{script}",
        env!("CARGO_MANIFEST_DIR")
    ));
    Some(Client::start(&mut command))
}
