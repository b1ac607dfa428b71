//! A pull source that is ready to be polled.

use std::time::Duration;

use serde_json::Value;

use super::definition::{PullSourceDefinition, PullSourceError};
use super::http_poll::HttpPollReader;
use super::ipmi::IpmiReader;
use super::prometheus::PrometheusReader;
use super::readings::{MAX_VALUES, PullError, Readings};

pub(super) struct PullSource {
    pub(super) definition: PullSourceDefinition,
    reader: SourceReader,
}

enum SourceReader {
    Prometheus(PrometheusReader),
    Http(HttpPollReader),
    Ipmi(IpmiReader),
}

impl PullSource {
    /// Parses a definition and reads the files that it refers to.
    pub(super) fn from_definition(value: &Value) -> Result<Self, PullSourceError> {
        let definition = PullSourceDefinition::read(value)?;
        let reader = match (&definition.prometheus, &definition.http, &definition.ipmi) {
            (Some(prometheus), _, _) => {
                SourceReader::Prometheus(PrometheusReader::new(prometheus)?)
            }
            (None, Some(http), _) => SourceReader::Http(HttpPollReader::new(http)?),
            (None, None, Some(ipmi)) => SourceReader::Ipmi(IpmiReader::new(ipmi)?),
            (None, None, None) => {
                let detail = "expected one of prometheus, http and ipmi";
                return Err(PullSourceError::new("", detail));
            }
        };
        Ok(Self { definition, reader })
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.definition.interval_s))
    }

    /// Polls once. The readings contain the device ids of the node.
    pub(super) async fn read_all(&self) -> Result<Readings, PullError> {
        let timeout = Duration::from_millis(u64::from(self.definition.timeout_ms));
        let poll = async {
            match &self.reader {
                SourceReader::Prometheus(prometheus) => prometheus.run_queries().await,
                SourceReader::Http(polling) => polling.read_endpoint().await,
                SourceReader::Ipmi(ipmi) => ipmi.read_hosts().await,
            }
        };
        let result = tokio::time::timeout(timeout, poll).await;
        let mut readings = result.map_err(|_| {
            PullError::new(format!("no answer within {} ms", timeout.as_millis()))
        })??;
        let values = readings.values();
        if values > MAX_VALUES {
            return Err(PullError::new(format!(
                "expected at most {MAX_VALUES} values per poll, found {values}; request fewer"
            )));
        }
        for row in &mut readings.rows {
            if let Some(id) = self.definition.devices.get(&row.device) {
                row.device.clone_from(id);
            }
        }
        Ok(readings)
    }
}
