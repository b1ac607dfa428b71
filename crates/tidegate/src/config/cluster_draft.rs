//! The section `cluster` as it is written.

use std::path::PathBuf;

use super::standby_use::StandbyUse;

/// The settings as written.
#[derive(Clone)]
pub(super) struct ClusterDraft {
    pub(super) node: Option<String>,
    pub(super) name: String,
    pub(super) start_timeout_s: u32,
    pub(super) away_timeout_s: u32,
    pub(super) drain_rate: u32,
    pub(super) standby: StandbyUse,
    pub(super) api_url: Option<String>,
    pub(super) urls: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) credentials_file: Option<PathBuf>,
    pub(super) tls: bool,
    pub(super) authorities: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) private_key: Option<PathBuf>,
    pub(super) managed: bool,
    pub(super) program: Option<PathBuf>,
    pub(super) listen: String,
    pub(super) advertise: Option<String>,
    pub(super) peers: Option<String>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) max_memory: u64,
    pub(super) max_disk: u64,
}

impl Default for ClusterDraft {
    fn default() -> Self {
        Self {
            node: None,
            name: "tidegate".into(),
            start_timeout_s: 10,
            away_timeout_s: 3,
            drain_rate: 100,
            standby: StandbyUse::Auto,
            api_url: None,
            urls: None,
            user: None,
            password_file: None,
            token_file: None,
            credentials_file: None,
            tls: false,
            authorities: None,
            certificate: None,
            private_key: None,
            managed: false,
            program: None,
            listen: "127.0.0.1:6222".into(),
            advertise: None,
            peers: None,
            secret_file: None,
            max_memory: 512 << 20,
            max_disk: 8 << 30,
        }
    }
}
