//! The cases of the Autobahn test suite, by number, for a server that relays instead of echoing: what a client sends is
//! answered, relayed or refused. Cases 12 and 13 are in `compression.rs`.

use serde_json::json;

use super::{BINARY, CLOSE, PING, RelayClient, TEXT, new_endpoint};
use crate::api::own_node;
use crate::support::{Node, masked_frame};

const PONG: u8 = 0x8a;
const TEXT_MORE: u8 = 0x01;
const BINARY_MORE: u8 = 0x02;
const MORE: u8 = 0x00;
const END: u8 = 0x80;

/// Code points of one to four bytes.
const VALID: &str = "Hello-µ@ßöäüàá-UTF-8!!";

/// One case: frames that a client sends, and what they cause.
struct Case {
    number: &'static str,
    /// First bytes and payloads.
    sent: Vec<(u8, Vec<u8>)>,
    /// The bytes are sent in writes of this length.
    chop_bytes: usize,
    /// So many of the bytes are sent.
    sent_bytes: usize,
    /// What the other clients get.
    relayed: Vec<(u8, Vec<u8>)>,
    /// Payloads of the pongs that the client gets.
    pongs: Vec<Vec<u8>>,
    /// The code and payload bytes of the close frame that the client gets; `None`: the connection stays open.
    close: Option<Vec<u8>>,
}

/// A case whose connection stays open and which relays nothing.
fn case(number: &'static str, sent: &[(u8, &[u8])]) -> Case {
    Case {
        number,
        sent: owned(sent),
        chop_bytes: usize::MAX,
        sent_bytes: usize::MAX,
        relayed: Vec::new(),
        pongs: Vec::new(),
        close: None,
    }
}

fn owned(frames: &[(u8, &[u8])]) -> Vec<(u8, Vec<u8>)> {
    let owned = |(first_byte, payload): &(u8, &[u8])| (*first_byte, payload.to_vec());
    frames.iter().map(owned).collect()
}

impl Case {
    fn chopped(self, chop_bytes: usize) -> Self {
        Self { chop_bytes, ..self }
    }

    fn relays(mut self, messages: &[(u8, &[u8])]) -> Self {
        self.relayed = owned(messages);
        self
    }

    fn pongs(mut self, payloads: &[&[u8]]) -> Self {
        self.pongs = payloads.iter().map(|payload| payload.to_vec()).collect();
        self
    }

    fn closes(mut self, code: u16) -> Self {
        self.close = Some(code.to_be_bytes().to_vec());
        self
    }
}

/// Runs cases one after the other at one endpoint. A receiver sees what is relayed; a last message of another client after
/// each case shows that nothing else is. One shard keeps the order between them.
fn run(cases: Vec<Case>) {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1"]);
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let mut receiver = RelayClient::connect(&node, &id);
    for case in cases {
        let number = case.number;
        let mut client = RelayClient::connect(&node, &id);
        let bytes: Vec<u8> = case
            .sent
            .iter()
            .flat_map(|(first_byte, payload)| masked_frame(*first_byte, payload))
            .collect();
        let bytes = &bytes[..bytes.len().min(case.sent_bytes)];
        for piece in bytes.chunks(case.chop_bytes) {
            // The node may have closed the connection before the last piece.
            let _ = client.0.try_send_bytes(piece);
        }
        for expected in case.pongs {
            assert_eq!(
                client.receive().expect(number),
                (PONG, expected),
                "{number}"
            );
        }
        match case.close {
            Some(expected) => {
                let (first_byte, payload) = client.receive().expect(number);
                assert_eq!(first_byte, CLOSE, "{number}: {payload:?}");
                assert!(payload.starts_with(&expected), "{number}: {payload:?}");
            }
            None => {
                client.0.send_frame(PING, b"open");
                let answer = client.receive().expect(number);
                assert_eq!(answer, (PONG, b"open".to_vec()), "{number}");
            }
        }
        let mut last = RelayClient::connect(&node, &id);
        last.send_text(number);
        for (opcode, payload) in case.relayed {
            let received = receiver.receive().unwrap();
            assert!(received == (opcode, payload), "{number}: {:?}", received.0);
        }
        let received = receiver.receive().unwrap();
        assert!(
            received == (TEXT, number.into()),
            "{number}: {:?}",
            received.0
        );
    }
}

#[test]
fn autobahn_1_framing() {
    let mut cases = Vec::new();
    for (number, opcode, length) in [
        ("1.1.1", TEXT, 0),
        ("1.1.2", TEXT, 125),
        ("1.1.3", TEXT, 126),
        ("1.1.4", TEXT, 127),
        ("1.1.5", TEXT, 128),
        ("1.1.6", TEXT, 65_535),
        ("1.1.7", TEXT, 65_536),
        ("1.2.1", BINARY, 0),
        ("1.2.2", BINARY, 125),
        ("1.2.3", BINARY, 126),
        ("1.2.4", BINARY, 127),
        ("1.2.5", BINARY, 128),
        ("1.2.6", BINARY, 65_535),
        ("1.2.7", BINARY, 65_536),
    ] {
        let payload = vec![if opcode == TEXT { b'*' } else { 0xfe }; length];
        let message = [(opcode, &payload[..])];
        cases.push(case(number, &message).relays(&message));
    }
    for (number, opcode) in [("1.1.8", TEXT), ("1.2.8", BINARY)] {
        let message = [(opcode, &[b'*'; 65_536][..])];
        cases.push(case(number, &message).chopped(997).relays(&message));
    }
    run(cases);
}

#[test]
fn autobahn_2_pings_and_pongs() {
    let binary = &[0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff][..];
    let long = &[0xfe; 125][..];
    let ten: Vec<Vec<u8>> = (0..10)
        .map(|n| format!("payload-{n}").into_bytes())
        .collect();
    let ten: Vec<&[u8]> = ten.iter().map(Vec::as_slice).collect();
    let ten_pings: Vec<(u8, &[u8])> = ten.iter().map(|payload| (PING, *payload)).collect();
    run(vec![
        case("2.1", &[(PING, b"")]).pongs(&[b""]),
        case("2.2", &[(PING, b"Hello, world!")]).pongs(&[b"Hello, world!"]),
        case("2.3", &[(PING, binary)]).pongs(&[binary]),
        case("2.4", &[(PING, long)]).pongs(&[long]),
        case("2.5", &[(PING, &[0xfe; 126])]).closes(1002),
        case("2.6", &[(PING, long)]).chopped(1).pongs(&[long]),
        case("2.7", &[(PONG, b"")]),
        case("2.8", &[(PONG, b"unsolicited pong payload")]),
        case("2.9", &[(PONG, b"unsolicited"), (PING, b"ping payload")]).pongs(&[b"ping payload"]),
        case("2.10", &ten_pings).pongs(&ten),
        case("2.11", &ten_pings).chopped(1).pongs(&ten),
    ]);
}

#[test]
fn autobahn_3_reserved_bits() {
    let hello = &b"Hello, world!"[..];
    let text = (TEXT, hello);
    run(vec![
        case("3.1", &[(TEXT | 0x40, hello)]).closes(1002),
        case("3.2", &[text, (TEXT | 0x20, hello), (PING, b"")])
            .relays(&[text])
            .closes(1002),
        case("3.3", &[text, (TEXT | 0x30, hello), (PING, b"")])
            .chopped(19)
            .relays(&[text])
            .closes(1002),
        case("3.4", &[text, (TEXT | 0x40, hello), (PING, b"")])
            .chopped(1)
            .relays(&[text])
            .closes(1002),
        case("3.5", &[(BINARY | 0x50, &[0x00, 0xff])]).closes(1002),
        case("3.6", &[(PING | 0x60, hello)]).closes(1002),
        case("3.7", &[(CLOSE | 0x70, b"")]).closes(1002),
    ]);
}

#[test]
fn autobahn_4_opcodes() {
    let text = (TEXT, &b"Hello, world!"[..]);
    let mut cases = Vec::new();
    for (numbers, first) in [
        (["4.1.1", "4.1.2", "4.1.3", "4.1.4", "4.1.5"], 3),
        (["4.2.1", "4.2.2", "4.2.3", "4.2.4", "4.2.5"], 11),
    ] {
        for (n, number) in numbers.into_iter().enumerate() {
            let reserved = 0x80 | (first + n as u8);
            let payload = if n % 2 == 1 { &b"reserved"[..] } else { b"" };
            let sent = [text, (reserved, payload), (PING, b"")];
            cases.push(match n {
                0 | 1 => case(number, &sent[1..2]).closes(1002),
                4 => case(number, &sent).chopped(1).relays(&[text]).closes(1002),
                _ => case(number, &sent).relays(&[text]).closes(1002),
            });
        }
    }
    run(cases);
}

#[test]
fn autobahn_5_fragmentation() {
    let whole = (TEXT, &b"fragment1fragment2"[..]);
    let first = (TEXT_MORE, &b"fragment1"[..]);
    let last = (END, &b"fragment2"[..]);
    let ping = (PING, &b"ping payload"[..]);
    let continued = [(END, &b"nothing to continue"[..]), (TEXT, b"Hello")];
    let continued_more = [(MORE, continued[0].1), continued[1]];
    let more: &[u8] = b"fragment";
    let five = (TEXT, &b"fragmentfragmentfragmentfragmentfragment"[..]);
    let with_pings = [
        (TEXT_MORE, more),
        (MORE, more),
        (PING, b"pongme 1!"),
        (MORE, more),
        (MORE, more),
        (PING, b"pongme 2!"),
        (END, more),
    ];
    let answers: [&[u8]; 2] = [b"pongme 1!", b"pongme 2!"];
    let repeated = |opcode| [(opcode, more), (TEXT_MORE, more), (END, more)].repeat(2);
    let mut cases = vec![
        case("5.1", &[(0x09, b"frag"), (END, b"ment")]).closes(1002),
        case("5.2", &[(0x0a, b"frag"), (END, b"ment")]).closes(1002),
        case("5.15", &[first, last, (MORE, more), whole])
            .relays(&[whole])
            .closes(1002),
        case("5.16", &repeated(MORE)).closes(1002),
        case("5.17", &repeated(END)).closes(1002),
        case("5.18", &[first, (TEXT, b"fragment2")]).closes(1002),
        case("5.19", &with_pings).relays(&[five]).pongs(&answers),
        case("5.20", &with_pings)
            .chopped(14)
            .relays(&[five])
            .pongs(&answers),
    ];
    for (numbers, chop_bytes) in [
        (["5.3", "5.6", "5.9", "5.12"], usize::MAX),
        (["5.4", "5.7", "5.10", "5.13"], 15),
        (["5.5", "5.8", "5.11", "5.14"], 1),
    ] {
        cases.extend([
            case(numbers[0], &[first, last])
                .chopped(chop_bytes)
                .relays(&[whole]),
            case(numbers[1], &[first, ping, last])
                .chopped(chop_bytes)
                .relays(&[whole])
                .pongs(&[ping.1]),
            case(numbers[2], &continued)
                .chopped(chop_bytes)
                .closes(1002),
            case(numbers[3], &continued_more)
                .chopped(chop_bytes)
                .closes(1002),
        ]);
    }
    run(cases);
}

#[test]
fn autobahn_6_utf8() {
    let text = VALID.as_bytes();
    let single: Vec<(u8, &[u8])> = fragments(text);
    let invalid = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited";
    let mut cases = vec![
        case("6.1.1", &[(TEXT, b"")]).relays(&[(TEXT, b"")]),
        case("6.1.2", &[(TEXT_MORE, b""), (MORE, b""), (END, b"")]).relays(&[(TEXT, b"")]),
        case("6.1.3", &[(TEXT_MORE, b""), (MORE, b"middle"), (END, b"")])
            .relays(&[(TEXT, b"middle")]),
        case("6.2.1", &[(TEXT, text)]).relays(&[(TEXT, text)]),
        case("6.2.2", &[(TEXT_MORE, &text[..8]), (END, &text[8..])]).relays(&[(TEXT, text)]),
        case("6.2.3", &single).relays(&[(TEXT, text)]),
        case("6.2.4", &fragments("κόσμε".as_bytes())).relays(&[(TEXT, "κόσμε".as_bytes())]),
        case("6.3.1", &[(TEXT, invalid)]).closes(1007),
        case("6.3.2", &fragments(invalid)).closes(1007),
        // Fail fast: the rest of the message does not arrive.
        case(
            "6.4.1",
            &[(TEXT_MORE, &invalid[..11]), (MORE, b"\xf4\x90\x80\x80")],
        )
        .closes(1007),
        case("6.4.2", &[(TEXT_MORE, &invalid[..11]), (MORE, b"\xf4\x90")]).closes(1007),
    ];
    for (number, length) in [("6.4.3", 15), ("6.4.4", 13)] {
        // One frame, of which a part arrives.
        let mut cut = case(
            number,
            &[(
                TEXT,
                &[invalid[..11].to_vec(), b"\xf4\x90\x80\x80more".to_vec()].concat(),
            )],
        );
        cut.sent_bytes = 6 + length;
        cases.push(cut.closes(1007));
    }
    // 6.5 to 6.23: sequences, valid or not.
    let valid: [(&'static str, &[u8]); 26] = [
        ("6.6.2", b"\xce\xba"),
        ("6.6.5", b"\xce\xba\xe1\xbd\xb9"),
        ("6.6.7", b"\xce\xba\xe1\xbd\xb9\xcf\x83"),
        ("6.6.9", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc"),
        ("6.6.11", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"),
        ("6.7.1", b"\x00"),
        ("6.7.2", b"\xc2\x80"),
        ("6.7.3", b"\xe0\xa0\x80"),
        ("6.7.4", b"\xf0\x90\x80\x80"),
        ("6.9.1", b"\x7f"),
        ("6.9.2", b"\xdf\xbf"),
        ("6.9.3", b"\xef\xbf\xbf"),
        ("6.9.4", b"\xf4\x8f\xbf\xbf"),
        ("6.11.1", b"\xed\x9f\xbf"),
        ("6.11.2", b"\xee\x80\x80"),
        ("6.11.3", b"\xef\xbf\xbd"),
        ("6.11.4", b"\xf4\x8f\xbf\xbf"),
        ("6.22.1", b"\xef\xbf\xbe"),
        ("6.22.2", b"\xef\xbf\xbf"),
        ("6.22.3", b"\xf0\x9f\xbf\xbe"),
        ("6.22.4", b"\xf0\x9f\xbf\xbf"),
        ("6.22.33", b"\xf4\x8f\xbf\xbe"),
        ("6.22.34", b"\xf4\x8f\xbf\xbf"),
        ("6.23.1", b"\xef\xbf\xb9"),
        ("6.23.5", b"\xef\xbf\xbd"),
        ("6.23.7", b"\xef\xbf\xbf"),
    ];
    let invalid: [(&'static str, &[u8]); 37] = [
        ("6.6.1", b"\xce"),
        ("6.6.3", b"\xce\xba\xe1"),
        ("6.6.4", b"\xce\xba\xe1\xbd"),
        ("6.6.6", b"\xce\xba\xe1\xbd\xb9\xcf"),
        ("6.6.8", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce"),
        ("6.6.10", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce"),
        ("6.8.1", b"\xf8\x88\x80\x80\x80"),
        ("6.8.2", b"\xfc\x84\x80\x80\x80\x80"),
        ("6.10.1", b"\xf7\xbf\xbf\xbf"),
        ("6.10.2", b"\xfb\xbf\xbf\xbf\xbf"),
        ("6.10.3", b"\xfd\xbf\xbf\xbf\xbf\xbf"),
        ("6.11.5", b"\xf4\x90\x80\x80"),
        ("6.12.1", b"\x80"),
        ("6.12.2", b"\xbf"),
        ("6.12.3", b"\x80\xbf"),
        ("6.12.8", b"\x80\xbf\x80\xbf\x80\xbf\x80"),
        ("6.13.1", b"\xc0 \xc1 \xc2 \xc3 "),
        ("6.13.2", b"\xe0 \xe1 \xe2 \xe3 "),
        ("6.13.3", b"\xf0 \xf1 \xf2 \xf3 "),
        ("6.13.5", b"\xfc \xfd "),
        ("6.14.1", b"\xc0"),
        ("6.14.2", b"\xe0\x80"),
        ("6.14.3", b"\xf0\x80\x80"),
        ("6.14.6", b"\xdf"),
        ("6.14.7", b"\xef\xbf"),
        ("6.14.8", b"\xf7\xbf\xbf"),
        ("6.15.1", b"\xc0\xe0\x80\xf0\x80\x80"),
        ("6.16.1", b"\xfe"),
        ("6.16.2", b"\xff"),
        ("6.16.3", b"\xfe\xfe\xff\xff"),
        ("6.17.1", b"\xc0\xaf"),
        ("6.17.3", b"\xf0\x80\x80\xaf"),
        ("6.18.1", b"\xc1\xbf"),
        ("6.19.2", b"\xe0\x80\x80"),
        ("6.20.1", b"\xed\xa0\x80"),
        ("6.20.7", b"\xed\xbf\xbf"),
        ("6.21.1", b"\xed\xa0\x80\xed\xb0\x80"),
    ];
    for (number, payload) in valid {
        cases.push(case(number, &[(TEXT, payload)]).relays(&[(TEXT, payload)]));
    }
    for (number, payload) in invalid {
        cases.push(case(number, &[(TEXT, payload)]).closes(1007));
    }
    run(cases);
}

/// Fragments of one byte.
fn fragments(text: &[u8]) -> Vec<(u8, &[u8])> {
    let last = text.len() - 1;
    let first_byte = |n| match n {
        0 => TEXT_MORE,
        n if n == last => END,
        _ => MORE,
    };
    let fragments = text.chunks(1).enumerate();
    fragments.map(|(n, byte)| (first_byte(n), byte)).collect()
}

#[test]
fn autobahn_7_closing() {
    let close = |code: u16, reason: &[u8]| [&code.to_be_bytes()[..], reason].concat();
    let hello = (TEXT, &b"Hello World!"[..]);
    let normal = close(1000, b"");
    let normal = (CLOSE, &normal[..]);
    let long = vec![b'*'; 256 * 1024];
    let long = (TEXT, &long[..]);
    let mut cases = vec![
        case("7.1.1", &[hello, normal])
            .relays(&[hello])
            .closes(1000),
        case("7.1.2", &[normal, normal]).closes(1000),
        case("7.1.3", &[normal, (PING, b"")]).closes(1000),
        case("7.1.4", &[normal, hello]).closes(1000),
        case(
            "7.1.5",
            &[(TEXT_MORE, b"fragment1"), normal, (END, b"fragment2")],
        )
        .closes(1000),
        case("7.1.6", &[long, hello, normal, (PING, b"")])
            .relays(&[long, hello])
            .closes(1000),
        case("7.3.1", &[(CLOSE, b"")]).closes(1000),
        case("7.3.2", &[(CLOSE, b"a")]).closes(1002),
        case("7.3.3", &[normal]).closes(1000),
        case("7.3.4", &[(CLOSE, &close(1000, b"Hello World!"))]).closes(1000),
        case("7.3.5", &[(CLOSE, &close(1000, &[b'*'; 123]))]).closes(1000),
        case("7.3.6", &[(CLOSE, &close(1000, &[b'*'; 124]))]).closes(1002),
        case("7.5.1", &[(CLOSE, &close(1000, b"\xce\xba\xed\xa0\x80"))]).closes(1007),
        case("7.13.1", &[(CLOSE, &close(5000, b""))]).closes(1002),
        case("7.13.2", &[(CLOSE, &close(65_535, b""))]).closes(1002),
    ];
    for (number, code) in [
        ("7.7.1", 1000),
        ("7.7.2", 1001),
        ("7.7.3", 1002),
        ("7.7.4", 1003),
        ("7.7.5", 1007),
        ("7.7.6", 1008),
        ("7.7.7", 1009),
        ("7.7.8", 1010),
        ("7.7.9", 1011),
        ("7.7.10", 3000),
        ("7.7.11", 3999),
        ("7.7.12", 4000),
        ("7.7.13", 4999),
    ] {
        cases.push(case(number, &[(CLOSE, &close(code, b""))]).closes(code));
    }
    for (number, code) in [
        ("7.9.1", 0),
        ("7.9.2", 999),
        ("7.9.3", 1004),
        ("7.9.4", 1005),
        ("7.9.5", 1006),
        ("7.9.6", 1016),
        ("7.9.7", 1100),
        ("7.9.8", 2000),
        ("7.9.9", 2999),
    ] {
        cases.push(case(number, &[(CLOSE, &close(code, b""))]).closes(1002));
    }
    run(cases);
}

/// Autobahn 9 and 10: long messages, in one frame and in fragments, within the limit of an endpoint.
#[test]
fn autobahn_9_and_10_long_messages() {
    let text = vec![b'*'; 1 << 20];
    let binary = vec![0xfe; 1 << 20];
    let in_fragments = |message: &[u8], fragment_bytes: usize, opcode: u8| {
        let mut frames: Vec<(u8, Vec<u8>)> = message
            .chunks(fragment_bytes)
            .map(|fragment| (MORE, fragment.to_vec()))
            .collect();
        frames[0].0 = opcode & 0x0f;
        let last = frames.len() - 1;
        frames[last].0 |= END;
        frames
    };
    let mut cases = vec![
        case("9.1.2", &[(TEXT, &text[..256 << 10])]).relays(&[(TEXT, &text[..256 << 10])]),
        case("9.1.3", &[(TEXT, &text)]).relays(&[(TEXT, &text)]),
        case("9.2.3", &[(BINARY, &binary)]).relays(&[(BINARY, &binary)]),
        case("9.5.6", &[(TEXT, &text)])
            .chopped(2048)
            .relays(&[(TEXT, &text)]),
    ];
    for (number, opcode, message, fragment_bytes) in [
        ("9.3.2", TEXT_MORE, &text, 256),
        ("9.3.6", TEXT_MORE, &text, 65_536),
        ("9.4.4", BINARY_MORE, &binary, 4096),
        ("10.1.1", TEXT_MORE, &text[..65_536].to_vec(), 1300),
    ] {
        let relayed = [(opcode | END, &message[..])];
        cases.push(Case {
            sent: in_fragments(message, fragment_bytes, opcode),
            ..case(number, &[]).relays(&relayed)
        });
    }
    run(cases);
}
