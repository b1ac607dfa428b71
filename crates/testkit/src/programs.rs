//! Programs that tests start if they are installed.

use std::path::PathBuf;

/// The full path of a program on `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Chromium without windows, if the distribution has it: it needs a fifth less processor time for the same pages.
pub fn find_chromium() -> Option<PathBuf> {
    find_program("chromium-headless-shell").or_else(|| find_program("chromium"))
}
