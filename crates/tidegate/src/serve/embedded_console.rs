//! The web console embedded in the program.

use api::{ConsoleFile, ConsoleSite};

pub(super) struct EmbeddedConsole;

impl ConsoleSite for EmbeddedConsole {
    fn index(&self) -> Option<&'static str> {
        console::index()
    }

    fn missing_reason(&self) -> &'static str {
        console::missing_reason()
    }

    fn find(&self, path: &str) -> Option<ConsoleFile> {
        let asset = console::find(path)?;
        Some(ConsoleFile {
            content_type: asset.content_type,
            etag: asset.etag,
            is_immutable: asset.is_immutable,
            brotli: asset.brotli,
            gzip: asset.gzip,
        })
    }
}
