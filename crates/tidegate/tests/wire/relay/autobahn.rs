//! The cases of the Autobahn test suite, by number, for a server that relays instead of echoing: what a client sends is
//! answered, relayed or refused. Cases 12 and 13 are in `compression.rs`.

use serde_json::json;

use super::{BINARY, CLOSE, PING, RelayClient, TEXT, new_endpoint};
use crate::api::own_node;
use crate::support::{Node, masked_frame};

const PONG: u8 = 0x8a;
const TEXT_MORE: u8 = 0x01;
const MORE: u8 = 0x00;
const END: u8 = 0x80;

/// The word of the test suite; its second letter has three bytes.
const KOSME: &[u8] = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5";
/// Code points of one to four bytes.
const VALID: &str = "Hello-µ@ßöäüàá-UTF-8!!";

/// One case: frames that a client sends, and what they cause.
struct Case {
    number: String,
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
fn case(number: impl Into<String>, sent: &[(u8, &[u8])]) -> Case {
    Case {
        number: number.into(),
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
fn run(cases: impl IntoIterator<Item = Case>) {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1"]);
    let definition = json!({
        "mode": "direct", "max_message_bytes": 16 << 20, "max_backlog_bytes": 64 << 20,
    });
    let id = new_endpoint(&node, definition);
    let mut receiver = RelayClient::connect(&node, &id);
    for case in cases {
        let number = &*case.number;
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
        case("6.2.4", &fragments(KOSME)).relays(&[(TEXT, KOSME)]),
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
    for (section, sequences) in (5..).zip(utf8_sequences()) {
        for (at, (is_valid, payload)) in (1..).zip(sequences) {
            let message = [(TEXT, &payload[..])];
            let case = case(format!("6.{section}.{at}"), &message);
            cases.push(match is_valid {
                true => case.relays(&message),
                false => case.closes(1007),
            });
        }
    }
    assert_eq!(cases.len(), 145);
    run(cases);
}

/// The sequences of cases 6.5 to 6.23, by section: those of Markus Kuhn's UTF-8 decoder test, and whether they are valid.
fn utf8_sequences() -> Vec<Vec<(bool, Vec<u8>)>> {
    let all = |is_valid: bool, sequences: &[&[u8]]| {
        let sequences = sequences.iter();
        sequences
            .map(|it| (is_valid, it.to_vec()))
            .collect::<Vec<_>>()
    };
    let prefixes = (1..=KOSME.len()).map(|length| {
        let prefix = &KOSME[..length];
        (std::str::from_utf8(prefix).is_ok(), prefix.to_vec())
    });
    let range = |first: u8, end: u8, after: &[u8]| -> Vec<u8> {
        (first..end)
            .flat_map(|byte| [&[byte], after].concat())
            .collect()
    };
    let mut continuations: Vec<Vec<u8>> = vec![vec![0x80], vec![0xbf]];
    continuations.extend((2..=6).map(|length| [0x80, 0xbf].repeat(3)[..length].to_vec()));
    continuations.push(range(0x80, 0xbf, b""));
    let starts = [
        (0xc0, 0xdf),
        (0xe0, 0xef),
        (0xf0, 0xf7),
        (0xf8, 0xfb),
        (0xfc, 0xfd),
    ];
    let starts = starts.map(|(first, end)| range(first, end, b" "));
    let incomplete: [&[u8]; 10] = [
        b"\xc0",
        b"\xe0\x80",
        b"\xf0\x80\x80",
        b"\xf8\x80\x80\x80",
        b"\xfc\x80\x80\x80\x80",
        b"\xdf",
        b"\xef\xbf",
        b"\xf7\xbf\xbf",
        b"\xfb\xbf\xbf\xbf",
        b"\xfd\xbf\xbf\xbf\xbf",
    ];
    let mut non_characters = all(true, &[b"\xef\xbf\xbe", b"\xef\xbf\xbf"]);
    for first in 0xf0..=0xf4_u8 {
        for second in [0x8f, 0x9f, 0xaf, 0xbf_u8] {
            let is_overlong = first == 0xf0 && second == 0x8f;
            let is_beyond = first == 0xf4 && second != 0x8f;
            if !is_overlong && !is_beyond {
                let last = [0xbe, 0xbf].map(|last| (true, vec![first, second, 0xbf, last]));
                non_characters.extend(last);
            }
        }
    }
    let invalid = |sequences: Vec<Vec<u8>>| sequences.into_iter().map(|it| (false, it)).collect();
    vec![
        // 6.5: some valid text.
        all(
            true,
            &[
                b"hello\x24world",
                b"hello\xc2\xa2world",
                b"hello\xe2\x82\xacworld",
                b"hello\xf0\xa4\xad\xa2world",
                KOSME,
            ],
        ),
        prefixes.collect(),
        // 6.7 to 6.10: first and last sequences of each length.
        all(
            true,
            &[b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"],
        ),
        all(
            false,
            &[b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"],
        ),
        all(
            true,
            &[b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"],
        ),
        all(
            false,
            &[
                b"\xf7\xbf\xbf\xbf",
                b"\xfb\xbf\xbf\xbf\xbf",
                b"\xfd\xbf\xbf\xbf\xbf\xbf",
            ],
        ),
        // 6.11: other boundaries.
        [
            all(
                true,
                &[
                    b"\xed\x9f\xbf",
                    b"\xee\x80\x80",
                    b"\xef\xbf\xbd",
                    b"\xf4\x8f\xbf\xbf",
                ],
            ),
            all(false, &[b"\xf4\x90\x80\x80"]),
        ]
        .concat(),
        // 6.12 to 6.16: malformed sequences.
        invalid(continuations),
        invalid(starts.into()),
        all(false, &incomplete),
        invalid(vec![incomplete.concat()]),
        all(false, &[b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"]),
        // 6.17 to 6.19: overlong sequences.
        all(
            false,
            &[
                b"\xc0\xaf",
                b"\xe0\x80\xaf",
                b"\xf0\x80\x80\xaf",
                b"\xf8\x80\x80\x80\xaf",
                b"\xfc\x80\x80\x80\x80\xaf",
            ],
        ),
        all(
            false,
            &[
                b"\xc1\xbf",
                b"\xe0\x9f\xbf",
                b"\xf0\x8f\xbf\xbf",
                b"\xf8\x87\xbf\xbf\xbf",
                b"\xfc\x83\xbf\xbf\xbf\xbf",
            ],
        ),
        all(
            false,
            &[
                b"\xc0\x80",
                b"\xe0\x80\x80",
                b"\xf0\x80\x80\x80",
                b"\xf8\x80\x80\x80\x80",
                b"\xfc\x80\x80\x80\x80\x80",
            ],
        ),
        // 6.20 and 6.21: surrogates of UTF-16.
        all(
            false,
            &[
                b"\xed\xa0\x80",
                b"\xed\xad\xbf",
                b"\xed\xae\x80",
                b"\xed\xaf\xbf",
                b"\xed\xb0\x80",
                b"\xed\xbe\x80",
                b"\xed\xbf\xbf",
            ],
        ),
        all(
            false,
            &[
                b"\xed\xa0\x80\xed\xb0\x80",
                b"\xed\xa0\x80\xed\xbf\xbf",
                b"\xed\xad\xbf\xed\xb0\x80",
                b"\xed\xad\xbf\xed\xbf\xbf",
                b"\xed\xae\x80\xed\xb0\x80",
                b"\xed\xae\x80\xed\xbf\xbf",
                b"\xed\xaf\xbf\xed\xb0\x80",
                b"\xed\xaf\xbf\xed\xbf\xbf",
            ],
        ),
        // 6.22 and 6.23: code points that are no characters, and specials.
        non_characters,
        (0xb9..=0xbf)
            .map(|last| (true, vec![0xef, 0xbf, last]))
            .collect(),
    ]
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

/// The fragments of a message.
fn in_fragments(message: &[u8], fragment_bytes: usize, opcode: u8) -> Vec<(u8, Vec<u8>)> {
    let mut frames: Vec<(u8, Vec<u8>)> = message
        .chunks(fragment_bytes)
        .map(|fragment| (MORE, fragment.to_vec()))
        .collect();
    frames[0].0 = opcode & 0x0f;
    let last = frames.len() - 1;
    frames[last].0 |= END;
    frames
}

/// A message in fragments, which is relayed as a whole.
fn fragmented(number: String, message: (u8, &[u8]), fragment_bytes: usize) -> Case {
    Case {
        sent: in_fragments(message.1, fragment_bytes, message.0),
        ..case(number, &[]).relays(&[message])
    }
}

#[test]
fn autobahn_9_1_and_9_2_messages_of_64_kib_to_16_mib() {
    let kinds = [(1, TEXT, b'*'), (2, BINARY, 0xfe)];
    run(kinds.into_iter().flat_map(|(section, opcode, byte)| {
        let lengths = [64, 256, 1024, 4096, 8192, 16384].map(|kib| kib << 10);
        (1..).zip(lengths).map(move |(at, length)| {
            let payload = vec![byte; length];
            let message = [(opcode, &payload[..])];
            case(format!("9.{section}.{at}"), &message).relays(&message)
        })
    }));
}

#[test]
fn autobahn_9_3_and_9_4_messages_of_4_mib_in_fragments() {
    let kinds = [(3, TEXT, b'*'), (4, BINARY, 0xfe)];
    run(kinds.into_iter().flat_map(|(section, opcode, byte)| {
        (0..9).map(move |step| {
            let payload = vec![byte; 4 << 20];
            let fragment_bytes = 64 << (2 * step);
            let number = format!("9.{section}.{}", step + 1);
            fragmented(number, (opcode, &payload), fragment_bytes)
        })
    }));
}

#[test]
fn autobahn_9_5_and_9_6_messages_of_1_mib_in_small_writes() {
    let kinds = [(5, TEXT, b'*'), (6, BINARY, 0xfe)];
    run(kinds.into_iter().flat_map(|(section, opcode, byte)| {
        (0..6).map(move |step| {
            let payload = vec![byte; 1 << 20];
            let message = [(opcode, &payload[..])];
            let number = format!("9.{section}.{}", step + 1);
            case(number, &message).chopped(64 << step).relays(&message)
        })
    }));
}

#[test]
fn autobahn_9_7_and_9_8_a_thousand_messages() {
    let kinds = [(7, TEXT, b'*'), (8, BINARY, 0xfe)];
    run(kinds.into_iter().flat_map(|(section, opcode, byte)| {
        (1..)
            .zip([0, 16, 64, 256, 1024, 4096])
            .map(move |(at, length)| {
                let payload = vec![byte; length];
                let messages = vec![(opcode, &payload[..]); 1000];
                case(format!("9.{section}.{at}"), &messages).relays(&messages)
            })
    }));
}

#[test]
fn autobahn_10_fragments_of_1300_bytes() {
    let payload = vec![b'*'; 65_536];
    run([fragmented("10.1.1".to_owned(), (TEXT, &payload), 1300)]);
}
