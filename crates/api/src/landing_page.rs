//! The page at `/`: version, state, listeners and links into the API. No script, no external
//! resources.

use std::fmt::Write as _;

use broker::info::ListenerInfo;

use crate::node_backend::NotReadyReason;

/// Links that need no credentials. `/metrics` can be set to require a key.
const OPEN_LINKS: [(&str, &str); 5] = [
    ("/api/docs", "the HTTP API: every operation and its fields"),
    (
        "/api/v1/openapi.json",
        "the same, machine-readable (OpenAPI 3.1)",
    ),
    ("/metrics", "metrics for Prometheus"),
    ("/healthz", "whether the process runs"),
    ("/readyz", "whether the node accepts clients"),
];

/// Examples of paths that need a token or an API key. A browser alone cannot open them, so they are
/// not links.
const PROTECTED: [(&str, &str); 4] = [
    ("/api/v1/node", "this node"),
    ("/api/v1/clients", "connected clients"),
    ("/api/v1/subscriptions", "subscriptions"),
    ("/api/v1/settings", "settings"),
];

const PROTECTED_HELP: &str = "<p>These answer 401 without credentials. On this machine, <code>tidegate ctl</code> needs \
    none, for example <code>tidegate ctl clients list</code>. Elsewhere, create an API key with \
    <code>tidegate ctl api-keys add role=viewer</code> and send it: \
    <code>curl -u ID:SECRET HOST:8080/api/v1/clients</code>.</p>\n";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:2em auto;padding:0 1em;\
    color-scheme:light dark}table{border-collapse:collapse}td,th{text-align:left;padding:.2em 1.5em .2em 0}\
    code{font-family:ui-monospace,monospace}";

pub(crate) fn render(
    version: &str,
    not_ready: Option<NotReadyReason>,
    listeners: &[ListenerInfo],
    no_console: &str,
) -> String {
    let state = not_ready.map_or("ready", crate::node_backend::not_ready_reason);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tidegate</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>Tidegate</h1>\n<p>An IoT messaging platform, version {version}. This node is {state}. It has no web console: {no_console}.</p>\n"
    );
    if !listeners.is_empty() {
        write_listeners(&mut page, listeners);
    }
    page.push_str("<h2>Without credentials</h2>\n<table>\n");
    // Writing to a string cannot fail.
    for (path, what) in OPEN_LINKS {
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{path}\"><code>{path}</code></a></td><td>{what}</td></tr>"
        );
    }
    page.push_str("</table>\n<h2>With credentials</h2>\n<table>\n");
    for (path, what) in PROTECTED {
        let _ = writeln!(page, "<tr><td><code>{path}</code></td><td>{what}</td></tr>");
    }
    page.push_str("</table>\n");
    page.push_str(PROTECTED_HELP);
    page.push_str("</body></html>\n");
    page
}

fn write_listeners(page: &mut String, listeners: &[ListenerInfo]) {
    page.push_str(
        "<h2>Listeners</h2>\n<table><tr><th>Name</th><th>Protocol</th><th>Address</th><th>Connections</th></tr>\n",
    );
    // Writing to a string cannot fail.
    for listener in listeners {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
            escape(&listener.name),
            listener.protocol,
            escape(&listener.address),
            listener.connections
        );
    }
    page.push_str("</table>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        let listener = ListenerInfo {
            name: "<script>&\"".into(),
            protocol: "mqtt",
            address: "127.0.0.1:1883".into(),
            running: true,
            connections: 3,
            max_connections: 10,
            allows_anonymous: true,
            certificate: None,
        };
        let page = render(
            "1.2.3",
            Some(NotReadyReason::Starting),
            &[listener],
            "it was left out",
        );
        assert!(page.contains("&lt;script&gt;&amp;&quot;"));
        assert!(!page.contains("<script"));
        assert!(page.contains("version 1.2.3. This node is starting"));
    }
}
