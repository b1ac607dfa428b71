//! The files of the node: namespaces of their senders, their threads, and their events for rules.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use devices::Registry;
use engine::{Engine, FileReceived};
use namespaces::Namespaces;
use tokio::sync::mpsc;
use transfer::{
    CompletionObserver, FileInfo, FileService, FileWorkers, OwnerDirectory, OwnerKind,
    TransferSettings,
};

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

/// Passes each complete file to the rules that want it, first those that were complete when the node stopped; ends with the
/// runtime. If the rules are slow, the threads for files wait.
pub(super) fn forward_to_rules(files: &FileService, engine: Engine) {
    let (sender, mut received) = mpsc::channel::<FileInfo>(MAX_WAITING_EVENTS);
    let rules = engine.clone();
    files.observe_completions(CompletionObserver {
        is_interested: Box::new(move || rules.wants_received_files()),
        completed: Box::new(move |info| {
            // Fails only while the node stops; the next start emits the event.
            let _ = sender.blocking_send(info.clone());
        }),
    });
    let files = files.clone();
    tokio::spawn(async move {
        let reading = files.clone();
        let pending = tokio::task::spawn_blocking(move || reading.files_with_pending_event());
        for info in pending.await.unwrap_or_default() {
            handle_event(&files, &engine, info).await;
        }
        while let Some(info) = received.recv().await {
            handle_event(&files, &engine, info).await;
        }
    });
}

/// Evaluates the rules on a complete file, and records that.
async fn handle_event(files: &FileService, engine: &Engine, info: FileInfo) {
    let fields = info.event_fields().to_string();
    let client_id = match info.owner.kind {
        OwnerKind::Client => info.owner.id.as_str(),
        OwnerKind::Device | OwnerKind::Operator => "",
    };
    let event = FileReceived {
        timestamp_ms: info.completed_at_ms.unwrap_or(info.created_at_ms),
        sender: &info.owner.id,
        client_id,
        fields: &fields,
    };
    engine.handle_file_received(event).await;
    let (files, id) = (files.clone(), info.id);
    let settling = tokio::task::spawn_blocking(move || {
        if let Err(error) = files.settle_event(&id) {
            tracing::error!(id, %error, "recording that the event of a file is handled failed; a restart emits it again");
        }
    });
    // A panic was logged.
    let _ = settling.await;
}
