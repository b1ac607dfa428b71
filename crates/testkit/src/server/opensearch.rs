//! OpenSearch: a node without security, started by the class that its tests use, and HTTP to look into it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use super::instance::{ServerInstance, error_text};

/// Java runs it from its source.
const START: &str = r#"
import org.codelibs.opensearch.runner.OpenSearchRunner;

public class Start {
    public static void main(String[] arguments) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            settings.put("http.port", arguments[1]);
            settings.put("transport.port", "0");
            settings.put("network.host", "127.0.0.1");
            settings.put("discovery.type", "single-node");
        });
        runner.build(OpenSearchRunner.newConfigs().basePath(arguments[0]).numOfNode(1).clusterName("kit"));
        Thread.sleep(Long.MAX_VALUE);
    }
}
"#;

pub(super) fn prepare(server: &ServerInstance) {
    fs::write(server.dir.join("Start.java"), START).expect("a file can be written");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xms256m", "-Xmx512m", "-cp"]);
    command.arg(format!("{}/*", server.program.display()));
    command.arg(server.dir.join("Start.java"));
    command.arg(server.data_dir()).arg(server.port.to_string());
    command
}

/// The body of the answer, which is an error if it is not good.
pub(super) fn request(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, String> {
    let request = format!(
        "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(error_text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(error_text)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer of HTTP")?;
    let is_good = head
        .split(' ')
        .nth(1)
        .is_some_and(|status| status.starts_with('2'));
    match is_good {
        true => Ok(body.to_owned()),
        false => Err(answer),
    }
}
