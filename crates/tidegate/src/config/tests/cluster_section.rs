//! The sections cluster and link.

use super::*;

/// Errors of the section `cluster` with these settings.
fn cluster_problems(sets: &[&str]) -> String {
    let sets: Vec<_> = sets.iter().map(|set| format!("cluster.{set}")).collect();
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    TestInput {
        sets: &sets,
        ..TestInput::default()
    }
    .problems()
}

#[test]
fn a_node_is_alone_without_a_section_cluster() {
    assert!(TestInput::default().config().cluster.is_none());
    let sets = &["cluster.managed=false", "cluster.name=plant"];
    let input = TestInput {
        sets,
        ..TestInput::default()
    };
    assert!(input.config().cluster.is_none());
}

#[test]
fn size_classes_of_links_that_descend_are_a_problem() {
    for (text, expected) in [
        (
            "[link]\ntiny_limit_bytes = \"20KiB\"\n",
            "conf/tidegate.toml:2:1: link.small_limit_bytes: 16384 is less than link.tiny_limit_bytes, which is 20480",
        ),
        (
            "[link]\nmedium_limit_bytes = \"8KiB\"\n",
            "conf/tidegate.toml:2:1: link.medium_limit_bytes: 8192 is less than link.small_limit_bytes, which is 16384",
        ),
    ] {
        pretty_eq(&test_file(text).problems(), expected);
    }
}

#[test]
fn problems_of_a_cluster_name_the_setting_and_the_remedy() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "short").unwrap();
    let secret_file = format!("secret_file={}", secret.path().display());
    let urls = "urls=nats://127.0.0.1:4222";
    let cases: &[(&[&str], &[&str])] = &[
        (&["node=a"], &["cluster.node", "cluster.managed = true"]),
        (&[urls], &["cluster.node", "its own name"]),
        (&[urls, "node=a b"], &["cluster.node"]),
        (
            &[urls, "node=a", "managed=true"],
            &["cluster.urls", "remove one of them"],
        ),
        (
            &[urls, "node=a", "peers=b:6222"],
            &["cluster.peers", "cluster.managed = true"],
        ),
        (
            &["managed=true", "node=a", "user=x"],
            &["cluster.user", "cluster.urls"],
        ),
        (
            &["managed=true", "node=a"],
            &["cluster.secret_file", "openssl rand"],
        ),
        (
            &["managed=true", "node=a", &secret_file],
            &["cluster.secret_file", "longer secret"],
        ),
        (
            &[urls, "node=a", "user=x"],
            &["cluster.user", "password_file"],
        ),
        (
            &[urls, "node=a", "certificate=c.pem"],
            &["cluster.private_key"],
        ),
        (
            &[urls, "node=a", "private_key=k.pem"],
            &["cluster.certificate"],
        ),
        (&["urls=http://127.0.0.1", "node=a"], &["cluster.urls"]),
        (&[urls, "node=a", "name=a.b"], &["cluster.name"]),
    ];
    for (sets, parts) in cases {
        let text = cluster_problems(sets);
        for part in *parts {
            assert!(text.contains(part), "{sets:?}: {text}");
        }
    }
    std::fs::write(secret.path(), "0123456789abcdef0123456789abcdef").unwrap();
    let text = cluster_problems(&["managed=true", "node=a", &secret_file, "authorities=ca.pem"]);
    assert!(text.contains("cluster.certificate"), "{text}");
}
