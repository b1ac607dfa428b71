//! NATS and JetStream. The protocol is spoken here: the usual client mends broken connections by itself and then sends what
//! it still had before what was lost, so no order could be promised, and it cannot say what a server has read.

mod nkey;
mod session;
mod sink;
mod source;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Reader, Writer, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, host_and_port, read};
use crate::tls::Tls;
use nkey::NKey;
use session::Session;

pub(super) const KIND: Kind = Kind {
    name: "nats",
    title: "NATS and JetStream",
    batch: BatchDefaults::USUAL,
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<sink::Settings>,
    source_schema: Some(schema_of::<source::Settings>),
    open,
};

const USUAL_PORT: u16 = 4222;
const MAX_SERVERS: usize = 64;

/// Where the servers are, and who we are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Servers of one cluster, as `HOST` or `HOST:PORT`; the first that answers is used.
    #[schemars(length(min = 1, max = 64))]
    servers: Vec<String>,
    user: Option<String>,
    password: Option<Secret>,
    /// File with the password.
    password_file: Option<PathBuf>,
    token: Option<Secret>,
    /// File with the token.
    token_file: Option<PathBuf>,
    /// The seed of an NKey, `SU...`.
    nkey_seed: Option<Secret>,
    /// File with the seed.
    nkey_seed_file: Option<PathBuf>,
    /// File with a user's JWT and seed, as `nsc` writes it (`.creds`).
    credentials_file: Option<PathBuf>,
    tls: Option<Tls>,
}

/// What a server is told about us.
struct Login {
    name: String,
    user: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    jwt: Option<Secret>,
    nkey: Option<NKey>,
    tls: Option<Arc<ClientConfig>>,
}

/// The servers of a cluster, and the connection to one of them that all sinks share.
struct Nats {
    servers: Vec<(String, u16)>,
    login: Login,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
}

fn open(fields: Map<String, Value>, context: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    if settings.servers.is_empty() || settings.servers.len() > MAX_SERVERS {
        let detail = format!("expected 1 to {MAX_SERVERS} servers");
        return Err(Invalid::new("servers", detail));
    }
    let servers = settings.servers.iter().enumerate().map(|(at, server)| {
        let server = server.strip_prefix("nats://").unwrap_or(server);
        host_and_port(&format!("servers[{at}]"), server, USUAL_PORT)
    });
    let servers = servers.collect::<Result<_, _>>()?;
    Ok(Arc::new(Nats {
        servers,
        login: login(settings, context)?,
        session: tokio::sync::Mutex::default(),
    }))
}

fn login(settings: Settings, context: &Context) -> Result<Login, Invalid> {
    let Settings {
        password, token, ..
    } = &settings;
    let password = Secret::of_setting(
        "password",
        password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let token = Secret::of_setting("token", token.as_ref(), settings.token_file.as_ref())?;
    let seed = Secret::of_setting(
        "nkey_seed",
        settings.nkey_seed.as_ref(),
        settings.nkey_seed_file.as_ref(),
    )?;
    if password.is_some() && settings.user.is_none() {
        return Err(Invalid::new("user", "missing; there is a password"));
    }
    let mut nkey = match seed {
        None => None,
        Some(seed) => {
            let key = NKey::from_seed(seed.reveal());
            Some(key.map_err(|error| Invalid::new("nkey_seed", error))?)
        }
    };
    let mut jwt = None;
    if let Some(path) = &settings.credentials_file {
        let wrong = |why: String| {
            let detail = format!("{}: {why}", path.display());
            Invalid::new("credentials_file", detail)
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let (token, seed) = nkey::read_credentials(&text)
            .ok_or_else(|| wrong("expected a JWT and a seed, as nsc writes them".into()))?;
        nkey = Some(NKey::from_seed(&seed).map_err(wrong)?);
        jwt = Some(Secret::from(token.as_str()));
    }
    let tls = match &settings.tls {
        Some(tls) => Some(tls.client_config("tls")?),
        None => None,
    };
    Ok(Login {
        name: format!("tidegate {}", context.name),
        user: settings.user,
        password,
        token,
        jwt,
        nkey,
        tls,
    })
}

impl Nats {
    /// A connection that is there, as far as is known.
    async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut slot = self.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_over()) {
            return Ok(session.clone());
        }
        let session = Arc::new(self.connect().await?);
        *slot = Some(session.clone());
        Ok(session)
    }

    async fn connect(&self) -> Result<Session, Failure> {
        let mut why = Vec::new();
        for (host, port) in &self.servers {
            match Session::open(&self.login, host, *port).await {
                Ok(session) => return Ok(session),
                Err(failure) => why.push(failure.message),
            }
        }
        Err(Failure::passing(why.join("; ")))
    }
}

impl Connector for Nats {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        Ok(Arc::new(sink::Sink::new(self, read(settings)?)?))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async {
            let info = self.connect().await?.info.clone();
            let jetstream = if info.jetstream { "with" } else { "without" };
            Ok(format!("NATS {} {jetstream} JetStream", info.version))
        })
    }

    fn reader(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
        Ok(Arc::new(source::Source::new(self, read(settings)?)?))
    }
}
