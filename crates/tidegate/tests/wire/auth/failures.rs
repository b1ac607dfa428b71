//! What is rejected although a part of it is right, and what the log says of authenticators that fail.

use super::{SUCCESS, UNAVAILABLE, WRONG, hashed, login};
use crate::certificates::Authority;
use crate::support::{Connect, Node, Raw, temporary_directory, unique};

#[test]
fn a_certificate_and_a_password_of_different_users_are_rejected() {
    let authority = Authority::new(temporary_directory());
    let file = temporary_directory().join("passwords");
    std::fs::write(&file, format!("ann:{}\n", hashed("pencil"))).unwrap();
    let server = authority.issue_server("server");
    let config = format!(
        "[[listener]]\nname = \"mqtts\"\nbind = \"127.0.0.1:0\"\ntls = {{ certificate = \"{}\", private_key = \"{}\", \
         client_ca = \"{}\", common_name_as_username = true }}\n\
         [[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n\
         [[auth.rule]]\npermission = \"allow\"\ntopics = [\"of/${{username}}\"]\n",
        server.certificate.display(),
        server.key.display(),
        authority.certificate_path().display(),
        file.display()
    );
    let node = Node::start_with_config(&[], &config);
    let connect = |common_name: &str, login: Option<(&str, &str)>, version: u8| {
        let client = authority.issue_client(common_name);
        let stream = authority
            .connect(node.address("mqtts"), Some(&client))
            .unwrap();
        let mut raw = Raw::over(stream, version);
        let mut connect = Connect::new(version, unique("c"));
        if let Some((username, password)) = login {
            connect = connect.username(username).password(password);
        }
        let reason = raw.hand_shake(&connect).reason;
        (raw, reason)
    };
    // The password is right, and so is the certificate: they are of two users.
    assert_eq!(connect("bob", Some(("ann", "pencil")), 5).1, WRONG);
    assert_eq!(connect("bob", Some(("ann", "pencil")), 4).1, 4);
    // Neither does a certificate make up for a wrong password.
    assert_eq!(connect("ann", Some(("ann", "pencils")), 5).1, WRONG);
    for login in [Some(("ann", "pencil")), None] {
        let (mut raw, reason) = connect("ann", login, 5);
        assert_eq!(reason, SUCCESS, "{login:?}");
        assert!(super::may_publish(&mut raw, "of/ann"), "{login:?}");
    }
    let (mut bob, reason) = connect("bob", None, 5);
    assert_eq!(reason, SUCCESS);
    assert!(super::may_publish(&mut bob, "of/bob") && !super::may_publish(&mut bob, "of/ann"));
}

#[test]
fn a_failing_authenticator_is_warned_of_once_in_a_while_with_its_id() {
    const LOGINS: usize = 8;
    // Nobody listens there.
    let config = "[log]\nlevel = \"debug\"\n\
         [[auth.authenticator]]\nname = \"gate\"\ntype = \"http\"\nurl = \"http://127.0.0.1:1/\"\n";
    let node = Node::start_with_config(&[], config);
    for number in 0..LOGINS {
        let username = format!("user-{number}");
        assert_eq!(login(&node, &username, "pencil"), UNAVAILABLE);
    }
    let log = node.log();
    let of_failures: Vec<_> = log
        .lines()
        .filter(|line| line.contains("authenticator failed") && line.contains("gate"))
        .collect();
    assert_eq!(of_failures.len(), LOGINS, "each is logged:\n{log}");
    let warnings: Vec<_> = of_failures
        .iter()
        .filter(|line| line.to_ascii_lowercase().contains("warn"))
        .collect();
    assert_eq!(warnings.len(), 1, "{of_failures:#?}");
    assert_eq!(warnings[0], &of_failures[0], "the first one is the warning");
    assert!(warnings[0].contains("id="), "{}", warnings[0]);
}
