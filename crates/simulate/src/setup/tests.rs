//! Creation and removal on a node in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use load_client::node_api::{NodeRequest, NodeTransport};

use super::*;
use crate::definition::SourceDocument;
use crate::machine::MachineShare;
use crate::plan_compiler::CompileOptions;

const FILE: &str = r#"
[product.pump]
create = true
protocol = "thingsboard"
[product.room]
create = true
protocol = "relay"
[fleet.pumps]
product = "pump"
count = 4
[fleet.people]
product = "room"
endpoint = "room-{index}"
count = 2
[[object]]
kind = "rules"
id = "hot"
[[phase]]
name = "a"
"#;

/// Objects by their paths.
#[derive(Debug, Default)]
struct MemoryNode {
    objects: Mutex<BTreeMap<String, Value>>,
    /// Objects of which others need the existence.
    used: Vec<&'static str>,
}

impl MemoryNode {
    fn has(&self, path: &str) -> bool {
        self.objects.lock().unwrap().contains_key(path)
    }

    fn put(&self, path: &str, object: Value) {
        self.objects.lock().unwrap().insert(path.to_owned(), object);
    }

    fn rows(&self, collection: &str, product: Option<&str>) -> Vec<Value> {
        let collection = format!("/api/v1/{collection}/");
        let objects = self.objects.lock().unwrap();
        let rows = objects.iter().filter_map(|(path, object)| {
            let id = path.strip_prefix(&collection)?;
            let mut row = object.clone();
            row["id"] = json!(id);
            let is_wanted = product.is_none_or(|product| object["product"] == product);
            is_wanted.then_some(row)
        });
        rows.collect()
    }

    fn answer(&self, request: &NodeRequest<'_>) -> (u16, Value) {
        let body = || -> Value {
            serde_json::from_str(request.body.map_or("{}", |(_, body)| body)).unwrap_or_default()
        };
        let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
        match (request.method, path) {
            ("POST", "/api/v1/device-import") => {
                for line in request.body.unwrap().1.lines() {
                    let device: Value = serde_json::from_str(line).unwrap();
                    self.put(&device_path(device["id"].as_str().unwrap()), device);
                }
                (200, json!({"rejected": 0}))
            }
            ("GET", "/api/v1/devices") => {
                let product = query.split(['=', '&']).nth(1);
                // Pages of one device.
                let rows = self.rows("devices", product);
                let next = (rows.len() > 1).then_some("more of them");
                (
                    200,
                    json!({"data": rows.first().into_iter().collect::<Vec<_>>(), "next": next}),
                )
            }
            ("GET", "/api/v1/endpoints") => (
                200,
                json!({"data": self.rows("endpoints", None), "next": null}),
            ),
            ("GET", "/api/v1/firmware-campaigns") => (200, json!({"data": []})),
            ("POST", "/api/v1/firmware") => {
                let package = body();
                let id = package["id"].as_str().unwrap().to_owned();
                self.put(&format!("{path}/{id}"), package);
                (201, json!({}))
            }
            ("PUT", _) if request.is_creation && self.has(path) => (412, json!({})),
            ("PUT", _) => {
                self.put(path, body());
                (201, json!({"id": "file"}))
            }
            ("GET", _) => match self.objects.lock().unwrap().get(path) {
                Some(object) => (200, object.clone()),
                None => (404, json!({})),
            },
            ("DELETE", _) if self.used.contains(&path) => (409, json!({})),
            ("DELETE", _) => {
                let product = path.strip_prefix("/api/v1/products/");
                let has_devices =
                    product.is_some_and(|_| !self.rows("devices", product).is_empty());
                if has_devices {
                    return (409, json!({}));
                }
                match self.objects.lock().unwrap().remove(path) {
                    Some(_) => (204, json!({})),
                    None => (404, json!({})),
                }
            }
            (method, path) => (405, json!({"detail": format!("{method} {path}")})),
        }
    }
}

impl NodeTransport for MemoryNode {
    fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)> {
        let (status, body) = self.answer(request);
        Ok((status, body.to_string()))
    }

    fn address(&self) -> String {
        "memory".to_owned()
    }
}

/// Calls `test` with the set-up of a file, or of the part of one of two machines.
fn with_setup(
    (text, machine): (&str, Option<u32>),
    node: &Arc<MemoryNode>,
    progress: &(dyn Fn(SetupProgress) + Sync),
    test: impl FnOnce(&FleetSetup<'_>),
) {
    let document = SourceDocument::parse(Path::new("a.toml"), text).unwrap();
    let machine = machine.map(|number| MachineShare { number, count: 2 });
    let options = CompileOptions {
        machine,
        ..CompileOptions::default()
    };
    let (definition, plan) =
        crate::plan_compiler::compile(&document, Path::new(""), options).unwrap();
    let interrupt = Interrupt::default();
    let mode = SetupMode {
        shares_products: machine.is_some(),
        ..SetupMode::default()
    };
    let api = NodeApi::with_transport(node.clone());
    test(&FleetSetup::new(
        (&plan, &definition),
        api,
        &interrupt,
        mode,
        progress,
    ));
}

#[test]
fn the_last_machine_removes_what_all_of_them_use() {
    let node = Arc::new(MemoryNode::default());
    with_setup((FILE, Some(1)), &node, &|_| {}, |first| {
        with_setup((FILE, Some(2)), &node, &|_| {}, |second| {
            let mut created = [CreatedObjects::default(), CreatedObjects::default()];
            first.create(&mut created[0]).unwrap();
            second.create(&mut created[1]).unwrap();
            for device in ["room-0:people-0", "room-1:people-1"] {
                node.put(&device_path(device), json!({"product": "room"}));
            }
            first.remove(&created[0]).unwrap();
            for path in [
                "rules/hot",
                "endpoints/room-0",
                "endpoints/room-1",
                "products/pump",
            ] {
                assert!(node.has(&format!("/api/v1/{path}")), "{path}");
            }
            assert!(!node.has(&device_path("pumps-0")) && node.has(&device_path("pumps-3")));
            second.remove(&created[1]).unwrap();
            let left = node.objects.lock().unwrap();
            assert!(left.is_empty(), "{left:?}");
        });
    });
}

#[test]
fn devices_are_removed_though_others_use_a_package() {
    let text = format!("{FILE}\n[firmware.image]\nproduct = \"pump\"\nversion = \"2\"\n");
    let node = Arc::new(MemoryNode {
        used: vec!["/api/v1/firmware/simulate-image"],
        ..MemoryNode::default()
    });
    with_setup((&text, None), &node, &|_| {}, |setup| {
        for is_clean in [false, true] {
            let mut created = CreatedObjects::default();
            setup.create(&mut created).unwrap();
            let removed = match is_clean {
                true => setup.clean().map(drop),
                false => setup.remove(&created),
            };
            let error = removed.unwrap_err().to_string();
            assert!(error.contains("still assigned"), "{error}");
            let mut left = node.objects.lock().unwrap();
            let paths: Vec<&String> = left.keys().collect();
            assert_eq!(paths.len(), 2, "{paths:?}");
            left.clear();
        }
    });
}

#[test]
fn the_progress_of_a_removal_reaches_its_end() {
    let text = FILE.replace("count = 4", "count = 12_000");
    let node = Arc::new(MemoryNode::default());
    let reports = Mutex::new(Vec::new());
    let progress = |report| reports.lock().unwrap().push(report);
    with_setup((&text, None), &node, &progress, |setup| {
        let mut created = CreatedObjects::default();
        setup.create(&mut created).unwrap();
        let last = |is_removal, total| {
            let expected = SetupProgress {
                is_removal,
                done: total,
                total,
            };
            assert_eq!(reports.lock().unwrap().last(), Some(&expected));
        };
        last(false, 12_000);
        setup.remove(&created).unwrap();
        last(true, 12_002);
    });
}
