//! The operations of the API, with the ids and bodies of foreign objects.

use super::*;

/// One operation of the API, as the document describes it.
pub(super) struct Operation {
    pub(super) method: String,
    /// With foreign ids for its parameters.
    pub(super) path: String,
    pub(super) id: String,
    pub(super) scope: String,
    pub(super) role: String,
    pub(super) is_stream: bool,
    pub(super) has_body: bool,
    /// Whether the query parameter `namespace` selects a namespace.
    pub(super) has_namespace_filter: bool,
}

impl Operation {
    pub(super) fn name(&self) -> String {
        format!("{} {} ({})", self.method, self.path, self.id)
    }
}

/// The foreign id for a parameter of a path.
fn foreign_id(path: &str, name: &str) -> String {
    let is_below = |part: &str| path.contains(part);
    let id = match name {
        "scope" => return "server".to_owned(),
        "function" => "f",
        "card" => "c",
        "share" => "s",
        _ if is_below("/device-groups/") => "foreign-group",
        _ if is_below("/notifications/") => "foreign-notification",
        _ if is_below("/endpoints/") => "foreign-endpoint",
        _ if is_below("/dashboards/") => "foreign-dashboard",
        _ if is_below("/products/") => "foreign-product",
        _ if is_below("/api-keys/") => "foreign-key",
        _ if is_below("/invites/") => "foreign-invite",
        _ if is_below("/files/") || is_below("-files/") || is_below("/tus/") => FOREIGN_FILE,
        _ if is_below("/uploads/") => "own-upload",
        _ if is_below("/firmware/") => "foreign-firmware",
        _ if is_below("/firmware-campaigns/") => "1",
        _ if is_below("/firmware-assignments/") => "foreign-assignment",
        _ if is_below("/namespaces/") => "acme",
        _ if is_below("/rpc/persistent/device/") => "foreign-device",
        _ if is_below("/commands/") || is_below("/rpc/persistent/") => "1",
        _ if is_below("/alarm/DEVICE/") || is_below("/highestSeverity/") => "foreign-device",
        _ if is_below("/alarms/") || is_below("/api/alarm/") => "1",
        _ => "foreign-device",
    };
    id.to_owned()
}

/// All operations that need a role.
pub(super) async fn operations(server: &Server) -> Vec<Operation> {
    let file = foreign_file(server);
    let answer = request(server.address, "GET", "/api/v1/openapi.json", &local(), "").await;
    let document = answer.json();
    let mut all = Vec::new();
    for (template, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(role) = operation["x-required-role"].as_str() else {
                continue;
            };
            let mut path = template.clone();
            let mut has_namespace_filter = false;
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                has_namespace_filter |= parameter["in"] == "query" && name == "namespace";
                if parameter["in"] == "path" {
                    let id = foreign_id(template, name).replace(FOREIGN_FILE, &file);
                    path = path.replace(&format!("{{{name}}}"), &id);
                }
            }
            let content = &operation["responses"]["200"]["content"];
            all.push(Operation {
                method: method.to_uppercase(),
                path,
                id: operation["operationId"].as_str().unwrap().to_owned(),
                scope: operation["x-scope"].as_str().unwrap_or_default().to_owned(),
                role: role.to_owned(),
                is_stream: content["text/event-stream"].is_object(),
                has_body: operation["requestBody"].is_object(),
                has_namespace_filter,
            });
        }
    }
    assert!(all.len() > 150, "{} operations", all.len());
    all
}

/// Kinds of objects that belong to a namespace: path, id field, and the fields of one in the foreign namespace.
pub(super) const CREATED_OBJECTS: [(&str, &str, &str); 9] = [
    ("products", "id", r#"{"namespace": "acme"}"#),
    ("device-groups", "id", r#"{"namespace": "acme"}"#),
    ("notifications", "name", r#"{"namespace": "acme"}"#),
    (
        "endpoints",
        "id",
        r#"{"namespace": "acme", "mode": "direct"}"#,
    ),
    ("dashboards", "id", r#"{"namespace": "acme"}"#),
    (
        "api-keys",
        "id",
        r#"{"namespace": "acme", "role": "viewer"}"#,
    ),
    ("invites", "id", r#"{"namespace": "acme"}"#),
    (
        "firmware",
        "id",
        r#"{"namespace": "acme", "title": "t", "firmware_version": "2", "product": "foreign-product", "file": "f"}"#,
    ),
    (
        "firmware-assignments",
        "id",
        r#"{"namespace": "acme", "package": "foreign-firmware", "product": "foreign-product"}"#,
    ),
];

/// The body that creates an object of a kind in the foreign namespace.
fn creation_of(path: &str) -> Option<String> {
    let (_, id_field, fields) =
        (CREATED_OBJECTS.iter()).find(|(kind, ..)| path == format!("/api/v1/{kind}"))?;
    let mut body: Value = serde_json::from_str(fields).unwrap();
    body[*id_field] = "new-one".into();
    Some(body.to_string())
}

/// A body that names foreign objects; `None`: the operation names none in its body.
pub(super) fn foreign_body(operation: &Operation) -> Option<String> {
    if operation.method == "POST"
        && let Some(body) = creation_of(&operation.path)
    {
        return Some(body);
    }
    let body = match operation.id.as_str() {
        "createDevice" => json!({"id": "new-device", "product": "foreign-product"}).to_string(),
        "createInviteBatch" => json!({"count": 2, "namespace": "acme"}).to_string(),
        "createFirmwareCampaign" => {
            json!({"package": "foreign-firmware", "namespace": "acme"}).to_string()
        }
        "queryTelemetry" => json!({"devices": ["foreign-device"], "keys": ["t"], "from_ms": 0}).to_string(),
        "startExport" => json!({"kind": "telemetry", "devices": ["foreign-device"]}).to_string(),
        "uploadFile" | "tusCreate" => "content".to_owned(),
        "thingsboardSaveDevice" => json!({"name": "new-device", "type": "foreign-product"}).to_string(),
        "thingsboardSaveDeviceWithCredentials" => json!({
            "device": {"id": {"entityType": "DEVICE", "id": "foreign-device"}, "name": "x"},
            "credentials": {"credentialsId": "new-token"},
        })
        .to_string(),
        "thingsboardSetDeviceCredentials" => json!({
            "deviceId": {"entityType": "DEVICE", "id": "foreign-device"}, "credentialsId": "new-token",
        })
        .to_string(),
        "importDevices" | "startImport" => "{\"id\": \"new-device\", \"product\": \"foreign-product\"}\n\
             {\"id\": \"foreign-device\", \"product\": \"own-product\"}\n"
            .to_owned(),
        _ => return None,
    };
    Some(body)
}

pub(super) fn body_of(operation: &Operation) -> String {
    match foreign_body(operation) {
        Some(body) => body,
        None if operation.method == "GET" || operation.method == "DELETE" => String::new(),
        None => "{}".to_owned(),
    }
}

/// The query that names foreign objects.
pub(super) fn query_of(operation: &Operation) -> &'static str {
    match operation.id.as_str() {
        "watchMessages" => "?client_id=foreign",
        "startImport" => "?kind=devices",
        "watchTelemetryOfDevices" => "?devices=foreign-device,own-device",
        "thingsboardDevices" | "thingsboardDeviceByName" => "?deviceName=foreign-device",
        "thingsboardTenantDeviceInfos"
        | "thingsboardDeviceInfos"
        | "thingsboardUserDevices"
        | "thingsboardAlarms" => "?pageSize=10&page=0",
        _ => "",
    }
}
