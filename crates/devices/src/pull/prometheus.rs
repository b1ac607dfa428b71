//! Polls the HTTP API of Prometheus: samples of instant queries become values of devices by their labels.

use outbound::http::HttpMethod;
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value};

use super::definition::{self, PullSourceError};
use super::http_endpoint::HttpEndpoint;
use super::label_template::LabelTemplate;
use super::readings::{PullError, Readings};

pub(super) struct PrometheusReader {
    web: HttpEndpoint,
    url: String,
    queries: Vec<CompiledQuery>,
}

struct CompiledQuery {
    text: String,
    key: LabelTemplate,
    device: LabelTemplate,
}

impl PrometheusReader {
    pub(super) fn new(settings: &definition::PrometheusSettings) -> Result<Self, PullSourceError> {
        let web = HttpEndpoint::new("prometheus.server", &settings.server)?;
        let queries = settings.queries.iter().enumerate().map(|(at, query)| {
            let text = |field: &str, text: &str| {
                let field = format!("prometheus.queries[{at}].{field}");
                LabelTemplate::parse(text).map_err(|why| PullSourceError::new(field, why))
            };
            Ok(CompiledQuery {
                text: query.query.clone(),
                key: text("key", &query.key)?,
                device: text("device", &query.device)?,
            })
        });
        Ok(Self {
            queries: queries.collect::<Result<_, _>>()?,
            url: format!("{}/api/v1/query", web.base()),
            web,
        })
    }

    /// Runs one query after the other. A failed query does not affect the others.
    pub(super) async fn run_queries(&self) -> Result<Readings, PullError> {
        let (mut readings, mut failed) = (Readings::default(), 0);
        for query in &self.queries {
            if let Err(failure) = self.run_query(query, &mut readings).await {
                failed += 1;
                let problem = format!("{:?}: {failure}", query.text);
                readings.partial_error.get_or_insert(problem);
            }
        }
        match readings.partial_error {
            Some(problem) if failed == self.queries.len() => Err(PullError(problem)),
            _ => Ok(readings),
        }
    }

    async fn run_query(
        &self,
        query: &CompiledQuery,
        readings: &mut Readings,
    ) -> Result<(), PullError> {
        let body = format!("query={}", url_encode(&query.text));
        let form = "application/x-www-form-urlencoded";
        let asking = self
            .web
            .request(HttpMethod::POST, &self.url, form, body.into_bytes());
        let (answer, json) = asking.await?;
        let Some(json) = json.filter(|json| json["status"].is_string()) else {
            return Err(PullError::new(format!(
                "expected a response of the Prometheus API, found {}",
                answer.describe()
            )));
        };
        if json["status"] != "success" {
            let text = |name: &str| json[name].as_str().unwrap_or_default();
            return Err(PullError::new(format!(
                "{}: {}",
                text("errorType"),
                text("error")
            )));
        }
        let data = &json["data"];
        match data["resultType"].as_str() {
            Some("vector") => {
                for series in data["result"].as_array().into_iter().flatten() {
                    add_sample(query, &series["metric"], &series["value"], readings)?;
                }
                Ok(())
            }
            Some("scalar") => add_sample(query, &Value::Null, &data["result"], readings),
            other => Err(PullError::new(format!(
                "expected an instant vector or a scalar, found the type {:?}",
                other.unwrap_or_default()
            ))),
        }
    }
}

fn add_sample(
    query: &CompiledQuery,
    metric: &Value,
    sample: &Value,
    readings: &mut Readings,
) -> Result<(), PullError> {
    let no_labels = Map::new();
    let labels = metric.as_object().unwrap_or(&no_labels);
    let label = |name: &str| Some(labels.get(name)?.as_str()?.to_owned());
    let (Some(device), Some(key)) = (query.device.fill(label), query.key.fill(label)) else {
        let there: Vec<&str> = labels.keys().map(String::as_str).collect();
        return Err(PullError::new(format!(
            "a series lacks labels used in key or device; its labels are {}",
            there.join(", ")
        )));
    };
    let ts_ms = sample[0]
        .as_f64()
        .map(|seconds| (seconds * 1000.0).round() as i64);
    let value = sample[1].as_str().and_then(|text| text.parse::<f64>().ok());
    match value.and_then(number) {
        Some(value) => readings.add(&device, ts_ms, key, value),
        None => readings.skipped += 1,
    }
    Ok(())
}

/// Converts whole numbers to integers; `None`: not finite.
fn number(value: f64) -> Option<Value> {
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= MAX_EXACT {
        return Some(Value::from(value as i64));
    }
    serde_json::Number::from_f64(value).map(Value::Number)
}
