//! Checks of settings, and tests of connectors and sinks against their servers.

use std::time::Duration;

use serde_json::Value;

use super::sink::CHECK_TIMEOUT;
use super::source::SourceSettings;
use super::{ConnectorService, split};
use crate::connector::{Connector, ConnectorError, Retryable};
use crate::settings::{SettingsError, SinkSettings};

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

impl ConnectorService {
    /// Validates settings of a source, as far as the connector is known.
    pub fn check_source(&self, settings: &Value) -> Result<(), SettingsError> {
        let (common, own) = SourceSettings::split(settings)?;
        let connector = self.connector_of(&common.connector)?;
        let _runtime = self.inner.runtime.enter();
        connector.reader(own).map(drop)
    }

    /// Validates settings of a connector.
    pub fn check_connector(&self, name: &str, settings: &Value) -> Result<(), SettingsError> {
        let (kind, _, fields) = split(settings)?;
        self.open(name, kind, fields).map(drop)
    }

    /// Validates settings of a sink, as far as the connector is known.
    pub fn check_sink(&self, settings: &Value) -> Result<(), SettingsError> {
        let (common, own) = SinkSettings::split(settings)?;
        if let crate::settings::DeliveryOrder::By(key) = &common.order {
            crate::template::Template::parse("order.by", key)?;
        }
        if common.queue.disk.is_some() && self.inner.options.directory.is_none() {
            let detail = "the node has no data directory";
            return Err(SettingsError::new("queue.disk", detail));
        }
        let connector = self.connector_of(&common.connector)?;
        let _runtime = self.inner.runtime.enter();
        let writer = connector.writer(own);
        writer
            .map(drop)
            .map_err(|error| SinkSettings::suggest_common_field(settings, error))
    }

    /// Checks a sink's statement, table and columns with its system. An error means that a correction is needed; a system that cannot
    /// be reached yields no error. Runs within a tokio runtime.
    pub async fn probe_sink(&self, settings: &Value) -> Result<(), SettingsError> {
        let (common, own) = SinkSettings::split(settings)?;
        let field = ["sql", "table"]
            .into_iter()
            .find(|name| own.contains_key(*name));
        let connector = self.connector_of(&common.connector)?;
        let writer = connector.writer(own)?;
        let Some(checking) = writer.check() else {
            return Ok(());
        };
        match tokio::time::timeout(CHECK_TIMEOUT, checking).await {
            Ok(Err(failure)) if failure.retryable == Retryable::Permanent => {
                let detail = format!("the system rejects it: {failure}");
                Err(SettingsError::new(field.unwrap_or_default(), detail))
            }
            _ => Ok(()),
        }
    }

    /// Connects to the system of a sink and checks its statement, if any; returns a description. `None`: no such sink.
    pub async fn test_sink(&self, name: &str) -> Option<Result<String, ConnectorError>> {
        let (sink, connector) = {
            let control = self.inner.control();
            let sink = control.sinks.get(name)?.clone();
            let connector = control.connectors.get(&sink.connector());
            (sink, connector.map(|opened| opened.connector.clone()))
        };
        let Some(connector) = connector else {
            let what = format!("there is no connector {:?}", sink.connector());
            return Some(Err(ConnectorError::transient(what)));
        };
        let reached = test(&*connector).await;
        let tested = match (&reached, connector.clone().writer(sink.own_settings())) {
            (Err(_), _) => reached,
            (Ok(_), Err(error)) => Err(ConnectorError::permanent(error)),
            (Ok(who), Ok(writer)) => match writer.check() {
                None => reached,
                Some(checking) => match tokio::time::timeout(TEST_TIMEOUT, checking).await {
                    Ok(checked) => checked.map(|found| format!("{who}: {found}")),
                    Err(_) => Err(ConnectorError::transient(
                        "checking the statement timed out",
                    )),
                },
            },
        };
        sink.record_test(&tested);
        Some(tested)
    }

    /// Connects to the system of a connector; returns a description of it.
    pub async fn test_connector(&self, name: &str) -> Option<Result<String, ConnectorError>> {
        let connector = {
            let control = self.inner.control();
            control.connectors.get(name)?.connector.clone()
        };
        Some(test(&*connector).await)
    }

    /// Connects to the system of a connector that is not stored.
    pub async fn test_settings(
        &self,
        settings: &Value,
    ) -> Result<Result<String, ConnectorError>, SettingsError> {
        let (kind, _, fields) = split(settings)?;
        let connector = self.open("test", kind, fields)?;
        Ok(test(&*connector).await)
    }
}

async fn test(connector: &dyn Connector) -> Result<String, ConnectorError> {
    match tokio::time::timeout(TEST_TIMEOUT, connector.test()).await {
        Ok(answer) => answer,
        Err(_) => {
            let s = TEST_TIMEOUT.as_secs();
            Err(ConnectorError::transient(format!(
                "no answer within {s} seconds"
            )))
        }
    }
}
