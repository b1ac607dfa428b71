//! Redis and what speaks its protocol, one server or a cluster: a pipeline per batch, and streams that are received.

mod answers;
mod lines;
mod sink;
mod slots;
mod source;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisConnectionInfo};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Reader, Writer, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, host_and_port, read};
use crate::tls::Tls;
use answers::failure;
use lines::Lines;
use slots::Routes;

pub(super) const KIND: Kind = Kind {
    name: "redis",
    title: "Redis",
    batch: BatchDefaults::USUAL,
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<sink::Settings>,
    source_schema: Some(schema_of::<source::Settings>),
    open,
};

const USUAL_PORT: u16 = 6379;
const MAX_NODES: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `HOST:PORT` of a server that is alone.
    server: Option<String>,
    /// `HOST:PORT` of some servers of a cluster, which tell where the others are.
    #[serde(default)]
    #[schemars(length(max = 64))]
    nodes: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that holds the password.
    password_file: Option<std::path::PathBuf>,
    /// The number of a database; a cluster has only 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    database: i64,
    tls: Option<Tls>,
    #[serde(default = "five_s")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn five_s() -> u64 {
    5000
}

/// Host and port.
type Address = (String, u16);

struct Redis {
    lines: Lines,
    routes: Routes,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let password = Secret::of_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let routes = match (&settings.server, settings.nodes.as_slice()) {
        (Some(server), []) => Routes::to_one(host_and_port("server", server, USUAL_PORT)?),
        (None, nodes @ [_, ..]) if nodes.len() <= MAX_NODES => {
            let nodes = nodes.iter().enumerate();
            let seeds = nodes
                .map(|(at, node)| host_and_port(&format!("nodes[{at}]"), node, USUAL_PORT))
                .collect::<Result<_, _>>()?;
            Routes::of_cluster(seeds)
        }
        (None, []) => {
            let detail = "missing; or name some servers of a cluster with nodes";
            return Err(Invalid::new("server", detail));
        }
        (None, _) => {
            let detail = format!("expected at most {MAX_NODES}; the others are found by these");
            return Err(Invalid::new("nodes", detail));
        }
        (Some(_), _) => {
            let detail = "give either server or nodes, which are those of a cluster";
            return Err(Invalid::new("nodes", detail));
        }
    };
    if routes.is_cluster() && settings.database != 0 {
        return Err(Invalid::new("database", "a cluster has only number 0"));
    }
    let mut login = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(username) = &settings.username {
        login = login.set_username(username);
    }
    if let Some(password) = &password {
        login = login.set_password(password.reveal());
    }
    let tls = settings.tls.as_ref().map(lines::certificates).transpose()?;
    let connect_timeout = Duration::from_millis(settings.connect_timeout_ms);
    Ok(Arc::new(Redis {
        lines: Lines::new(login, tls, connect_timeout),
        routes,
    }))
}

impl Connector for Redis {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        Ok(Arc::new(sink::Sink::new(self, read(settings)?)?))
    }

    fn reader(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
        Ok(Arc::new(source::Source::new(self, read(settings)?)?))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async move {
            self.routes.outdated();
            let map = self.routes.map(&self.lines).await?;
            let Some(address) = map.nodes().first() else {
                return Err(Failure::passing("no server of the cluster has slots"));
            };
            let mut info = Cmd::new();
            info.arg("INFO").arg("server");
            let answer = self.lines.ask(address, &info).await.map_err(failure)?;
            let text = redis::from_redis_value::<String>(answer).unwrap_or_default();
            let version = text
                .lines()
                .find_map(|line| line.strip_prefix("redis_version:"));
            let version = version.unwrap_or("of an unknown version");
            Ok(match map.nodes().len() {
                1 => format!("Redis {version}"),
                nodes => format!("Redis {version}, a cluster of {nodes} masters"),
            })
        })
    }
}
