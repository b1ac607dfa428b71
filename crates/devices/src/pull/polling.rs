//! An HTTP server that answers with JSON: items of the answer become readings.

use outbound::http::HttpMethod;
use serde_json::Value;

use super::ask::Web;
use super::definition::{self, InvalidSource, Method};
use super::json_path::JsonPath;
use super::labels::Text;
use super::{Failure, Readings};

/// Numbers below are seconds: as milliseconds they would be in the spring of 1973.
const LEAST_MS: f64 = 100_000_000_000.0;

pub(super) struct Polling {
    web: Web,
    method: HttpMethod,
    body: String,
    items: Option<JsonPath>,
    device: Text,
    ts: Option<JsonPath>,
    /// Empty: all members that are values.
    values: Vec<(String, JsonPath)>,
}

impl Polling {
    pub(super) fn new(settings: &definition::Polling) -> Result<Self, InvalidSource> {
        let path = |field: &str, path: &String| {
            let field = format!("http.{field}");
            JsonPath::parse(path).map_err(|why| InvalidSource::new(field, why))
        };
        let device =
            Text::parse(&settings.device).map_err(|why| InvalidSource::new("http.device", why))?;
        // What stands in placeholders are paths: looked at now, so that they are right later.
        let mut wrong = None;
        let _ = device.fill(|name| {
            if name != "#" {
                wrong = wrong.take().or(JsonPath::parse(name).err());
            }
            Some(String::new())
        });
        if let Some(why) = wrong {
            return Err(InvalidSource::new("http.device", why));
        }
        let values = settings.values.iter();
        let values = values.map(|(key, at)| Ok((key.clone(), path(&format!("values.{key}"), at)?)));
        Ok(Self {
            web: Web::new("http.server", &settings.server)?,
            method: match settings.method {
                Method::Get => HttpMethod::GET,
                Method::Post => HttpMethod::POST,
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

    pub(super) async fn ask(&self) -> Result<Readings, Failure> {
        let body = self.body.clone().into_bytes();
        let url = self.web.url();
        let asking = self
            .web
            .ask(self.method.clone(), url, "application/json", body);
        let (answer, json) = asking.await?;
        if !answer.is_good() {
            return Err(Failure(answer.told()));
        }
        let json = json.ok_or_else(|| Failure::new(format!("no JSON: {}", answer.told())))?;
        self.take(&json)
    }

    fn take(&self, answer: &Value) -> Result<Readings, Failure> {
        let mut readings = Readings::default();
        let Some(items) = &self.items else {
            self.take_item("0", answer, &mut readings)?;
            return Ok(readings);
        };
        match items.find(answer) {
            Some(Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    self.take_item(&at.to_string(), item, &mut readings)?;
                }
            }
            Some(Value::Object(items)) => {
                for (name, item) in items {
                    self.take_item(name, item, &mut readings)?;
                }
            }
            _ => {
                return Err(Failure::new(
                    "the answer has no list where items says it is",
                ));
            }
        }
        Ok(readings)
    }

    fn take_item(&self, name: &str, item: &Value, readings: &mut Readings) -> Result<(), Failure> {
        let known = |path: &str| match path {
            "#" => Some(name.to_owned()),
            // It was parsed when the source was made ready.
            path => match JsonPath::parse(path).ok()?.find(item)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            },
        };
        let Some(device) = self.device.fill(known) else {
            return Err(Failure::new(format!(
                "the item {name} has nothing that names a device where device says it is"
            )));
        };
        let ts_ms = match self.ts.as_ref().map(|path| path.find(item)) {
            None => None,
            Some(found) => match found.and_then(time_of) {
                Some(ts_ms) => Some(ts_ms),
                None => {
                    return Err(Failure::new(format!(
                        "the item {name} has no time where ts says it is"
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
            let ms = if number.abs() < LEAST_MS {
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

    fn read(settings: Value, answer: &Value) -> Result<Readings, Failure> {
        let mut whole = json!({"server": {"url": "http://h"}});
        whole
            .as_object_mut()
            .unwrap()
            .extend(settings.as_object().unwrap().clone());
        let settings = serde_json::from_value(whole).unwrap();
        Polling::new(&settings).unwrap().take(answer)
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
    fn what_does_not_fit_is_told() {
        let answer = json!({"data": {"id": [1]}});
        for (settings, part) in [
            (json!({"items": "none", "device": "d"}), "no list"),
            (
                json!({"items": "data.id", "device": "${id}"}),
                "names a device",
            ),
            (json!({"device": "d", "ts": "x"}), "no time"),
        ] {
            let failure = read(settings, &answer).unwrap_err().0;
            assert!(failure.contains(part), "{failure}");
        }
    }
}
