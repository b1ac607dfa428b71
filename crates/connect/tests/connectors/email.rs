//! E-mail connector against a small mail server.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::bench::{ConnectorFixture, until};

/// Encryption that the mail server offers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerSecurity {
    Plain,
    /// The server offers STARTTLS, and accepts mails only after it.
    Starttls,
    Tls,
}

struct MailServer {
    port: u16,
    /// The server's certificate.
    ca: tempfile::NamedTempFile,
    received: Arc<Mutex<ReceivedMail>>,
}

#[derive(Default)]
struct ReceivedMail {
    /// Recipients and the mail.
    mails: Vec<(Vec<String>, String)>,
    /// The login data as sent by the client.
    logins: Vec<String>,
    /// Number of mails to defer.
    busy: usize,
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl MailServer {
    fn start(security: ServerSecurity) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let mut ca = tempfile::NamedTempFile::new().unwrap();
        ca.write_all(made.cert.pem().as_bytes()).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::<Mutex<ReceivedMail>>::default();
        let shared = received.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, received) = (config.clone(), shared.clone());
                // A client that disconnects in the middle is not an error here.
                std::thread::spawn(move || serve(stream.ok()?, security, &config, &received).ok());
            }
        });
        Self { port, ca, received }
    }

    fn connector(&self, security: &str) -> Value {
        let mut connector = json!({
            "type": "email", "server": format!("127.0.0.1:{}", self.port), "security": security,
        });
        if security != "none" {
            connector["tls"] = json!({"ca": self.ca.path()});
        }
        connector
    }
}

fn secure(stream: TcpStream, config: &Arc<ServerConfig>) -> Box<dyn ReadWrite> {
    let connection = ServerConnection::new(config.clone()).unwrap();
    Box::new(StreamOwned::new(connection, stream))
}

fn serve(
    stream: TcpStream,
    security: ServerSecurity,
    config: &Arc<ServerConfig>,
    received: &Mutex<ReceivedMail>,
) -> std::io::Result<()> {
    let mut is_secure = security == ServerSecurity::Tls;
    let raw = stream.try_clone()?;
    let mut line: BufReader<Box<dyn ReadWrite>> = BufReader::new(match is_secure {
        true => secure(stream, config),
        false => Box::new(stream),
    });
    let mut recipients = Vec::new();
    line.get_mut().write_all(b"220 post.example ESMTP\r\n")?;
    loop {
        let mut command = String::new();
        if line.read_line(&mut command)? == 0 {
            return Ok(());
        }
        let command = command.trim();
        let verb = command.split([' ', ':']).next().unwrap_or_default();
        let answer = match verb.to_ascii_uppercase().as_str() {
            "EHLO" if security == ServerSecurity::Starttls && !is_secure => {
                "250-post.example\r\n250 STARTTLS"
            }
            "EHLO" => "250-post.example\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN",
            "STARTTLS" => {
                line.get_mut().write_all(b"220 go ahead\r\n")?;
                line = BufReader::new(secure(raw.try_clone()?, config));
                is_secure = true;
                continue;
            }
            "AUTH" => {
                received.lock().unwrap().logins.push(command.to_owned());
                match command.ends_with("AGFubgBzZWNyZXQ=") {
                    true => "235 welcome",
                    false => "535 who are you",
                }
            }
            "MAIL" if security == ServerSecurity::Starttls && !is_secure => "530 TLS first",
            "MAIL" => {
                recipients.clear();
                let mut received = received.lock().unwrap();
                match received.busy {
                    0 => "250 ok",
                    _ => {
                        received.busy -= 1;
                        "451 later"
                    }
                }
            }
            "RCPT" => {
                recipients.push(command.to_owned());
                "250 ok"
            }
            "DATA" => {
                line.get_mut().write_all(b"354 go on\r\n")?;
                let mut mail = String::new();
                while !mail.ends_with("\r\n.\r\n") {
                    if line.read_line(&mut mail)? == 0 {
                        return Ok(());
                    }
                }
                match mail.contains("spam") {
                    true => "554 we do not want that",
                    false => {
                        received
                            .lock()
                            .unwrap()
                            .mails
                            .push((recipients.clone(), mail));
                        "250 taken"
                    }
                }
            }
            "QUIT" => {
                line.get_mut().write_all(b"221 bye\r\n")?;
                return Ok(());
            }
            "NOOP" | "RSET" => "250 ok",
            _ => "500 what",
        };
        line.get_mut()
            .write_all(format!("{answer}\r\n").as_bytes())?;
    }
}

fn sink() -> Value {
    json!({
        "from": "Tidegate <tidegate@example.org>", "to": ["ops@example.org"], "cc": ["Ann <ann@example.org>"],
        "subject": "${severity}: ${deviceId} ist zu heiß", "text": "${details}\n.\nEnde",
    })
}

fn row(device: &str) -> Value {
    json!({"severity": "CRITICAL", "deviceId": device, "details": "90 °C"})
}

#[test]
fn mails_are_sent_with_and_without_tls() {
    for (security, setting) in [
        (ServerSecurity::Plain, "none"),
        (ServerSecurity::Starttls, "starttls"),
        (ServerSecurity::Tls, "tls"),
    ] {
        let server = MailServer::start(security);
        let mut connector = server.connector(setting);
        connector["username"] = "ann".into();
        connector["password"] = "secret".into();
        let bench = ConnectorFixture::new(connector, sink());
        assert_eq!(bench.test().unwrap(), "SMTP server post.example");
        bench.push(row("oven\r\nBcc: all@example.org"));
        bench.push(row("stove"));
        assert_eq!(bench.until_settled(2).sent, 2);
        bench.stop();
        let received = server.received.lock().unwrap();
        assert!(received.logins.len() >= 2);
        let (recipients, mail) = &received.mails[0];
        assert_eq!(
            *recipients,
            ["RCPT TO:<ops@example.org>", "RCPT TO:<ann@example.org>"]
        );
        // The subject is one line whatever its values are, and a line with only a dot does not end the mail.
        let subject = mail.lines().filter(|line| line.starts_with("Subject:"));
        assert_eq!(subject.count(), 1);
        assert!(!mail.lines().any(|line| line.starts_with("Bcc:")), "{mail}");
        for part in [
            "From: Tidegate <tidegate@example.org>\r\n",
            "Message-ID: <",
            "Ende",
        ] {
            assert!(mail.contains(part), "{part} in {mail}");
        }
        assert!(
            received.mails[1].1.contains("stove"),
            "{}",
            received.mails[1].1
        );
    }
}

#[test]
fn a_mail_is_put_off_or_rejected_and_the_others_are_sent() {
    let server = MailServer::start(ServerSecurity::Plain);
    server.received.lock().unwrap().busy = 2;
    let bench = ConnectorFixture::new(server.connector("none"), sink());
    bench.push(row("one"));
    bench.push(json!({"severity": "MINOR", "deviceId": "two", "details": "spam"}));
    bench.push(row("three"));
    let metrics = bench.until_settled(3);
    assert_eq!((metrics.sent, metrics.failed), (2, 1));
    assert!(metrics.retried > 0);
    let (why, letter) = &bench.letters()[0];
    assert!(why.contains("554") && why.contains("do not want"), "{why}");
    assert_eq!(letter["deviceId"], "two");
    bench.stop();
}

#[test]
fn a_server_that_cannot_be_used_is_reported_and_receives_no_secret() {
    let server = MailServer::start(ServerSecurity::Plain);
    // A server without STARTTLS.
    let mut connector = server.connector("starttls");
    connector["username"] = "ann".into();
    connector["password"] = "secret".into();
    let bench = ConnectorFixture::new(connector, sink());
    let error = bench.test().unwrap_err();
    assert!(error.contains("no STARTTLS"), "{error}");
    bench.stop();
    assert!(server.received.lock().unwrap().logins.is_empty());
    // A certificate for another host.
    let (server, other) = (
        MailServer::start(ServerSecurity::Tls),
        MailServer::start(ServerSecurity::Tls),
    );
    let mut connector = server.connector("tls");
    connector["tls"]["ca"] = json!(other.ca.path());
    let bench = ConnectorFixture::new(connector, sink());
    let error = bench.test().unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    bench.stop();
    // A wrong password may be corrected later: the mail waits.
    let server = MailServer::start(ServerSecurity::Plain);
    let mut connector = server.connector("none");
    connector["username"] = "ann".into();
    connector["password"] = "wrong".into();
    let bench = ConnectorFixture::new(connector, sink());
    bench.push(row("one"));
    until("it was tried again", || {
        (bench.metrics().retried > 1).then_some(())
    });
    let error = bench.test().unwrap_err();
    assert!(error.contains("535") && !error.contains("wrong"), "{error}");
    assert_eq!(bench.metrics().failed, 0);
    drop(bench);
}

#[test]
fn settings_are_checked() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = connect::ConnectorServiceOptions {
        directory: None,
        shards: 1,
    };
    let service = connect::ConnectorService::new(runtime.handle().clone(), options);
    let rejected = |connector: Value| {
        let error = service.check_connector("c", &connector).unwrap_err();
        error.field
    };
    for (field, connector) in [
        ("server", json!({"server": "a b"})),
        ("password", json!({"server": "h", "username": "ann"})),
        ("username", json!({"server": "h", "password": "secret"})),
        (
            "security",
            json!({"server": "h", "security": "none", "username": "ann", "password": "secret"}),
        ),
        ("tls", json!({"server": "h", "security": "none", "tls": {}})),
        (
            "ehlo_name",
            json!({"server": "h", "security": "none", "ehlo_name": "a\r\nb"}),
        ),
    ] {
        let mut connector = connector;
        connector["type"] = "email".into();
        assert_eq!(rejected(connector), field);
    }
    let connector = json!({"type": "email", "server": "h", "security": "none"});
    service.set_connector("c", &connector).unwrap();
    for (field, change) in [
        ("from", json!("nobody")),
        ("to", json!([])),
        ("to[0]", json!(["a@b@c"])),
        ("cc[0]", json!(["x y"])),
        ("subject", json!("${")),
    ] {
        let mut sink = sink();
        sink["connector"] = "c".into();
        let name = field.split('[').next().unwrap();
        sink[name] = change;
        assert_eq!(service.check_sink(&sink).unwrap_err().field, field);
    }
}
