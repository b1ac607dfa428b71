//! `tidegate pub` and `tidegate sub`: an MQTT client in layers. [transport] transfers bytes,
//! `mqtt_client` is the protocol without I/O, [connection] combines the two.

mod connection;
mod endpoint;
mod error;
mod message_output;
mod options;
mod publish;
mod runtime;
mod subscribe;
mod tls;
mod transport;

pub(crate) use error::ClientError;
pub(crate) use publish::PubArgs;
pub(crate) use subscribe::SubArgs;
pub(crate) use tls::{
    TlsTrustArgs, client_config as tls_client_config, describe as describe_connection_error,
    for_https as tls_for_https, https_hint,
};
