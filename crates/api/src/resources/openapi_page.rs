//! The OpenAPI document, and an HTML page that shows it without scripts and external resources.

use std::fmt::Write as _;

use serde_json::Value;

use crate::access::EndpointAccess;
use crate::blocking::run_blocking;
use crate::call::{ApiCall, text_response};
use crate::endpoint::{Endpoint, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::state::ApiDocumentation;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;\
    color-scheme:light dark}code,pre{font-family:ui-monospace,monospace;font-size:.92em}pre{overflow:auto;padding:.6em;\
    border:1px solid #8884;border-radius:4px}details{border-top:1px solid #8884;padding:.3em 0}\
    summary{cursor:pointer}table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.1em 1.2em \
    .1em 0}.method{display:inline-block;width:4.5em;font-weight:600}.role{float:right;opacity:.7}";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let how = "Needs no credentials if `http.docs_access` allows it; by default on loopback.";
    vec![
        get("/api/v1/openapi.json", "openapi", document)
            .access(EndpointAccess::Docs)
            .summary("Read the OpenAPI document")
            .description(how)
            .raw_response(200, "OpenAPI 3.1.", &["application/json"]),
        get("/api/docs", "docs", page)
            .access(EndpointAccess::Docs)
            .summary("Show the API documentation")
            .description(how)
            .raw_response(200, "HTML.", &["text/html"]),
    ]
}

async fn document(call: ApiCall) -> ApiResult {
    let text = generated(call, |documentation| documentation.document.clone());
    Ok(text_response("application/json", text.await?))
}

async fn page(call: ApiCall) -> ApiResult {
    let text = generated(call, |documentation| documentation.page.clone());
    Ok(text_response("text/html; charset=utf-8", text.await?))
}

async fn generated(
    call: ApiCall,
    pick: fn(&ApiDocumentation) -> String,
) -> Result<String, ProblemDetails> {
    let app = call.app.clone();
    run_blocking(
        move || pick(&app.documentation),
        "The documentation cannot be generated now.",
    )
    .await
}

/// Renders the page of a document.
pub(crate) fn render(document: &Value) -> String {
    let info = &document["info"];
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>{title} {version}</h1>\n<p>{about}</p>\n\
         <p>For programs: <a href=\"/api/v1/openapi.json\"><code>/api/v1/openapi.json</code></a> (OpenAPI 3.1).</p>\n",
        title = render_text(&info["title"]),
        version = render_text(&info["version"]),
        about = render_text(&info["description"]),
    );
    for tag in document["tags"].as_array().into_iter().flatten() {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p>{}</p>",
            render_text(&tag["name"]),
            render_text(&tag["description"])
        );
        for (path, operations) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in operations.as_object().into_iter().flatten() {
                if operation["tags"][0] == tag["name"] {
                    write_operation(&mut page, method, path, operation, document);
                }
            }
        }
    }
    page.push_str("<h2>Types</h2>\n");
    let schemas = document["components"]["schemas"].as_object();
    for (name, schema) in schemas.into_iter().flatten() {
        let _ = writeln!(
            page,
            "<details id=\"{name}\"><summary><code>{name}</code></summary>{}</details>",
            pretty_json(schema)
        );
    }
    page.push_str("</body></html>\n");
    page
}

fn write_operation(
    page: &mut String,
    method: &str,
    path: &str,
    operation: &Value,
    document: &Value,
) {
    let role = operation["x-required-role"].as_str().unwrap_or("");
    let _ = writeln!(
        page,
        "<details id=\"{}\"><summary><span class=\"role\">{role}</span><code><span class=\"method\">{}</span>{}</code> \
         {}</summary>",
        render_text(&operation["operationId"]),
        method.to_ascii_uppercase(),
        escape(path),
        render_text(&operation["summary"]),
    );
    if !operation["description"].is_null() {
        let _ = writeln!(page, "<p>{}</p>", render_text(&operation["description"]));
    }
    if let Some(parameters) = operation["parameters"].as_array() {
        page.push_str("<table><tr><th>Parameter</th><th>in</th><th></th></tr>\n");
        for parameter in parameters {
            let _ = writeln!(
                page,
                "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
                render_text(&parameter["name"]),
                render_text(&parameter["in"]),
                render_text(&parameter["description"]),
            );
        }
        page.push_str("</table>\n");
    }
    for (media_type, content) in operation["requestBody"]["content"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let _ = writeln!(page, "<p>Body: <code>{}</code></p>", escape(media_type));
        write_schema(page, &content["schema"], document);
    }
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let _ = writeln!(
            page,
            "<p><code>{status}</code> {}</p>",
            render_text(&response["description"])
        );
        for (media_type, content) in response["content"].as_object().into_iter().flatten() {
            if media_type == "application/json" {
                write_schema(page, &content["schema"], document);
            }
        }
    }
    page.push_str("</details>\n");
}

/// Writes a named type as a link, other schemas inline.
fn write_schema(page: &mut String, schema: &Value, document: &Value) {
    let name = schema["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next());
    match name {
        Some(name) => {
            let shown = pretty_json(&document["components"]["schemas"][name]);
            let _ = writeln!(
                page,
                "<p><a href=\"#{name}\"><code>{name}</code></a></p>{shown}"
            );
        }
        None if schema.is_null() => {}
        None => page.push_str(&pretty_json(schema)),
    }
}

fn pretty_json(value: &Value) -> String {
    format!("<pre>{}</pre>", escape(&format!("{value:#}")))
}

/// Renders a text of the document, with backticks as code.
fn render_text(value: &Value) -> String {
    let text = escape(value.as_str().unwrap_or_default());
    let mut written = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => written.push_str(part),
            _ => drop(write!(written, "<code>{part}</code>")),
        }
    }
    written
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
