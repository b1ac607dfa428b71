//! An alarm rule that looks at each message of `tidegate bench pipeline --alarm`, as a product's does in a node.

use std::path::Path;

use anyhow::Context as _;
use devices::alarm::{AlarmConfig, Alarms};
use devices::ingest::{DeviceRef, PipelineOutputs, ProductProfile};
use devices::{DeviceNo, ImportFormat, ImportMode, PRODUCT_KIND, Registry};
use serde_json::json;
use series::{Point, Series};
use store::{ExpectedVersion, Store};
use wall_clock::now_ms;

/// What looks, and the store it stands on.
pub(crate) struct AlarmEvaluator {
    alarms: Alarms,
    _store: Store,
}

impl AlarmEvaluator {
    /// With so many registered devices; also their numbers.
    pub(crate) fn new(
        directory: &Path,
        series: &Series,
        devices: u32,
    ) -> anyhow::Result<(Self, Vec<DeviceNo>)> {
        let (store, _) = Store::open(&directory.join("store"), store::StoreConfig::default())?;
        let objects = store.objects();
        let registry = Registry::open(objects, devices::RegistryConfig::default())?;
        let above = |severity: &str, value: u32| {
            let test = json!({"key": "temperature", "is": ">", "value": value});
            json!({"severity": severity, "when": test})
        };
        // None of the messages is so hot: this is what looking costs, not what an alarm does.
        let product = json!({"alarms": [{
            "id": "overheated",
            "raise": [above("MAJOR", 60), above("CRITICAL", 80)],
            "clear": {"when": {"key": "temperature", "is": "<", "value": 50}},
        }]});
        objects.put(PRODUCT_KIND, "bench", product, ExpectedVersion::Any)?;
        let lines: String = (0..devices)
            .map(|number| format!("{{\"id\":\"device-{number:05}\",\"product\":\"bench\"}}\n"))
            .collect();
        registry.import(&lines, ImportFormat::Jsonl, ImportMode::Create, 1)?;
        let numbers = (0..devices).map(|number| {
            let device = registry.device(&format!("device-{number:05}"))?;
            Ok(device.context("a device was not registered")?.no)
        });
        let numbers = numbers.collect::<anyhow::Result<_>>()?;
        let tables = objects.tables();
        let alarms = Alarms::open(tables, registry, series.clone(), AlarmConfig::default())?;
        let this = Self {
            alarms,
            _store: store,
        };
        Ok((this, numbers))
    }
}

impl PipelineOutputs for AlarmEvaluator {
    fn evaluate_alarms(
        &self,
        speaker: DeviceRef<'_>,
        _: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        self.alarms.observe_row(speaker.no, now_ms(), ts_ms, points);
    }
}
