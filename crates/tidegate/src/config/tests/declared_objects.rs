//! Objects of devices and rules in the file.

use super::*;

#[test]
fn objects_of_devices_stand_in_the_file_in_any_order() {
    let config = test_file(
        r#"
        [[device_group]]
        id = "second"
        product = "meter"
        tags = { floor = "2" }

        [[namespace]]
        id = "acme"
        quotas = { devices = 10 }

        [[product]]
        id = "meter"
        rule_chain = "warm"

        [[rule_chain]]
        id = "warm"
        nodes = [
            { id = "warm", type = "filter", condition = "t > 20.5" },
            { id = "save", type = "save_telemetry" },
        ]
        relations = [{ from = "warm", on = "true", to = "save" }]

        [[notification]]
        name = "night"
        severities = ["CRITICAL"]
        to = { mqtt = { topic = "alarms/${deviceId}" } }

        [[pull_source]]
        name = "weather"
        interval_s = 60
        [pull_source.http]
        server = { url = "http://127.0.0.1:9/", token = "pencil" }
        device = "d"
        values = { some_file = "a.b" }
        "#,
    )
    .config();
    let declared: Vec<_> = config
        .declared_others
        .iter()
        .map(|(kind, name, _)| format!("{kind} {name}"))
        .collect();
    assert_eq!(
        declared,
        [
            "namespace acme",
            "notification night",
            "rule_chain warm",
            "device_group second",
            "pull_source weather"
        ]
    );
    let source = &config.declared_others[4].2;
    assert_eq!(source["http"]["server"]["token"], "pencil");
    assert_eq!(source["http"]["values"]["some_file"], "a.b");
    assert!(!format!("{config:?}").contains("pencil"));
}

#[test]
fn errors_in_device_objects_are_reported_with_line_and_field() {
    let problems = test_file(
        r#"
[rule_chain]
id = "c"
[[device_group]]
tags = {}
[[device_group]]
id = "g"
device = ["d"]
[[namespace]]
id = "Acme"
[[notification]]
name = "n"
to = { mqtt = { topic = "a/#" } }
[[notification]]
name = "m"
to = { mqtt = { topic = "a" } }
[[notification]]
name = "m"
to = { mqtt = { topic = "a" } }
[[pull_source]]
name = "p"
interval_s = 60
[pull_source.http]
server = { url = "http://127.0.0.1:9/", token_file = "nowhere" }
device = "d"
"#,
    )
    .problems();
    let places = [
        "2:2: rule_chain: write it as [[rule_chain]]",
        "4:1: device_group.id: expected a text",
        "6:1: device_group.device: g: ",
        "9:1: namespace.id: Acme: ",
        "11:1: notification.to.mqtt.topic: n: ",
        "17:1: notification.name: there is a notification \"m\" already",
        "20:1: pull_source.http.server.token_file: p: conf/nowhere cannot be read: ",
    ];
    let lines: Vec<_> = problems.lines().collect();
    assert_eq!(lines.len(), places.len(), "{problems}");
    for (line, place) in lines.iter().zip(places) {
        let wanted = format!("conf/tidegate.toml:{place}");
        assert!(line.starts_with(&wanted), "{line}\n{wanted}");
    }
}

#[test]
fn errors_in_a_rule_chain_of_the_file_are_reported_with_the_field() {
    let problems = test_file(
        "[[rule_chain]]\nid = \"c\"\nnodes = [{ id = \"f\", type = \"filter\", condition = \"t >\" }]\n",
    )
    .problems();
    assert!(
        problems.starts_with("conf/tidegate.toml:1:1: rule_chain.nodes[0].condition: c: "),
        "{problems}"
    );
}
