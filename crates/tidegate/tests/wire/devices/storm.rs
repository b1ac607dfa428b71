//! A thousand devices that come at once, none of which is in memory.

use serde_json::{Value, json};

use super::{SUCCESS, WRONG, api, ask, login, product, state};
use crate::support::{Connect, Node, Raw, eventually, kind, unique};

const DEVICES: usize = 1000;

/// Long enough not to be hashed slowly.
fn password(at: usize) -> String {
    format!("the password of device {at:04}")
}

fn by_password(at: usize, password: String) -> Connect {
    Connect::new(5, unique("c"))
        .username(format!("d{at}"))
        .password(password)
}

/// All of them send CONNECT before anybody reads an answer.
fn all_at_once(node: &Node, connects: &[Connect]) -> Vec<(Raw, u8)> {
    let mut raws: Vec<_> = connects.iter().map(|_| Raw::open(node, 5)).collect();
    for (raw, connect) in raws.iter_mut().zip(connects) {
        raw.send(&connect.bytes());
    }
    let answered = raws.into_iter().map(|mut raw| {
        let reason = raw.recv(kind::CONNACK).reason;
        (raw, reason)
    });
    answered.collect()
}

#[test]
fn a_thousand_cold_devices_come_at_once_and_half_of_them_with_wrong_passwords() {
    let mut node = Node::start(&["--set", "auth.max_failed_logins_per_address=0"]);
    product(&node, "meter", json!({}));
    let mut lines = String::from("id,product,username,password\n");
    for at in 0..DEVICES {
        lines.push_str(&format!("d{at},meter,d{at},{}\n", password(at)));
    }
    let fields = "content-type: text/csv\r\n";
    let (status, _, answer) = ask(&node, ("POST", "device-import"), fields, &lines);
    assert_eq!(
        (status, &answer["created"]),
        (200, &json!(DEVICES)),
        "{answer}"
    );
    for round in ["never read", "after a start"] {
        let connects: Vec<_> = (0..DEVICES)
            .map(|at| match at % 2 {
                0 => by_password(at, password(at)),
                _ => by_password(at, password(at + 1)),
            })
            .collect();
        let answered = all_at_once(&node, &connects);
        for (at, (_, reason)) in answered.iter().enumerate() {
            let wanted = [SUCCESS, WRONG][at % 2];
            assert_eq!(*reason, wanted, "{round}: d{at}");
        }
        eventually("those let in are online, and nobody else", || {
            let (_, counts) = api(&node, "GET", "device-counts", &Value::Null);
            counts["online"] == DEVICES / 2
        });
        assert_eq!(state(&node, "d0"), "online");
        drop(answered);
        node.restart();
    }
    // Nothing is left of their old passwords.
    let credentials = [json!({"type": "password", "username": "d0", "password": password(9999)})];
    let (status, _) = api(
        &node,
        "PUT",
        "devices/d0",
        &json!({"product": "meter", "credentials": credentials}),
    );
    assert_eq!(status, 200);
    assert_eq!(login(&node, &by_password(0, password(0))).1, WRONG);
    assert_eq!(login(&node, &by_password(0, password(9999))).1, SUCCESS);
}
