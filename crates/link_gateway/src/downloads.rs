//! Files that peers ask for: their own files, and the images that devices are to install.

use std::collections::BTreeMap;

use devices::Device;
use firmware::FirmwareType;
use link::net::Link;
use link::priority::Priority;
use link::size_class::SizeClass;
use namespaces::NamespaceSelection;
use tokio::task::block_in_place;
use transfer::{FileInfo, FileState, FileTarget};

use crate::exchange::FileRequest;
use crate::identity::ClientIdentity;
use crate::metrics::LinkMetrics;
use crate::outgoing_files::{OfferedFile, SendFileError};
use crate::shared::GatewayShared;

/// Files in the answer to one request.
const MAX_ANNOUNCED_FILES: usize = 10_000;
const FILES: &str = "files";

/// Answers a request, and sends what was asked for.
pub(crate) async fn serve_request(
    shared: &GatewayShared,
    identity: &ClientIdentity,
    link: &Link,
    request: FileRequest,
) {
    let found = block_in_place(|| find(shared, identity, &request.names));
    let announced = found.as_ref().map_err(Clone::clone).map(|files| {
        let files = files.iter();
        files.map(OfferedFile::announcement).collect()
    });
    // If the link has ended, no peer waits for the answer.
    let answer = request.answer(announced);
    if link.send(Priority::High, answer).await.is_err() {
        return;
    }
    for file in found.unwrap_or_default() {
        shared.metrics.count_sent(SizeClass::Huge);
        let sent = file.send(link, request.request, &shared.files, &shared.firmware);
        match sent.await {
            Ok(()) => LinkMetrics::count(&shared.metrics.files_sent),
            Err(SendFileError::Link(error)) => {
                tracing::debug!(client_id = identity.client_id, file = file.name, %error, "file was not sent over a link");
            }
            Err(SendFileError::File(error)) => {
                tracing::warn!(client_id = identity.client_id, file = file.name, %error, "file cannot be sent over a link");
            }
        }
    }
}

/// The files with these names: `.`, `files`, `firmware`, `software`, or one of a directory, such as `files/log.txt`.
fn find(
    shared: &GatewayShared,
    identity: &ClientIdentity,
    names: &[String],
) -> Result<Vec<OfferedFile>, String> {
    let mut found = BTreeMap::new();
    for name in names {
        let (directory, file) = name.split_once('/').unwrap_or((name, ""));
        let mut offered = Vec::new();
        if matches!(directory, FILES | ".") {
            offered.extend(own_files(shared, identity));
        }
        for kind in FirmwareType::ALL {
            if directory == kind_directory(kind) || directory == "." {
                offered.extend(assigned_image(shared, identity, kind)?);
            }
        }
        let is_known = directory == "."
            || directory == FILES
            || FirmwareType::ALL
                .iter()
                .any(|kind| directory == kind_directory(*kind));
        if !is_known {
            return Err(format!(
                "{name}: expected files, firmware, software or . for all, or the name of a file such as files/NAME"
            ));
        }
        if !file.is_empty() {
            offered.retain(|offered| offered.name == *name);
        }
        if offered.is_empty() && directory != "." && (directory != FILES || !file.is_empty()) {
            return Err(format!("{name}: there is no such file"));
        }
        found.extend(
            offered
                .into_iter()
                .map(|offered| (offered.name.clone(), offered)),
        );
        if found.len() > MAX_ANNOUNCED_FILES {
            return Err(format!(
                "more than {MAX_ANNOUNCED_FILES} files; ask for fewer"
            ));
        }
    }
    Ok(found.into_values().collect())
}

fn kind_directory(kind: FirmwareType) -> &'static str {
    match kind {
        FirmwareType::Firmware => "firmware",
        FirmwareType::Software => "software",
    }
}

/// The complete files of a client. Of several with the same name, the newest counts.
fn own_files(shared: &GatewayShared, identity: &ClientIdentity) -> Vec<OfferedFile> {
    let owner = &identity.owner;
    let is_own = |info: &FileInfo| {
        info.state == FileState::Complete
            && (info.owner.kind, &info.owner.id) == (owner.kind, &owner.id)
    };
    let limit = MAX_ANNOUNCED_FILES + 1;
    let infos = shared
        .files
        .list(&NamespaceSelection::All, None, limit, &is_own);
    let offered = infos
        .iter()
        .rev()
        .filter_map(|info| offered_file(info, FILES));
    let by_name: BTreeMap<String, OfferedFile> = offered
        .map(|offered| (offered.name.clone(), offered))
        .collect();
    by_name.into_values().collect()
}

fn offered_file(info: &FileInfo, directory: &str) -> Option<OfferedFile> {
    Some(OfferedFile {
        name: format!("{directory}/{}", info.name),
        id: info.id.clone(),
        size: info.size?,
        digest: info.checksum?,
        modified_ms: info.completed_at_ms,
        package: None,
    })
}

/// The image that a device is to install.
fn assigned_image(
    shared: &GatewayShared,
    identity: &ClientIdentity,
    kind: FirmwareType,
) -> Result<Option<OfferedFile>, String> {
    let Some(device) = device_of(shared, identity)? else {
        return Ok(None);
    };
    let Some(assigned) = shared.firmware.assigned(&device, kind) else {
        return Ok(None);
    };
    let package = assigned.package;
    // In a cluster, the image may be on its way from another node; the device is notified when it is here.
    if !shared.firmware.has_image(&package) {
        return Ok(None);
    }
    let Some(info) = shared.files.info(FileTarget::Id(&package.file)) else {
        return Ok(None);
    };
    let offered = offered_file(&info, kind_directory(kind));
    Ok(offered.map(|offered| OfferedFile {
        package: Some(package),
        ..offered
    }))
}

fn device_of(
    shared: &GatewayShared,
    identity: &ClientIdentity,
) -> Result<Option<std::sync::Arc<Device>>, String> {
    let Some(id) = &identity.device else {
        return Ok(None);
    };
    let device = shared.registry.device(id);
    device.map_err(|error| format!("the device cannot be read now: {error}"))
}
