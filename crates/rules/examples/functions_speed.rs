//! Measures the duration of functions on one core:
//! `cargo run --release -p tidegate-rules --example functions_speed`.

use std::hint::black_box;
use std::time::Instant;

use rules::{
    Arena, Dialect, EvaluationResources, FunctionContext, FunctionLimits, KvStore, Value, Zone,
    functions,
};

const ROUNDS: u32 = 7;
const CALLS: u32 = 200_000;

fn main() {
    let topic = Value::Str("building/a/floor/2/sensor/0017/data");
    let client = Value::Str("sensor-0017-4f3a9c");
    let payload = Value::Bytes(
        br#"{"deviceId":"sensor_001","temperature":25.5,"humidity":65.2,"error":null}"#,
    );
    let kilobyte = [b'x'; 1024];
    let kilobyte = Value::Bytes(&kilobyte);
    let moment = Value::Int(1_690_599_987_495);
    let text = Value::Str("2023-07-29 10:30:15");
    let int = Value::Int;
    let word = Value::Str;

    println!("{:<44} {:>8}", "function", "ns/call");
    for zone in ["UTC", "Asia/Shanghai"] {
        let zone = &Zone::parse(zone).expect("a bundled zone");
        run("date(timestamp)", zone, "date", &[moment]);
        run("datetime(timestamp)", zone, "datetime", &[moment]);
        run(
            "datetimeToTimestamp('2023-07-29 10:30:15')",
            zone,
            "datetimeToTimestamp",
            &[text],
        );
        run(
            "formatDate(timestamp, 'yyyy-MM-dd HH:mm:ss')",
            zone,
            "formatDate",
            &[moment, word("yyyy-MM-dd HH:mm:ss")],
        );
        run(
            "date_to_unix_ts(...)",
            zone,
            "date_to_unix_ts",
            &[word("second"), word("%Y-%m-%d %H:%M:%S"), text],
        );
    }
    let zone = &Zone::UTC;
    run(
        "datetime(timestamp, 'Europe/Berlin')",
        zone,
        "datetime",
        &[moment, word("Europe/Berlin")],
    );
    run("split(topic, '/')", zone, "split", &[topic, word("/")]);
    run(
        "substring(clientId, 0, 8)",
        zone,
        "substring",
        &[client, int(0), int(8)],
    );
    run(
        "find(payload, 'error')",
        zone,
        "find",
        &[payload, word("error")],
    );
    run("upper(clientId)", zone, "upper", &[client]);
    run(
        "concat(clientId, topic, timestamp)",
        zone,
        "concat",
        &[client, topic, moment],
    );
    run(
        "replaceAll(topic, '/', '.')",
        zone,
        "replaceAll",
        &[topic, word("/"), word(".")],
    );
    run(
        "regex_match(clientId, '^sensor-[0-9]+')",
        zone,
        "regex_match",
        &[client, word("^sensor-[0-9]+")],
    );
    run("json(payload)", zone, "json", &[payload]);
    run(
        "jsonPath(payload, '$.humidity')",
        zone,
        "jsonPath",
        &[payload, word("$.humidity")],
    );
    run(
        "map_get('humidity', payload)",
        zone,
        "map_get",
        &[word("humidity"), payload],
    );
    run("md5(clientId)", zone, "md5", &[client]);
    run("md5(payload)", zone, "md5", &[payload]);
    run("sha1(clientId)", zone, "sha1", &[client]);
    run("sha256(clientId)", zone, "sha256", &[client]);
    run("sha512(clientId)", zone, "sha512", &[client]);
    run("crc32(clientId)", zone, "crc32", &[client]);
    run("base64Encode(payload)", zone, "base64Encode", &[payload]);
    run("uuid()", zone, "uuid", &[]);
    run("uuid_v7()", zone, "uuid_v7", &[]);
    run("snowflakeId()", zone, "snowflakeId", &[]);
    run("nanoid()", zone, "nanoid", &[]);
    run("md5(1 KB)", zone, "md5", &[kilobyte]);
    run("sha1(1 KB)", zone, "sha1", &[kilobyte]);
    run("sha256(1 KB)", zone, "sha256", &[kilobyte]);
    run("sha512(1 KB)", zone, "sha512", &[kilobyte]);
}

/// The best of several rounds, to reduce the influence of other load on the machine.
fn run(label: &str, zone: &Zone, name: &str, values: &[Value<'_>]) {
    let function = functions::find(name).expect("a function");
    let mut resources = EvaluationResources::new([7; 32], 1);
    let mut kv = KvStore::default();
    let mut arena = Arena::new();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS / 100 {
            for _ in 0..100 {
                let mut context = FunctionContext {
                    arena: &arena,
                    resources: &mut resources,
                    kv: &mut kv,
                    message: None,
                    zone,
                    dialect: Dialect::Emqx,
                    now_ms: 1_690_599_987_495,
                    limits: FunctionLimits::default(),
                };
                black_box(
                    function
                        .call(&mut context, black_box(values))
                        .expect("a result"),
                );
            }
            arena.reset();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    println!("{label:<44} {best:>8.0}");
}
