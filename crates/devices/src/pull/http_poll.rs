//! Polls an HTTP server that returns JSON: items of the response become readings.

use outbound::http::HttpMethod;
use serde_json::Value;

use super::definition::{self, HttpPollMethod, PullSourceError};
use super::http_endpoint::HttpEndpoint;
use super::json_path::JsonPath;
use super::label_template::LabelTemplate;
use super::readings::{PullError, Readings};

/// Numbers below are seconds: as milliseconds they would be before March 1973.
const MIN_MS: f64 = 100_000_000_000.0;

pub(super) struct HttpPollReader {
    web: HttpEndpoint,
    method: HttpMethod,
    body: String,
    items: Option<JsonPath>,
    device: LabelTemplate,
    ts: Option<JsonPath>,
    /// Empty: all members with scalar values.
    values: Vec<(String, JsonPath)>,
}

impl HttpPollReader {
    pub(super) fn new(settings: &definition::HttpPollSettings) -> Result<Self, PullSourceError> {
        let path = |field: &str, path: &String| {
            let field = format!("http.{field}");
            JsonPath::parse(path).map_err(|why| PullSourceError::new(field, why))
        };
        let device = LabelTemplate::parse(&settings.device)
            .map_err(|why| PullSourceError::new("http.device", why))?;
        // Placeholders contain paths, which are validated here.
        let mut wrong = None;
        let _ = device.fill(|name| {
            if name != "#" {
                wrong = wrong.take().or(JsonPath::parse(name).err());
            }
            Some(String::new())
        });
        if let Some(why) = wrong {
            return Err(PullSourceError::new("http.device", why));
        }
        let values = settings.values.iter();
        let values = values.map(|(key, at)| Ok((key.clone(), path(&format!("values.{key}"), at)?)));
        Ok(Self {
            web: HttpEndpoint::new("http.server", &settings.server)?,
            method: match settings.method {
                HttpPollMethod::Get => HttpMethod::GET,
                HttpPollMethod::Post => HttpMethod::POST,
            },
            body: settings.body.clone(),
            items: settings
                .items
                .as_ref()
                .map(|items| path("items", items))
                .transpose()?,
            device,
            ts: settings.ts.as_ref().map(|ts| path("ts", ts)).transpose()?,
            values: values.collect::<Result<_, _>>()?,
        })
    }

    pub(super) async fn read_endpoint(&self) -> Result<Readings, PullError> {
        let body = self.body.clone().into_bytes();
        let url = self.web.url();
        let asking = self
            .web
            .request(self.method.clone(), url, "application/json", body);
        let (answer, json) = asking.await?;
        if !answer.is_success() {
            return Err(PullError(answer.describe()));
        }
        let json = json.ok_or_else(|| PullError::new(format!("no JSON: {}", answer.describe())))?;
        self.parse_response(&json)
    }

    fn parse_response(&self, answer: &Value) -> Result<Readings, PullError> {
        let mut readings = Readings::default();
        let Some(items) = &self.items else {
            self.parse_item("0", answer, &mut readings)?;
            return Ok(readings);
        };
        match items.find(answer) {
            Some(Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    self.parse_item(&at.to_string(), item, &mut readings)?;
                }
            }
            Some(Value::Object(items)) => {
                for (name, item) in items {
                    self.parse_item(name, item, &mut readings)?;
                }
            }
            _ => {
                return Err(PullError::new("the response has no list at the path items"));
            }
        }
        Ok(readings)
    }

    fn parse_item(
        &self,
        name: &str,
        item: &Value,
        readings: &mut Readings,
    ) -> Result<(), PullError> {
        let known = |path: &str| match path {
            "#" => Some(name.to_owned()),
            // Parsed without errors when the source was created.
            path => match JsonPath::parse(path).ok()?.find(item)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            },
        };
        let Some(device) = self.device.fill(known) else {
            return Err(PullError::new(format!(
                "the item {name} has no value for a placeholder of device"
            )));
        };
        let ts_ms = match self.ts.as_ref().map(|path| path.find(item)) {
            None => None,
            Some(found) => match found.and_then(time_of) {
                Some(ts_ms) => Some(ts_ms),
                None => {
                    return Err(PullError::new(format!(
                        "the item {name} has no timestamp at the path ts"
                    )));
                }
            },
        };
        if self.values.is_empty() {
            for (key, value) in item.as_object().into_iter().flatten() {
                match value {
                    Value::Null | Value::Array(_) | Value::Object(_) => readings.skipped += 1,
                    value => readings.add(&device, ts_ms, key.clone(), value.clone()),
                }
            }
            return Ok(());
        }
        for (key, path) in &self.values {
            match path.find(item) {
                None | Some(Value::Null) => readings.skipped += 1,
                Some(value) => readings.add(&device, ts_ms, key.clone(), value.clone()),
            }
        }
        Ok(())
    }
}

fn time_of(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            let ms = if number.abs() < MIN_MS {
                number * 1000.0
            } else {
                number
            };
            Some(ms.round() as i64)
        }
        Value::String(text) => {
            let time: jiff::Timestamp = text.parse().ok()?;
            Some(time.as_millisecond())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(settings: Value, answer: &Value) -> Result<Readings, PullError> {
        let mut whole = json!({"server": {"url": "http://h"}});
        whole
            .as_object_mut()
            .unwrap()
            .extend(settings.as_object().unwrap().clone());
        let settings = serde_json::from_value(whole).unwrap();
        HttpPollReader::new(&settings)
            .unwrap()
            .parse_response(answer)
    }

    fn rows(readings: Readings) -> Value {
        let rows = readings.rows.into_iter();
        rows.map(|row| json!([row.device, row.ts_ms, row.values]))
            .collect()
    }

    #[test]
    fn items_become_readings() {
        let answer = json!({"data": [
            {"id": "a", "at": 1_700_000_000, "t": 21.5, "env": {"h": 40}, "no": null},
            {"id": 7, "at": "2023-11-14T22:13:20.5Z", "t": "x"},
        ]});
        let settings = json!({
            "items": "data", "device": "room-${id}", "ts": "at",
            "values": {"temperature": "t", "humidity": "env.h"},
        });
        let readings = read(settings, &answer).unwrap();
        assert_eq!(readings.skipped, 1);
        let expected = json!([
            ["room-a", 1_700_000_000_000_i64, {"temperature": 21.5, "humidity": 40}],
            ["room-7", 1_700_000_000_500_i64, {"temperature": "x"}],
        ]);
        assert_eq!(rows(readings), expected);
        let all = read(json!({"items": "$.data", "device": "${#}"}), &answer).unwrap();
        assert_eq!(all.rows[1].device, "1");
        assert_eq!(all.rows[0].values.len(), 3);
        let one = read(json!({"device": "d"}), &json!({"t": 1, "ok": true})).unwrap();
        assert_eq!(rows(one), json!([["d", null, {"ok": true, "t": 1}]]));
        let by_name = read(
            json!({"items": "", "device": "${#}"}),
            &json!({"x": {"t": 1}}),
        )
        .unwrap();
        assert_eq!(rows(by_name), json!([["x", null, {"t": 1}]]));
    }

    #[test]
    fn mismatched_responses_are_reported() {
        let answer = json!({"data": {"id": [1]}});
        for (settings, part) in [
            (json!({"items": "none", "device": "d"}), "no list"),
            (
                json!({"items": "data.id", "device": "${id}"}),
                "placeholder of device",
            ),
            (json!({"device": "d", "ts": "x"}), "no timestamp"),
        ] {
            let failure = read(settings, &answer).unwrap_err().0;
            assert!(failure.contains(part), "{failure}");
        }
    }
}
