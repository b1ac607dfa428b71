//! Servers of other systems that rows write to. They are given by their addresses, because the program does not start them.

use anyhow::{Context as _, ensure};
use outbound::url_encoding::url_encode;
use serde::Deserialize;
use wall_clock::now_ms;

/// The kind of a server.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ServerKind {
    Mysql,
    Redis,
    Opensearch,
}

impl ServerKind {
    const ALL: [Self; 3] = [Self::Mysql, Self::Redis, Self::Opensearch];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::Opensearch => "opensearch",
        }
    }

    /// Why a row without its server is not measured.
    pub(super) fn missing_reason(self) -> String {
        let what = match self {
            Self::Mysql => {
                "MySQL with a table `bench_rows (n BIGINT, device VARCHAR(64), v DOUBLE)`; its address is given by --server \
                 mysql=USER:PASSWORD@HOST:PORT/DATABASE"
            }
            Self::Redis => "Redis; its address is given by --server redis=HOST:PORT",
            Self::Opensearch => "OpenSearch; its address is given by --server opensearch=HOST:PORT",
        };
        format!("needs {what}")
    }
}

/// An argument of `--server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowServer {
    pub(super) kind: ServerKind,
    /// Host and port.
    address: String,
    /// User name and password.
    login: Option<(String, String)>,
    database: String,
}

impl std::str::FromStr for RowServer {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = || {
            format!(
                "`{text}`: expected mysql, redis or opensearch, and [USER:PASSWORD@]HOST:PORT[/DATABASE], such as redis=127.0.0.1:6379"
            )
        };
        let (kind, url) = text.split_once('=').with_context(expected)?;
        let mut kinds = ServerKind::ALL.into_iter();
        let kind = kinds
            .find(|known| known.name() == kind)
            .with_context(expected)?;
        let (login, place) = match url.rsplit_once('@') {
            Some((login, place)) => {
                let (user, password) = login.split_once(':').with_context(expected)?;
                (Some((user.to_owned(), password.to_owned())), place)
            }
            None => (None, url),
        };
        let (address, database) = place.split_once('/').unwrap_or((place, ""));
        let port = address.rsplit_once(':').map(|(_, port)| port);
        ensure!(
            port.is_some_and(|port| port.parse::<u16>().is_ok()),
            expected()
        );
        ensure!(
            kind != ServerKind::Mysql || !database.is_empty(),
            "`{text}`: expected a database, such as mysql=USER:PASSWORD@127.0.0.1:3306/bench"
        );
        Ok(Self {
            kind,
            address: address.to_owned(),
            login,
            database: database.to_owned(),
        })
    }
}

impl RowServer {
    /// A node's configuration with the address and credentials of the server.
    pub(super) fn fill_in(&self, configuration: &str) -> String {
        // Texts of JSON are texts of TOML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let login = self.login.as_ref().map(|(user, password)| {
            format!(
                "username = {}\npassword = {}",
                quoted(user),
                quoted(password)
            )
        });
        let login_of_url = self
            .login
            .as_ref()
            .map(|(user, password)| format!("{}:{}@", url_encode(user), url_encode(password)));
        let url = format!(
            "{}://{}{}/{}",
            self.kind.name(),
            login_of_url.unwrap_or_default(),
            self.address,
            self.database
        );
        configuration
            .replace("{server_url}", &quoted(&url))
            // Tables and keys of queues belong to one data directory.
            .replace("{queue_prefix}", &format!("bench_{}", now_ms()))
            .replace("{server_login}", &login.unwrap_or_default())
            .replace("{server_database}", &quoted(&self.database))
            .replace("{server}", &self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_filled_into_configurations() {
        let server: RowServer = "mysql=me:a\"b@db:3306/x".parse().expect("well-formed");
        let text =
            server.fill_in("server = \"{server}\"\n{server_login}\ndatabase = {server_database}");
        assert_eq!(
            text,
            "server = \"db:3306\"\nusername = \"me\"\npassword = \"a\\\"b\"\ndatabase = \"x\""
        );
        let url = server.fill_in("{server_url}");
        assert_eq!(url, "\"mysql://me:a%22b@db:3306/x\"");
        let server: RowServer = "redis=127.0.0.1:6379".parse().expect("well-formed");
        assert_eq!(
            server.fill_in("{server} {server_login}."),
            "127.0.0.1:6379 ."
        );
        for (text, problem) in [
            ("redis", "expected mysql"),
            ("kafka=a:1", "expected mysql"),
            ("redis=a", "HOST:PORT"),
            ("redis=me@a:1", "USER:PASSWORD"),
            ("mysql=a:1", "expected a database"),
        ] {
            let error = text.parse::<RowServer>().expect_err(text).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
