//! The HTTP listener of the node: bound before anything else starts, served last.

use std::sync::Arc;

use api::{ApiParts, HttpConfig, HttpListener, SharedHttpConfig};
use broker::ListenerTls;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::data_dir::OpenListener;
use super::start_error;
use crate::config::Config;

/// A listener that accepts no connections yet.
pub(super) struct BoundHttp {
    pub(super) config: HttpConfig,
    listener: HttpListener,
    pub(super) tls: Option<Arc<ListenerTls>>,
}

pub(super) struct HttpTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), api::HttpServerError>>,
}

impl BoundHttp {
    /// `None`: HTTP is off.
    pub(super) async fn bind(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(http) = &config.http else {
            return Ok(None);
        };
        let listener = api::bind(http)
            .await
            .map_err(|error| start_error::http_error(&error, config))?;
        let tls = match &config.http_tls {
            Some(files) => {
                let loaded = ListenerTls::load(files);
                Some(loaded.map_err(|error| start_error::http_tls_error(&error))?)
            }
            None => None,
        };
        Ok(Some(Self {
            config: http.clone(),
            listener,
            tls: tls.map(Arc::new),
        }))
    }

    pub(super) fn open_listener(&self) -> anyhow::Result<OpenListener> {
        let protocol = match self.tls {
            Some(_) => "https",
            None => "http",
        };
        Ok(OpenListener {
            name: "http".into(),
            protocol: protocol.into(),
            address: self.listener.local_address()?.to_string(),
        })
    }

    /// Accepts connections from now on.
    pub(super) fn serve(self, live: SharedHttpConfig, parts: ApiParts) -> HttpTask {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                // Dropping the sender has the same effect.
                let _ = stopped.await;
            };
            api::serve(self.listener, &live, parts, shutdown).await
        });
        HttpTask { stop, task }
    }
}

impl HttpTask {
    pub(super) async fn stop(self) {
        // If HTTP has already ended, the next line reports its error.
        let _ = self.stop.send(());
        match self.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("HTTP listener ended early: {error}"),
            Err(_) => tracing::error!("HTTP listener panicked; this is a bug"),
        }
    }
}
