//! PostgreSQL. A connection carries many questions at once, so a few of them serve many clients.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_postgres::tls::ChannelBinding;

use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Connection, NoTls};

use super::statement::{Statement, Style};
use super::{DatabaseSettings, Lookup, Row};
use crate::authenticator::{Answering, Failure, Request};
use crate::tls;

const USUAL_PORT: u16 = 5432;
/// A connection whose server does not acknowledge bytes for so long is given up.
const SILENT_FOR: Duration = Duration::from_secs(10);

pub(super) struct Postgres {
    config: Config,
    host: String,
    port: u16,
    tls: Option<tokio_rustls::TlsConnector>,
    statement: Statement,
    slots: Vec<Mutex<Option<Arc<Ready>>>>,
    next: AtomicUsize,
}

/// A connection with the question prepared.
struct Ready {
    client: Client,
    statement: tokio_postgres::Statement,
}

impl Postgres {
    pub(super) fn new(settings: &DatabaseSettings) -> Result<Self, String> {
        let statement = Statement::parse(&settings.query, Style::Numbered)
            .map_err(|error| format!("query: {error}"))?;
        let (host, port) = settings.host_and_port(USUAL_PORT)?;
        let mut config = Config::new();
        config.application_name("tidegate");
        if let Some(username) = &settings.username {
            config.user(username);
        }
        if let Some(password) = &settings.password {
            config.password(password.reveal());
        }
        if let Some(database) = &settings.database {
            config.dbname(database);
        }
        let tls = match settings.tls {
            false => None,
            true => Some(tls::client_config(settings.tls_ca.as_deref())?.into()),
        };
        config.ssl_mode(match settings.tls {
            true => tokio_postgres::config::SslMode::Require,
            false => tokio_postgres::config::SslMode::Disable,
        });
        Ok(Self {
            config,
            host,
            port,
            tls,
            statement,
            slots: (0..settings.pool_size).map(|_| Mutex::default()).collect(),
            next: AtomicUsize::new(0),
        })
    }

    async fn connect(&self) -> Result<Ready, Asked> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENT_FOR))?;
        socket.set_tcp_user_timeout(Some(SILENT_FOR))?;
        let client = match &self.tls {
            None => {
                let (client, connection) = self.config.connect_raw(stream, NoTls).await?;
                drive(connection);
                client
            }
            Some(connector) => {
                let connect = TlsConnect {
                    host: self.host.clone(),
                    connector: connector.clone(),
                };
                let (client, connection) = self.config.connect_raw(stream, connect).await?;
                drive(connection);
                client
            }
        };
        let statement = client.prepare(&self.statement.sql).await?;
        Ok(Ready { client, statement })
    }

    /// A connection that works as far as one knows.
    async fn ready(&self) -> Result<Arc<Ready>, Asked> {
        let at = self.next.fetch_add(1, Relaxed) % self.slots.len();
        let mut slot = self.slots[at].lock().await;
        match &*slot {
            Some(ready) if !ready.client.is_closed() => Ok(ready.clone()),
            _ => {
                let ready = Arc::new(self.connect().await?);
                *slot = Some(ready.clone());
                Ok(ready)
            }
        }
    }

    async fn ask(&self, request: &Request) -> Result<Vec<Row>, Asked> {
        let parameters: Vec<Parameter> = self
            .statement
            .parameters(request)
            .into_iter()
            .map(Parameter)
            .collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = parameters
            .iter()
            .map(|parameter| parameter as &(dyn ToSql + Sync))
            .collect();
        let ready = self.ready().await?;
        let rows = ready.client.query(&ready.statement, &parameters).await;
        let rows = rows.map_err(|error| Asked {
            is_closed: ready.client.is_closed(),
            ..error.into()
        })?;
        Ok(rows.iter().map(row_of).collect())
    }
}

/// Why a question failed, and whether that was because its connection had been closed meanwhile.
struct Asked {
    error: String,
    is_closed: bool,
}

impl From<io::Error> for Asked {
    fn from(error: io::Error) -> Self {
        Self {
            error: error.to_string(),
            is_closed: false,
        }
    }
}

impl From<tokio_postgres::Error> for Asked {
    fn from(error: tokio_postgres::Error) -> Self {
        let cause = error.source().map(|cause| format!(": {cause}"));
        Self {
            error: format!("{error}{}", cause.unwrap_or_default()),
            is_closed: false,
        }
    }
}

impl From<Asked> for Failure {
    fn from(asked: Asked) -> Self {
        Failure(asked.error)
    }
}

/// Moves a connection's bytes until it ends.
fn drive<S, T>(connection: Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL ended");
        }
    });
}

fn row_of(row: &tokio_postgres::Row) -> Row {
    let columns = row.columns().iter().enumerate();
    columns
        .map(|(at, column)| {
            let value: Option<Text> = row.try_get(at).unwrap_or(None);
            (column.name().to_lowercase(), value.map(|text| text.0))
        })
        .collect()
}

/// A parameter as a text, whatever type the server wants: it reads it as that.
#[derive(Debug)]
struct Parameter(Option<String>);

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A value as a text, of the types users and rules are kept in.
struct Text(String);

impl<'a> FromSql<'a> for Text {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *kind {
            Type::BOOL => bool::from_sql(kind, raw)?.to_string(),
            Type::INT2 => i16::from_sql(kind, raw)?.to_string(),
            Type::INT4 => i32::from_sql(kind, raw)?.to_string(),
            Type::INT8 => i64::from_sql(kind, raw)?.to_string(),
            // Texts, names, enumerations.
            _ => std::str::from_utf8(raw)?.to_owned(),
        }))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl Lookup for Postgres {
    fn rows<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Vec<Row>, Failure>> {
        Box::pin(async move {
            match self.ask(request).await {
                // The server has been restarted, perhaps.
                Err(asked) if asked.is_closed => Ok(self.ask(request).await?),
                answer => Ok(answer?),
            }
        })
    }
}

/// TLS by rustls, as this crate has it everywhere.
struct TlsConnect {
    host: String,
    connector: tokio_rustls::TlsConnector,
}

impl tokio_postgres::tls::TlsConnect<TcpStream> for TlsConnect {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(TlsStream(self.connector.connect(name, stream).await?))
        })
    }
}

struct TlsStream(tokio_rustls::client::TlsStream<TcpStream>);

impl tokio_postgres::tls::TlsStream for TlsStream {
    /// Passwords are not bound to the channel; the certificate says who the server is.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
