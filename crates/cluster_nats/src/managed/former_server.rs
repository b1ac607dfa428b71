//! The files of a managed server whose node does not run.

use std::path::{Path, PathBuf};

use secret::Secret;
use serde_json::Value;

use super::{config_file, old_process};

/// What a managed server has left in its directory.
#[derive(Debug)]
pub struct FormerNatsServer {
    directory: PathBuf,
    config: Value,
}

impl FormerNatsServer {
    /// `None`: there has been no server.
    ///
    /// # Errors
    /// If its configuration cannot be read.
    pub fn find(directory: &Path) -> std::io::Result<Option<Self>> {
        if !directory.exists() {
            return Ok(None);
        }
        let config = match std::fs::read(config_file::config_path(directory)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
            text => serde_json::from_slice(&text?)?,
        };
        Ok(Some(Self {
            directory: directory.to_owned(),
            config,
        }))
    }

    /// Whether it formed a cluster with others by this secret, when it was started last.
    #[must_use]
    pub fn had_secret(&self, secret: &Secret) -> bool {
        let password = &self.config["cluster"]["authorization"]["password"];
        password.as_str() == Some(config_file::route_password(secret).as_str())
    }

    /// Ends the process, if a node that was killed has left it behind. False: it still runs.
    pub async fn end(&self) -> bool {
        old_process::end(
            &config_file::pid_path(&self.directory),
            &config_file::config_path(&self.directory),
        )
        .await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cluster::NodeName;

    use super::super::ManagedNatsSettings;
    use super::super::config_file::ClientCredentials;
    use super::*;

    #[test]
    fn the_secret_of_a_former_server_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("nats");
        assert!(FormerNatsServer::find(&directory).unwrap().is_none());
        let secret = Secret::from("the secret of all servers");
        let node = NodeName::new("a").unwrap();
        let mut settings =
            ManagedNatsSettings::new(directory.clone(), "tidegate", node, secret.clone());
        let credentials = ClientCredentials {
            port: 4222,
            password: Secret::from("one"),
            system_password: Secret::from("two"),
        };
        config_file::write(&settings, &credentials).unwrap();
        let alone = FormerNatsServer::find(&directory).unwrap().unwrap();
        assert!(!alone.had_secret(&secret), "it had no others");
        settings.peers = vec!["b:6222".to_owned()];
        config_file::write(&settings, &credentials).unwrap();
        let server = FormerNatsServer::find(&directory).unwrap().unwrap();
        assert!(server.had_secret(&secret));
        assert!(!server.had_secret(&Secret::from("another secret of all servers")));
    }
}
