//! The files of the node: namespaces of their senders, their threads, and their events for rules.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use devices::Registry;
use engine::{Engine, FileReceived};
use namespaces::Namespaces;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use transfer::{FileInfo, FileService, FileWorkers, OwnerDirectory, OwnerKind, TransferSettings};

/// Directory of the files, in the data directory.
const FILES_DIRECTORY: &str = "files";
/// Events that wait for the rules.
const MAX_WAITING_EVENTS: usize = 1000;

/// The namespaces of products.
struct RegistryOwners(Registry);

impl OwnerDirectory for RegistryOwners {
    fn namespace_of_product(&self, product: &str) -> Option<String> {
        let product = self.0.product(product)?;
        Some(product.get().namespace().to_owned())
    }
}

/// Opens the files. Their threads start with [`FileWorkers::start`].
pub(super) fn open_files(
    data_dir: &Path,
    settings: TransferSettings,
    registry: Registry,
    namespaces: Namespaces,
) -> anyhow::Result<FileWorkers> {
    let directory = data_dir.join(FILES_DIRECTORY);
    let opened = FileService::open(&directory, settings);
    let service = opened.with_context(|| format!("cannot open {}", directory.display()))?;
    service.set_namespaces(namespaces);
    Ok(FileWorkers::new(
        service,
        Arc::new(RegistryOwners(registry)),
    ))
}

/// Passes each complete file to the rules that want it; ends with the runtime. If the rules are slow, the threads for
/// files wait.
pub(super) fn forward_to_rules(files: &FileService, engine: Engine) {
    let (sender, mut received) = mpsc::channel::<FileInfo>(MAX_WAITING_EVENTS);
    let rules = engine.clone();
    files.observe_completions(Box::new(move |info| {
        if rules.wants_received_files() {
            // Fails only while the node stops.
            let _ = sender.blocking_send(info.clone());
        }
    }));
    tokio::spawn(async move {
        while let Some(info) = received.recv().await {
            let fields = event_fields(&info).to_string();
            let client_id = match info.owner.kind {
                OwnerKind::Client => info.owner.id.as_str(),
                OwnerKind::Device | OwnerKind::Operator => "",
            };
            let event = FileReceived {
                timestamp_ms: info.completed_ms.unwrap_or(info.created_ms),
                sender: &info.owner.id,
                client_id,
                fields: &fields,
            };
            engine.handle_file_received(event).await;
        }
    });
}

/// The fields of the event `$events/file/received`.
fn event_fields(info: &FileInfo) -> Value {
    let owner_of = |kind| (info.owner.kind == kind).then_some(&info.owner.id);
    json!({
        "id": info.id,
        "file_id": info.file_id,
        "name": info.name,
        "size": info.size,
        "sha256": info.checksum,
        "content_type": info.content_type,
        "user_data": info.user_data,
        "clientid": owner_of(OwnerKind::Client),
        "deviceId": owner_of(OwnerKind::Device),
        "operator": owner_of(OwnerKind::Operator),
        "productId": info.owner.product,
        "namespace": info.owner.namespace,
        "path": format!("/api/v1/files/{}/content", info.id),
    })
}
