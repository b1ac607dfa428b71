//! Tests with a really full file system: a small tmpfs, which only root may mount.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::script::StoreModel;
use common::{StoreFixture, check_messages, check_opened, wait_until};
use store::{Store, StoreConfig, StoreHealth};

/// Unmounted when dropped.
struct MountedDirectory<'a>(&'a Path);

impl Drop for MountedDirectory<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn mount(dir: &Path) -> Option<MountedDirectory<'_>> {
    let mut command = Command::new("mount");
    command
        .args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"])
        .arg(dir);
    let output = command.output();
    let is_mounted = output.is_ok_and(|output| output.status.success());
    is_mounted.then_some(MountedDirectory(dir))
}

#[test]
fn a_full_disk_is_reported_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = mount(dir.path()) else {
        eprintln!("skipped: a tmpfs cannot be mounted here (that needs root)");
        return;
    };
    let config = StoreConfig {
        segment_bytes: 1 << 20,
        min_free_bytes: 4 << 20,
        ..StoreConfig::default()
    };
    let store_dir = dir.path().join("store");
    let mut bench = StoreFixture::open(&store_dir, config.clone());
    let mut model = StoreModel::default();
    for _ in 0..500 {
        bench.submit(|batch| model.step(1, batch));
    }
    bench.observer.wait_logged(0, model.number);
    assert_eq!(bench.store.health(), StoreHealth::Ok);

    // A filler file takes nearly all space, then all of it.
    let filler = dir.path().join("filler");
    fs::write(&filler, vec![1; 27 << 20]).unwrap();
    wait_until("it is full", || bench.store.health() == StoreHealth::Full);
    let rest = fs::write(dir.path().join("rest"), vec![1; 16 << 20]);
    assert!(rest.is_err(), "the disk should be full");
    // Batches submitted nevertheless are kept, in memory if necessary.
    for _ in 0..3000 {
        bench.submit(|batch| model.step(1, batch));
    }
    wait_until("it is not well", || bench.store.health() != StoreHealth::Ok);

    fs::remove_file(&filler).unwrap();
    fs::remove_file(dir.path().join("rest")).unwrap();
    bench.observer.wait_logged(0, model.number);
    wait_until("it heals", || bench.store.health() == StoreHealth::Ok);
    check_messages(&bench, &model);
    drop(bench);
    drop(check_opened(
        Store::open(&store_dir, config).unwrap().0,
        &model,
    ));
}
