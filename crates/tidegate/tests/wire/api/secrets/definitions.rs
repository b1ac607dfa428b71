//! The configuration and the connectors of the node, with a marker in each secret.

use super::*;

pub(super) fn config(server: SocketAddr) -> String {
    let s = |of: &str| secret(&format!("declared-{of}"));
    let (header, jwt, sql) = (s("auth-header"), s("auth-jwt"), s("auth-sql"));
    let (connector, sink, token) = (s("connector"), s("sink"), s("source"));
    let (signature, key, provisioning, pull) =
        (s("signature"), s("secure"), s("provision"), s("pull"));
    format!(
        r#"
[log]
level = "debug"

[[auth.authenticator]]
name = "declared-jwt"
type = "jwt"
secret = "{jwt}-that-is-long-enough"

[[auth.authenticator]]
name = "declared-http"
type = "http"
enabled = false
url = "http://{server}/"
headers = {{ authorization = "{header}" }}

[[auth.authenticator]]
name = "declared-sql"
type = "mysql"
enabled = false
server = "127.0.0.1:1"
username = "u"
password = "{sql}"
query = "SELECT password_hash FROM u WHERE n = ${{username}}"

[[connector]]
name = "declared"
type = "http"
url = "http://{server}/"
username = "u"
password = "{connector}"
headers = {{ x-key = "{connector}" }}

[[sink]]
name = "declared"
connector = "declared"
path = "/x"
headers = {{ x-sink = "{sink}" }}
signature = {{ secret = "{signature}" }}

[[source]]
name = "declared"
connector = "declared"
token = "{token}"
signature = {{ secret = "{signature}" }}

[[rule]]
name = "declared"
sql = 'SELECT topic FROM "t/#"'
actions = [{{ kind = "sink", sink = "declared" }}]

[[product]]
id = "declared"
secure = {{ secure_id = "shared", secure_key = "{key}" }}
provisioning = {{ mode = "allow_new", key = "declared-key", secret = "{provisioning}" }}

[[notification]]
name = "declared"
to = {{ sink = "declared" }}

[[pull_source]]
name = "declared"
interval_s = 1
[pull_source.http]
server = {{ url = "http://{server}/", token = "{pull}", headers = {{ x-key = "{pull}" }} }}
device = "d"
values = {{ t = "t" }}
"#
    )
}

/// Connectors of each kind with all their secrets, and the settings of a sink over each.
pub(super) fn connectors(server: SocketAddr) -> Vec<(&'static str, Value, Value)> {
    let s = |of: &str| secret(&format!("connector-{of}"));
    let url = format!("http://{server}");
    let nowhere = "127.0.0.1:1";
    let insert = json!({"sql": "INSERT INTO t (a) VALUES (${topic})"});
    vec![
        (
            "http",
            json!({"type": "http", "url": url, "username": "u", "password": s("http"), "headers": {"x-key": s("header")}}),
            json!({"path": "/x", "headers": {"x-key": s("sink-header")}, "signature": {"secret": s("signature")}}),
        ),
        (
            "mysql",
            json!({"type": "mysql", "server": nowhere, "database": "d", "username": "u", "password": s("mysql")}),
            insert.clone(),
        ),
        (
            "postgres",
            json!({"type": "postgres", "server": nowhere, "database": "d", "username": "u", "password": s("postgres")}),
            insert,
        ),
        (
            "redis",
            json!({"type": "redis", "server": nowhere, "password": s("redis")}),
            json!({"command": "LPUSH rows ${topic}"}),
        ),
        (
            "mqtt",
            json!({"type": "mqtt", "server": nowhere, "client_id": "bridge", "username": "u", "password": s("mqtt")}),
            json!({"topic": "x"}),
        ),
        (
            "nats",
            json!({"type": "nats", "servers": [nowhere], "username": "u", "password": s("nats")}),
            json!({"subject": "x"}),
        ),
        (
            "nats-token",
            json!({"type": "nats", "servers": [nowhere], "token": s("nats-token")}),
            json!({"subject": "x"}),
        ),
        (
            "nats-nkey",
            json!({"type": "nats", "servers": [nowhere], "nkey_seed": NKEY_SEED}),
            json!({"subject": "x"}),
        ),
        (
            "kafka",
            json!({"type": "kafka", "servers": [nowhere], "sasl_mechanism": "plain", "username": "u", "password": s("kafka")}),
            json!({"topic": "x"}),
        ),
        (
            "email",
            json!({"type": "email", "server": nowhere, "security": "none", "username": "u", "password": s("email")}),
            json!({"from": "a@example.org", "to": ["b@example.org"], "subject": "s", "text": "t"}),
        ),
        (
            "influxdb",
            json!({"type": "influxdb", "urls": [url], "influxdb_version": 2, "organization": "o", "bucket": "b", "token": s("influx")}),
            json!({"measurement": "m", "fields": {"t": "${topic}"}}),
        ),
        (
            "influxdb-1",
            json!({"type": "influxdb", "urls": [url], "influxdb_version": 1, "database": "d", "username": "u", "password": s("influx1")}),
            json!({"measurement": "m", "fields": {"t": "${topic}"}}),
        ),
        (
            "elasticsearch",
            json!({"type": "elasticsearch", "urls": [url], "username": "u", "password": s("elastic")}),
            json!({"index": "i"}),
        ),
        (
            "elasticsearch-key",
            json!({"type": "elasticsearch", "urls": [url], "api_key": s("elastic-key")}),
            json!({"index": "i"}),
        ),
        (
            "s3",
            json!({"type": "s3", "endpoint": url, "bucket": "bucket", "access_key_id": "id",
                "secret_access_key": s("s3"), "session_token": s("s3-session")}),
            json!({"batch": {"max_wait_ms": 10}}),
        ),
        (
            "clickhouse",
            json!({"type": "clickhouse", "urls": [url], "username": "u", "password": s("clickhouse")}),
            json!({"table": "t"}),
        ),
    ]
}
