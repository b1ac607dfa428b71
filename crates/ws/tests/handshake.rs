//! The opening handshake: the RFC's example, rejections and their status codes, and both sides against
//! each other.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use proptest::prelude::*;
use ws::{
    ClientHandshake, ClientHandshakeError, ClientRequest, ServerHandshake, ServerHandshakeAccepted,
    ServerHandshakeRejected, ServerHandshakeStep, ServerOptions,
};

const GOOD: &str = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n\
    Sec-WebSocket-Protocol: chat, mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn feed(request: &str) -> ServerHandshakeStep {
    ServerHandshake::new().feed(&ServerOptions::mqtt("/chat"), request.as_bytes())
}

fn accepted(request: &str) -> ServerHandshakeAccepted {
    match feed(request) {
        ServerHandshakeStep::Accepted(accepted) => accepted,
        other => panic!("{other:?}"),
    }
}

fn rejected(request: &str) -> ServerHandshakeRejected {
    match feed(request) {
        ServerHandshakeStep::Rejected(rejected) => rejected,
        other => panic!("{other:?} for {request}"),
    }
}

#[test]
fn the_example_of_the_rfc_is_accepted() {
    let answer = accepted(&format!("{GOOD}frames"));
    assert_eq!(
        String::from_utf8(answer.response).unwrap(),
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    );
    assert_eq!(answer.consumed, GOOD.len());
    assert_eq!(answer.subprotocol.as_deref(), Some("mqtt"));
    assert_eq!(answer.origin.as_deref(), Some("http://example.com"));
    assert_eq!(answer.forwarded_for, None);
}

#[test]
fn fields_are_read_as_browsers_and_proxies_write_them() {
    let request = GOOD
        .replace("Connection: Upgrade", "connection: keep-alive, UPGRADE")
        .replace("Upgrade: websocket", "UPGRADE: h2c ,WebSocket")
        .replace(
            "Host:",
            "X-Forwarded-For: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\nhost:",
        )
        .replace("GET /chat", "GET /chat?token=1");
    let answer = accepted(&request);
    assert_eq!(answer.target, "/chat?token=1");
    assert_eq!(answer.forwarded_for.as_deref(), Some("10.0.0.1, 10.0.0.2"));
    accepted(&GOOD.replace("GET /chat", "GET http://server.example.com/chat"));
    accepted(&GOOD.replace("GET /chat", "GET ws://server.example.com/chat?a=://b"));
}

#[test]
fn the_first_sub_protocol_of_the_server_that_is_offered_is_chosen() {
    let offer = |line: &str| GOOD.replace("Sec-WebSocket-Protocol: chat, mqtt\r\n", line);
    let old_first = accepted(&offer(
        "Sec-WebSocket-Protocol: mqttv3.1\r\nSec-WebSocket-Protocol: mqtt\r\n",
    ));
    assert_eq!(old_first.subprotocol.as_deref(), Some("mqtt"));

    let none = accepted(&offer(""));
    assert_eq!(none.subprotocol, None);
    assert!(
        !String::from_utf8(none.response)
            .unwrap()
            .contains("-Protocol")
    );

    for line in [
        "Sec-WebSocket-Protocol: chat\r\n",
        "Sec-WebSocket-Protocol: \r\n",
    ] {
        let answer = rejected(&offer(line));
        assert_eq!(answer.status, 400);
        assert!(
            answer.reason.contains("mqtt or mqttv3.1"),
            "{}",
            answer.reason
        );
    }

    let strict = ServerOptions {
        require_subprotocol: true,
        ..ServerOptions::mqtt("/chat")
    };
    let step = ServerHandshake::new().feed(&strict, offer("").as_bytes());
    assert!(matches!(
        step,
        ServerHandshakeStep::Rejected(ServerHandshakeRejected { status: 400, .. })
    ));
    let any = ServerOptions {
        subprotocols: vec![],
        ..ServerOptions::mqtt("/chat")
    };
    let step = ServerHandshake::new().feed(&any, GOOD.as_bytes());
    assert!(matches!(
        step,
        ServerHandshakeStep::Accepted(ServerHandshakeAccepted {
            subprotocol: None,
            ..
        })
    ));
}

#[test]
fn an_invalid_handshake_is_rejected_with_a_reason() {
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let cases = [
        ("GET /chat HTTP/1.1", "POST /chat HTTP/1.1", 405, "GET"),
        ("HTTP/1.1", "HTTP/1.0", 400, "HTTP/1.1"),
        ("HTTP/1.1", "HTTP/9", 400, "malformed"),
        ("GET /chat", "GET /other", 404, "/chat"),
        ("GET /chat", "GET /chat/", 404, "/chat"),
        ("GET /chat", "GET http://server.example.com", 404, "/chat"),
        ("Host: server.example.com\r\n", "", 400, "Host"),
        ("Host: ", "Host: a\r\nHost: ", 400, "Host"),
        ("Connection: Upgrade\r\n", "", 426, "Connection: Upgrade"),
        (
            "Connection: Upgrade",
            "Connection: close, upgrades",
            426,
            "Connection: Upgrade",
        ),
        (
            "Upgrade: websocket",
            "Upgrade: h2c",
            426,
            "Upgrade: websocket",
        ),
        ("Version: 13", "Version: 8", 426, "13"),
        ("Sec-WebSocket-Version: 13\r\n", "", 426, "13"),
        (key, "", 400, "Sec-WebSocket-Key"),
        (key, &key.repeat(2), 400, "Sec-WebSocket-Key"),
        (
            "dGhlIHNhbXBsZSBub25jZQ==",
            "dGhlIHNhbXBsZSBub25j",
            400,
            "16 bytes",
        ),
        (
            "dGhlIHNhbXBsZSBub25jZQ==",
            "dGhlIHNhbXBsZSBub25jZQ=!",
            400,
            "16 bytes",
        ),
        (
            "dGhlIHNhbXBsZSBub25jZQ==",
            "dGhlIHNhbXBsZSBub25jZQAA",
            400,
            "16 bytes",
        ),
        (key, &format!("{key}Content-Length: 5\r\n"), 400, "body"),
        (
            key,
            &format!("{key}Transfer-Encoding: chunked\r\n"),
            400,
            "body",
        ),
        (
            "Host: server.example.com\r\n",
            "Host: server.example.com\n\n",
            400,
            "CR LF",
        ),
        ("Host:", "Host :", 400, "malformed"),
        (key, &format!("{key}{}", "X: y\r\n".repeat(70)), 431, "64"),
    ];
    for (from, to, status, hint) in cases {
        let answer = rejected(&GOOD.replacen(from, to, 1));
        assert_eq!(
            answer.status, status,
            "{from:?} -> {to:?}: {}",
            answer.reason
        );
        assert!(answer.reason.contains(hint), "{to:?}: {}", answer.reason);
        let response = String::from_utf8(answer.response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains("close"), "{head}");
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{head}"
        );
        assert_eq!(
            head.contains("\r\nUpgrade: websocket"),
            status == 426,
            "{head}"
        );
        assert_eq!(head.contains("\r\nAllow: GET"), status == 405, "{head}");
    }
}

#[test]
fn other_protocols_are_rejected_at_their_first_byte() {
    for first in [0x10, 0x16, b' ', b'\r', 0xFF] {
        let step = ServerHandshake::new().feed(&ServerOptions::mqtt("/mqtt"), &[first]);
        assert!(
            matches!(
                step,
                ServerHandshakeStep::Rejected(ServerHandshakeRejected { status: 400, .. })
            ),
            "{first:#x}"
        );
    }
}

#[test]
fn the_request_is_bounded() {
    let options = ServerOptions {
        max_header_bytes: 200,
        ..ServerOptions::mqtt("/chat")
    };
    let request = GOOD.replace("Host:", &format!("X: {}\r\nHost:", "y".repeat(200)));
    let mut handshake = ServerHandshake::new();
    for length in 0..200 {
        let step = handshake.feed(&options, &request.as_bytes()[..length]);
        assert!(matches!(step, ServerHandshakeStep::Incomplete), "{length}");
    }
    let step = handshake.feed(&options, &request.as_bytes()[..200]);
    assert!(matches!(
        step,
        ServerHandshakeStep::Rejected(ServerHandshakeRejected { status: 431, .. })
    ));
    let at_once = ServerHandshake::new().feed(&options, request.as_bytes());
    assert!(matches!(
        at_once,
        ServerHandshakeStep::Rejected(ServerHandshakeRejected { status: 431, .. })
    ));
}

const REQUEST: ClientRequest<'static> = ClientRequest {
    host: "broker.example:8083",
    path: "/mqtt?a=b",
    subprotocols: &["mqtt"],
    headers: &[("Authorization", "Bearer x")],
};

/// The server's response to a new request of a client, and the client that waits for it.
fn exchange() -> (ClientHandshake, String) {
    let (client, request) = ClientHandshake::start(&REQUEST).unwrap();
    assert!(String::from_utf8_lossy(&request).contains("\r\nAuthorization: Bearer x\r\n"));
    match ServerHandshake::new().feed(&ServerOptions::mqtt("/mqtt"), &request) {
        ServerHandshakeStep::Accepted(answer) => {
            assert_eq!(answer.consumed, request.len());
            (client, String::from_utf8(answer.response).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn client_and_server_agree() {
    let (mut client, response) = exchange();
    let received = format!("{response}frames");
    for length in 0..response.len() {
        assert_eq!(
            client.feed(&received.as_bytes()[..length]),
            Ok(None),
            "{length}"
        );
    }
    let done = client.feed(received.as_bytes()).unwrap().unwrap();
    assert_eq!(done.consumed, response.len());
    assert_eq!(done.subprotocol.as_deref(), Some("mqtt"));
}

#[test]
fn a_client_may_be_answered_without_a_sub_protocol() {
    let (mut client, response) = exchange();
    let response = response.replace("Sec-WebSocket-Protocol: mqtt\r\n", "");
    assert_eq!(
        client
            .feed(response.as_bytes())
            .unwrap()
            .unwrap()
            .subprotocol,
        None
    );
}

#[test]
fn a_client_rejects_answers_that_break_the_handshake() {
    let cases = [
        ("Upgrade: websocket", "Upgrade: h2c", "upgrade"),
        ("Connection: Upgrade", "Connection: close", "upgrade"),
        (
            "Sec-WebSocket-Accept: ",
            "Sec-WebSocket-Accept: A",
            "Accept",
        ),
        ("Sec-WebSocket-Accept", "X", "Accept"),
        ("Protocol: mqtt", "Protocol: chat", "sub-protocol"),
        (
            "Connection:",
            "Sec-WebSocket-Extensions: permessage-deflate\r\nConnection:",
            "extension",
        ),
    ];
    for (from, to, hint) in cases {
        let (mut client, response) = exchange();
        let error = client
            .feed(response.replace(from, to).as_bytes())
            .unwrap_err();
        assert!(matches!(error, ClientHandshakeError::Invalid(_)), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    let (mut client, _) = exchange();
    let rejection = "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nTry \x1b/mqtt\n";
    let error = client.feed(rejection.as_bytes()).unwrap_err().to_string();
    assert!(
        error.ends_with("with status 404: Not Found Try  /mqtt"),
        "{error}"
    );
    let (mut client, _) = exchange();
    assert_eq!(client.feed(b"\x20\x02"), Err(ClientHandshakeError::NotHttp));
    let (mut client, _) = exchange();
    let endless = format!("HTTP/1.1 101 OK\r\nX: {}", "y".repeat(9000));
    assert_eq!(
        client.feed(endless.as_bytes()),
        Err(ClientHandshakeError::TooLong(8192))
    );
}

#[test]
fn a_request_cannot_be_broken_out_of() {
    let bad = [
        ClientRequest {
            host: "a\r\nX: y",
            ..REQUEST
        },
        ClientRequest {
            host: "",
            ..REQUEST
        },
        ClientRequest {
            path: "mqtt",
            ..REQUEST
        },
        ClientRequest {
            path: "/a b",
            ..REQUEST
        },
        ClientRequest {
            subprotocols: &["mqtt, x"],
            ..REQUEST
        },
        ClientRequest {
            headers: &[("A:", "b")],
            ..REQUEST
        },
        ClientRequest {
            headers: &[("A", "b\r\nC: d")],
            ..REQUEST
        },
    ];
    for request in bad {
        let error = ClientHandshake::start(&request).unwrap_err();
        assert!(
            matches!(error, ClientHandshakeError::InvalidRequest { .. }),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_heads_never_panic(
        start in prop_oneof![Just(""), Just("GET "), Just("GET /chat HTTP/1.1\r\n"), Just("HTTP/1.1 101 a\r\n")],
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let buf = [start.as_bytes(), &bytes, b"\r\n\r\n"].concat();
        let _ = ServerHandshake::new().feed(&ServerOptions::mqtt("/chat"), &buf);
        let _ = ClientHandshake::start(&REQUEST).unwrap().0.feed(&buf);
    }

    #[test]
    fn a_request_may_arrive_in_pieces(lengths in proptest::collection::vec(1usize..60, 1..20)) {
        let mut handshake = ServerHandshake::new();
        let options = ServerOptions::mqtt("/chat");
        let mut here = 0;
        for length in lengths.iter().cycle() {
            here = (here + length).min(GOOD.len());
            let step = handshake.feed(&options, &GOOD.as_bytes()[..here]);
            if here == GOOD.len() {
                prop_assert!(matches!(step, ServerHandshakeStep::Accepted(_)));
                break;
            }
            prop_assert!(matches!(step, ServerHandshakeStep::Incomplete));
        }
    }
}
